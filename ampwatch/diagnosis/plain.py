"""Plain iterations: those in which nothing is new, and which are counted instead of judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.state.divergence import LOST, MIN_LEVEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration

CALM_LOSS = LOST * MIN_LEVEL
"""Magnitude of a loss below which it says nothing by itself: the least that ``Divergence`` takes for
one from which there is no way back."""


class PlainForm:
    """The form of the iterations that a judged one stands for, if no detector waits for anything.

    Each is like it: the same optimizers took their step and the same schedulers moved, the scale is
    what it was, every loss is finite, and nothing was measured.
    All that the detectors make of such an iteration is to count it.

    Args:
        like: An iteration.
        autocast_dtypes: Names of the autocast dtypes seen so far; read, never copied.
        until_ns: Unix time from which on something is due that waits for an iteration. Unit: ns.
    """

    def __init__(self, like: Iteration, autocast_dtypes: Sequence[str], until_ns: float) -> None:
        self._like = like
        self._dtypes = autocast_dtypes
        self._num_dtypes = len(autocast_dtypes)
        self._until_ns = until_ns

    def takes_all(self, iterations: Sequence[Iteration]) -> bool:
        """Whether iterations that differ in times, losses and tracker alone are of this form, all of them."""
        calm = (-CALM_LOSS < iteration.loss < CALM_LOSS for iteration in iterations)
        return self.takes(iterations[0]) and self.takes(iterations[-1]) and all(calm)

    def takes(self, iteration: Iteration) -> bool:
        """Whether an iteration is of this form. Cost: 0.5 us."""
        like = self._like
        return (
            iteration.found_inf == like.found_inf
            # A scale below one is counted as long as it lasts.
            and (
                like.scaler is None
                or like.loss_scale == iteration.loss_scale == iteration.scale_before >= 1.0
            )
            and iteration.num_losses == like.num_losses
            and (not iteration.num_losses or -CALM_LOSS < iteration.loss < CALM_LOSS)
            and not iteration.topics
            and iteration.census is None
            and iteration.window is None
            and iteration.scaler == like.scaler
            and iteration.applied_directly == like.applied_directly
            and iteration.scheduler_stepped == like.scheduler_stepped
            and iteration.is_told
            and not (iteration.scale_given or iteration.other_found_inf or iteration.ranges)
            and True not in iteration.found_inf.values()
            and len(self._dtypes) == self._num_dtypes
            and iteration.time_ns < self._until_ns
        )
