"""Births of non-finite values on a device: a log of the ops, read when their values arrive."""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING

import torch

from ampwatch.diagnosis.evidence.births import Origin
from ampwatch.diagnosis.forward.faults import DIVISIONS, RECIPROCALS
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.devices import PinningError
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.kernels.admission import is_pending, local_part
from ampwatch.training.model.flat import parts_of
from ampwatch.training.ops.operands import (
    FLOATS,
    has_autocast,
    is_beside_graph,
    is_dense,
    is_in_node,
    made_by,
    made_unseen,
    nonfinite_number,
    overwritten_by,
    read_by,
    received_by,
    second_number,
    sent_by,
)
from ampwatch.training.ops.storage import WeakStorage
from ampwatch.training.private import storage_key
from ampwatch.training.sensors.births.asking import emptied
from ampwatch.training.sensors.births.op_log import (
    LoggedGradient,
    LoggedOp,
    LoggedOperand,
    OpLog,
    replayed,
)
from ampwatch.training.sensors.births.unfinished import Unfinished
from ampwatch.training.transfer.extremes import Measures

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from torch import Tensor

    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import OpPlace
    from ampwatch.training.sensors.births.surroundings import Around
    from ampwatch.training.transfer.extremes import Extremes

MAX_OPS = 32768
"""Ops that are logged of one iteration. One with more is not followed."""

COPIES = frozenset({"copy_", "_to_copy", "_foreach_copy_"})
"""Ops that may carry values between the host and a device, when the device gets there."""

MAX_FLIGHTS = 8
"""Iterations that may be on their way; beyond that they are dropped and counted."""


class BirthLog:
    """Follows non-finite values wherever they are, and waits for none of them.

    The device finds the smallest and the largest element of each output, and of each input that
    no op was seen to write. With the log of the ops they show everything that reading each value
    at once would have shown. They arrive some iterations later, and the log is gone through only
    if something in it is not finite. No tensor is kept.

    Args:
        around: Facts of the training besides the ops. Outputs of a stepping optimizer are not
            measured: no finding is about them.
        measures: Finds the smallest and largest elements.

    Attributes:
        dropped: Iterations that were followed and could not be followed to the end.
        held_bytes: Returns the bytes of its rows.

    Cost:
        Some 20 to 100 us an op on the host, of which half is launching; on a device one small
        kernel and one pass over each output, and over what no op was seen to write.
    """

    def __init__(self, around: Around, measures: Measures | None = None) -> None:
        self.dropped = 0
        self._names = around.names
        self._around = around
        self._measures = measures or Measures()
        self.held_bytes = self._measures.held_bytes
        self._flying: deque[OpLog] = deque()
        # Autograd runs the nodes of several devices in as many threads.
        self._lock = Lock()
        self._log: OpLog | None = None
        self._owners: dict[int, tuple[Origin, str]] | None = None
        # Values on a device are known later: none proves here that it has not spoiled another.
        self._unfinished: Unfinished[tuple[LoggedOp, int]] = Unfinished(
            self._key, is_harmless=lambda _tensor: False, is_foreign=self._is_foreign
        )
        self._clear()

    @property
    def in_flight(self) -> int:
        """Number of iterations that are on their way."""
        return len(self._flying)

    def _clear(self) -> None:
        self._unfinished.clear()
        self._storages: dict[int, WeakStorage] = {}
        self._rows: dict[int, dict[Hashable, Extremes]] = {}
        self._gradients: list[LoggedGradient] | None = None

    def prepare(self) -> None:
        """Allocate the pinned memory: pinning is slow and may stop the device."""
        self._measures.prepare()

    def begin(self, step: int) -> None:
        """Begin the log of iteration ``step``."""
        self._measures.clear()
        self._clear()
        self._log = OpLog(step)

    def give_up(self) -> None:
        """Follow the iteration no further, and count it."""
        self.dropped += 1
        self._log = None
        self._clear()

    def note(self, call: OpCall, place: OpPlace) -> None:
        """Log an op that has returned."""
        with self._lock:
            log = self._log
            if log is None:
                return
            log.num_ops += 1
            if place.phase is Phase.BACKWARD:
                log.has_trained = True
                self._gradients = None  # backward replaces gradients, or adds to them
            outputs = received_by(call) if call.info.is_collective else made_by(call)
            try:
                if log.num_ops == 1:
                    log.buffers = self._buffers_but(outputs + overwritten_by(call))
                if not any(tensor.dtype in FLOATS for tensor in outputs):
                    return
                if call.info.is_collective:
                    self._unfinished.forget(outputs)
                if self._unfinished:
                    if self._unfinished.is_delivery(call):
                        return
                    self._finish(call)
                noted = self._noted(call, place, outputs)
            except NO_ROOM:
                self.give_up()
                return
            log.ops.append(noted)
            if len(log.ops) > MAX_OPS:
                self.give_up()

    def _buffers_but(self, written: Sequence[Tensor]) -> list[LoggedOperand]:
        """Measure the buffers as they were before the first op, but for those that it has written."""
        # Not before that op: there the modes of the user are on, and would see it.
        keys = {self._key(tensor) for tensor in written}
        buffers = [(buffer, self._key(buffer)) for _, buffer in self._names.buffers()]
        return [self._operand(buffer, key) for buffer, key in buffers if key not in keys]

    def _noted(
        self, call: OpCall, place: OpPlace, outputs: Sequence[Tensor]
    ) -> LoggedOp | tuple[int, ...]:
        keys = [self._key(tensor) for tensor in outputs]
        written = frozenset(keys).union(map(self._key, overwritten_by(call)))
        # Rows of what is overwritten are of its old values, whichever view was measured.
        for key in written:
            self._rows.pop(key, None)
        # Of a stepping optimizer only the keys are kept: what it overwrites is known no more.
        if self._around.is_stepping:
            # A fused optimizer may unscale gradients in place, which makes none of them finite.
            return tuple(written - {gradient.key for gradient in self._gradients_there_are()})
        is_collective = call.info.is_collective
        read = sent_by(call) if is_collective else read_by(call)
        unseen: list[int] = []
        if place.follows_fused:
            unseen = [self._key(tensor) for tensor in made_unseen(place, read)]
            # Rows of what was there before; and the log keeps no tensor.
            for key in unseen:
                self._rows.pop(key, None)
            place = place._replace(unseen=())
        if call.info.name in COPIES:
            self._share([t for t in read if self._key(t) not in written], outputs)
        inputs = self._inputs(call.info.name, read, written)
        scale = self._around.scale
        scale_key = 0 if scale is None else self._key(scale)
        is_beside = place.phase is Phase.OPTIMIZER and not place.is_inside
        noted = LoggedOp(
            call.func,
            call.info.name,
            place,
            nonfinite_number(call),
            scale_key != 0 and any(operand.key == scale_key for operand in inputs),
            any(tensor.requires_grad for tensor in read),
            second_number(call),
            place.phase is Phase.BACKWARD and not is_in_node(),
            place.source or user_source(),
            has_autocast(outputs[0].device.type),
            emptied(call),
            inputs,
            [
                self._operand(tensor, key, is_known=not is_collective)
                for tensor, key in zip(outputs, keys, strict=True)
            ],
            written,
            frozenset(t.shape for t in read if t.ndim) if is_beside else frozenset(),
            () if place.is_inside or place.phase is Phase.BACKWARD else self._gradients_there_are(),
            is_collective,
            unseen,
            is_beside_graph(place.phase, is_inside=place.is_inside),
        )
        if is_collective:
            places = [(noted, index) for index in range(len(outputs))]
            self._unfinished.begin(outputs, places)
        return noted

    def _is_foreign(self, tensor: Tensor) -> bool:
        return not is_dense(tensor) or _identity(tensor) not in self._storages

    def _finish(self, call: OpCall) -> None:
        """Measure the results of collectives that an op has met."""
        for tensor, (noted, index) in self._unfinished.met_by(call):
            noted.outputs[index] = self._operand(tensor, noted.outputs[index].key)

    def _share(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        """Measure what is copied between host and device where the device has it.

        The host has it once the device has got there. Read before, its memory holds anything.
        """
        pairs = zip(sources, targets, strict=True) if len(sources) == len(targets) else ()
        for source, target in pairs:
            if source.is_cpu == target.is_cpu or (source.is_cpu and source.dtype != target.dtype):
                continue
            there, here = (target, source) if source.is_cpu else (source, target)
            row = self._row(there, self._key(there), least=False)
            if row is not None:
                self._rows.setdefault(self._key(here), {}).setdefault(_view(here), row)

    def _inputs(
        self, name: str, read: Sequence[Tensor], written: frozenset[int]
    ) -> list[LoggedOperand]:
        """Return the operands of an op; values that it has overwritten are gone."""
        keys = [self._key(tensor) for tensor in read]
        floats = [i for i, tensor in enumerate(read) if tensor.dtype in FLOATS]
        # Of a divisor the smallest magnitude counts: a quotient overflows close to zero.
        divides = name.rstrip("_") in DIVISIONS | RECIPROCALS
        divisor = floats[-1] if floats and divides else -1
        return [
            LoggedOperand(key, tensor.dtype, tensor.numel(), None)
            if key in written
            else self._operand(tensor, key, least=index == divisor)
            for index, (tensor, key) in enumerate(zip(read, keys, strict=True))
        ]

    def _operand(
        self, tensor: Tensor, key: int, *, least: bool = False, is_known: bool = True
    ) -> LoggedOperand:
        row = self._row(tensor, key, least=least) if is_known else None
        return LoggedOperand(key, tensor.dtype, tensor.numel(), row)

    def _row(self, tensor: Tensor, key: int, *, least: bool) -> Extremes | None:
        """Return the row of a tensor, ``None`` if it has none; measured rows are used again."""
        if tensor.dtype not in FLOATS or not is_dense(tensor) or not tensor.numel():
            return None
        if is_pending(tensor):
            return None
        rows = self._rows.setdefault(key, {})
        view = _view(tensor)
        row = rows.get(view)
        if row is None or (least and not row.has_least):
            row = self._measures.measure(tensor, least=least)
            if row is None:
                raise _NoRoomError
            rows[view] = row
        return row

    def _key(self, tensor: Tensor) -> int:
        """Return the identity of the storage of a tensor until the iteration ends; 0 without one.

        The address of the memory identifies a storage only as long as that lives. The address of
        the C++ object is given to no other one while a weak reference to it is held, and a weak
        reference keeps no memory of tensors.
        """
        part = local_part(tensor)
        if part is None or not is_dense(part):
            return 0
        storage = part.untyped_storage()
        key: int = storage_key(storage)
        if key not in self._storages:
            self._storages[key] = WeakStorage(storage)
        return key

    def _gradients_there_are(self) -> list[LoggedGradient]:
        """Return the gradients that the last backward has left."""
        # Once per backward: clipping has an op for every gradient, each of which would list all.
        if self._gradients is None:
            self._gradients = [
                LoggedGradient(name, self._key(p.grad), p.grad.shape)
                for name, p in self._names.parameters()
                if p.grad is not None
            ]
        return self._gradients

    def end(self) -> None:
        """Send the measurements of the iteration on their way."""
        with self._lock:
            log = self._log
            self._log = None
            if log is None:
                return
            if len(self._flying) < MAX_FLIGHTS and self._send(log):
                self._flying.append(log)
            else:
                self.dropped += 1
            self._clear()

    def _send(self, log: OpLog) -> bool:
        """Measure gradients, scale and loss, and send all; return whether there was room for it."""
        try:
            log.gradients = [
                (name, self._operand(values.detach(), self._key(values)))
                for whole, p in self._names.parameters()
                if p.grad is not None
                and (part := local_part(p.grad)) is not None
                and self._key(part) not in self._unfinished
                for name, values in parts_of(whole, p, part)
            ]
            log.loss_on_host, loss = self._around.loss_parts
            log.scale = self._scalar(self._around.scale)
            log.loss = self._scalar(loss)
            log.flight = self._measures.send()
        except NO_ROOM:
            return False
        return True

    def _scalar(self, value: Tensor | None) -> Extremes | None:
        if value is None:
            return None
        return self._row(value.detach(), self._key(value), least=False)

    def poll(self) -> None:
        """Go through the logs whose values have arrived, oldest first. Never waits."""
        while self._flying:
            log = self._flying[0]
            flight = log.flight
            if flight is None or not flight.has_arrived():
                return
            self._flying.popleft()
            # The models may have been changed since; one table for each log is enough.
            self._owners = None
            self._around.deliver(replayed(log, self._owner, is_finite=flight.land()))

    def _owner(self, key: int) -> tuple[Origin, str]:
        """Return the owner of a storage, in the models of now."""
        if self._owners is None:
            self._owners = {
                **{_identity(b): (Origin.BUFFER, name) for name, b in self._names.buffers()},
                **{_identity(p): (Origin.PARAMETER, name) for name, p in self._names.parameters()},
            }
        return self._owners.get(key, (Origin.INPUT, ""))


class _NoRoomError(Exception):
    """The values of an iteration do not fit, or cannot be measured now."""


NO_ROOM = (_NoRoomError, torch.OutOfMemoryError, PinningError)
"""What ends the log of one iteration, and of no other: what is left of a device's memory is the
training's."""


def _view(tensor: Tensor) -> Hashable:
    """Return a key that differs for views of one storage that hold different elements."""
    shape = tensor.shape
    stride = tensor.stride()
    span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if span == tensor.numel():
        # The view covers a stretch of memory without gaps: in any order the same elements.
        return tensor.dtype, tensor.storage_offset(), span
    return tensor.dtype, tensor.storage_offset(), shape, stride


def _identity(tensor: Tensor) -> int:
    part = local_part(tensor)
    if part is None or not is_dense(part):
        return 0
    identity: int = storage_key(part.untyped_storage())
    return identity
