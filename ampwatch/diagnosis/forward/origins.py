"""Choice of the origin that explains what is not finite in one iteration, and of its kind.

Most infinities in a training are as they should be: a mask of -inf that softmax turns into zeros,
a sentinel that a minimum starts from, the auxiliary output of a norm over one element. They are
distinguished from failures by what becomes of them, not by the op's name alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ampwatch.diagnosis.evidence.origins import Fault, OriginKind
from ampwatch.diagnosis.forward.faults import (
    LOGARITHMS,
    fault_of,
    is_of_scale,
    limit_of,
    result_amax,
)
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

    from ampwatch.diagnosis.evidence.origins import OpTrace, Origin
    from ampwatch.diagnosis.kinds.kind import Kind


class Descent:
    """Ancestors and descendants of the origins of one iteration.

    Args:
        trace: The iteration.
        lasting: Origins of backward that were seen at several loss scales and did not shrink.

    Attributes:
        has_failed: Whether the iteration has failed, and nothing else explains it.
    """

    def __init__(self, trace: OpTrace, lasting: AbstractSet[int]) -> None:
        self.trace = trace
        self.lasting = lasting
        self.has_failed = False
        self._children: dict[int, list[Origin]] = {}
        for origin in trace.origins:
            for parent in origin.parents:
                self._children.setdefault(parent, []).append(origin)

    @property
    def began_earlier(self) -> bool:
        """Whether values were not finite before the first op, in weights, buffers or elsewhere."""
        before = (OriginKind.PARAMETER, OriginKind.BUFFER, OriginKind.SENT, OriginKind.OTHER)
        return any(origin.kind in before for origin in self.trace.origins)

    def children(self, origin: Origin) -> Sequence[Origin]:
        """Return the origins of NaN that were made of an origin itself."""
        return self._children.get(origin.index, ())

    def parents(self, origin: Origin) -> Sequence[Origin]:
        """Return the origins that an origin was made of."""
        return [self.trace.origins[index] for index in sorted(origin.parents)]

    def descends(self, origin: Origin, ancestor: Origin) -> bool:
        """Whether values of one origin are made of those of another."""
        return any(
            parent is ancestor or self.descends(parent, ancestor) for parent in self.parents(origin)
        )

    def parameters(self, origin: Origin) -> list[str]:
        """Return the parameters whose gradients are made of an origin, the first of them first."""
        return [
            name
            for name, origins in self.trace.bad_gradients.items()
            if any(
                index == origin.index or self.descends(self.trace.origins[index], origin)
                for index in origins
            )
        ]

    def in_backward(self, origin: Origin) -> bool:
        """Whether values made of an origin were not finite in backward."""
        return origin.in_backward or any(self.in_backward(c) for c in self.children(origin))

    def in_graph(self, origin: Origin) -> bool:
        """Whether values made of an origin, or those it was made of, require a gradient."""
        is_own = origin.needs_grad or origin.joins_graph
        return is_own or any(map(self.in_graph, self.children(origin)))

    def is_met(self, origin: Origin) -> bool:
        """Whether values made of an origin were not finite in backward, or are none in a gradient."""
        return self.in_backward(origin) or bool(self.parameters(origin))

    def spread(self, origin: Origin) -> set[str]:
        """Return the places in which values made of an origin were not finite."""
        places = set(origin.spread_to)
        for child in self.children(origin):
            places |= self.spread(child)
            if child.phase is not Phase.BACKWARD:
                places.add(child.place)
        return places


SOFTMAX = frozenset({"_softmax", "_log_softmax", "softmax", "log_softmax", "_safe_softmax"})

EXPONENTIALS = frozenset({"exp", "expm1", "exp2", "cosh", "sinh"})
"""Ops whose overflow is right where it ends as a reciprocal, which is 0: ``1 / (1 + exp(-x))``."""

FILLS = frozenset(
    {"fill", "full", "full_like", "masked_fill", "index_fill", "index_put", "where", "copy"}
)
"""Ops that write a number."""

PRODUCTS = frozenset({"addmm", "baddbmm", "bmm", "convolution", "dot", "mm", "mv"})
"""Ops that multiply by what they read, and add up: no mask is meant for them."""

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
    """The origin that an incident begins with.

    Attributes:
        kind: Kind of the finding.
        origin: The origin.
        where: Place of the finding.
        phase: Phase of the finding.
        others: How many origins were not made of this one and are failures as well.
        is_lasting: Whether it was seen not to shrink while the loss scale fell.
    """

    kind: Kind
    origin: Origin
    where: str
    phase: str
    others: int = 0
    is_lasting: bool = False


def diagnose(trace: OpTrace, lasting: AbstractSet[int] = frozenset()) -> Diagnosed | None:
    """Return the origin that explains what is not finite in an iteration; ``None`` if all is well.

    Args:
        trace: The iteration.
        lasting: Origins of backward that were seen at several loss scales and did not shrink.
    """
    origins = trace.origins
    if not origins:
        return None
    descent = Descent(trace, lasting)
    found = [d for origin in origins if (d := _judge(origin, descent)) is not None]
    if not found and (trace.loss_nonfinite or trace.bad_gradients):
        # It may have gone on as a Python number (a weight of the loss), which no op shows.
        descent.has_failed = True
        found = [d for origin in origins if (d := _judge(origin, descent)) is not None]
    if not found and trace.is_refused:
        found = _refused(origins)
    if not found:
        return None
    # What goes wrong in forward comes before what goes wrong in backward, and an op before an
    # infinity that the program has written itself and that may be as it should be.
    first = min(
        found,
        key=lambda d: (
            d.origin.phase is Phase.BACKWARD,
            d.origin.kind is not OriginKind.OP and d.kind is INVALID_OPERATION,
            d.origin.index,
        ),
    )
    others = [d for d in found if d is not first and not descent.descends(d.origin, first.origin)]
    return _placed(first, found)._replace(others=len(others))


def _refused(origins: Sequence[Origin]) -> list[Diagnosed]:
    """Return what has made what a function refused to take: it ran beside the model, without gradients perhaps."""
    made = [b for b in origins if b.kind is OriginKind.OP and not (b.absorbed_by or b.parents)]
    return [Diagnosed(_KINDS[fault_of(b)], b, b.place, Phase.FORWARD.label) for b in made[:1]]


def _placed(first: Diagnosed, found: Sequence[Diagnosed]) -> Diagnosed:
    """Return a diagnosis with the kind and place that the same line has where more is known of it.

    Where gradients are summed in a loop, only what came last is still in one at the end.
    """
    known = [
        d
        for d in found
        if d.kind is REDUCE_OVERFLOW
        and d.where.startswith("param:")
        and (d.origin.op, d.origin.source) == (first.origin.op, first.origin.source)
    ]
    return known[0]._replace(origin=first.origin) if known and not first.origin.is_inside else first


def _judge(origin: Origin, descent: Descent) -> Diagnosed | None:
    if origin.kind is not OriginKind.OP:
        return (
            _judge_written(origin, descent) if _is_number(origin) else _judge_given(origin, descent)
        )
    if origin.is_stepping:
        return None
    if origin.phase is Phase.BACKWARD and not origin.is_hook:
        return _judge_backward(origin, descent)
    found = _judge_reduced(origin, descent)
    is_of_gradients = origin.is_hook or origin.phase is Phase.OPTIMIZER
    if found is None and is_of_gradients and fault_of(origin) is Fault.POINT:
        # Code of the user's that divides by the norm of a gradient of zeros, in a hook or after backward. What is
        # added up there is no hook's: it may be left over from the step before.
        return _judge_backward(origin, descent) if descent.parameters(origin) else None
    # A target that is computed without gradients, as by Sinkhorn's iteration, is no metric: backward meets it.
    is_used = origin.is_inside or descent.is_met(origin)
    is_metric = not (
        is_used or (origin.phase is Phase.FORWARD and _is_of_training(origin, descent))
    )
    if found is None and origin.phase in (Phase.FORWARD, Phase.EVAL) and not is_metric:
        found = _judge_made(origin, descent) if origin.parents else _judge_forward(origin, descent)
    return found


def _is_of_training(origin: Origin, descent: Descent) -> bool:
    """Whether what happens outside of the model is no number that is only logged.

    The model reads it, it has a graph, or nothing else explains a failure.
    """
    is_seen = descent.in_graph(origin) or bool(descent.spread(origin) - {"loss"})
    return is_seen or descent.has_failed


def _is_number(origin: Origin) -> bool:
    """Whether the program itself says so: a mask, a sentinel, a fill, a weight of a loss.

    Such a tensor holds no other number, besides zeros. A batch does, and so does a number of it.
    """
    if origin.kind is OriginKind.CONSTANT:
        return True
    is_plain = origin.out.amax == 0.0 and not origin.out.nans
    return origin.kind is OriginKind.INPUT and origin.is_inside and is_plain


def _judge_given(origin: Origin, descent: Descent) -> Diagnosed | None:
    """Judge what came in from outside: a batch, or a mask."""
    if origin.kind is not OriginKind.INPUT or origin.phase not in (Phase.FORWARD, Phase.EVAL):
        return None
    if origin.is_inside and _is_collective(origin):
        return None  # what FSDP gathers are shards of weights
    is_read = _is_used_by_model(origin) or origin.is_unseen  # by the graph of the loss
    if origin.out.numel == 1 and not (is_read or _is_missing(origin, descent)):
        return None
    return _as_data(origin, descent)


def _as_data(origin: Origin, descent: Descent) -> Diagnosed | None:
    """Return the diagnosis of data that is not finite; ``None`` if it does no harm."""
    if origin.out.is_negative_only and _is_mask(origin, descent):
        return None
    used_by_model = _is_used_by_model(origin)
    trace = descent.trace
    # What a replay of a part of the program reads may have been computed before it.
    is_seen = used_by_model or trace.has_trained or (trace.is_refused and not trace.is_replay)
    if not (is_seen and _spoils(origin, descent)):
        return None
    where = "" if used_by_model else "loss"
    return Diagnosed(NONFINITE_INPUT, origin, where, _phase(origin))


def _judge_written(origin: Origin, descent: Descent) -> Diagnosed | None:
    """Judge a number that the program has written into a tensor, or computed with."""
    if origin.phase is Phase.BACKWARD and not origin.is_inside:
        parameters = descent.parameters(origin)
        # A loss that was infinite already, times infinity it may be, is the program's own word.
        if parameters and not descent.trace.loss_nonfinite:
            where = f"param:{parameters[0]}"
            return Diagnosed(BACKWARD_NONFINITE_ANY_SCALE, origin, where, "backward")
        return None
    if origin.phase not in (Phase.FORWARD, Phase.EVAL):
        return None
    if not origin.is_inside and (_is_used_by_model(origin) or _is_missing(origin, descent)):
        return _as_data(origin, descent)
    # Infinity is right in many places. It is wrong where it comes out as the loss.
    if origin.is_inside and _is_in_loss(origin, descent) and not descent.began_earlier:
        return Diagnosed(INVALID_OPERATION, origin, origin.place, _phase(origin))
    return None


def _is_used_by_model(origin: Origin) -> bool:
    return origin.is_inside or any(place != "loss" for place in origin.spread_to)


def _is_missing(origin: Origin, descent: Descent) -> bool:
    """Whether it was written into a tensor, as data that is missing is, and not computed with.

    NaN; or an infinity that a product reads before any graph has it. Scores are masked in one, but for those of a replay.
    """
    children = descent.children(origin)
    is_data = origin.out.nans or (
        bool(children)
        and not descent.trace.is_replay
        and all(c.op in PRODUCTS and not c.reads_graph for c in children)
    )
    return is_data and origin.op.rstrip("_") in FILLS


def _is_mask(origin: Origin, descent: Descent) -> bool:
    """Whether only rows that are masked as a whole make it a failure, or nothing does."""
    children = descent.children(origin)
    return not children or all(map(_is_of_row, children))


def _is_of_row(origin: Origin) -> bool:
    """Whether NaN are those of a row of negative infinities, and of no score that is +inf."""
    return origin.op in SOFTMAX and not origin.reads_posinf


def _spoils(origin: Origin, descent: Descent) -> bool:
    """Whether backward, or a gradient, is not finite because of an origin.

    A loss that is not finite says nothing of what else was observed in its iteration.
    """
    if descent.is_met(origin):
        return True
    spread = not origin.absorbed_by and bool(descent.spread(origin))
    trace = descent.trace
    return spread and (bool(trace.loss_nonfinite) if trace.is_replay else not trace.has_trained)


def _is_in_loss(origin: Origin, descent: Descent) -> bool:
    """Whether a loss is not finite, and values made of an origin went into it, as far as was seen."""
    trace = descent.trace
    if not trace.loss_nonfinite or origin.absorbed_by:
        return False
    spread = descent.spread(origin)
    return (
        "loss" in spread or bool(descent.parameters(origin)) or (trace.is_replay and bool(spread))
    )


def _judge_made(origin: Origin, descent: Descent) -> Diagnosed | None:
    """Judge NaN that were made of infinities."""
    if _is_handled(origin, descent.trace):
        return None
    parents = descent.parents(origin)
    is_empty_row = _is_of_row(origin) and all(map(_may_mask, parents))
    if is_empty_row and (_spoils(origin, descent) or not origin.absorbed_by):
        return Diagnosed(MASKED_ROW_NAN, origin, origin.place, _phase(origin))
    if not (_spoils(origin, descent) or _is_in_loss(origin, descent)):
        return None
    if all(_is_plain_mask(parent) for parent in parents):
        # A mask of infinities that is multiplied, or subtracted from itself.
        return Diagnosed(MASKED_ROW_NAN, origin, origin.place, _phase(origin))
    if all(_is_number(parent) for parent in parents):
        return Diagnosed(INVALID_OPERATION, origin, origin.place, _phase(origin))
    return None


def _is_handled(origin: Origin, trace: OpTrace) -> bool:
    """Whether the program has replaced it, and neither the loss nor a gradient was not finite for it.

    A row that is all padding is NaN after softmax, and so is its gradient, which the mask then stops.
    """
    has_passed = trace.has_trained and not trace.is_replay and trace.loss_nonfinite is False
    return bool(origin.absorbed_by) and has_passed and not trace.bad_gradients


def _may_mask(origin: Origin) -> bool:
    """Whether values may be meant as a mask: negative infinity, no score that was divided by zero.

    The logarithm of zeros and ones is a mask, if no gradient is to come of it.
    """
    is_made = origin.kind is OriginKind.OP and fault_of(origin) is Fault.POINT
    is_mask_of_log = origin.op.rstrip("_") in LOGARITHMS and not origin.needs_grad
    return origin.out.is_negative_only and not (is_made and not is_mask_of_log)


def _is_plain_mask(origin: Origin) -> bool:
    is_given = origin.kind in (OriginKind.CONSTANT, OriginKind.INPUT, OriginKind.BUFFER)
    return is_given and origin.out.is_negative_only


def _judge_forward(origin: Origin, descent: Descent) -> Diagnosed | None:
    """Judge what an op of the forward pass has made of finite values."""
    kind, where = _KINDS[fault_of(origin)], origin.place
    small = kind is not FORWARD_OVERFLOW
    spread = descent.spread(origin)
    if not _matters(origin, descent, spread, small=small):
        return None
    if origin.absorbed_by and (not spread or _is_silent(origin, spread, descent)) and not small:
        kind = SILENT_OVERFLOW
    elif _is_preparation(origin):
        kind, where = NONFINITE_INPUT, ""
    # What backward has met was computed for the training, though without gradients.
    phase = Phase.FORWARD.label if descent.is_met(origin) else _phase(origin)
    return Diagnosed(kind, origin, where, phase)


_KINDS = {
    Fault.OVERFLOW: FORWARD_OVERFLOW,
    Fault.POINT: FORWARD_NAN_UNDERFLOW,
    Fault.INVALID: INVALID_OPERATION,
}


def _matters(origin: Origin, descent: Descent, spread: set[str], *, small: bool) -> bool:
    """Whether values do harm, and are not a mask or a sentinel, or what nobody has asked for."""
    children = descent.children(origin)
    if _may_mask(origin) and children and all(map(_is_of_row, children)):
        return False  # the row that it masked is what failed
    if _may_mask(origin) and not children and descent.trace.holds_nans:
        return False  # a mask that was added to NaN
    if origin.absorbed_by and not _escapes(origin, descent, spread):
        return not _is_meant(origin, small=small)
    is_unused = origin.absorbed_by or origin.phase is Phase.EVAL  # scores of what cannot be
    if is_unused and origin.out.is_negative_only and not children:
        return False
    return bool(spread) or descent.in_backward(origin) or _is_result(origin, descent)


def _escapes(origin: Origin, descent: Descent, spread: set[str]) -> bool:
    """Whether values made of an origin are not finite outside of where it was, or in backward."""
    if spread - {origin.place} or descent.is_met(origin):
        return True
    return origin.place == "loss" and bool(descent.trace.loss_nonfinite)


def _is_silent(origin: Origin, spread: set[str], descent: Descent) -> bool:
    """Whether the forward pass got rid of it inside of the module, and only backward met it.

    Outside of all modules it is got rid of where the loss is known to be finite, and backward does not meet it
    either: no step is skipped for it.
    """
    if not spread <= {origin.place} or descent.trace.loss_nonfinite:
        return False
    if origin.is_inside:
        return True
    return descent.trace.loss_nonfinite is False and not descent.is_met(origin)


def _is_meant(origin: Origin, *, small: bool) -> bool:
    """Whether values that were absorbed have left the right result behind."""
    if origin.out.is_negative_only or origin.out.nans or small or origin.op in EXPONENTIALS:
        return True
    return all(op.rstrip("_") in CHOOSERS for op in origin.absorbed_by)


def _is_result(origin: Origin, descent: Descent) -> bool:
    """Whether values that nothing has read are what was asked for."""
    if origin.out_index or (origin.op in EXPONENTIALS and origin.out.dtype not in HALF):
        return False
    if origin.phase is Phase.EVAL:
        return True
    trace = descent.trace
    return bool(trace.loss_nonfinite) or (trace.loss_nonfinite is None and not trace.has_trained)


def _is_preparation(origin: Origin) -> bool:
    """Whether it happened to the data, before the model or beside it, in full precision."""
    return (
        not origin.is_inside
        and not origin.needs_grad
        and origin.phase is Phase.FORWARD
        and origin.out.dtype not in HALF
        and origin.spread_to != {"loss"}
        and bool(origin.spread_to)
    )


def _judge_reduced(origin: Origin, descent: Descent) -> Diagnosed | None:
    """Judge what was made of gradients after backward, where they are summed or measured."""
    is_collective = _is_collective(origin)
    if not (is_collective or origin.out.dtype in HALF) or not _is_beside(origin):
        return None
    parameters = descent.parameters(origin)
    if parameters and (origin.is_hook or not descent.in_backward(origin)):
        return Diagnosed(REDUCE_OVERFLOW, origin, f"param:{parameters[0]}", "backward")
    if origin.gradient:
        # A norm is of all gradients of an optimizer together; what no backward made is the program's.
        where = "optimizer:0" if descent.trace.has_trained else "api"
        return Diagnosed(REDUCE_OVERFLOW, origin, where, "optimizer")
    if is_collective:
        return Diagnosed(REDUCE_OVERFLOW, origin, "loss", "backward")
    return None


def _is_collective(origin: Origin) -> bool:
    return origin.overload.startswith(("c10d", "_c10d"))


def _is_beside(origin: Origin) -> bool:
    """Whether an overflow happened to something that is no part of a forward pass."""
    is_forward = origin.is_inside or origin.needs_grad or origin.phase is Phase.EVAL
    return not (is_forward or origin.parents) and fault_of(origin) is Fault.OVERFLOW


def _judge_backward(origin: Origin, descent: Descent) -> Diagnosed | None:
    """Judge what an op of the backward pass has made of finite values, or NaN it made of others.

    What a smaller scale would cure is the scaler's business, and it is at it.
    """
    parameters = descent.parameters(origin)
    if origin.hidden_by and not parameters:
        return Diagnosed(SILENT_OVERFLOW, origin, origin.module or "loss", "backward")
    if not parameters or not _is_at_any_scale(origin, descent):
        return None
    where = f"param:{parameters[0]}"
    is_lasting = origin.index in descent.lasting
    kind = BACKWARD_NONFINITE_ANY_SCALE
    return Diagnosed(kind, origin, where, origin.phase.label, is_lasting=is_lasting)


def _is_at_any_scale(origin: Origin, descent: Descent) -> bool:
    """Whether a smaller loss scale would not make it finite, or was seen not to."""
    if origin.parents:
        # 0 * inf and inf - inf, where the infinity is no gradient that has overflowed.
        is_finite = not descent.trace.loss_nonfinite
        return is_finite and all(_is_lasting_infinity(p) for p in descent.parents(origin))
    if origin.index in descent.lasting or not is_of_scale(origin):
        return True
    # A scale that this gradient would fit with is of no use to any other.
    needed = limit_of(origin.out.dtype) * descent.trace.scale / result_amax(origin)
    return needed < USELESS_SCALE


def _is_lasting_infinity(origin: Origin) -> bool:
    """Whether an infinity was there before backward, or is one that forward had no use for."""
    if origin.kind in (OriginKind.CONSTANT, OriginKind.BUFFER):
        return True
    is_forward = origin.phase is not Phase.BACKWARD
    return is_forward and origin.kind in (OriginKind.INPUT, OriginKind.OP)


def _phase(origin: Origin) -> str:
    return Phase.EVAL.label if origin.phase is Phase.EVAL else Phase.FORWARD.label
