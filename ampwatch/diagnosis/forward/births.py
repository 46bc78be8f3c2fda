"""Choice of the birth that explains what is not finite in one iteration, and of its kind.

Most infinities in a training are as they should be: a mask of -inf that softmax turns into zeros,
a sentinel that a minimum starts from, the auxiliary output of a norm over one element. They are
distinguished from failures by what becomes of them, not by the op's name alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.diagnosis.evidence.births import Origin
from ampwatch.diagnosis.forward.kinds import (
    BACKWARD_NONFINITE_ANY_SCALE,
    FORWARD_NAN_UNDERFLOW,
    FORWARD_OVERFLOW,
    MASKED_ROW_NAN,
    NONFINITE_INPUT,
    REDUCE_OVERFLOW,
    SILENT_OVERFLOW,
)
from ampwatch.numerics.formats import FORMATS, HALF
from ampwatch.numerics.units.ops import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.births import Birth, OpTrace, Values
    from ampwatch.diagnosis.kinds.kind import Kind

SOFTMAX = frozenset({"_softmax", "_log_softmax", "softmax", "log_softmax", "_safe_softmax"})

LOGARITHMS = frozenset(
    {"log", "log2", "log10", "log1p", "logit", "special_logit", "xlogy", "special_xlogy"}
)
"""Ops that are not finite only where the argument is zero, one, or negative: the logarithm of no
finite number overflows."""

RECIPROCALS = frozenset({"reciprocal", "rsqrt", "_foreach_reciprocal", "_foreach_rsqrt"})
"""Ops that are not finite only where the argument is zero, all but zero, or negative."""

DOMAINS = frozenset({"sqrt", "_foreach_sqrt", "acos", "asin", "acosh", "atanh", "erfinv", "lgamma"})
"""Ops that are not finite only where the argument is outside, or at the end, of their domain."""

DIVISIONS = frozenset({"div", "true_divide", "_foreach_div", "addcdiv", "_foreach_addcdiv"})

MEANS = frozenset({"mean", "nll_loss_forward", "nll_loss2d_forward", "std", "var", "var_mean"})
"""Ops that are NaN where there is nothing to take the mean of."""

EXPONENTIALS = frozenset({"exp", "expm1", "exp2", "cosh", "sinh"})
"""Ops whose overflow is right where it ends as a reciprocal, which is 0: ``1 / (1 + exp(-x))``."""

FILLS = frozenset(
    {"fill", "full", "full_like", "masked_fill", "index_fill", "index_put", "where", "copy"}
)
"""Ops that write a number."""

CHOOSERS = frozenset(
    {
        "amax",
        "amin",
        "fmax",
        "fmin",
        "gather",
        "index",
        "index_put",
        "masked_fill",
        "masked_scatter",
        "max",
        "maximum",
        "min",
        "minimum",
        "select",
        "sort",
        "topk",
        "where",
    }
)
"""Ops that choose among their inputs: what they leave out was not meant to be used."""

SMALL = 1.0
"""A divisor below this is what made a quotient overflow, not the numerator."""

SMALL_NUMBER = 1e-4
"""A divisor below this is to blame where the program has written it down, as it does with
temperatures."""

USELESS_SCALE = 2.0**-14
"""Loss scale below which gradients smaller than 1 are no normal numbers of float16 any more: a
scale as small as that cures nothing."""


class Diagnosed(NamedTuple):
    """The birth that an incident begins with.

    Attributes:
        kind: Kind of the finding.
        birth: The birth.
        where: Place of the finding.
        phase: Phase of the finding.
        others: How many births were not made of this one and are failures as well.
    """

    kind: Kind
    birth: Birth
    where: str
    phase: str
    others: int = 0


def diagnose(trace: OpTrace) -> Diagnosed | None:
    """Return the birth that explains what is not finite in ``trace``; ``None`` if all is well."""
    births = trace.births
    if not births:
        return None
    descent = _Descent(trace)
    found = [d for birth in births if (d := _judge(birth, descent)) is not None]
    if not found:
        return None
    # What goes wrong in forward comes before what goes wrong in backward.
    first = min(found, key=lambda d: (d.birth.phase is Phase.BACKWARD, d.birth.index))
    others = [d for d in found if d is not first and not descent.descends(d.birth, first.birth)]
    return _placed(first, found)._replace(others=len(others))


def _placed(first: Diagnosed, found: Sequence[Diagnosed]) -> Diagnosed:
    """Return a diagnosis with the kind and place that the same line has where more is known of it.

    Where gradients are summed in a loop, only what came last is still in one at the end.
    """
    known = [
        d
        for d in found
        if d.kind is REDUCE_OVERFLOW
        and d.where.startswith("param:")
        and (d.birth.op, d.birth.source) == (first.birth.op, first.birth.source)
    ]
    return known[0]._replace(birth=first.birth) if known and not first.birth.is_inside else first


class _Descent:
    """Ancestors and descendants of the births of one iteration."""

    def __init__(self, trace: OpTrace) -> None:
        self.trace = trace
        self._children: dict[int, list[Birth]] = {}
        for birth in trace.births:
            for parent in birth.parents:
                self._children.setdefault(parent, []).append(birth)

    def children(self, birth: Birth) -> Sequence[Birth]:
        return self._children.get(birth.index, ())

    def parents(self, birth: Birth) -> Sequence[Birth]:
        return [self.trace.births[index] for index in sorted(birth.parents)]

    def descends(self, birth: Birth, ancestor: Birth) -> bool:
        """Whether values of one birth are made of those of another."""
        return any(
            parent is ancestor or self.descends(parent, ancestor) for parent in self.parents(birth)
        )

    def parameters(self, birth: Birth) -> list[str]:
        """Return the parameters whose gradients are made of a birth, the first of them first."""
        return [
            name
            for name, births in self.trace.bad_gradients.items()
            if any(
                index == birth.index or self.descends(self.trace.births[index], birth)
                for index in births
            )
        ]

    def in_backward(self, birth: Birth) -> bool:
        """Whether values made of a birth were not finite in backward."""
        return birth.in_backward or any(self.in_backward(c) for c in self.children(birth))

    def spread(self, birth: Birth) -> set[str]:
        """Return the places in which values made of a birth were not finite."""
        places = set(birth.spread_to)
        for child in self.children(birth):
            places |= self.spread(child)
            if child.phase is not Phase.BACKWARD:
                places.add(child.place)
        return places


def _judge(birth: Birth, descent: _Descent) -> Diagnosed | None:
    if birth.origin is not Origin.OP:
        return _judge_given(birth, descent)
    if birth.is_stepping:
        return None
    if birth.phase is Phase.BACKWARD and not birth.is_hook:
        return _judge_backward(birth, descent)
    found = _judge_reduced(birth, descent)
    is_metric = birth.phase is Phase.EVAL and not birth.is_inside
    if found is None and birth.phase in (Phase.FORWARD, Phase.EVAL) and not is_metric:
        found = _judge_made(birth, descent) if birth.parents else _judge_forward(birth, descent)
    return found


def _judge_given(birth: Birth, descent: _Descent) -> Diagnosed | None:
    """Judge what came in from outside: a batch, a constant, or a mask."""
    is_data = birth.origin in (Origin.CONSTANT, Origin.INPUT)
    if not is_data or birth.phase not in (Phase.FORWARD, Phase.EVAL):
        return None
    is_number = birth.origin is Origin.CONSTANT or (birth.out.numel == 1 and not birth.is_inside)
    used_by_model = birth.is_inside or any(place != "loss" for place in birth.spread_to)
    if is_number and (birth.is_inside or not (used_by_model or _is_written(birth))):
        return None  # a mask, a sentinel, a weight of a loss: the program says so itself
    if birth.out.is_negative_only and _is_mask(birth, descent):
        return None
    if not _spoils(birth, descent) or not (used_by_model or descent.trace.has_trained):
        return None
    where = "" if used_by_model else "loss"
    return Diagnosed(NONFINITE_INPUT, birth, where, _phase(birth))


def _is_written(birth: Birth) -> bool:
    """Whether NaN was written into a tensor, as data that is missing is, and not computed with."""
    return birth.out.nans and birth.op.rstrip("_") in FILLS


def _is_mask(birth: Birth, descent: _Descent) -> bool:
    """Whether only rows that are masked as a whole make it a failure, or nothing does."""
    children = descent.children(birth)
    return not children or all(child.op in SOFTMAX for child in children)


def _spoils(birth: Birth, descent: _Descent) -> bool:
    """Whether backward, or a gradient, is not finite because of a birth.

    A loss that is not finite says nothing of what else was observed in its iteration.
    """
    if descent.in_backward(birth) or descent.parameters(birth):
        return True
    spread = not birth.absorbed_by and bool(descent.spread(birth))
    return spread and not descent.trace.has_trained


def _judge_made(birth: Birth, descent: _Descent) -> Diagnosed | None:
    """Judge NaN that were made of infinities."""
    parents = descent.parents(birth)
    is_empty_row = birth.op in SOFTMAX and all(p.out.is_negative_only for p in parents)
    if is_empty_row and (_spoils(birth, descent) or not birth.absorbed_by):
        return Diagnosed(MASKED_ROW_NAN, birth, birth.place, _phase(birth))
    if all(_is_plain_mask(parent) for parent in parents) and _spoils(birth, descent):
        # A mask of infinities that is multiplied, or subtracted from itself.
        return Diagnosed(MASKED_ROW_NAN, birth, birth.place, _phase(birth))
    return None


def _is_plain_mask(birth: Birth) -> bool:
    is_given = birth.origin in (Origin.CONSTANT, Origin.INPUT, Origin.BUFFER)
    return is_given and birth.out.is_negative_only


def _judge_forward(birth: Birth, descent: _Descent) -> Diagnosed | None:
    """Judge what an op of the forward pass has made of finite values."""
    small = _is_small_number(birth)
    spread = descent.spread(birth)
    if not _matters(birth, descent, spread, small=small):
        return None
    kind, where = FORWARD_NAN_UNDERFLOW if small else FORWARD_OVERFLOW, birth.place
    if birth.absorbed_by and (not spread or _is_silent(birth, spread, descent)) and not small:
        kind = SILENT_OVERFLOW
    elif _is_preparation(birth):
        kind, where = NONFINITE_INPUT, ""
    return Diagnosed(kind, birth, where, _phase(birth))


def _matters(birth: Birth, descent: _Descent, spread: set[str], *, small: bool) -> bool:
    """Whether values do harm, and are not a mask or a sentinel, or what nobody has asked for."""
    children = descent.children(birth)
    if birth.out.is_negative_only and children and all(c.op in SOFTMAX for c in children):
        return False  # the row that it masked is what failed
    if birth.absorbed_by and not _escapes(birth, descent, spread):
        return not _is_meant(birth, small=small)
    is_unused = birth.absorbed_by or birth.phase is Phase.EVAL  # scores of what cannot be
    if is_unused and birth.out.is_negative_only and not children:
        return False
    return bool(spread) or descent.in_backward(birth) or _is_result(birth, descent)


def _escapes(birth: Birth, descent: _Descent, spread: set[str]) -> bool:
    """Whether values made of a birth are not finite outside of where it was, or in backward."""
    if spread - {birth.place} or descent.in_backward(birth) or descent.parameters(birth):
        return True
    return birth.place == "loss" and bool(descent.trace.loss_nonfinite)


def _is_silent(birth: Birth, spread: set[str], descent: _Descent) -> bool:
    """Whether the forward pass got rid of it inside of the module, and only backward met it."""
    return birth.is_inside and spread <= {birth.place} and not descent.trace.loss_nonfinite


def _is_meant(birth: Birth, *, small: bool) -> bool:
    """Whether values that were absorbed have left the right result behind."""
    if birth.out.is_negative_only or birth.out.nans or small or birth.op in EXPONENTIALS:
        return True
    return all(op.rstrip("_") in CHOOSERS for op in birth.absorbed_by)


def _is_result(birth: Birth, descent: _Descent) -> bool:
    """Whether values that nothing has read are what was asked for."""
    if birth.out_index or (birth.op in EXPONENTIALS and birth.out.dtype not in HALF):
        return False
    if birth.phase is Phase.EVAL:
        return True
    trace = descent.trace
    return bool(trace.loss_nonfinite) or (trace.loss_nonfinite is None and not trace.has_trained)


def _is_preparation(birth: Birth) -> bool:
    """Whether it happened to the data, before the model or beside it, in full precision."""
    return (
        not birth.is_inside
        and not birth.needs_grad
        and birth.phase is Phase.FORWARD
        and birth.out.dtype not in HALF
        and birth.spread_to != {"loss"}
        and bool(birth.spread_to)
    )


def _is_small_number(birth: Birth) -> bool:
    """Whether it is not finite because something that it needs is zero, or all but zero."""
    op = birth.op.rstrip("_")
    if op in LOGARITHMS or op in RECIPROCALS or op in DOMAINS:
        return True
    if op in MEANS:
        return birth.out.nans
    if op.startswith("pow") or op == "_foreach_pow":
        return birth.number < 0 or birth.out.nans
    if op in DIVISIONS:
        return birth.out.nans or not _divisor(birth) >= SMALL
    return False


def _divisor(birth: Birth) -> float:
    """Return the smallest magnitude of a divisor; NaN if unknown."""
    if not math.isnan(birth.number):
        return abs(birth.number) / SMALL_NUMBER
    inputs = birth.inputs
    if len(inputs) < 2:
        return math.nan
    divisor: Values = inputs[-1]
    return divisor.amin


def _judge_reduced(birth: Birth, descent: _Descent) -> Diagnosed | None:
    """Judge what was made of gradients after backward, where they are summed or measured."""
    is_collective = birth.overload.startswith(("c10d", "_c10d"))
    if not (is_collective or birth.out.dtype in HALF) or not _is_beside(birth):
        return None
    parameters = descent.parameters(birth)
    if parameters and (birth.is_hook or not descent.in_backward(birth)):
        return Diagnosed(REDUCE_OVERFLOW, birth, f"param:{parameters[0]}", "backward")
    if birth.gradient:
        # A norm is of all gradients of an optimizer together; what no backward made is the program's.
        where = "optimizer:0" if descent.trace.has_trained else "api"
        return Diagnosed(REDUCE_OVERFLOW, birth, where, "optimizer")
    if is_collective:
        return Diagnosed(REDUCE_OVERFLOW, birth, "loss", "backward")
    return None


def _is_beside(birth: Birth) -> bool:
    """Whether an overflow happened to something that is no part of a forward pass."""
    is_forward = birth.is_inside or birth.needs_grad or birth.phase is Phase.EVAL
    return not (is_forward or birth.parents or _is_small_number(birth))


def _judge_backward(birth: Birth, descent: _Descent) -> Diagnosed | None:
    """Judge what an op of the backward pass has made of finite values, or NaN it made of others.

    What a smaller scale would cure is the scaler's business, and it is at it.
    """
    if birth.parents or not (
        _is_small_number(birth) or _needs_no_scale(birth, descent.trace.scale)
    ):
        return None
    parameters = descent.parameters(birth)
    if not parameters:
        return None
    return Diagnosed(BACKWARD_NONFINITE_ANY_SCALE, birth, f"param:{parameters[0]}", "backward")


def _needs_no_scale(birth: Birth, scale: float) -> bool:
    """Whether the scale that a gradient would fit with is of no use to any other."""
    return limit_of(birth.out.dtype) * scale / birth.in_amax < USELESS_SCALE


def _phase(birth: Birth) -> str:
    return Phase.EVAL.label if birth.phase is Phase.EVAL else Phase.FORWARD.label


def limit_of(dtype: str) -> float:
    """Return the largest number of a dtype; NaN for one without a format."""
    known = FORMATS.get(dtype)
    return math.nan if known is None else known.max
