"""Where values on a device stop being finite: a log of the ops, which is read when they arrive."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.multiprocessing.reductions import StorageWeakRef

from ampwatch.diagnosis.birth_evidence import Origin, Values
from ampwatch.diagnosis.births import DIVISIONS
from ampwatch.diagnosis.lineage import Lineage, OpFacts, SeenOp
from ampwatch.precision.ops import Phase
from ampwatch.sensors.dtypes import name_of
from ampwatch.sensors.extremes import Measures
from ampwatch.sensors.opcounts import written_by
from ampwatch.sensors.operands import (
    FLOATS,
    HALF,
    is_dense,
    is_in_node,
    made_by,
    nonfinite_number,
    read_by,
    second_number,
)
from ampwatch.sensors.sources import user_source

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import torch
    from torch import Tensor

    from ampwatch.diagnosis.birth_evidence import OpTrace
    from ampwatch.sensors.extremes import Extremes, Flight
    from ampwatch.sensors.names import Names
    from ampwatch.sensors.opcounts import OpCall
    from ampwatch.sensors.oplistener import OpPlace

MOST_OPS = 32768
"""Ops that are logged of one iteration. One with more is not followed."""

MOST_FLIGHTS = 8
"""Iterations that may be on their way; one more is dropped and counted."""


class _Operand(NamedTuple):
    """A tensor that an op has read or written, without the tensor."""

    key: int
    dtype: torch.dtype
    numel: int
    row: Extremes | None

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def dtype_name(self) -> str:
        return name_of(self.dtype)

    def is_finite(self) -> bool:
        return self.row is None or self.row.is_finite

    def values(self) -> Values:
        row, dtype = self.row, name_of(self.dtype)
        if row is None:
            return Values(dtype, self.numel)
        low, high = row.low, row.high
        if row.is_finite:
            # Both on one side of zero, the magnitudes lie between theirs.
            least = low if low >= 0.0 else -high if high <= 0.0 else row.least
            return Values(dtype, self.numel, amax=max(-low, high), amin=least)
        nans = math.isnan(low) or math.isnan(high)
        return Values(dtype, self.numel, nans, high == math.inf, low == -math.inf)


class _Gradient(NamedTuple):
    """What there was of a gradient."""

    name: str
    key: int
    shape: torch.Size


class _Noted(NamedTuple):
    """One op of the log; the fields without a word are those of ``OpFacts`` and ``SeenOp``."""

    func: Any
    name: str
    place: OpPlace
    nonfinite: float | None
    is_scaling: bool
    needs_grad: bool
    number: float
    is_hook: bool
    source: str
    inputs: Sequence[_Operand]
    outputs: Sequence[_Operand]
    shapes: frozenset[torch.Size]
    gradients: Sequence[_Gradient]

    def facts(self) -> OpFacts:
        """Return what a birth tells of the op. While an optimizer steps, nothing is noted."""
        return OpFacts(
            overload=str(self.func),
            needs_grad=self.needs_grad,
            number=self.number,
            is_stepping=False,
            gradient=self._gradient(),
            is_hook=self.is_hook,
            source=self.source,
        )

    def _gradient(self) -> str:
        """Return the parameter whose gradient, or a cast of it, was read."""
        keys = {operand.key for operand in self.inputs}
        read = next((g.name for g in self.gradients if g.key in keys), "")
        return read or next((g.name for g in self.gradients if g.shape in self.shapes), "")


@dataclass(slots=True)
class _Log:
    """What was noted of one iteration.

    Attributes:
        step: The iteration.
        ops: What ran; of what ran while an optimizer stepped, only the keys that were written.
        num_ops: How many ops were seen.
        gradients: The gradients at the end, with the names of their parameters.
        scale: The loss scale.
        loss: The loss; ``None`` if there was none.
        loss_on_host: The part of the loss that the host knows.
        flight: The rows, on their way.
    """

    step: int
    ops: list[_Noted | tuple[int, ...]] = field(default_factory=list)
    num_ops: int = 0
    has_half: bool = False
    has_trained: bool = False
    gradients: list[tuple[str, _Operand]] = field(default_factory=list)
    scale: Extremes | None = None
    loss: Extremes | None = None
    loss_on_host: float | None = None
    flight: Flight | None = None


class BirthLog:
    """Follows non-finite values wherever they are, and waits for none of them.

    The smallest and the largest element of what each op writes are found by the device, and
    those of what it reads if no op was seen to write it; with the log of the ops they tell what
    reading each value at once would have told. They arrive some iterations later, and the
    log is gone through only if something in it is not finite. No tensor is kept.

    Args:
        names: Names of parameters and buffers.
        deliver: Takes what was seen of an iteration, from ``poll``.
        is_stepping: Whether an optimizer is stepping. What it writes is not looked at: no finding
            is about it.
        scale: Returns the scaler's scale, ``None`` without one.
        loss: Returns the losses of the open iteration: the sum of those on the host, ``None`` if
            there are none, and of those on a device.
        measures: Measures.

    Attributes:
        dropped: Iterations that were looked at and could not be followed to the end.

    Cost:
        About 20 us an op and one pass over its output, on a device one small kernel.
    """

    def __init__(
        self,
        names: Names,
        deliver: Callable[[OpTrace], None],
        is_stepping: Callable[[], bool],
        scale: Callable[[], Tensor | None],
        loss: Callable[[], tuple[float | None, Tensor | None]],
        measures: Measures | None = None,
    ) -> None:
        self.dropped = 0
        self._names = names
        self._deliver = deliver
        self._is_stepping = is_stepping
        self._scale = scale
        self._loss = loss
        self._measures = measures or Measures()
        self._flying: deque[_Log] = deque()
        # Autograd runs the nodes of several devices in as many threads.
        self._lock = Lock()
        self._log: _Log | None = None
        self._clear()

    @property
    def in_flight(self) -> int:
        """How many iterations are on their way."""
        return len(self._flying)

    def _clear(self) -> None:
        self._storages: dict[int, StorageWeakRef] = {}
        self._rows: dict[int, dict[Hashable, Extremes]] = {}
        self._gradients: list[_Gradient] | None = None

    def begin(self, step: int) -> None:
        """Iteration ``step`` begins."""
        self._measures.clear()
        self._clear()
        self._log = _Log(step)

    def give_up(self) -> None:
        """Follow the iteration no further, and count it."""
        self.dropped += 1
        self._log = None
        self._clear()

    def note(self, call: OpCall, place: OpPlace) -> None:
        """An op has returned."""
        with self._lock:
            log = self._log
            if log is None:
                return
            log.num_ops += 1
            if place.phase is Phase.BACKWARD:
                log.has_trained, self._gradients = True, None
            outputs = made_by(call)
            floats = [tensor for tensor in outputs if tensor.dtype in FLOATS]
            if not floats:
                return
            log.has_half = log.has_half or any(tensor.dtype in HALF for tensor in floats)
            try:
                noted = self._noted(call, place, outputs)
            except _NoRoomError:
                self.give_up()
                return
            log.ops.append(noted)
            if len(log.ops) > MOST_OPS:
                self.give_up()

    def _noted(
        self, call: OpCall, place: OpPlace, outputs: Sequence[Tensor]
    ) -> _Noted | tuple[int, ...]:
        written = [self._key(tensor) for tensor in outputs]
        if self._is_stepping():
            for key in written:
                self._rows.pop(key, None)
            return tuple(written)
        read = read_by(call)
        inputs = self._inputs(call.info.name, read, frozenset(written))
        # Some return other tensors than those that they write: the averages of a batch norm.
        for key in {*written, *map(self._key, written_by(call) if call.info.written else ())}:
            self._rows.pop(key, None)
        scale = self._scale()
        scale_key = 0 if scale is None else self._key(scale)
        is_beside = place.phase is Phase.OPTIMIZER and not place.is_inside
        return _Noted(
            call.func,
            call.info.name,
            place,
            nonfinite_number(call),
            scale_key != 0 and any(operand.key == scale_key for operand in inputs),
            any(tensor.requires_grad for tensor in read),
            second_number(call),
            place.phase is Phase.BACKWARD and not is_in_node(),
            user_source(),
            inputs,
            [
                self._operand(tensor, key) for tensor, key in zip(outputs, written, strict=True)
            ],
            frozenset(t.shape for t in read if t.ndim) if is_beside else frozenset(),
            self._gradients_there_are() if is_beside else (),
        )

    def _inputs(
        self, name: str, read: Sequence[Tensor], written: frozenset[int]
    ) -> list[_Operand]:
        """Return what an op has read, as it was before; of what it has written nothing is known."""
        keys = [self._key(tensor) for tensor in read]
        floats = [i for i, tensor in enumerate(read) if tensor.dtype in FLOATS]
        # Of a divisor it matters how close to zero it comes.
        divisor = floats[-1] if floats and name.rstrip("_") in DIVISIONS else -1
        return [
            _Operand(key, tensor.dtype, tensor.numel(), None)
            if key in written
            else self._operand(tensor, key, least=index == divisor)
            for index, (tensor, key) in enumerate(zip(read, keys, strict=True))
        ]

    def _operand(self, tensor: Tensor, key: int, *, least: bool = False) -> _Operand:
        return _Operand(key, tensor.dtype, tensor.numel(), self._row(tensor, key, least=least))

    def _row(self, tensor: Tensor, key: int, *, least: bool) -> Extremes | None:
        """Return what will be known of a tensor; what was measured is not measured again."""
        if tensor.dtype not in FLOATS or not is_dense(tensor) or not tensor.numel():
            return None
        rows = self._rows.setdefault(key, {})
        view = _view(tensor)
        row = rows.get(view)
        if row is None or (least and not row.has_least):
            row = rows[view] = self._measures.measure(tensor, least=least)
            if row is None:
                raise _NoRoomError
        return row

    def _key(self, tensor: Tensor) -> int:
        """Return what identifies the storage of a tensor until the iteration ends; 0 without one.

        Its address alone would do so only as long as it lives. The object that a weak reference
        is to is no other one's while there is such a reference, and keeps no memory of tensors.
        """
        if not is_dense(tensor):
            return 0
        storage = tensor.untyped_storage()
        key: int = storage._cdata  # noqa: SLF001 - what StorageWeakRef itself compares
        if key not in self._storages:
            self._storages[key] = StorageWeakRef(storage)
        return key

    def _gradients_there_are(self) -> list[_Gradient]:
        """Return the gradients as the last backward has left them."""
        if self._gradients is None:
            self._gradients = [
                _Gradient(name, self._key(p.grad), p.grad.shape)
                for name, p in self._names.parameters()
                if p.grad is not None
            ]
        return self._gradients

    def end(self) -> None:
        """The iteration is over: send what was measured."""
        with self._lock:
            log, self._log = self._log, None
            if log is None:
                return
            if len(self._flying) >= MOST_FLIGHTS or not self._complete(log):
                self.dropped += 1
            else:
                log.flight = self._measures.send()
                self._flying.append(log)
            self._clear()

    def _complete(self, log: _Log) -> bool:
        """Measure what is there at the end; return whether there was room for it."""
        try:
            if log.has_trained:
                log.gradients = [
                    (name, self._operand(p.grad.detach(), self._key(p.grad)))
                    for name, p in self._names.parameters()
                    if p.grad is not None
                ]
            log.loss_on_host, loss = self._loss()
            for name, value in (("scale", self._scale()), ("loss", loss)):
                if value is not None:
                    setattr(log, name, self._row(value.detach(), self._key(value), least=False))
        except _NoRoomError:
            return False
        return True

    def poll(self) -> None:
        """Go through the logs whose values have arrived, oldest first. Never waits."""
        while self._flying:
            log = self._flying[0]
            flight = log.flight
            if flight is None or not flight.has_arrived():
                return
            self._flying.popleft()
            self._deliver(self._replayed(log, is_finite=flight.land()))

    def _replayed(self, log: _Log, *, is_finite: bool) -> OpTrace:
        owners: dict[int, tuple[Origin, str]] = {}

        def owner(key: int) -> tuple[Origin, str]:
            if not owners:
                for name, buffer in self._names.buffers():
                    owners[_identity(buffer)] = Origin.BUFFER, name
                for name, parameter in self._names.parameters():
                    owners[_identity(parameter)] = Origin.PARAMETER, name
            return owners.get(key, (Origin.INPUT, ""))

        lineage = Lineage(log.step, owner)
        for noted in () if is_finite else log.ops:
            if isinstance(noted, _Noted):
                _replay(noted, lineage)
            else:
                lineage.hide(noted)
        trace = lineage.finish(log.gradients, math.nan if log.scale is None else log.scale.high)
        trace.num_ops, trace.has_half, trace.has_trained = (
            log.num_ops,
            log.has_half,
            log.has_trained,
        )
        if log.loss is not None or log.loss_on_host is not None:
            is_known_bad = not math.isfinite(log.loss_on_host or 0.0)
            trace.loss_nonfinite = is_known_bad or not (log.loss is None or log.loss.is_finite)
        return trace


class _NoRoomError(Exception):
    """The values of an iteration do not fit, or cannot be measured now."""


def _replay(noted: _Noted, lineage: Lineage) -> None:
    """Tell of one op as if its values had been read when it ran."""
    bad = {
        index: output.values()
        for index, output in enumerate(noted.outputs)
        if not output.is_finite()
    }
    if not bad and lineage.is_clean:
        return
    op = SeenOp(
        noted.name,
        noted.place.phase,
        noted.place.module,
        noted.place.is_inside,
        noted.nonfinite,
        noted.is_scaling,
        noted.facts,
    )
    if bad:
        lineage.failed(op, noted.outputs, bad, noted.inputs)
    else:
        lineage.settle(op, noted.outputs, noted.inputs)


def _view(tensor: Tensor) -> Hashable:
    """Return what tells views of one storage apart that have other elements."""
    shape, stride = tensor.shape, tensor.stride()
    span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if span == tensor.numel():
        # All of a stretch of memory, in whatever order.
        return tensor.dtype, tensor.storage_offset(), span
    return tensor.dtype, tensor.storage_offset(), shape, stride


def _identity(tensor: Tensor) -> int:
    if not is_dense(tensor):
        return 0
    identity: int = tensor.untyped_storage()._cdata  # noqa: SLF001 - as of the keys
    return identity
