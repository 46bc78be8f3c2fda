"""Origins of non-finite values, and their ways through the ops of an iteration.

What an op does to the values of an iteration is worked out once, for whichever way they are read.
In host memory it is done to the iteration's lineage at once. On a device it is written to a log,
and done when the values have arrived.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from functools import partial
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.lineage import Lineage, OpFacts, SeenOp
from ampwatch.diagnosis.evidence.origins import OriginKind
from ampwatch.diagnosis.evidence.scaler import BrokenWeights
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.devices import PinningError
from ampwatch.training.hooks.sources import (
    frames,
    is_in_users_hook,
    is_unscaling,
    user_frame,
    user_source,
)
from ampwatch.training.kernels.admission import local_part, unwrapped
from ampwatch.training.model.tensors import parts_of, tensors_in
from ampwatch.training.ops import operands as ops
from ampwatch.training.private import (
    MODULE_CALLS,
    next_sequence_number,
    sequence_number,
)
from ampwatch.training.sensors.origins.reading import (
    ORDINARY,
    AtOnce,
    Later,
    NoRoomError,
    OnDeviceError,
    ReadOperand,
)
from ampwatch.training.sensors.origins.unfinished import Unfinished, arrived
from ampwatch.training.transfer.extremes import Measures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

    from ampwatch.diagnosis.evidence.origins import OpTrace
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.kernels.native import FiniteCheck
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import OpPlace
    from ampwatch.training.transfer.extremes import Flight


class Surroundings:
    """What those who follow non-finite values have to know besides the ops, and whoever takes their traces."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of each parameter."""
        return self._context.names.parameters()

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of each buffer."""
        return self._context.names.buffers()

    @property
    def is_stepping(self) -> bool:
        """Whether an optimizer is stepping."""
        return self._context.bus.is_optimizer_stepping

    @property
    def is_step_of_torch(self) -> bool:
        """Whether an optimizer of ``torch.optim`` is stepping that is known, and no other."""
        known = map(self._context.registry.reference_to, self._context.bus.stepping)
        return all(o is not None and type(o()).__module__.startswith("torch.optim.") for o in known)

    @property
    def scale(self) -> Tensor | None:
        """The scaler's scale, ``None`` without one.

        A loss that the scale alone has made non-finite is not the fault of an op.
        """
        scale: Tensor | None = getattr(self._context.bus.scaler, "_scale", None)
        return scale

    @property
    def loss_parts(self) -> tuple[float | None, Tensor | None]:
        """The losses of the open iteration: the sum on the host, and the sum on a device.

        The first is ``None`` if there are no losses, the second if none is on a device.
        """
        losses = self._context.losses
        return losses.on_host if losses.num_losses else None, losses.on_device

    def deliver(self, trace: OpTrace) -> None:
        """Hand on the trace of an iteration."""
        trace.is_scaled = self._context.is_scaled
        harmful = trace.harmful
        if harmful and not any(origin.out.nans for origin in harmful):
            blamed = self._context.measuring.blame(origin.name for origin in harmful)
            first = next((origin for origin in harmful if origin.name in blamed), None)
            if first is not None:
                self._context.observe(
                    BrokenWeights(trace.step, first.name, first.out.dtype, len(blamed), "infinite")
                )
        self._context.observe(trace)


MAX_OPS = 32768
"""Ops that are logged of one iteration. One with more is not followed."""

MAX_FLIGHTS = 8
"""Iterations that may be on their way; beyond that they are dropped and counted."""

NO_ROOM = (NoRoomError, torch.OutOfMemoryError, PinningError)
"""What ends the log of one iteration, and of no other: what is left of a device's memory is the
training's."""


class _Lines:
    """The lines of the user's code that have made the nodes of a graph.

    Cost: 0.1 us an op, and 0.1 us a frame of one that made a node.
    """

    def __init__(self) -> None:
        self._thread = get_ident()
        self._next = next_sequence_number()
        # Tuples, and not lists of each: an interrupt between two appends would leave one longer.
        self._lines: list[tuple[int, str, str, int]] = []

    def note(self, op: str) -> None:
        """Take in an op that has returned, by its base name: the nodes made since the op before are its own."""
        number = next_sequence_number()
        # Each thread counts its own nodes, and autograd has threads of its own.
        if number == self._next or get_ident() != self._thread or len(self._lines) >= MAX_OPS:
            return
        frame = user_frame()
        if frame is not None:
            self._lines.append((self._next, op, frame.f_code.co_filename, frame.f_lineno))
        self._next = number

    def of(self, node: Any) -> str:
        """Return ``file:line`` of the op of a node; empty if it is not known."""
        number = sequence_number(node)
        index = bisect_left(self._lines, (number + 1,)) - 1
        if index < 0 or number >= self._next:
            return ""
        _, op, file, line = self._lines[index]
        # Not so if a view, which is no op here, or another thread has made the node.
        return f"{file}:{line}" if ops.op_of(node) in op else ""


class _Noted(NamedTuple):
    """An op, and the operands that it has read; the keys of all that it has written, returned or not."""

    op: SeenOp
    inputs: Sequence[ReadOperand]
    written: frozenset[int]


class _Ended(NamedTuple):
    """An iteration that has ended, and the values that its trace waits for."""

    lineage: Lineage  # what became of its values
    log: Sequence[Callable[[], None]]  # what is to be done to the lineage first
    # the gradients at the end, with the names of their parameters
    gradients: Iterable[tuple[str, ReadOperand]]
    # the parameters at the end, with their names; none where values are late
    parameters: Iterable[tuple[str, ReadOperand]]
    scale: ReadOperand | None  # the loss scale; ``None`` without one
    loss_on_host: float | None  # the part of the loss that the host knows; ``None`` without a loss
    loss: ReadOperand | None  # the part that is on a device
    flight: Flight | None  # values on their way to the host; ``None`` if all are there

    def trace(self) -> OpTrace:
        """Return the trace, now that the values are here."""
        if self.flight is not None and not self.flight.land():
            for work in self.log:
                work()
        trace = self.lineage.finish(self.gradients, _number(self.scale), self.parameters)
        if self.loss is not None or self.loss_on_host is not None:
            is_known_bad = not math.isfinite(self.loss_on_host or 0.0)
            trace.loss_nonfinite = is_known_bad or not (self.loss is None or self.loss.is_finite())
        return trace


class OriginFollower:
    """Follows non-finite values from the op that made them to where they end. Keeps no tensor.

    Args:
        around: Facts of the training besides the ops.
        find_checks: Returns what says quickly whether memory of the host holds finite numbers, by dtype.
        measures: Finds the smallest and largest elements on devices.

    Attributes:
        dropped: Iterations that were followed and could not be followed to the end.
        held_bytes: Returns the bytes of what is measured on devices.
        meets_device: Whether an op has left its output on a device while values were read at once.
            That iteration is dropped, and from then on values are read later.

    Cost:
        In host memory 2 to 3 us an op besides reading its output once. On a device 20 to 100 us an op
        on the host, of which half is launching, and one small kernel and one pass over each output,
        and over each input that no op was seen to write. Nothing waits for the device.
    """

    def __init__(
        self,
        around: Surroundings,
        find_checks: Callable[[], Mapping[torch.dtype, FiniteCheck]] = dict,
        measures: Measures | None = None,
    ) -> None:
        self.dropped = 0
        self.meets_device = False
        self._around = around
        self._at_once = AtOnce(find_checks)
        self._later = Later(measures or Measures())
        self.held_bytes = self._later.measures.held_bytes
        self._flying: deque[_Ended] = deque()
        # Autograd runs the nodes of several devices in as many threads.
        self._lock = Lock()
        self._clear(0, self._at_once)

    @property
    def in_flight(self) -> int:
        """Number of iterations that are on their way."""
        return len(self._flying)

    def prepare(self) -> None:
        """Allocate the pinned memory: pinning is slow and may stop the device."""
        self._later.measures.prepare()

    def begin(self, step: int, *, is_late: bool = False) -> None:
        """Begin to follow iteration ``step``; its values are late where they are on a device."""
        self._clear(step, self._later if is_late or self.meets_device else self._at_once)
        self._is_open = True

    def _clear(self, step: int, reading: AtOnce | Later) -> None:
        reading.clear()
        self._reading = reading
        self._lineage = Lineage(step, _Owners(self._around, reading.key))
        self._log: list[Callable[[], None]] = []
        self._unfinished = Unfinished(reading.key, reading.is_harmless, self._is_foreign)
        self._gradients: tuple[dict[int, str], dict[torch.Size, str]] | None = None
        self._count = 0
        self._lines = _Lines()
        self._is_open = False
        self._is_quiet = False  # of the first op more than its output is read

    def give_up(self) -> None:
        """Follow the iteration no further, and count it."""
        self.dropped += 1
        self._clear(0, self._reading)

    def prefilter(self, call: OpCall) -> bool:
        """Take in an op that is not the first, if nothing was amiss before and it has made nothing amiss.

        Raises:
            RuntimeError: If it has made something that has no memory to read, which says nothing.
        """
        if not self._is_quiet:
            return False
        self._lines.note(call.info.name)
        out = call.out
        made = out if type(out) is tuple or type(out) is list else (out,)
        for tensor in made:
            if type(tensor) not in ORDINARY or not self._at_once.is_finite_here(tensor):
                return False
        if not made:
            return False
        self._count += 1
        return True

    def note(self, call: OpCall, place: OpPlace) -> None:
        """Take in an op that has returned."""
        with self._lock:
            if not self._is_open:
                return
            try:
                self._note(call, place)
            except OnDeviceError:
                # With a part of the values unread, an op that comes later would be blamed.
                self.meets_device = True
                self.give_up()
            except NO_ROOM:
                self.give_up()

    def _note(self, call: OpCall, place: OpPlace) -> None:
        lineage = self._lineage
        reading = self._reading
        self._count += 1
        self._is_quiet = False
        self._lines.note(call.info.name)
        if self._count == 1:
            self._suspect_buffers(call)
        if place.phase is Phase.BACKWARD:
            lineage.trace.has_trained = True
            self._gradients = None  # backward replaces gradients, or adds to them
        if call.info.is_collective:
            self._begin(call, place)
            return
        if self._unfinished:
            if self._unfinished.is_delivery(call):
                return
            self._finish(call)
        if self._around.is_stepping and lineage.is_clean:
            # Gradients, options and eps explain what those of PyTorch make; to read it would cost more than all else.
            is_hidden = reading.is_late or self._around.is_step_of_torch
            if is_hidden or not reading.doubtful(ops.made_by(call)):
                self._hide(call)
                return
        outputs = ops.made_by(call)
        doubtful = reading.doubtful(outputs)
        if doubtful or not lineage.is_clean:
            noted = self._noted(call, place, ops.read_by(call), outputs)
            made = [reading.operand(tensor) for tensor in outputs]
            self._do(_add, lineage, noted, made, doubtful)
        self._is_quiet = lineage.is_clean and not (reading.is_late or self._unfinished)

    def _do(self, work: Callable[..., None], *given: Any) -> None:
        """Do something to the lineage, or log it where the values that it reads are late."""
        if not self._reading.is_late:
            work(*given)
            return
        if len(self._log) >= MAX_OPS:
            raise NoRoomError
        self._log.append(partial(work, *given))

    def _suspect_buffers(self, call: OpCall) -> None:
        """Know the buffers that are bad already, but for those that the first op has written."""
        # Not before the first op: there the modes of the user are on, and would see it.
        reading = self._reading
        made = ops.received_by(call) if call.info.is_collective else ops.made_by(call)
        written = set(map(reading.key, made + ops.overwritten_by(call)))
        for _, buffer in self._around.buffers():
            if reading.key(buffer) not in written and reading.doubtful([buffer]):
                self._do(self._lineage.suspect, reading.operand(buffer))

    def _hide(self, call: OpCall) -> None:
        """Know what an optimizer writes no more: it is sound, or nobody has read it."""
        keys = self._overwritten(ops.overwritten_by(call) or ops.made_by(call))
        if self._reading.is_late:
            # A fused optimizer may unscale gradients in place, which makes none of them finite.
            keys -= self._gradients_now()[0].keys()
        self._do(self._lineage.hide, keys)

    def _overwritten(self, tensors: Iterable[Tensor]) -> frozenset[int]:
        """Forget what was read of tensors that are written, and return their keys."""
        keys = frozenset(map(self._reading.hold, tensors))
        self._reading.forget(keys)
        return keys

    def _noted(
        self, call: OpCall, place: OpPlace, read: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> _Noted:
        reading = self._reading
        written = self._overwritten((*outputs, *ops.overwritten_by(call)))
        if place.follows_fused:
            self._do(self._lineage.unseen, self._overwritten(ops.made_unseen(place, read)))
        inputs = reading.inputs(call, read, outputs, written)
        # By storage: the op may read the scale through a view.
        scale = 0 if self._around.scale is None else reading.key(self._around.scale)
        facts = partial(self._facts, call, place, read, outputs[0].device.type if outputs else "")
        is_beside = partial(ops.is_beside_graph, place.phase, is_inside=place.is_inside)
        if reading.is_late or call.info.is_collective:
            # Reported now, for the tensors will be gone; else only an origin is to be asked.
            facts = partial(_same, facts())
            is_beside = partial(_same, is_beside())
        op = SeenOp(
            call.info.name,
            place.phase,
            place.module,
            place.is_inside,
            ops.nonfinite_number(call),
            (scale != 0 and any(operand.key == scale for operand in inputs))
            # What is divided by is 1/scale, in another format: its own storage.
            or (place.phase is Phase.OPTIMIZER and is_unscaling()),
            any(tensor.requires_grad for tensor in read),
            facts,
            reading.asking(call, inputs, outputs),
            is_beside,
        )
        return _Noted(op, inputs, written)

    def _begin(self, call: OpCall, place: OpPlace) -> None:
        """Note what a collective was given; what it will write holds anything now."""
        results = ops.received_by(call)
        self._unfinished.forget(results)  # one that ends in what another has begun to write
        self._finish(call)
        noted = self._noted(call, place, ops.sent_by(call), results)
        self._unfinished.begin(results, noted)

    def _is_foreign(self, tensor: Tensor) -> bool:
        """Whether no op that was seen may have made the values of a tensor."""
        is_tainted = self._lineage.knows([self._reading.key(tensor)])
        return not (is_tainted or self._reading.is_known(tensor))

    def _finish(self, call: OpCall) -> None:
        """Add the results of collectives that an op has met."""
        for tensor, (op, inputs, written) in self._unfinished.met_by(call):
            if self._reading.doubtful([tensor]) or not self._lineage.is_clean:
                output = self._reading.operand(tensor)
                self._do(arrived, self._lineage, op, output, inputs, written)

    def _facts(self, call: OpCall, place: OpPlace, read: Sequence[Tensor], device: str) -> OpFacts:
        key = self._reading.key
        is_back = place.phase is Phase.BACKWARD
        node = ops.computing_node() if is_back else None
        # Functions of the user's have a backward that is theirs; what copies slices is the derivative of no op.
        is_users = node is None or type(node).__name__ == "CopySlices" or is_in_users_hook()
        source = place.source or ("" if is_users else self._lines.of(node))
        return OpFacts(
            overload=str(call.func),
            number=ops.second_number(call),
            is_stepping=self._around.is_stepping,
            gradient=self._gradient_among(read, place),
            is_hook=is_back and node is None,
            source=source or user_source(),
            has_autocast=None if place.hides_autocast else ops.has_autocast(device),
            # To walk over the frames would take too long where every op is asked.
            reads_argument=not self._reading.is_late
            and place.is_inside
            and _reads_argument(read, key),
            derivative_of="" if is_users or ops.is_custom(node) else ops.op_of(node),
        )

    def _gradient_among(self, read: Sequence[Tensor], place: OpPlace) -> str:
        """Return the parameter whose gradient, or a cast of it, an op outside of the model reads."""
        if place.is_inside or place.phase is Phase.BACKWARD:
            return ""
        at, of_shape = self._gradients_now()
        names = [at.get(self._reading.key(tensor), "") for tensor in read]
        if place.phase is Phase.OPTIMIZER:
            # By shape where no storage is the same: the gradient may have been cast before.
            names += [of_shape.get(tensor.shape, "") for tensor in read if tensor.ndim]
        return next(filter(None, names), "")

    def _gradients_now(self) -> tuple[dict[int, str], dict[torch.Size, str]]:
        """Return the names of the first gradients at each key, and of each shape."""
        # Where each op asks, once per backward: clipping has an op for every gradient.
        if self._gradients is None or not self._reading.is_late:
            at, of_shape = self._gradients = {}, {}
            for name, parameter in self._around.parameters():
                if parameter.grad is not None:
                    at.setdefault(self._reading.hold(parameter.grad), name)
                    of_shape.setdefault(parameter.grad.shape, name)
        return self._gradients

    def end(self, *, is_refused: bool = False) -> None:
        """Deliver the trace of the iteration, or send its values on their way.

        Args:
            is_refused: An exception has ended it, of a function that refuses what is not finite.
        """
        with self._lock:
            if not self._is_open:
                return
            self._lineage.trace.is_refused = is_refused
            try:
                ended = self._ended()
            except NO_ROOM:
                self.give_up()
                return
            self._flying.append(ended)
            self._clear(0, self._reading)
        if ended.flight is None:
            self.poll()

    def _ended(self) -> _Ended:
        if len(self._flying) >= MAX_FLIGHTS:
            raise NoRoomError
        reading = self._reading
        self._lineage.trace.num_ops = self._count
        gradients = self._last(reading, self._unfinished, lambda parameter: parameter.grad)
        # One that is not trained may be a mask, or a limit.
        parameters = self._last(reading, self._unfinished, lambda p: p if p.requires_grad else None)
        on_host, loss = self._around.loss_parts
        scale = self._around.scale
        return _Ended(
            self._lineage,
            self._log,
            # At once they are read where something has gone wrong, and nowhere else.
            list(gradients) if reading.is_late else gradients,
            () if reading.is_late else parameters,
            None if scale is None else reading.operand(unwrapped(scale)),
            on_host,
            None if loss is None else reading.operand(unwrapped(loss)),
            reading.send(),
        )

    def _last(
        self,
        reading: AtOnce | Later,
        unfinished: Unfinished,
        of: Callable[[Tensor], Tensor | None],
    ) -> Iterator[tuple[str, ReadOperand]]:
        for name, parameter in self._around.parameters():
            tensor = of(parameter)
            here = None if tensor is None else local_part(tensor)
            if here is not None and reading.key(here) not in unfinished:
                for part, values in parts_of(name, parameter, here):
                    yield part, reading.operand(values)

    def poll(self) -> None:
        """Deliver the traces whose values have arrived, oldest first. Never waits."""
        while self._flying:
            flight = self._flying[0].flight
            if flight is not None and not flight.has_arrived():
                return
            self._around.deliver(self._flying.popleft().trace())


class _Owners:
    """Says whose values lie at a key, in the models of when it is asked first."""

    def __init__(self, around: Surroundings, key: Callable[[Tensor], int]) -> None:
        self._around = around
        self._key = key
        self._known: dict[int, tuple[OriginKind, str]] | None = None

    def __call__(self, key: int) -> tuple[OriginKind, str]:
        if self._known is None:
            named = (
                (OriginKind.BUFFER, self._around.buffers()),
                (OriginKind.PARAMETER, self._around.parameters()),
            )
            # torch.func swaps the weights of a model for wrappers while it is called.
            self._known = {
                self._key(unwrapped(tensor)): (kind, name)
                for kind, tensors in named
                for name, tensor in tensors
            }
        return self._known.get(key, (OriginKind.INPUT, ""))


def _add(
    lineage: Lineage, noted: _Noted, outputs: Sequence[ReadOperand], doubtful: Sequence[int]
) -> None:
    """Add an op to a lineage; ``doubtful`` are the places of the outputs that may not be finite."""
    values = {index: outputs[index].values() for index in doubtful}
    bad = {index: known for index, known in values.items() if not known.is_finite}
    if bad:
        lineage.failed(noted.op, outputs, bad, noted.inputs, noted.written)
    elif not lineage.is_clean:
        lineage.settle(noted.op, outputs, noted.inputs)


def _same(value: Any) -> Any:
    return value


def _number(operand: ReadOperand | None) -> float:
    """Return a positive number; NaN if it is not known."""
    if operand is None:
        return math.nan
    known = operand.values()
    return math.inf if known.posinf else math.nan if known.nans else known.amax


def _reads_argument(read: Sequence[Tensor], key: Callable[[Tensor], int]) -> bool:
    """Whether an op reads what the outermost module of the calling thread was called with.

    Cost: 0.1 us a frame, once for an origin.
    """
    # A hook would cost every call of a module, and has no keyword arguments to show.
    calls = [frame for frame in frames() if frame.f_code is MODULE_CALLS[0]]
    if not calls:
        return False
    given = calls[-1].f_locals
    keys = {key(t) for t in tensors_in((given.get("args"), given.get("kwargs")))} - {0}
    return any(key(tensor) in keys for tensor in read)
