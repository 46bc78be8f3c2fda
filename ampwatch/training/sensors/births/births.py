"""Births of non-finite values in host memory, and their ways through the ops of an iteration.

Values are read at once. Values on a device are followed by `birth_log.py`.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, NamedTuple

import torch

from ampwatch.diagnosis.evidence.births import NOT_ASKED, Answer, Origin, Values
from ampwatch.diagnosis.evidence.lineage import Lineage, OpFacts, SeenOp
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.kernels.admission import (
    is_gapless,
    is_there,
    is_wrapped,
    local_part,
    stored,
)
from ampwatch.training.kernels.pending import PENDING
from ampwatch.training.model.dtypes import name_of
from ampwatch.training.model.flat import parts_of
from ampwatch.training.model.tensors import tensors_in
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
from ampwatch.training.private import MODULE_CALLS, is_zero_tensor
from ampwatch.training.sensors.births.asking import ask
from ampwatch.training.sensors.births.unfinished import Unfinished, arrived
from ampwatch.training.transfer.readback import host_scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from torch import Tensor

    from ampwatch.training.kernels.native import FiniteCheck
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import OpPlace
    from ampwatch.training.sensors.births.surroundings import Around


ORDINARY = (torch.Tensor, torch.nn.Parameter)
"""Classes whose tensors are nothing but their memory."""

MAX_NATIVE = 2**22
"""Elements of a tensor that one thread checks; PyTorch adds up a larger one in several."""

MAX_ASKED = 16
"""Ops that are computed again in one iteration: the first births are the ones that matter."""


class BirthListener:
    """Follows non-finite values in host memory.

    The output of each op is read once, by the C kernel or else by adding it up. Only an output that
    is not known to be finite then is examined more closely, and only then the inputs are. Tensors
    that are not finite are known by their storage. Nothing is kept but numbers.

    Args:
        around: Facts of the training besides the ops.
        checks: Returns what says quickly whether memory holds finite numbers, by dtype.

    Attributes:
        meets_device: Whether an op has left its output on a device. Nothing there is read, and
            nothing is reported of that iteration.

    Cost:
        2 to 3 us an op besides reading its output once.
    """

    def __init__(
        self,
        around: Around,
        checks: Callable[[], Mapping[torch.dtype, FiniteCheck]] = dict,
    ) -> None:
        self._find_checks = checks
        self._checks: Mapping[torch.dtype, FiniteCheck] = {}
        self._names = around.names
        self._around = around
        self.meets_device = False
        self._unfinished: Unfinished[_Sent] = Unfinished(
            _storage, is_harmless=_adds_up, is_foreign=self._is_foreign
        )
        self._clear(0)

    def _clear(self, step: int) -> None:
        self._unfinished.clear()
        self._lineage = Lineage(step, self._owner)
        self._own: dict[int, tuple[Origin, str]] | None = None
        self._count = 0
        self._is_quiet = False  # of the first op more than its output is read
        self._asked = 0

    def begin(self, step: int) -> None:
        """Begin to follow iteration ``step``."""
        self._checks = self._find_checks()
        self._clear(step)

    def end(self) -> None:
        """Note which gradients are not finite at the end of the iteration, and deliver."""
        scale = self._around.scale
        known = scale is not None and scale.device.type == "cpu"
        trace = self._lineage.finish(
            self._gradients(), host_scalar(scale) if scale is not None and known else math.nan
        )
        trace.num_ops = self._count
        # With a part of the values unread, a birth would be blamed on an op that came after it.
        if not self.meets_device:
            self._around.deliver_known(trace)
        self._clear(trace.step)

    def note(self, call: OpCall, place: OpPlace) -> None:
        """Take in an op that has returned."""
        self._count += 1
        self._is_quiet = False
        if call.info.is_collective:
            self._begin(call, place)
            return
        if self._unfinished:
            if self._unfinished.is_delivery(call):
                return
            self._finish(call)
        if self._around.is_stepping and self._lineage.is_clean and self._count > 1:
            # No finding is about what an optimizer makes, and it makes more than all others.
            written = overwritten_by(call) or made_by(call)
            self._lineage.hide({_storage(tensor) for tensor in written})
            return
        outputs = made_by(call)
        bad = self._bad_of(outputs)
        if place.phase is Phase.BACKWARD:
            self._lineage.trace.has_trained = True
        if self._count == 1:
            self._read_buffers(outputs + overwritten_by(call))
        if bad or not self._lineage.is_clean:
            self._observe(call, place, [_HostOperand(tensor) for tensor in outputs], bad)
        self._is_quiet = self._lineage.is_clean and not self._unfinished

    def glance(self, call: OpCall) -> bool:
        """Take in an op that is not the first, if nothing was amiss before and it has made nothing amiss.

        Raises:
            RuntimeError: If it has made something that has no memory to read, which says nothing.
        """
        if not self._is_quiet:
            return False
        out = call.out
        made = out if type(out) is tuple or type(out) is list else (out,)
        for tensor in made:
            if type(tensor) not in ORDINARY or not self._is_finite_here(tensor):
                return False
        if not made:
            return False
        self._count += 1
        return True

    def _is_finite_here(self, tensor: Tensor) -> bool:
        """Whether an ordinary tensor in host memory is finite; ``False`` also if that takes longer to say."""
        if not tensor.is_cpu:
            return False
        check = self._checks.get(tensor.dtype)
        if check is None:
            return tensor.dtype not in FLOATS
        numel = tensor.numel()
        return (
            numel <= MAX_NATIVE
            and (tensor.is_contiguous() or is_gapless(tensor))
            and not is_zero_tensor(tensor)
            and tensor.untyped_storage().nbytes()
            >= (tensor.storage_offset() + numel) * tensor.element_size()
            and not PENDING
            and check(tensor.data_ptr(), numel) != 0
        )

    def _is_finite(self, tensor: Tensor) -> bool:
        """Whether a tensor is known to be finite after one pass over it."""
        is_quick = type(tensor) in ORDINARY and is_dense(tensor) and not is_wrapped(tensor)
        return (is_quick and self._is_finite_here(tensor)) or _adds_up(tensor)

    def _bad_of(self, outputs: Sequence[Tensor]) -> list[int]:
        """Return which outputs are not known to be finite; note whether some are on a device."""
        bad: list[int] = []
        for index, tensor in enumerate(outputs):
            if not tensor.is_cpu:
                self.meets_device |= not tensor.is_meta
            # A finite sum proves finite elements; any other sum may be an overflow of its own.
            elif tensor.dtype in FLOATS and not self._is_finite(tensor):
                bad.append(index)
        return bad

    def _read_buffers(self, written: list[Tensor]) -> None:
        """Know the buffers that are bad already, but for those that the first op has written."""
        # Not before the first op: there the modes of the user are on, and would see it.
        keys = {_storage(tensor) for tensor in written}
        for _, buffer in self._names.buffers():
            if buffer.is_cpu and _storage(buffer) not in keys:
                self._lineage.suspect(_HostOperand(buffer))

    def _observe(
        self, call: OpCall, place: OpPlace, outputs: list[_HostOperand], doubtful: list[int]
    ) -> None:
        """Examine an op of which some outputs may not be finite, or some inputs are not."""
        values = {index: outputs[index].values() for index in doubtful}
        bad = {index: known for index, known in values.items() if not known.is_finite}
        if not bad and self._lineage.is_clean:
            return
        read = read_by(call)
        if place.follows_fused:
            self._lineage.unseen(map(_storage, made_unseen(place, read)))
        op = SeenOp(
            call.info.name,
            place.phase,
            place.module,
            place.is_inside,
            nonfinite_number(call) if bad else None,
            bool(bad) and self._is_scaling(read),
            lambda: self._facts(call, place),
            lambda index: self._ask(call, index),
            lambda: is_beside_graph(place.phase, is_inside=place.is_inside),
        )
        inputs = [_HostOperand(tensor) for tensor in read]
        if bad:
            written = {output.key for output in outputs}
            written |= {_storage(tensor) for tensor in overwritten_by(call)}
            self._lineage.failed(op, outputs, bad, inputs, written)
        else:
            self._lineage.settle(op, outputs, inputs)

    def _ask(self, call: OpCall, index: int) -> Answer:
        self._asked += 1
        return ask(call, index) if self._asked <= MAX_ASKED else NOT_ASKED

    def _begin(self, call: OpCall, place: OpPlace) -> None:
        """Note what a collective was given; what it will write holds anything now."""
        results = received_by(call)
        self._unfinished.forget(results)  # one that ends in what another has begun to write
        self._finish(call)
        self.meets_device |= any(not tensor.is_cpu and not tensor.is_meta for tensor in results)
        written = {_storage(tensor) for tensor in results}
        sent = [
            _SentOperand(tensor, is_gone=_storage(tensor) in written) for tensor in sent_by(call)
        ]
        facts = self._facts(call, place)
        op = SeenOp(
            call.info.name,
            place.phase,
            place.module,
            place.is_inside,
            None,
            is_scaling=False,
            facts=lambda: facts,
        )
        self._unfinished.begin(results, [_Sent(op, sent, written)] * len(results))

    def _is_foreign(self, tensor: Tensor) -> bool:
        operand = _HostOperand(tensor)
        return not self._lineage.knows([operand]) and not operand.is_finite()

    def _finish(self, call: OpCall) -> None:
        """Examine the results of collectives that an op has met."""
        for tensor, sent in self._unfinished.met_by(call):
            output = _HostOperand(tensor)
            if output.is_float and not (self._lineage.is_clean and output.is_finite()):
                arrived(self._lineage, sent.op, output, sent.inputs, sent.written)

    def _is_scaling(self, read: list[Tensor]) -> bool:
        scale = self._around.scale
        if scale is None:
            return False
        # By storage: the op may read the scale through a view.
        key = _storage(scale)
        return any(_storage(tensor) == key for tensor in read)

    def _facts(self, call: OpCall, place: OpPlace) -> OpFacts:
        return OpFacts(
            overload=str(call.func),
            needs_grad=any(tensor.requires_grad for tensor in read_by(call)),
            number=second_number(call),
            is_stepping=self._around.is_stepping,
            gradient=self._gradient_read_by(call, place),
            is_hook=place.phase is Phase.BACKWARD and not is_in_node(),
            source=place.source or user_source(),
            has_autocast=has_autocast("cpu"),
            reads_argument=place.is_inside and _reads_argument(read_by(call)),
        )

    def _gradient_read_by(self, call: OpCall, place: OpPlace) -> str:
        """Return the parameter whose gradient, or a cast of it, an op outside of the model reads."""
        if place.is_inside or place.phase is Phase.BACKWARD:
            return ""
        read = read_by(call)
        keys = {_storage(t) for t in read}
        shapes = {t.shape for t in read if t.ndim}
        with_gradient = [(n, p.grad) for n, p in self._names.parameters() if p.grad is not None]
        for name, gradient in with_gradient:
            if _storage(gradient) in keys:
                return name
        if place.phase is not Phase.OPTIMIZER:
            return ""
        # By shape where no storage is the same: the gradient may have been cast before.
        return next((name for name, gradient in with_gradient if gradient.shape in shapes), "")

    def _owner(self, key: int) -> tuple[Origin, str]:
        """Return the owner of a storage."""
        if self._own is None:
            self._own = {
                **{_storage(b): (Origin.BUFFER, name) for name, b in self._names.buffers()},
                **{_storage(p): (Origin.PARAMETER, name) for name, p in self._names.parameters()},
            }
        return self._own.get(key, (Origin.INPUT, ""))

    def _gradients(self) -> Iterator[tuple[str, _HostOperand]]:
        for name, parameter in self._names.parameters():
            gradient = None if parameter.grad is None else local_part(parameter.grad)
            if gradient is not None and _storage(gradient) not in self._unfinished:
                for part, values in parts_of(name, parameter, gradient):
                    yield part, _HostOperand(values)


class _Sent(NamedTuple):
    """A collective that has begun."""

    op: SeenOp
    inputs: Sequence[_SentOperand]
    written: set[int]


class _SentOperand:
    """A tensor that a collective was given, without the tensor.

    Args:
        tensor: The tensor.
        is_gone: Whether the collective overwrites it: then its values are not read.
    """

    def __init__(self, tensor: Tensor, *, is_gone: bool) -> None:
        self.key = _storage(tensor)
        self.is_float = tensor.dtype in FLOATS
        self.dtype_name = name_of(tensor.dtype)
        self.numel = tensor.numel()
        self._values = Values(self.dtype_name, self.numel)
        if self.is_float and not is_gone:
            self._values = values_of(tensor)

    def is_finite(self) -> bool:
        return self._values.is_finite

    def values(self) -> Values:
        return self._values


class _HostOperand:
    """A tensor in host memory; lives no longer than the call that it is made in."""

    __slots__ = ("_tensor", "key")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self.key = _storage(tensor)

    @property
    def is_float(self) -> bool:
        return self._tensor.dtype in FLOATS

    @property
    def dtype_name(self) -> str:
        return name_of(self._tensor.dtype)

    @property
    def numel(self) -> int:
        return self._tensor.numel()

    def is_finite(self) -> bool:
        return _adds_up(self._tensor) or values_of(self._tensor).is_finite

    def values(self) -> Values:
        return values_of(self._tensor)


@torch.no_grad()
def values_of(tensor: Tensor) -> Values:
    """Describe the values of a tensor. Cost: some passes over it."""
    dtype = name_of(tensor.dtype)
    numel = tensor.numel()
    if not _is_readable(tensor):
        return Values(dtype, numel)
    if numel == 1 and not tensor.is_neg():
        return _value_of(host_scalar(tensor), dtype)
    # One pass for both ends; a NaN comes out at both, so finite ends prove finite elements.
    tensor = stored(tensor.detach())
    low, high = map(host_scalar, torch.aminmax(tensor))
    if math.isfinite(low) and math.isfinite(high):
        amin = host_scalar(tensor.abs().amin())
        return Values(dtype, numel, amax=max(-low, high), amin=amin)
    finite = torch.isfinite(tensor)
    magnitudes = torch.where(finite, tensor.abs(), torch.zeros_like(tensor))
    return Values(
        dtype,
        numel,
        nans=_any(torch.isnan(tensor)),
        posinf=_any(torch.isposinf(tensor)),
        neginf=_any(torch.isneginf(tensor)),
        amax=host_scalar(magnitudes.amax()),
    )


def _value_of(value: float, dtype: str) -> Values:
    # Without an op: the dispatcher hands a number that the graph has saved as a tensor to a mode as
    # the number that it was, and no op of tensors takes that.
    if math.isfinite(value):
        return Values(dtype, 1, amax=abs(value), amin=abs(value))
    return Values(dtype, 1, math.isnan(value), value == math.inf, value == -math.inf, amax=0.0)


def _any(mask: Tensor) -> bool:
    return host_scalar(mask.sum(dtype=torch.float32)) > 0.0


def _adds_up(tensor: Tensor) -> bool:
    """Whether the elements add up to a finite number: then all of them are finite."""
    if not _is_readable(tensor):
        return True
    total = host_scalar(tensor.sum() if tensor.ndim else tensor)
    # x - x is zero for finite x alone.
    return bool(total - total == 0.0)


def _is_readable(tensor: Tensor) -> bool:
    return is_dense(tensor) and tensor.is_cpu and tensor.numel() > 0 and is_there(tensor)


def _storage(tensor: Tensor) -> int:
    """Return the address of a tensor's storage, common to all views; 0 without a single one."""
    part = local_part(tensor)
    if part is None or part.layout is not torch.strided or part.is_nested:
        return 0
    return part.untyped_storage().data_ptr()


def _reads_argument(read: list[Tensor]) -> bool:
    """Whether an op reads what the outermost module of the calling thread was called with.

    Cost: 0.1 us a frame, once for a birth.
    """
    # A hook would cost every call of a module, and has no keyword arguments to show.
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, and the only way
    call: FrameType | None = None
    while frame is not None:
        call = frame if frame.f_code is MODULE_CALLS[0] else call
        frame = frame.f_back
    if call is None:
        return False
    given = call.f_locals
    keys = {_storage(t) for t in tensors_in((given.get("args"), given.get("kwargs")))} - {0}
    return any(_storage(tensor) in keys for tensor in read)
