"""The sensors of how AMP is used, wired together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.guard import Guard
from ampwatch.training.hooks.backward import BackwardTap
from ampwatch.training.model.names import Names
from ampwatch.training.model.trained import Trained
from ampwatch.training.sensors.calls.autocast_backward import AutocastBackwardSensor
from ampwatch.training.sensors.calls.clipping import ClippingSensor
from ampwatch.training.sensors.calls.exceptions import describe
from ampwatch.training.sensors.calls.gradient_use import GradientUseSensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.guard import Account
    from ampwatch.training.hooks.sensor import Sensor
    from ampwatch.training.model.optimizers import OptimizerRegistry
    from ampwatch.training.targets import Targets


class ApiWatch:
    """Watches the calls a training makes: backward, clipping, steps around the scaler.

    Args:
        targets: What is watched.
        registry: Knows which optimizers belong here.
        step: Returns the index of the open iteration.
        observe: Takes what was found, as soon as it is.
        account: Where the time of all of them is counted.

    Attributes:
        backwards: Hears of every backward.
        guards: The guards of the sensors.
        sensors: The sensors, in the order in which they are installed.
    """

    def __init__(
        self,
        targets: Targets,
        registry: OptimizerRegistry,
        step: Callable[[], int],
        observe: Callable[[object], None],
        account: Account,
    ) -> None:
        names = Names(targets.models)
        trained = Trained(names)
        for optimizer in targets.optimizers:
            trained.meet(optimizer)
        self.backwards = BackwardTap()
        scaler = targets.scaler
        is_scaled = scaler is not None and scaler.is_enabled()
        self._ending = Guard("exceptions", account)
        using = Guard("gradient_use", account)
        clipping, autocast = Guard("clipping", account), Guard("autocast_backward", account)
        self.guards = (self._ending, using, clipping, autocast)
        self._names, self._registry = names, registry
        self._step, self._observe = step, observe
        use = (
            GradientUseSensor(
                scaler, registry, names, trained, step, observe, self.backwards, using
            )
            if scaler is not None and is_scaled
            else None
        )
        self.sensors: Sequence[Sensor] = (
            AutocastBackwardSensor(trained, step, observe, self.backwards, autocast),
            ClippingSensor(
                scaler,
                registry,
                names,
                step,
                observe,
                None if use is None else use.clipped,
                clipping,
            ),
            *(() if use is None else (use,)),
        )

    def ended_by(self, error: BaseException) -> None:
        """Tell of the exception that has ended the training. Never raises."""
        self._ending.run(self._describe, error)

    def _describe(self, error: BaseException) -> None:
        for raised in describe(error, self._step(), self._names, self._registry):
            self._observe(raised)
