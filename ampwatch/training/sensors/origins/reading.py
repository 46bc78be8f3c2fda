"""Two ways to read the values of tensors: at once in host memory, and later from a device.

Both give operands whose values are futures. What is done with them does not ask which way it is.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from ampwatch.diagnosis.evidence.origins import NOT_ASKED, Answer, Values
from ampwatch.diagnosis.forward.faults import DIVISIONS, RECIPROCALS
from ampwatch.training.kernels.admission import (
    has_values,
    is_dense,
    is_gapless,
    is_pending,
    is_wrapped,
    local_part,
    stored,
)
from ampwatch.training.kernels.dtypes import FLOATS, name_of
from ampwatch.training.kernels.pending import PENDING
from ampwatch.training.ops.storage import WeakStorage
from ampwatch.training.private import is_zero_tensor, storage_key
from ampwatch.training.sensors.origins.asking import ask, ask_for_ends, emptied
from ampwatch.training.transfer.readback import host_scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from torch import Tensor

    from ampwatch.training.kernels.native import FiniteCheck
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.transfer.extremes import Extremes, Flight, Measures

ORDINARY = (torch.Tensor, torch.nn.Parameter)
"""Classes whose tensors are nothing but their memory."""

MAX_NATIVE = 2**22
"""Elements of a tensor that one thread checks; PyTorch adds up a larger one in several."""

MAX_ASKED = 16
"""Ops that are computed again in one iteration: the first origins are the ones that matter."""

COPIES = frozenset({"copy_", "_to_copy", "_foreach_copy_"})
"""Ops that may carry values between the host and a device, when the device gets there."""


class OnDeviceError(Exception):
    """Values that were to be read at once are on a device."""


class NoRoomError(Exception):
    """The values of an iteration do not fit, or cannot be measured now."""


class ReadOperand(NamedTuple):
    """A tensor that an op has read or written.

    Attributes:
        key: Identity of its storage; 0 without one.
        dtype: Its dtype.
        numel: Number of its elements.
        values: Returns what is known of its values, once that is there.
        is_part: Whether its storage holds more elements, as the one buffer of many gradients does.
    """

    key: int
    dtype: torch.dtype
    numel: int
    values: Callable[[], Values]
    is_part: bool

    @property
    def is_float(self) -> bool:
        """Whether it can hold values that are not finite."""
        return self.dtype in FLOATS

    @property
    def dtype_name(self) -> str:
        """Name of its dtype."""
        return name_of(self.dtype)

    def is_finite(self) -> bool:
        """Whether all values are finite, as far as they are known."""
        # Codes of an FP8 format are not read: most of PyTorch's kernels refuse them.
        return not self.is_float or self.values().is_finite


class AtOnce:
    """Reads host memory as soon as an op has returned.

    The output of each op is read once, by the C kernel or else by adding it up. Only what is not
    known to be finite then is examined more closely, and only then the inputs are. An operand lives
    no longer than the op, and a key is an address: what is known of it ends where an op writes there.

    Args:
        find_checks: Returns what says quickly whether memory holds finite numbers, by dtype.
    """

    is_late = False

    def __init__(self, find_checks: Callable[[], Mapping[torch.dtype, FiniteCheck]]) -> None:
        self._find_checks = find_checks
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self._checks = self._find_checks()
        self._asked = 0

    def key(self, tensor: Tensor) -> int:
        """Return the address of a tensor's storage, common to all views; 0 without a single one."""
        part = local_part(tensor)
        if part is None or part.layout is not torch.strided or part.is_nested:
            return 0
        return part.untyped_storage().data_ptr()

    hold = key

    def forget(self, keys: Iterable[int]) -> None:
        """Do nothing: no value is remembered."""

    def doubtful(self, outputs: Sequence[Tensor]) -> list[int]:
        """Return the places of those that are not known to be finite after one pass over each.

        Raises:
            OnDeviceError: If one of them is on a device.
        """
        found: list[int] = []
        for index, tensor in enumerate(outputs):
            if not tensor.is_cpu:
                if not tensor.is_meta:
                    raise OnDeviceError
            # A finite sum proves finite elements; any other sum may be an overflow of its own.
            elif (real := in_real(tensor)).dtype in FLOATS and not self._is_finite(real):
                found.append(index)
        return found

    def is_finite_here(self, tensor: Tensor) -> bool:
        """Whether an ordinary tensor in host memory is finite; ``False`` also if that takes longer to say."""
        if not tensor.is_cpu:
            return False
        check = self._checks.get(tensor.dtype)
        if check is None:
            return not (tensor.dtype in FLOATS or tensor.is_complex())
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
        is_quick = type(tensor) in ORDINARY and is_dense(tensor) and not is_wrapped(tensor)
        return (is_quick and self.is_finite_here(tensor)) or adds_up(tensor)

    def operand(self, tensor: Tensor) -> ReadOperand:
        """Return a tensor that is read when its values are asked for."""
        tensor = in_real(tensor)
        key = self.key(tensor)
        values = partial(values_of, tensor)
        return ReadOperand(key, tensor.dtype, tensor.numel(), values, _is_part(tensor, key))

    def inputs(
        self, call: OpCall, read: Sequence[Tensor], _out: Sequence[Tensor], written: frozenset[int]
    ) -> list[ReadOperand]:
        """Return what an op was given; of a collective with the values of now, unless they are gone."""
        operands = [self.operand(tensor) for tensor in read]
        if not call.info.is_collective:
            return operands
        return [_kept(operand, is_gone=operand.key in written) for operand in operands]

    def asking(
        self, call: OpCall, _inputs: Sequence[ReadOperand], _out: Sequence[Tensor]
    ) -> Callable[[int], Answer]:
        """Return what computes an op once more; not the results of collectives, which come later."""
        return _not_asked if call.info.is_collective else partial(self._ask, call)

    def _ask(self, call: OpCall, index: int) -> Answer:
        self._asked += 1
        return ask(call, index) if self._asked <= MAX_ASKED else NOT_ASKED

    def is_harmless(self, tensor: Tensor) -> bool:
        """Whether a tensor is known to be finite now."""
        return adds_up(tensor)

    def is_known(self, tensor: Tensor) -> bool:
        """Whether the values of a tensor need no op that has made them: they are finite."""
        return values_of(tensor).is_finite

    def send(self) -> None:
        """Do nothing: all values are here."""


class Later:
    """Has values measured where they are, in the order of the ops; they arrive when they were sent.

    Measured are the smallest and the largest element of a tensor. A row that no op has outdated is
    used again.

    Args:
        measures: Finds the smallest and largest elements.
    """

    is_late = True

    def __init__(self, measures: Measures) -> None:
        self.measures = measures
        self.clear()

    def clear(self) -> None:
        """Forget what was measured and not sent."""
        self.measures.clear()
        self._storages: dict[int, WeakStorage] = {}
        self._rows: dict[int, dict[Hashable, Extremes]] = {}

    def key(self, tensor: Tensor) -> int:
        """Return the identity of a tensor's storage as long as that lives; 0 without one."""
        part = local_part(tensor)
        return 0 if part is None or not is_dense(part) else storage_key(part.untyped_storage())

    def hold(self, tensor: Tensor) -> int:
        """Return the identity of a tensor's storage until the iteration ends; 0 without one.

        The address of the memory identifies a storage only as long as that lives. The address of
        the C++ object is given to no other one while a weak reference to it is held, and a weak
        reference keeps no memory of tensors.
        """
        key = self.key(tensor)
        if key and key not in self._storages and (part := local_part(tensor)) is not None:
            self._storages[key] = WeakStorage(part.untyped_storage())
        return key

    def forget(self, keys: Iterable[int]) -> None:
        """Forget rows of old values, whichever view was measured."""
        for key in keys:
            self._rows.pop(key, None)

    def doubtful(self, outputs: Sequence[Tensor]) -> list[int]:
        """Return the places of those that may hold values that are not finite."""
        return [i for i, tensor in enumerate(outputs) if in_real(tensor).is_floating_point()]

    def operand(self, tensor: Tensor, *, is_gone: bool = False, least: bool = False) -> ReadOperand:
        """Have a tensor measured as it is now, unless its values are gone; if asked for, also the least magnitude.

        Raises:
            NoRoomError: If that cannot be done.
        """
        tensor = in_real(tensor)
        key = self.hold(tensor)
        row = None if is_gone else self._row(tensor, key, least=least)
        numel = tensor.numel()
        values = _Measured(tensor.dtype, numel, row)
        return ReadOperand(key, tensor.dtype, numel, values, _is_part(tensor, key))

    def inputs(
        self, call: OpCall, read: Sequence[Tensor], out: Sequence[Tensor], written: frozenset[int]
    ) -> list[ReadOperand]:
        """Have what an op was given measured; values that it has overwritten are gone."""
        if call.info.name in COPIES:
            self._share([tensor for tensor in read if self.key(tensor) not in written], out)
        floats = [i for i, tensor in enumerate(read) if tensor.dtype in FLOATS]
        # Of a divisor the smallest magnitude counts: a quotient overflows close to zero.
        divides = call.info.name.rstrip("_") in DIVISIONS | RECIPROCALS
        divisor = floats[-1] if floats and divides else -1
        return [
            self.operand(tensor, is_gone=self.key(tensor) in written, least=index == divisor)
            for index, tensor in enumerate(read)
        ]

    def _share(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        """Measure what is copied between host and device where the device has it.

        The host has it once the device has got there. Read before, its memory holds anything.
        """
        pairs = zip(sources, targets, strict=True) if len(sources) == len(targets) else ()
        for source, target in pairs:
            if source.is_cpu == target.is_cpu or (source.is_cpu and source.dtype != target.dtype):
                continue
            there, here = (target, source) if source.is_cpu else (source, target)
            row = self._row(there, self.hold(there))
            if row is not None:
                self._rows.setdefault(self.hold(here), {}).setdefault(_view(here), row)

    def _row(self, tensor: Tensor, key: int, *, least: bool = False) -> Extremes | None:
        if tensor.dtype not in FLOATS or not is_dense(tensor) or not tensor.numel():
            return None
        if is_pending(tensor):
            return None
        rows = self._rows.setdefault(key, {})
        view = _view(tensor)
        row = rows.get(view)
        if row is None or (least and not row.has_least):
            # At the end of an iteration autograd would record it: of gradients, and of the loss.
            row = self.measures.measure(tensor.detach(), least=least)
            if row is None:
                raise NoRoomError
            rows[view] = row
        return row

    def asking(
        self, call: OpCall, inputs: Sequence[ReadOperand], out: Sequence[Tensor]
    ) -> Callable[[int], Answer]:
        """Return what computes an elementwise op for the ends of its operands, which are gone then."""
        func = call.func
        arguments = emptied(call)
        dtypes = [tensor.dtype for tensor in out]
        given = [operand.values for operand in inputs if isinstance(operand.values, _Measured)]

        def ask_later(index: int) -> Answer:
            ends = [values.ends() for values in given]
            if arguments is None or not all(ends):
                return NOT_ASKED
            return ask_for_ends(func, arguments, ends, torch.finfo(dtypes[index]).max)

        return ask_later

    def is_harmless(self, _tensor: Tensor) -> bool:
        """Return ``False``: no value is known yet, so any may have spoiled another."""
        return False

    def is_known(self, tensor: Tensor) -> bool:
        """Whether the values of a tensor were met in this iteration."""
        return is_dense(tensor) and self.key(tensor) in self._storages

    def send(self) -> Flight:
        """Send what was measured on its way."""
        return self.measures.send()


class _Measured:
    """The values of a tensor as far as a row says; ``None`` says nothing."""

    __slots__ = ("dtype", "numel", "row")

    def __init__(self, dtype: torch.dtype, numel: int, row: Extremes | None) -> None:
        self.dtype = dtype
        self.numel = numel
        self.row = row

    def __call__(self) -> Values:
        row = self.row
        dtype = name_of(self.dtype)
        if row is None:
            return Values(dtype, self.numel)
        low = row.low
        high = row.high
        if row.is_finite:
            # With both ends on one side of zero, the end closer to it has the least magnitude.
            least = low if low >= 0.0 else -high if high <= 0.0 else row.least
            return Values(dtype, self.numel, amax=max(-low, high), amin=least)
        # Both ends are NaN if any element is; infinities beside it cannot be known then.
        nans = math.isnan(low) or math.isnan(high)
        # With both ends infinite alike there is no other number in it: 0, as the host says.
        amax = 0.0 if low == high else math.nan
        return Values(dtype, self.numel, nans, high == math.inf, low == -math.inf, amax)

    def ends(self) -> tuple[float, ...]:
        """Return the numbers that stand for all values; none if these are not known."""
        if self.dtype not in FLOATS:
            return (0.0, 1.0)  # of a mask, or of numbers that make nothing infinite
        row = self.row
        if row is None or not row.is_finite:
            return ()
        low = row.low
        high = row.high
        if low > 0.0 or high < 0.0:
            return (low, high)
        # Without a measured one, zero stands for what is closest to it.
        least = row.least if row.has_least else 0.0
        return tuple({low: None, high: None, least: None, -least: None})


def _is_part(tensor: Tensor, key: int) -> bool:
    """Whether the storage at a tensor's key holds more elements than it has."""
    part = local_part(tensor)
    return bool(key) and part is not None and part.untyped_storage().nbytes() > part.nbytes


def _kept(operand: ReadOperand, *, is_gone: bool) -> ReadOperand:
    """Return an operand that needs its tensor no more."""
    is_unknown = is_gone or not operand.is_float
    known = Values(operand.dtype_name, operand.numel) if is_unknown else operand.values()
    return operand._replace(values=lambda: known)


def _not_asked(_index: int) -> Answer:
    return NOT_ASKED


def in_real(tensor: Tensor) -> Tensor:
    """Return a complex tensor as the real and imaginary parts that it consists of, in the same memory; any other as it is."""
    if not tensor.is_complex() or not is_dense(tensor):
        return tensor
    tensor = tensor.detach()
    return torch.view_as_real(tensor.conj() if tensor.is_conj() else tensor)


@torch.no_grad()
def values_of(tensor: Tensor) -> Values:
    """Describe the values of a tensor. Cost: some passes over it."""
    dtype = name_of(tensor.dtype)
    numel = tensor.numel()
    if not (tensor.is_cpu and has_values(tensor)):
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


def adds_up(tensor: Tensor) -> bool:
    """Whether the elements add up to a finite number: then all of them are finite."""
    if not (tensor.is_cpu and has_values(tensor)):
        return True
    total = host_scalar(tensor.sum() if tensor.ndim else tensor)
    # x - x is zero for finite x alone.
    return bool(total - total == 0.0)


def _view(tensor: Tensor) -> Hashable:
    """Return a key that differs for views of one storage that hold different elements."""
    shape = tensor.shape
    stride = tensor.stride()
    span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    if span == tensor.numel():
        # The view covers a stretch of memory without gaps: in any order the same elements.
        return tensor.dtype, tensor.storage_offset(), span
    return tensor.dtype, tensor.storage_offset(), shape, stride
