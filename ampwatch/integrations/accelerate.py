"""A tracker for Hugging Face accelerate, by which ``accelerator.log`` carries the numbers.

::

    accelerator.init_trackers("project")
    watch = ampwatch.integrations.accelerate.track(accelerator)  # after prepare()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate.tracking import GeneralTracker

import ampwatch
from ampwatch.guard import Guard, Log
from ampwatch.integrations.attached import chosen
from ampwatch.training.monitor import monitor_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from accelerate import Accelerator

logger = Log()


def track(
    accelerator: Accelerator, *, keys: Iterable[str] | None = None, **settings: Any
) -> ampwatch.Monitor:
    """Watch what an Accelerator has prepared, and have its trackers log the numbers.

    From then on each ``accelerator.log(values, step)`` also logs ``amp/loss_scale``, ``amp/grad_norm`` and
    the others of docs/loggers.md at that step, and ``accelerator.end_training()`` ends the monitor.
    ``accelerator.get_tracker("ampwatch").tracker`` is the monitor. One of your own that watches this
    training already is taken, and stays open at the end.

    Args:
        accelerator: An Accelerator that has prepared a model, and whose trackers are there already.
        keys: The keys to log; all that are known by default.
        settings: What ``ampwatch.monitor`` takes by name.

    Returns:
        The monitor.

    Raises:
        AttachError: If nothing is prepared yet.
        SettingsError: If a setting or an ``AMPWATCH_*`` variable is not usable.
    """
    for one in accelerator.trackers:
        if isinstance(one, AmpwatchTracker) and one.is_open:
            logger.warning(
                "expected an Accelerator that is not tracked, got one that is; the second track() does"
                " nothing"
            )
            return one.tracker
    watch = monitor_of(*accelerator._models, accelerator.scaler)  # noqa: SLF001 - it has no other list
    is_mine = watch is None
    if watch is None:
        watch = ampwatch.monitor(accelerator, **settings)
    accelerator.trackers.append(AmpwatchTracker(accelerator, watch, keys, ends=is_mine))
    return watch


class AmpwatchTracker(GeneralTracker):  # type: ignore[misc] # its base may not be installed
    """Hands the numbers of a monitor to the other trackers, whenever they log. Made by ``track``."""

    name = "ampwatch"
    requires_logging_directory = False
    main_process_only = False

    def __init__(
        self,
        accelerator: Accelerator,
        watch: ampwatch.Monitor,
        keys: Iterable[str] | None = None,
        *,
        ends: bool = True,
    ) -> None:
        super().__init__()
        self._accelerator = accelerator
        self._watch = watch
        self._ends = ends
        self._keys = None if keys is None else frozenset(keys)
        self._guard = Guard("the tracker of accelerate")

    @property
    def tracker(self) -> ampwatch.Monitor:
        """The monitor."""
        return self._watch

    @property
    def is_open(self) -> bool:
        """Whether the training is still watched."""
        return not self._watch.closed

    def log(self, values: Any, step: int | None = None, **_: Any) -> None:  # noqa: ARG002 - of the others
        """Log the numbers with whatever is logged at this step."""
        self._guard.run(self._log, step)

    def finish(self) -> None:
        """End the monitor."""
        if self._ends:
            self._watch.close()

    def _log(self, step: int | None) -> None:
        numbers = chosen(self._watch.metrics(), self._keys)
        if not numbers:
            return
        for other in self._accelerator.trackers:
            if not isinstance(other, AmpwatchTracker):
                other.log(numbers, step=step)
