"""The op of an origin, computed once more in float64: what precision cures is a matter of the format.

Nothing of the training is touched. The op gets copies and its result is dropped; only ops of
PyTorch are computed again whose schema says that they write nothing and draw no random numbers.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.origins import NOT_ASKED, Answer, Fault
from ampwatch.guard import Suppress
from ampwatch.training.kernels.admission import is_dense
from ampwatch.training.kernels.dtypes import FLOATS
from ampwatch.training.ops.call import tensors_among
from ampwatch.training.ops.operands import made_by, read_by
from ampwatch.training.private import NoFunctionModes, OpOverload, schema_of
from ampwatch.training.transfer.readback import host_scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from ampwatch.training.ops.call import OpCall

MAX_ELEMENTS = 2**21
"""Elements, of operands and results together, up to which an op is computed again."""

MAX_ELEMENTS_OF_PRODUCT = 2**20
"""Elements up to which that holds for products of matrices and whatever else is no single pass."""

MAX_COMBINATIONS = 4096
"""Combinations of the ends of operands that are tried at most."""

SMALL = 1.0
"""Magnitude of operands below which a large result is their doing, and not that of large ones."""

SMALL_NUMBER = 1e-4
"""Magnitude of a Python number below which the same holds: a temperature is written down."""

BESIDE = 2.0**-8
"""Relative distance to the point beside: as far as rounding to bfloat16 moves a number."""

BESIDE_ZERO = 2.0**-14
"""The point beside zero: float16's smallest normal number."""


PASSES = {
    getattr(torch.Tag, name) for name in ("pointwise", "reduction") if hasattr(torch.Tag, name)
}
"""Tags of ops that are a single pass. In torch 2.6 reductions have none, and count as products."""


class Place(NamedTuple):
    """Stands in arguments for the tensor of this number."""

    number: int


def ask(call: OpCall, index: int) -> Answer:
    """Compute an op on the host once more.

    Args:
        call: The op, which has returned.
        index: Place of the result in question among the tensors that it has returned.

    Cost: up to four times the op in float64 or as it was, and some passes over its operands.
    """
    if not _is_repeatable(call.func):
        return NOT_ASKED
    # Modes of the user that change functions, as a default device does, are not to see it.
    with NoFunctionModes():
        return _ask(call, index)


def _ask(call: OpCall, index: int) -> Answer:
    made = made_by(call)
    tensors = read_by(call) + made
    is_pass = not PASSES.isdisjoint(call.func.tags)
    most = MAX_ELEMENTS if is_pass else MAX_ELEMENTS_OF_PRODUCT
    if not all(map(_is_plain, tensors)) or sum(t.numel() for t in tensors) > most:
        return NOT_ASKED
    # Some kernels add up in the format that they read, and return a wider one.
    formats = {t.dtype for t in (made[index], *read_by(call)) if t.dtype in FLOATS}
    limit = min(torch.finfo(dtype).max for dtype in formats)
    return _Question(call.func, call.args, call.kwargs, index, limit).answer()


def ask_for_ends(
    func: Any, arguments: Arguments, ends: Sequence[Sequence[float]], limit: float
) -> Answer:
    """Compute an elementwise op on the host for the ends of its operands.

    Args:
        func: The overload.
        arguments: What ``emptied`` has made of its arguments.
        ends: Of each tensor among them the numbers to try.
        limit: The largest number of the result's dtype.
    """
    if not _is_repeatable(func) or math.prod(map(len, ends)) > MAX_COMBINATIONS:
        return NOT_ASKED
    with NoFunctionModes():
        return _ask_for_ends(func, arguments, ends, limit)


def _ask_for_ends(
    func: Any, arguments: Arguments, ends: Sequence[Sequence[float]], limit: float
) -> Answer:
    rows = list(itertools.product(*ends))
    columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True)]

    def filled(value: Any) -> Any:
        return columns[value.number] if isinstance(value, Place) else value

    args, kwargs = _mapped(filled, arguments)
    return _Question(func, args, kwargs, 0, limit).answer()


Arguments = tuple[list[Any], dict[str, Any]]


def emptied(call: OpCall) -> Arguments | None:
    """Return the arguments of an elementwise op without its tensors; ``None`` for any other op."""
    if torch.Tag.pointwise not in call.func.tags:
        return None
    numbers = itertools.count()

    def empty(value: Any) -> Any:
        return Place(next(numbers)) if isinstance(value, torch.Tensor) else value

    args, kwargs = _mapped(empty, (call.args, call.kwargs))
    return args, kwargs


def _is_repeatable(func: Any) -> bool:
    """Whether computing an op again cannot be noticed."""
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return False
    schema = schema_of(func)
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    return not (schema.is_mutable or is_random)


def _is_plain(tensor: Tensor) -> bool:
    is_own = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return is_own and is_dense(tensor) and tensor.is_cpu and not tensor.is_complex()


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Change what lies in lists and dictionaries, at any depth."""
    if isinstance(value, (list, tuple)) and not isinstance(value, Place):
        return [_mapped(change, item) for item in value]
    if isinstance(value, dict):
        return {key: _mapped(change, item) for key, item in value.items()}
    return change(value)


class _Question:
    """An op and what it was given.

    Args:
        func: The overload.
        args: Its arguments.
        kwargs: Its keyword arguments.
        index: Place of the result in question.
        limit: The largest number of that result's dtype.
    """

    def __init__(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], index: int, limit: float
    ) -> None:
        self._func = func
        self._args = args
        self._kwargs = kwargs
        self._index = index
        self._limit = limit
        self._is_elementwise = torch.Tag.pointwise in func.tags

    def answer(self) -> Answer:
        """Say whether precision cures it, and if not, whether other numbers near by do."""
        exact = self._compute(lambda operand: operand)
        if exact is None:
            return NOT_ASKED
        if math.isfinite(exact):
            # A quotient overflows where what it is divided by is small, or the other large. One number that
            # fits is no overflow, whatever its operands are, as the logit of what was rounded to one.
            fits = self._is_elementwise and exact <= self._limit
            is_small = fits or self._fits(_at_least_small)
            is_small = is_small and not self._is_too_large_inside(exact)
            return Answer(Fault.POINT if is_small else Fault.OVERFLOW, exact)
        # The exponential of a thousand is beyond float64 as well; that of one is not.
        if exact == math.inf and self._is_finite(_at_most_one):
            return Answer(Fault.OVERFLOW, math.inf)
        is_point = self._is_finite(_beside)
        return Answer(Fault.POINT if is_point else Fault.INVALID, exact)

    def _is_too_large_inside(self, exact: float) -> bool:
        """Whether a result that fits is one of numbers on the way that do not: of a sum, or of squares."""
        return (
            exact <= self._limit
            and self._is_finite(_at_most_one, widens=False)
            and not self._is_finite(_at_least_small, widens=False)
        )

    def _is_finite(self, change: Callable[[Tensor], Tensor], *, widens: bool = True) -> bool:
        found = self._compute(change, widens=widens)
        return found is not None and math.isfinite(found)

    def _fits(self, change: Callable[[Tensor], Tensor]) -> bool:
        found = self._compute(change)
        return found is not None and found <= self._limit

    def _compute(self, change: Callable[[Tensor], Tensor], *, widens: bool = True) -> float | None:
        """Compute the op with changed operands, in float64 or as it was, and return the largest magnitude of the result.

        NaN if any element is; ``None`` if it cannot be computed.
        """

        def changed(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                # Copied in any case: some ops write more than their schema says.
                wide = torch.float64 if widens and value.dtype in FLOATS else value.dtype
                copied = value.detach().to(wide, copy=True)
                if value.dtype in FLOATS:
                    return change(copied)
                return _count(change, copied) if widens and self._is_elementwise else copied
            if isinstance(value, torch.dtype):
                return torch.float64 if widens and value in FLOATS else value
            if isinstance(value, float) or (self._is_elementwise and type(value) is int):
                return _number(change, value)
            return value

        # Its warnings are those of the op itself; filters are left alone, as they are the whole program's.
        with torch.no_grad(), Suppress(Exception):  # any kernel may refuse float64: no answer then
            args, kwargs = _mapped(changed, (self._args, self._kwargs))
            result = tensors_among((self._func(*args, **kwargs),))[self._index]
            return host_scalar(result.abs().amax()) if result.numel() else 0.0
        return None


def _at_least_small(operand: Tensor) -> Tensor:
    ones = torch.full_like(operand, SMALL).copysign(operand)
    return torch.where(operand.abs() < SMALL, ones, operand)


def _at_most_one(operand: Tensor) -> Tensor:
    return operand.clamp(-1.0, 1.0)


def _beside(operand: Tensor) -> Tensor:
    zero = torch.full_like(operand, BESIDE_ZERO)
    return torch.where(operand == 0.0, zero, operand * (1.0 - BESIDE))


def _count(change: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Change the zeros of integers, as of a count that is divided by: a zero is one, whatever it is written in."""
    if values.dtype is torch.bool or bool(values.all()):
        return values
    floats = values.double()
    return torch.where(floats == 0.0, change(floats), floats)


def _number(change: Callable[[Tensor], Tensor], value: float) -> float:
    """Change a Python number, which the program has written down, as little as is of use."""
    if change is _at_least_small:
        return value if abs(value) >= SMALL_NUMBER else math.copysign(SMALL, value)
    if change is _at_most_one:
        return max(-1.0, min(1.0, value))
    return BESIDE_ZERO if change is _beside and value == 0.0 else value
