"""How far two runs may be apart at one row, for the reasons that their formats give.

An op is judged by itself: by what its inputs are apart, which is measured, by what it makes of that,
and by what it rounds. So a place is found also in a step in which everything is apart already.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ampwatch.lab.tape.rows import RowKind, TapeRow
from ampwatch.numerics.formats import FORMATS

ROUNDINGS = 4.0
"""Units of rounding that one op may be off. The error of rounding once is 0.3 units in the mean square,
with casts of both inputs of a matmul before it 0.5; what is beyond eight times that is no rounding."""

GROWTH = 4.0
"""Factor by which an op may increase what its inputs are apart, beyond its condition: derivatives of the
usual activations stay under 1.2, a square doubles; and both distances are estimates, good to an eighth."""

ACCUMULATED = 2.0
"""Units of float32 by the square root of the terms of a sum: the error of a sum in a random order."""

ATTENTION = 4.0
"""Condition of attention in one op, whose logits nobody sees."""

TURNING = 8.0
"""Mean distances of a gradient's elements within which one of them may change its sign: what is apart
gathers in some of them."""

FLOAT32_UNIT = 2.0**-24
TF32_UNIT = 2.0**-11

_MATMULS = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "mv", "addmv", "dot"})
_EXPONENTIALS = frozenset(
    {"_softmax", "_log_softmax", "exp", "logsumexp", "softmax", "log_softmax"}
)


def unit_of(dtype: str) -> float:
    """Return the unit of rounding of a dtype, half its ``eps``; 0 of one that is no float."""
    known = FORMATS.get(dtype)
    return 0.0 if known is None else known.eps / 2


def rounding_of(row: TapeRow, *, allows_tf32: bool = False) -> float:
    """Return the coarsest unit of rounding of what a row has read and made."""
    unit = max(map(unit_of, (row.dtype, *row.inputs)), default=0.0)
    is_product = row.name in _MATMULS or "convolution" in row.name
    return max(unit, TF32_UNIT) if allows_tf32 and is_product and row.dtype == "float32" else unit


def flushed(row: TapeRow, other: TapeRow) -> float:
    """Return what the range of the narrower format takes away, as a share of the norm.

    Numbers near zero are off by half the smallest subnormal number each, whatever they are.
    """
    steps = [FORMATS[r.dtype].flush_at / r.scale for r in (row, other) if r.dtype in FORMATS]
    norm = max(row.norm, other.norm)
    return max(steps, default=0.0) * math.sqrt(row.numel) / norm if norm else 0.0


def condition(row: TapeRow, sources: Sequence[TapeRow], siblings: Sequence[TapeRow]) -> float:
    """Return by how much an op may magnify relative errors of its inputs, by what it cancels.

    It has made ``row``, one of all ``siblings``, which are in order.
    """
    # Norms of bits, indices and masks say nothing of what is computed.
    read = [source for source in sources if source.dtype in FORMATS]
    if not row.norm or not read:
        return 1.0
    return max(1.0, _terms(row, read, siblings) / row.norm)


def _terms(row: TapeRow, sources: Sequence[TapeRow], siblings: Sequence[TapeRow]) -> float:
    """Return the norm that the result had if nothing cancelled."""
    name = row.name
    if name in _EXPONENTIALS:
        return row.norm * max(1.0, sources[0].amax)
    if "attention" in name or "attn" in name:
        return row.norm * ATTENTION
    if len(sources) > 1 and (name in _MATMULS or "convolution" in name):
        return _product(row, sources)
    if "norm" in name and name.startswith(("native_", "_fused_", "cudnn_", "_native_")):
        return _normalized(row, sources, siblings)
    return _added(row, sources)


def _added(row: TapeRow, sources: Sequence[TapeRow]) -> float:
    largest = max(source.norm for source in sources)
    if row.name in ("mean", "sum"):
        # Errors that are alike in all terms add up, where the terms themselves cancel.
        terms = max(1.0, _terms_of_sum(row, sources))
        return largest * math.sqrt(terms) / (terms if row.name == "mean" else 1.0)
    if row.phase == 1 or row.name in _SUMS:
        return largest
    # A part may be read of what was written, and have all of its error.
    return max((s.norm for s in sources if s.numel > row.numel), default=row.norm)


_SUMS = frozenset(
    {"add", "sub", "add_", "sub_", "rsub", "lerp", "cumsum", "index_add_", "scatter_add_"}
    | {"addcmul", "addcdiv", "var", "std", "var_mean"}
)


def _product(row: TapeRow, sources: Sequence[TapeRow]) -> float:
    """Return the norm of a product of random matrices of the norms that were multiplied."""
    first, second = sorted(sources, key=lambda source: -source.numel)[:2]
    if row.phase == 1 and "convolution" in row.name:
        return max(first.norm, second.norm) * max(1.0, min(first.norm, second.norm))
    inner = math.sqrt(first.numel * second.numel / row.numel) if row.numel else 1.0
    offsets = max((s.norm for s in sources if s not in (first, second)), default=0.0)
    # In backward the terms are of the elements of a batch, whose errors are alike in part.
    power = 0.25 if row.phase == 1 else 0.5
    return max(first.norm * second.norm / math.pow(max(inner, 1.0), power), offsets)


def _normalized(row: TapeRow, sources: Sequence[TapeRow], siblings: Sequence[TapeRow]) -> float:
    """Return the norm that inputs of a normalization have in units of their deviation."""
    if row.phase == 1:
        inverse = max((s.amax for s in sources[1:] if s.numel < sources[0].numel), default=1.0)
        return sources[0].norm * max(1.0, inverse)
    inverse = siblings[-1].amax if len(siblings) > 2 else 1.0
    return max(row.norm, sources[0].norm * inverse)


def _terms_of_sum(row: TapeRow, sources: Sequence[TapeRow]) -> float:
    return max(source.numel for source in sources) / max(row.numel, 1)


def accumulated(row: TapeRow, sources: Sequence[TapeRow]) -> float:
    """Return what adding up in float32, in any order, may be off."""
    if not sources or row.kind != RowKind.OP:
        return 0.0
    if row.name in _MATMULS and len(sources) > 1:
        numels = sorted((source.numel for source in sources), reverse=True)
        terms = math.sqrt(numels[0] * numels[1] / max(row.numel, 1))
    else:
        terms = _terms_of_sum(row, sources)
    return ACCUMULATED * FLOAT32_UNIT * math.sqrt(max(terms, 1.0))


def turned_share(a: TapeRow, b: TapeRow, distance: float) -> float:
    """Return the share of elements so near zero that what two gradients are apart may turn them around."""
    if not distance or not a.numel:
        return 0.0
    apart = min(distance, 1.0) * max(a.norm, b.norm) / math.sqrt(a.numel)
    return max(_below(row, TURNING * apart * row.scale) for row in (a, b))


def _below(row: TapeRow, magnitude: float) -> float:
    """Return the share of elements that are not zero and at most ``magnitude``, by the bins."""
    if magnitude <= 0.0 or not row.counts:
        return 0.0
    if math.isinf(magnitude):
        return 1.0
    last = math.ceil(math.log2(magnitude)) - row.first + 1
    return sum(row.counts[: max(last, 0)]) / row.numel
