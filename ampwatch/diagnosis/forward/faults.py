"""The reason why an op of finite numbers has a result that is not finite.

An op that could be computed again in float64 has answered that itself. The tables are for the
others: ops that have overwritten what they read, and on a device those that are not elementwise.
None of them decides whether an origin is a failure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.diagnosis.evidence.origins import Fault
from ampwatch.numerics.formats import FORMATS

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.origins import Origin, Values

LOGARITHMS = frozenset(
    {"log", "log2", "log10", "log1p", "logit", "special_logit", "xlogy", "special_xlogy"}
)
"""Ops that are not finite only where the argument is zero, one, or negative: the logarithm of no
finite number overflows."""

RECIPROCALS = frozenset({"reciprocal", "rsqrt", "_foreach_reciprocal", "_foreach_rsqrt"})
"""Ops that are not finite only where the argument is zero, all but zero, or negative."""

DOMAINS = (
    frozenset({"sqrt", "_foreach_sqrt", "acos", "asin", "acosh", "atanh", "erfinv", "lgamma"})
    | LOGARITHMS
    | RECIPROCALS
)
"""Ops that are NaN where the argument is outside of their domain, and infinite at its ends at most."""

POWERS = ("pow", "_foreach_pow")
"""How the names of powers begin: NaN where the base is negative, and infinite at zero for an exponent below it."""

DIVISIONS = frozenset({"div", "true_divide", "_foreach_div", "addcdiv", "_foreach_addcdiv"})

MEANS = frozenset({"mean", "nll_loss_forward", "nll_loss2d_forward"})
"""Ops that are NaN where there is nothing to take the mean of, no element or no label."""

SMALL = 1.0
"""A divisor below this is what made a quotient overflow, not the numerator."""

SMALL_NUMBER = 1e-4
"""A divisor below this is to blame where the program has written it down, as it does with
temperatures."""


GROWING = ("exp", "prod", "pow", "det", "sinh", "cosh", "gamma", "fact")
"""Parts of the names of ops whose results grow faster than products of two."""

WIDE = 1e30
"""Formats that end beyond this have the range of float32."""


def fault_of(origin: Origin) -> Fault:
    """Return the reason why the result of an op is not finite; never ``UNKNOWN``."""
    if is_of_nothing(origin):
        return Fault.POINT
    if origin.answer.fault is not Fault.UNKNOWN:
        return origin.answer.fault
    op = origin.op.rstrip("_")
    if origin.out.nans and (op in DOMAINS or op.startswith(POWERS)):
        return Fault.INVALID
    if op in DOMAINS or _is_small_number(origin, op):
        return Fault.POINT
    return Fault.INVALID if _cannot_overflow(origin) else Fault.OVERFLOW


def is_of_scale(origin: Origin) -> bool:
    """Whether some smaller gradient would make an op of backward finite."""
    if origin.answer.fault is Fault.UNKNOWN:
        return fault_of(origin) is Fault.OVERFLOW
    # With all but zero in it, it is finite for a gradient that is small enough.
    return math.isfinite(origin.answer.amax)


def result_amax(origin: Origin) -> float:
    """Return the largest magnitude of a result with range to spare; NaN if unknown.

    That of the inputs stands in for it where the op was not computed again.
    """
    answer = origin.answer.amax
    return origin.in_amax if math.isnan(answer) else answer


def is_of_nothing(origin: Origin) -> bool:
    """Whether it is the mean, or another statistic, of no element at all."""
    if not origin.out.nans:
        return False
    return origin.op in MEANS or any(values.numel == 0 for values in origin.inputs)


def _is_small_number(origin: Origin, op: str) -> bool:
    """Whether something that it needs is zero, or all but zero."""
    if op.startswith(POWERS):
        return origin.number < 0
    if op in DIVISIONS:
        return origin.out.nans or not _divisor(origin) >= SMALL
    return False


def _divisor(origin: Origin) -> float:
    """Return the smallest magnitude of a divisor; NaN if unknown."""
    if not math.isnan(origin.number):
        return abs(origin.number) / SMALL_NUMBER
    inputs = origin.inputs
    if len(inputs) < 2:
        return math.nan
    divisor: Values = inputs[-1]
    return divisor.amin


def _cannot_overflow(origin: Origin) -> bool:
    """Whether the inputs are too small for products, and sums of them, to leave the format."""
    out = origin.out
    # Some kernels add up in the format that they read, and return a wider one: LayerNorm's backward does.
    limits = [limit_of(values.dtype) for values in (out, *origin.inputs)]
    limit = min(filter(math.isfinite, limits), default=math.nan)
    square = origin.in_amax * origin.in_amax  # a power would raise where this is infinite
    if out.nans and not (out.posinf or out.neginf):
        return square < limit
    # Of an op of somebody else nobody knows what it multiplies by.
    is_known = origin.overload.startswith("aten.") and not any(g in origin.op for g in GROWING)
    elements = sum(values.numel for values in origin.inputs)
    return is_known and limit > WIDE and square * elements < WIDE


def limit_of(dtype: str) -> float:
    """Return the largest number of a dtype; NaN for one without a format."""
    known = FORMATS.get(dtype)
    return math.nan if known is None else known.max
