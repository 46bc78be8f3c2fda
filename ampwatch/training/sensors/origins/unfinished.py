"""Results of collectives: unknown when the op returns, known when something reads them."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from ampwatch.numerics.formats import FORMATS
from ampwatch.training.kernels.dtypes import FLOATS
from ampwatch.training.ops.operands import made_by, nonfinite_number, overwritten_by, read_by
from ampwatch.training.ops.storage import WeakStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from torch import Tensor

    from ampwatch.diagnosis.evidence.lineage import Lineage, Operand, SeenOp
    from ampwatch.diagnosis.evidence.origins import Values
    from ampwatch.training.ops.call import OpCall

MAX_UNFINISHED = 4096
"""Results that are waited for at a time."""

MAX_RANKS = 1024
"""Processes whose finite values, as large as the own ones, may add up to an infinity."""

LARGE = 1e4
"""Magnitude that gradients may have of which no more is known than that they are finite."""


class _Result(NamedTuple):
    tensor: weakref.ref[Tensor]
    storage: WeakStorage
    note: Any


class Unfinished:
    """Remembers what collectives will write, until an op of this process meets it.

    Nothing is waited for and no handle is asked: the program has to wait before it touches a
    result, so a result that an op has touched is there. Tensors are referred to weakly.

    Args:
        key_of: Returns the identity of the storage of a tensor; 0 without one.
        is_harmless: Whether a tensor that an op has read beside a result, and that holds floating
            point numbers, is known to be finite.
        is_foreign: Whether the values of a tensor may have been made by no op that was seen.
    """

    def __init__(
        self,
        key_of: Callable[[Tensor], int],
        is_harmless: Callable[[Tensor], bool],
        is_foreign: Callable[[Tensor], bool],
    ) -> None:
        self._key_of = key_of
        self._is_harmless = is_harmless
        self._is_foreign = is_foreign
        self._results: dict[int, list[_Result]] = {}

    def __bool__(self) -> bool:
        return bool(self._results)

    def __contains__(self, key: int) -> bool:
        return key in self._results

    def forget(self, tensors: Sequence[Tensor]) -> None:
        """Wait no longer for what lies where these tensors lie."""
        for tensor in tensors:
            self._results.pop(self._key_of(tensor), None)

    def begin(self, tensors: Sequence[Tensor], note: Any) -> None:
        """Take note of the results of a collective, with what is to be known of it later."""
        for tensor in tensors:
            key = self._key_of(tensor)
            if key and len(self._results) < MAX_UNFINISHED:
                storage = WeakStorage(tensor.untyped_storage())
                result = _Result(weakref.ref(tensor), storage, note)
                self._results.setdefault(key, []).append(result)

    def is_delivery(self, call: OpCall) -> bool:
        """Whether an op is part of a collective: a copy of its own memory to where the result goes.

        Gloo does that in the thread that waits.
        """
        if call.info.name != "copy_" or self._key_of(call.args[0]) not in self._results:
            return False
        return self._is_foreign(call.args[1])

    def met_by(self, call: OpCall) -> list[tuple[Tensor, Any]]:
        """Return the results that an op has met with what was noted of each, and wait for them no longer.

        In the place of a result that does not live any more stands the view that the op has met.
        What the op has written itself is left out, unless all that is not finite in it must have
        been there before.
        """
        read = read_by(call)
        touched = {self._key_of(tensor): tensor for tensor in (*read, *overwritten_by(call))}
        keys = [key for key in touched if key in self._results]
        if not keys:
            return []
        written = {self._key_of(tensor) for tensor in (*made_by(call), *overwritten_by(call))}
        keeps = nonfinite_number(call) is None and all(
            self._is_harmless(tensor)
            for tensor in read
            if tensor.dtype in FLOATS and self._key_of(tensor) not in written
        )
        return [
            (_alive(result, touched[key]), result.note)
            for key in keys
            for result in self._results.pop(key)
            if (keeps or key not in written) and not result.storage.expired()
        ]


def _alive(result: _Result, view: Tensor) -> Tensor:
    tensor = result.tensor()
    # FSDP resizes the storage of what it has gathered to 0 and leaves the shape as it is.
    return view if tensor is None or not tensor.untyped_storage().nbytes() else tensor


def arrived(
    lineage: Lineage,
    op: SeenOp,
    output: Operand,
    inputs: Sequence[Operand],
    written: AbstractSet[int],
) -> None:
    """Add a result that is not finite to a lineage.

    Finite values can become infinite in a sum and never NaN, and only large ones can. All else
    was not finite before this process received it.

    Args:
        lineage: What is known of the iteration.
        op: The collective.
        output: Its result.
        inputs: What this process has sent.
        written: Keys of what the collective has written.
    """
    values = output.values()
    if values.is_finite:
        lineage.settle(op, [output], inputs)
    elif _has_sent(lineage, inputs, written) or _may_overflow(op, values, inputs, written):
        lineage.failed(op, [output], {0: values}, inputs, written)
    else:
        lineage.received(op, output, values)


def _has_sent(lineage: Lineage, inputs: Sequence[Operand], written: AbstractSet[int]) -> bool:
    """Whether this process has sent values that are known not to be finite.

    Memory that was sent and freed meanwhile may hold others by now: its values of then decide, but for
    what the collective has overwritten.
    """
    return lineage.knows(i.key for i in inputs if i.key in written or not i.is_finite())


def _may_overflow(
    op: SeenOp, values: Values, inputs: Sequence[Operand], written: AbstractSet[int]
) -> bool:
    if values.nans or "reduce" not in op.name:
        return False
    limit = FORMATS[values.dtype].max if values.dtype in FORMATS else math.inf
    known = [i.values().amax for i in inputs if i.is_float and i.key not in written]
    # Of what is overwritten the size is not known any more: in float16 every one comes close.
    largest = max(known, default=LARGE)
    return not largest * MAX_RANKS < limit
