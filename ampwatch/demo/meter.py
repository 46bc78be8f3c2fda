"""Measures the training for the display, without slowing it: the loss is read when it is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.demo.display import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ampwatch import LastStep
    from ampwatch.demo.course import Moment
    from ampwatch.demo.display import Display


class Meter:
    """Counts steps and skips; updates the display as often as that likes.

    Args:
        display: Where to show.
        clock: Monotonic time. Unit: s.
    """

    def __init__(self, display: Display, clock: Callable[[], float]) -> None:
        self._display = display
        self._clock = clock
        self._shown_at = clock()
        self._steps = 0
        self._skipped = 0
        self._phase = ""

    def update(self, moment: Moment, loss: torch.Tensor, last_step: LastStep) -> None:
        """Take in a step that is over.

        Args:
            moment: Which step.
            loss: Its loss, a scalar on any device.
            last_step: Its outcome, from the monitor.
        """
        self._steps += 1
        self._skipped += last_step.skipped is True  # None where it is not known yet
        phase = "faulty" if moment.faulty else "healthy"
        now = self._clock()
        if phase == self._phase and now - self._shown_at < self._display.every_seconds:
            return
        self._display.show(
            Status(
                phase=phase,
                share=moment.share,
                step=moment.step,
                loss=loss.item(),
                loss_scale=last_step.loss_scale,
                skipped=self._skipped,
                step_seconds=(now - self._shown_at) / self._steps,
            )
        )
        self._shown_at, self._steps, self._phase = now, 0, phase
