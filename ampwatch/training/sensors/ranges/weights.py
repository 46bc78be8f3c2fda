"""Parameters and buffers as they are at the end of an iteration, and before the first."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from ampwatch.diagnosis.evidence.scaler import BadOption, BrokenWeights, SoundBuffers
from ampwatch.training.devices import is_capturing
from ampwatch.training.hooks import events as on
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.kernels.admission import is_plain
from ampwatch.training.kernels.dtypes import FLOATS, name_of
from ampwatch.training.model.names import module_of
from ampwatch.training.model.tensors import parts_of
from ampwatch.training.transfer.deferred import WIDTH
from ampwatch.training.transfer.measuring import Item
from ampwatch.training.transfer.slabs import How
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from ampwatch.training.iteration.context import Context

MAX_ELEMENTS = 65536
"""Elements of one tensor that are binned on a CPU; amax and non-finite elements are found among all
of them."""

STATE = How(most=MAX_ELEMENTS)


BITS = 24
"""Facts that one number of a reading holds: float32 has each integer of so many bits."""


class _Part(NamedTuple):
    name: str
    dtype: str
    numel: int


class WeightSensor(Sensor):
    """Measures trained parameters and floating-point buffers in iterations that sample state.

    Measures also at the end of an iteration in which something was not finite: a forward whose step
    is then skipped poisons the running statistics of a BatchNorm. And looks at them before the first step:
    what is infinite by then no op of this training has made, and it is meant to be, as in a mask. A
    parameter that is NaN is not.
    """

    name = "weights"

    def __init__(self, context: Context) -> None:
        self._bus = context.bus
        self._names = context.names
        self._governor = context.governor
        self._measuring = context.measuring
        self._observe = context.observe
        self._deferred = context.deferred
        self._iteration = context.iteration
        self._registry = context.registry
        self._suspects: list[tuple[list[_Part], Tensor]] = []
        self._has_begun = False

    @property
    def batched(self) -> frozenset[str]:
        """The end of an iteration in which nothing is measured, after the first."""
        return frozenset({"iteration_closing"}) if self._has_begun else frozenset()

    def installed(self) -> None:
        """Tell which buffers are sound: what is not finite by then is meant to be so. Note parameters that are NaN.

        Cost: a pass over buffers and parameters, without a copy; one wait for each device with buffers, before the first
        step.
        """
        self._has_begun = False
        sound, broken = set[str](), set[str]()
        for parts, largest in _largest_by_device(self._buffers()).values():
            numbers = zip(parts, largest.tolist(), strict=True)
            for part, one in numbers:
                (sound if math.isfinite(one) else broken).add(part.name)
        self._observe(SoundBuffers(frozenset(sound), frozenset(broken)))
        for parts, largest in _largest_by_device(self._trained()).values():
            are_nan = largest.isnan()
            self._deferred.read(are_nan.any(), partial(self._suspect, parts, are_nan))

    def _suspect(self, parts: list[_Part], are_nan: Tensor, read: list[float]) -> None:
        if read[0]:
            self._suspects.append((parts, are_nan))

    def _begin(self) -> None:
        """Tell which parameters are finite before the first step, and report those that are NaN since set-up.

        A checkpoint may have been loaded in between. One of which that cannot be read is taken to be finite: its infinities
        are reported. Cost: another pass over the parameters; nothing waits.
        """
        if is_capturing():
            return
        self._has_begun = True
        self._bus.ignore(self, on.OptimizerStepping)
        now = _largest_by_device(self._trained())
        for parts, largest in now.values():
            bits, dropped = _bits(~largest.isfinite()), self._deferred.dropped
            for begin in range(0, len(bits), WIDTH):
                some = parts[begin * BITS : (begin + WIDTH) * BITS]
                self._deferred.read(bits[begin : begin + WIDTH], partial(self._know, some))
                if self._deferred.dropped > dropped:
                    self._know(some, [0.0] * WIDTH)
                    dropped = self._deferred.dropped
        for parts, were_nan in self._suspects:
            same, largest = now.get(were_nan.device, ([], were_nan))
            if same == parts:
                are_nan = were_nan & largest.isnan()
                judge = partial(self._judge, self._iteration.step, parts)
                self._deferred.read(torch.stack([are_nan.sum(), are_nan.long().argmax()]), judge)
        self._suspects.clear()

    def _know(self, parts: list[_Part], bits: list[float]) -> None:
        known: dict[bool, list[tuple[str, int]]] = {True: [], False: []}
        for i, part in enumerate(parts):
            is_finite = not int(bits[i // BITS]) >> i % BITS & 1
            known[is_finite].append((part.name, part.numel))
        for is_finite, some in known.items():
            self._measuring.know(some, finite=is_finite)

    def _judge(self, step: int, parts: list[_Part], read: list[float]) -> None:
        if read[0]:
            first = parts[int(read[1])]
            self._observe(BrokenWeights(step, first.name, first.dtype, int(read[0])))

    def optimizer_stepping(self, event: on.OptimizerStepping) -> None:
        """Look at the parameters before the first step changes any; that of another training does not."""
        if self._registry.index_of(event.optimizer) is not None:
            self._begin()

    def iteration_closing(self, event: on.IterationClosing) -> None:
        """Measure state where it is planned, and at once where something is not finite."""
        if not self._has_begun:
            self._begin()  # the first step was skipped
        governor = self._governor
        if event.has_nonfinite and governor.observes_skips and governor.takes_first_check():
            self._measure(0, 1)
        elif Topic.WEIGHT in governor.wanted:
            self._measure(*governor.part)

    def _measure(self, part: int, parts: int) -> None:
        """Measure one of ``parts`` parts of the trained parameters, and the buffers; look at options of optimizers."""
        for index, optimizer in self._registry.known():
            for group in optimizer.param_groups:
                for name, value in group.items():
                    # Tensors, as a learning rate on a device may be, are not read here. Infinity may be meant, as of
                    # a norm to clip by.
                    if type(value) is float and (
                        math.isnan(value) or (name == "lr" and math.isinf(value))
                    ):
                        self._observe(BadOption(self._iteration.step, name, value, index))
        parameters = self._trained()[part::parts]
        self._measuring.measure(Topic.WEIGHT, list(_items(parameters)), STATE)
        self._measuring.measure(Topic.BUFFER, list(_items(self._buffers())), STATE)

    def _trained(self) -> list[tuple[str, Tensor]]:
        # A frozen parameter cannot be broken by a step, and may be a mask of infinities.
        return [(name, p) for name, p in self._names.parameters() if p.requires_grad]

    def _buffers(self) -> list[tuple[str, Tensor]]:
        return [(name, b) for name, b in self._names.buffers() if b.is_floating_point()]


def _largest_by_device(
    named: Iterable[tuple[str, Tensor]],
) -> dict[torch.device, tuple[list[_Part], Tensor]]:
    """Return for each device the tensors of floats there, in parts where one is flat, and their largest magnitudes."""
    parts: dict[torch.device, list[_Part]] = defaultdict(list)
    largest: dict[torch.device, list[Tensor]] = defaultdict(list)
    for name, tensor in named:
        for part, values in parts_of(name, tensor, tensor):
            if is_plain(values) and values.dtype in FLOATS:
                parts[values.device].append(_Part(part, name_of(values.dtype), values.numel()))
                largest[values.device].append(_largest(values))
    return {device: (parts[device], torch.stack(found)) for device, found in largest.items()}


@torch.no_grad()
def _largest(values: Tensor) -> Tensor:
    # A norm needs no tensor as large as a cache may be, as ``isfinite`` does.
    norm: Tensor = torch.linalg.vector_norm(values, math.inf)
    return norm.float()


def _bits(flags: Tensor) -> Tensor:
    """Return flags as numbers, ``BITS`` of them in each, the first one the lowest."""
    rows = nn.functional.pad(flags.float(), (0, -len(flags) % BITS)).view(-1, BITS)
    return (rows * 2.0 ** torch.arange(BITS, device=flags.device)).sum(1)


def _items(named: list[tuple[str, Tensor]]) -> Iterator[Item]:
    for name, tensor in named:
        for part, values in parts_of(name, tensor, tensor):
            yield Item(part, module_of(part), values)
