"""The sensors of ranges, wired together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.guard import Guard
from ampwatch.training.hooks.compiling import may_compile
from ampwatch.training.iteration.governor import Sampler
from ampwatch.training.model.names import Names
from ampwatch.training.sensors.ranges.activations import ActivationSensor
from ampwatch.training.sensors.ranges.gradients import GradientSensor
from ampwatch.training.sensors.ranges.updates import UpdateSensor
from ampwatch.training.sensors.ranges.weights import WeightSensor
from ampwatch.training.transfer.measuring import Measuring

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from ampwatch.diagnosis.evidence.iteration import TensorRange
    from ampwatch.guard import Account
    from ampwatch.settings import Settings
    from ampwatch.training.hooks.sensor import Sensor
    from ampwatch.training.kernels.base import Kernel
    from ampwatch.training.model.optimizers import OptimizerRegistry
    from ampwatch.training.targets import Targets
    from ampwatch.training.transfer.measuring import Sample

MAX_DEVICE_ROWS = 16384
"""Rows of a slab at most: 26 MB on the device and as much in pinned memory."""

MIN_DEVICE_ROWS = 2048
"""Rows of a slab at least: an optimizer may hold more than the models do."""


class RangeWatch:
    """Measures ranges in the iterations that the governor chooses.

    Implements ``iteration.Measurements``. Nothing in here raises: each sensor has a guard of
    its own, and so has what they share.

    Args:
        targets: What is watched.
        settings: Level and budget.
        registry: Knows which optimizers belong here.
        kernel_for: Returns the kernel of a device.
        account: Where the time of all of them is counted.

    Attributes:
        guards: The guards of the sensors.
        sampler: Decides what is measured when.
        measuring: Measures.
        focus: Names of the modules to measure in every iteration; set before ``install``.
    """

    def __init__(
        self,
        targets: Targets,
        settings: Settings,
        registry: OptimizerRegistry,
        kernel_for: Callable[[torch.device], Kernel | None],
        account: Account,
    ) -> None:
        names = Names(targets.models)
        scaled = targets.scaler is not None and targets.scaler.is_enabled()
        self._common = Guard("ranges", account)
        self.guards = [self._common, *(Guard(n, account) for n in _SENSORS)]
        _, gradients, activations, weights, updates = self.guards
        self.measuring = measuring = Measuring(kernel_for, _rows(names))
        self.sampler = sampler = Sampler(settings, lambda: account.spent_ns)
        self._activations = ActivationSensor(names, sampler, measuring, activations, scaled=scaled)
        self._weights = WeightSensor(names, sampler, measuring, weights)
        self._updates = UpdateSensor(registry, names, sampler, measuring, updates)
        self._gradients = GradientSensor(
            targets.scaler, registry, names, sampler, measuring, gradients
        )
        self.focus: set[str] = set()

    @property
    def sensors(self) -> Sequence[Sensor]:
        """The sensors, in the order in which they are installed."""
        return self._gradients, self._activations, self._weights, self._updates

    @property
    def lost_eps(self) -> Mapping[str, float]:
        """Parameters whose ``eps`` is zero in their dtype; read, not copied."""
        return self._updates.lost_eps

    def not_seen(self) -> list[str]:
        """Return, in sentences, what could not be measured."""
        measuring, sentences = self.measuring, []
        if measuring.dropped:
            sentences.append(
                f"{measuring.dropped} measurements of ranges were given up: the device was too far"
                " behind, or there is no kernel for it"
            )
        if may_compile():
            sentences.append(
                "outputs of modules are not measured: torch.compile was called in this process, and"
                " hooks that come and go would have its code compiled again"
            )
        return sentences

    def follow(self, scaler: torch.amp.GradScaler) -> None:
        """Measure the gradients of another scaler from now on: it has taken over."""
        self._gradients.follow(scaler)

    def closing(self, *, nonfinite: bool) -> None:
        """The iteration is about to end."""
        self._weights.closing(nonfinite=nonfinite)

    def seal(self) -> Sample | None:
        """Send off what was measured; ``None`` if nothing was."""
        return self._common.run(self._seal)

    def _seal(self) -> Sample | None:
        sample = self.measuring.seal()
        if sample is not None:
            sample.parts = self.sampler.part[1]
        return sample

    def opened(self, duration_s: float) -> None:
        """The next iteration begins."""
        self._common.run(self.sampler.next, duration_s)
        self._common.run(self._activations.begin, self.focus)
        if self._common.off:
            self.sampler.stop()

    def take(self, sample: Sample) -> Sequence[TensorRange]:
        """Return the measurements of a sample that has arrived."""
        return self._common.run(self._take, sample) or ()

    def _take(self, sample: Sample) -> Sequence[TensorRange]:
        ranges = self.measuring.take(sample)
        if sample.device_ns:
            self.sampler.charge(frozenset(sample.topics), sample.parts, sample.device_ns)
        return ranges

    def discard(self, sample: Sample) -> None:
        """Let go of a sample."""
        self._common.run(self.measuring.discard, sample)

    def alarm(self) -> None:
        """Something was not finite, or is about to be."""
        self._common.run(self.sampler.alarm)

    def calm(self) -> None:
        """A streak of such iterations is over."""
        self._common.run(self.sampler.calm)


_SENSORS = ("gradients", "activations", "weights", "updates")


def _rows(names: Names) -> int:
    """Return how many tensors an iteration may have: of each kind all, of outputs some each."""
    parameters = sum(1 for _ in names.parameters())
    buffers = sum(1 for _ in names.buffers())
    leaves = sum(1 for _ in names.leaf_modules())
    return min(MAX_DEVICE_ROWS, MIN_DEVICE_ROWS + 4 * parameters + buffers + 4 * leaves)
