"""Choice of the birth that explains what is not finite in one iteration, and of its kind.

Most infinities in a training are as they should be: a mask of -inf that softmax turns into zeros,
a sentinel that a minimum starts from, the auxiliary output of a norm over one element. They are
distinguished from failures by what becomes of them, not by the op's name alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ampwatch.diagnosis.evidence.origins import Fault, Origin
from ampwatch.diagnosis.forward.descent import Descent
from ampwatch.diagnosis.forward.faults import fault_of, is_of_scale, limit_of, result_amax
from ampwatch.diagnosis.forward.kinds import (
    BACKWARD_NONFINITE_ANY_SCALE,
    FORWARD_NAN_UNDERFLOW,
    FORWARD_OVERFLOW,
    INVALID_OPERATION,
    MASKED_ROW_NAN,
    NONFINITE_INPUT,
    REDUCE_OVERFLOW,
    SILENT_OVERFLOW,
)
from ampwatch.numerics.formats import HALF
from ampwatch.numerics.units.ops import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from ampwatch.diagnosis.evidence.origins import Birth, OpTrace
    from ampwatch.diagnosis.kinds.kind import Kind

SOFTMAX = frozenset({"_softmax", "_log_softmax", "softmax", "log_softmax", "_safe_softmax"})

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
        is_lasting: Whether it was seen not to shrink while the loss scale fell.
    """

    kind: Kind
    birth: Birth
    where: str
    phase: str
    others: int = 0
    is_lasting: bool = False


def diagnose(trace: OpTrace, lasting: AbstractSet[int] = frozenset()) -> Diagnosed | None:
    """Return the birth that explains what is not finite in an iteration; ``None`` if all is well.

    Args:
        trace: The iteration.
        lasting: Births of backward that were seen at several loss scales and did not shrink.
    """
    births = trace.births
    if not births:
        return None
    descent = Descent(trace, lasting)
    found = [d for birth in births if (d := _judge(birth, descent)) is not None]
    if not found and trace.is_refused:
        found = _refused(births)
    if not found:
        return None
    # What goes wrong in forward comes before what goes wrong in backward, and an op before an
    # infinity that the program has written itself and that may be as it should be.
    first = min(
        found,
        key=lambda d: (
            d.birth.phase is Phase.BACKWARD,
            d.birth.origin is not Origin.OP and d.kind is INVALID_OPERATION,
            d.birth.index,
        ),
    )
    others = [d for d in found if d is not first and not descent.descends(d.birth, first.birth)]
    return _placed(first, found)._replace(others=len(others))


def _refused(births: Sequence[Birth]) -> list[Diagnosed]:
    """Return what has made what a function refused to take: it ran beside the model, without gradients perhaps."""
    made = [b for b in births if b.origin is Origin.OP and not (b.absorbed_by or b.parents)]
    return [Diagnosed(_KINDS[fault_of(b)], b, b.place, _phase(b)) for b in made[:1]]


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


def _judge(birth: Birth, descent: Descent) -> Diagnosed | None:
    if birth.origin is not Origin.OP:
        return _judge_written(birth, descent) if _is_number(birth) else _judge_given(birth, descent)
    if birth.is_stepping:
        return None
    if birth.phase is Phase.BACKWARD and not birth.is_hook:
        return _judge_backward(birth, descent)
    found = _judge_reduced(birth, descent)
    is_metric = birth.phase is Phase.EVAL and not birth.is_inside
    if found is None and birth.phase in (Phase.FORWARD, Phase.EVAL) and not is_metric:
        found = _judge_made(birth, descent) if birth.parents else _judge_forward(birth, descent)
    return found


def _is_number(birth: Birth) -> bool:
    """Whether the program itself says so: a mask, a sentinel, a fill, a weight of a loss.

    Such a tensor holds no other number, besides zeros. A batch does, and so does a number of it.
    """
    if birth.origin is Origin.CONSTANT:
        return True
    is_plain = birth.out.amax == 0.0 and not birth.out.nans
    return birth.origin is Origin.INPUT and birth.is_inside and is_plain


def _judge_given(birth: Birth, descent: Descent) -> Diagnosed | None:
    """Judge what came in from outside: a batch, or a mask."""
    if birth.origin is not Origin.INPUT or birth.phase not in (Phase.FORWARD, Phase.EVAL):
        return None
    used_by_model = _is_used_by_model(birth)
    if birth.out.numel == 1 and not (used_by_model or _is_missing(birth)):
        return None
    return _as_data(birth, descent)


def _as_data(birth: Birth, descent: Descent) -> Diagnosed | None:
    """Return the diagnosis of data that is not finite; ``None`` if it does no harm."""
    if birth.out.is_negative_only and _is_mask(birth, descent):
        return None
    used_by_model = _is_used_by_model(birth)
    if not _spoils(birth, descent) or not (used_by_model or descent.trace.has_trained):
        return None
    where = "" if used_by_model else "loss"
    return Diagnosed(NONFINITE_INPUT, birth, where, _phase(birth))


def _judge_written(birth: Birth, descent: Descent) -> Diagnosed | None:
    """Judge a number that the program has written into a tensor, or computed with."""
    if birth.phase is Phase.BACKWARD and not birth.is_inside:
        parameters = descent.parameters(birth)
        # A loss that was infinite already, times infinity it may be, is the program's own word.
        if parameters and not descent.trace.loss_nonfinite:
            where = f"param:{parameters[0]}"
            return Diagnosed(BACKWARD_NONFINITE_ANY_SCALE, birth, where, "backward")
        return None
    if birth.phase not in (Phase.FORWARD, Phase.EVAL):
        return None
    if not birth.is_inside and (_is_used_by_model(birth) or _is_missing(birth)):
        return _as_data(birth, descent)
    # Infinity is right in many places. It is wrong where it comes out as the loss.
    if birth.is_inside and _is_in_loss(birth, descent) and not descent.began_earlier:
        return Diagnosed(INVALID_OPERATION, birth, birth.place, _phase(birth))
    return None


def _is_used_by_model(birth: Birth) -> bool:
    return birth.is_inside or any(place != "loss" for place in birth.spread_to)


def _is_missing(birth: Birth) -> bool:
    """Whether NaN was written into a tensor, as data that is missing is, and not computed with."""
    return birth.out.nans and birth.op.rstrip("_") in FILLS


def _is_mask(birth: Birth, descent: Descent) -> bool:
    """Whether only rows that are masked as a whole make it a failure, or nothing does."""
    children = descent.children(birth)
    return not children or all(child.op in SOFTMAX for child in children)


def _spoils(birth: Birth, descent: Descent) -> bool:
    """Whether backward, or a gradient, is not finite because of a birth.

    A loss that is not finite says nothing of what else was observed in its iteration.
    """
    if descent.in_backward(birth) or descent.parameters(birth):
        return True
    spread = not birth.absorbed_by and bool(descent.spread(birth))
    trace = descent.trace
    return spread and (bool(trace.loss_nonfinite) if trace.is_replay else not trace.has_trained)


def _is_in_loss(birth: Birth, descent: Descent) -> bool:
    """Whether a loss is not finite, and values made of a birth went into it, as far as was seen."""
    trace = descent.trace
    if not trace.loss_nonfinite or birth.absorbed_by:
        return False
    spread = descent.spread(birth)
    return "loss" in spread or bool(descent.parameters(birth)) or (trace.is_replay and bool(spread))


def _judge_made(birth: Birth, descent: Descent) -> Diagnosed | None:
    """Judge NaN that were made of infinities."""
    parents = descent.parents(birth)
    is_empty_row = birth.op in SOFTMAX and all(p.out.is_negative_only for p in parents)
    if is_empty_row and (_spoils(birth, descent) or not birth.absorbed_by):
        return Diagnosed(MASKED_ROW_NAN, birth, birth.place, _phase(birth))
    if not (_spoils(birth, descent) or _is_in_loss(birth, descent)):
        return None
    if all(_is_plain_mask(parent) for parent in parents):
        # A mask of infinities that is multiplied, or subtracted from itself.
        return Diagnosed(MASKED_ROW_NAN, birth, birth.place, _phase(birth))
    if all(_is_number(parent) for parent in parents):
        return Diagnosed(INVALID_OPERATION, birth, birth.place, _phase(birth))
    return None


def _is_plain_mask(birth: Birth) -> bool:
    is_given = birth.origin in (Origin.CONSTANT, Origin.INPUT, Origin.BUFFER)
    return is_given and birth.out.is_negative_only


def _judge_forward(birth: Birth, descent: Descent) -> Diagnosed | None:
    """Judge what an op of the forward pass has made of finite values."""
    kind, where = _KINDS[fault_of(birth)], birth.place
    small = kind is not FORWARD_OVERFLOW
    spread = descent.spread(birth)
    if not _matters(birth, descent, spread, small=small):
        return None
    if birth.absorbed_by and (not spread or _is_silent(birth, spread, descent)) and not small:
        kind = SILENT_OVERFLOW
    elif _is_preparation(birth):
        kind, where = NONFINITE_INPUT, ""
    return Diagnosed(kind, birth, where, _phase(birth))


_KINDS = {
    Fault.OVERFLOW: FORWARD_OVERFLOW,
    Fault.POINT: FORWARD_NAN_UNDERFLOW,
    Fault.INVALID: INVALID_OPERATION,
}


def _matters(birth: Birth, descent: Descent, spread: set[str], *, small: bool) -> bool:
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


def _escapes(birth: Birth, descent: Descent, spread: set[str]) -> bool:
    """Whether values made of a birth are not finite outside of where it was, or in backward."""
    if spread - {birth.place} or descent.in_backward(birth) or descent.parameters(birth):
        return True
    return birth.place == "loss" and bool(descent.trace.loss_nonfinite)


def _is_silent(birth: Birth, spread: set[str], descent: Descent) -> bool:
    """Whether the forward pass got rid of it inside of the module, and only backward met it.

    Outside of all modules it is got rid of where the loss is known to be finite, and backward does not meet it
    either: no step is skipped for it.
    """
    if not spread <= {birth.place} or descent.trace.loss_nonfinite:
        return False
    if birth.is_inside:
        return True
    is_met = descent.in_backward(birth) or bool(descent.parameters(birth))
    return descent.trace.loss_nonfinite is False and not is_met


def _is_meant(birth: Birth, *, small: bool) -> bool:
    """Whether values that were absorbed have left the right result behind."""
    if birth.out.is_negative_only or birth.out.nans or small or birth.op in EXPONENTIALS:
        return True
    return all(op.rstrip("_") in CHOOSERS for op in birth.absorbed_by)


def _is_result(birth: Birth, descent: Descent) -> bool:
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


def _judge_reduced(birth: Birth, descent: Descent) -> Diagnosed | None:
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
    return not (is_forward or birth.parents) and fault_of(birth) is Fault.OVERFLOW


def _judge_backward(birth: Birth, descent: Descent) -> Diagnosed | None:
    """Judge what an op of the backward pass has made of finite values, or NaN it made of others.

    What a smaller scale would cure is the scaler's business, and it is at it.
    """
    parameters = descent.parameters(birth)
    if birth.hidden_by and not parameters:
        return Diagnosed(SILENT_OVERFLOW, birth, birth.module or "loss", "backward")
    if not parameters or not _is_at_any_scale(birth, descent):
        return None
    where = f"param:{parameters[0]}"
    is_lasting = birth.index in descent.lasting
    kind = BACKWARD_NONFINITE_ANY_SCALE
    return Diagnosed(kind, birth, where, "backward", is_lasting=is_lasting)


def _is_at_any_scale(birth: Birth, descent: Descent) -> bool:
    """Whether a smaller loss scale would not make it finite, or was seen not to."""
    if birth.parents:
        # 0 * inf and inf - inf, where the infinity is no gradient that has overflowed.
        is_finite = not descent.trace.loss_nonfinite
        return is_finite and all(_is_lasting_infinity(p) for p in descent.parents(birth))
    if birth.index in descent.lasting or not is_of_scale(birth):
        return True
    # A scale that this gradient would fit with is of no use to any other.
    needed = limit_of(birth.out.dtype) * descent.trace.scale / result_amax(birth)
    return needed < USELESS_SCALE


def _is_lasting_infinity(birth: Birth) -> bool:
    """Whether an infinity was there before backward, or is one that forward had no use for."""
    if birth.origin in (Origin.CONSTANT, Origin.BUFFER):
        return True
    is_forward = birth.phase is not Phase.BACKWARD
    return is_forward and birth.origin in (Origin.INPUT, Origin.OP)


def _phase(birth: Birth) -> str:
    return Phase.EVAL.label if birth.phase is Phase.EVAL else Phase.FORWARD.label
