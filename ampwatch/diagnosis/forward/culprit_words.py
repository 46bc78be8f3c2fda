"""Summaries, advice, and remedies to try, for an op in which finite became non-finite."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.diagnosis.evidence.origins import Fault, OriginKind
from ampwatch.diagnosis.forward.faults import WIDE, fault_of, is_of_nothing, is_of_scale, limit_of
from ampwatch.diagnosis.forward.kinds import (
    BACKWARD_NONFINITE_ANY_SCALE,
    FORWARD_NAN_UNDERFLOW,
    FORWARD_OVERFLOW,
    INVALID_OPERATION,
    KEEP_OFF_ZERO,
    MASKED_ROW_NAN,
    NONFINITE_INPUT,
    REDUCE_OVERFLOW,
    SILENT_OVERFLOW,
)
from ampwatch.numerics.formats import HALF
from ampwatch.numerics.units.ops import HALF_DTYPES, Phase
from ampwatch.wire.records import Measure, Remedy, in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.origins import OpTrace, Origin
    from ampwatch.diagnosis.forward.origins import Diagnosed
    from ampwatch.wire.records import Tried

_BACKWARD = Phase.BACKWARD.label

CURABLE = (FORWARD_OVERFLOW, SILENT_OVERFLOW, FORWARD_NAN_UNDERFLOW)
"""Kinds whose cause may be the dtype of an op inside of a model."""


def remedies_for(found: Diagnosed, autocast_dtypes: Sequence[str]) -> list[Remedy]:
    """Return what to try, the smallest change first.

    Args:
        found: The failure.
        autocast_dtypes: Dtypes of autocast in the call that failed.
    """
    origin = found.origin
    # What is computed in float32 already has no wider format to be cured by.
    if found.kind not in CURABLE or origin.out.dtype not in HALF_DTYPES or not autocast_dtypes:
        return []
    remedies = []
    if origin.is_inside:
        remedies.append(Remedy(Measure.MODULE_IN_FLOAT32, origin.module))
        remedies.append(Remedy(Measure.SUMS_IN_FLOAT32))
    if "float16" in autocast_dtypes:
        remedies.append(Remedy(Measure.BFLOAT16))
    return remedies


def summary_of(found: Diagnosed, trace: OpTrace) -> str:
    """Return one sentence or two: what happened, in which op of which module, since when."""
    origin = found.origin
    words = {
        "op": _op(origin),
        "became": origin.out.in_words(),
        "inputs": _inputs(origin),
        "dtype": origin.out.dtype,
        "limit": f"{limit_of(origin.out.dtype):.6g}",
        "squashed": origin.absorbed_by.most_common(1)[0][0] if origin.absorbed_by else "",
        "unshown": _UNSHOWN[origin.is_inside],
        "hidden_by": origin.hidden_by,
        "where": in_words(found.where),
        "reader": "the loss" if found.where == "loss" else "the model",
        "step": str(trace.step),
        "why": _why(found),
        "when": "in backward" if found.phase == _BACKWARD else "between backward and the step",
    }
    sentence = _sentence(found).format(**words)
    if found.kind is BACKWARD_NONFINITE_ANY_SCALE and trace.loss_nonfinite is False:
        sentence += "; the loss is finite"
    if found.kind is MASKED_ROW_NAN:
        made = (trace.origins[index] for index in sorted(origin.parents))
        sentence += "".join(_of_overflow(o) for o in made if o.kind is OriginKind.OP)
    # Where the advice to turn autocast off would be of no use.
    return sentence + _AUTOCAST_IS_OFF if _is_half_itself(found) else sentence


def _of_overflow(mask: Origin) -> str:
    """Say of a mask that it was finite before it was cast, or added to something; empty if it was not."""
    if mask.is_unseen or fault_of(mask) is not Fault.OVERFLOW:
        return ""
    return (
        f". {_op(mask)} had made -inf of finite numbers{_inputs(mask)}: {mask.out.dtype} ends at"
        f" {limit_of(mask.out.dtype):.6g}"
    )


def _sentence(found: Diagnosed) -> str:
    origin, slug = found.origin, found.kind.slug
    special = {
        _GIVEN: _is_given(found),
        _UNSEEN: origin.is_unseen,
        _HIDDEN: is_hidden(found),
        _OF_NOTHING: found.kind is FORWARD_NAN_UNDERFLOW and is_of_nothing(origin),
        _OF_MASK: found.kind is MASKED_ROW_NAN and "softmax" not in origin.op,
    }
    for sentence, applies in special.items():
        if applies:
            return sentence
    by_kind = (
        _WRITTEN if origin.kind is not OriginKind.OP else _OF_INFINITY if origin.parents else {}
    )
    return by_kind.get(slug, _SENTENCES[slug])


def _is_given(found: Diagnosed) -> bool:
    """Whether a loss was given it beside what the model has made, by what was not seen."""
    return found.kind is NONFINITE_INPUT and found.origin.is_unseen


def is_hidden(found: Diagnosed) -> bool:
    """Whether a gradient was not finite, and was made so before anybody could tell."""
    return found.kind is SILENT_OVERFLOW and found.phase == _BACKWARD


_HIDDEN = (
    "In backward {op} made {became} in {dtype}, which ends at {limit}, since step {step}, and"
    " {hidden_by} outside of the graph turned it into finite values that are wrong: no step is skipped"
    " for it, and no scale is lowered"
)

_GIVEN = (
    "{op} read {became} in a tensor without a gradient, at step {step}, and the loss is not finite because of it."
    " The tensor is data, or was computed before"
)

_UNSHOWN = {
    True: "The outputs of the module are finite",
    False: "The loss is finite",
}
"""What hides an overflow, by whether it was inside of a watched module."""

_OF_NOTHING = (
    "{op} made {became} in {dtype}, since step {step}: the mean is taken over no elements (no row, or"
    " no label that counts), which is 0/0"
)

_OF_MASK = "A mask of -inf became NaN: {op}, since step {step}. 0 * inf and inf - inf are invalid operations"

_WRITTEN = {
    INVALID_OPERATION.slug: (
        "{op} writes {became}, since step {step}, and the loss is not finite because of it: no op in"
        " between removes it"
    ),
    BACKWARD_NONFINITE_ANY_SCALE.slug: (
        "The gradient of {where} is not finite at any loss scale, since step {step}: in backward {op}"
        " writes {became}"
    ),
}

_OF_INFINITY = {
    INVALID_OPERATION.slug: (
        "{op} made {became} of an infinity that the program has written, since step {step}: inf - inf,"
        " 0 * inf and inf / inf are invalid operations in any precision"
    ),
    BACKWARD_NONFINITE_ANY_SCALE.slug: (
        "The gradient of {where} is not finite at any loss scale, since step {step}: in backward {op}"
        " made {became} of an infinity that was there before: 0 * inf and inf - inf are invalid"
        " operations"
    ),
}

_UNSEEN = (
    "{op} read {became} in {dtype}, since step {step}: code that torch.compile has fused made it,"
    " as a rule by a cast or an op just before, and this is the first op that is seen to read it"
)


_SENTENCES = {
    FORWARD_OVERFLOW.slug: (
        "{op} overflowed {dtype}, which ends at {limit}, since step {step}: finite inputs{inputs}"
        " became {became}"
    ),
    SILENT_OVERFLOW.slug: (
        "{op} overflowed {dtype}, which ends at {limit}, since step {step}: finite inputs{inputs}"
        " became {became}, and {squashed} turned it into finite values that are wrong. {unshown}"
    ),
    MASKED_ROW_NAN.slug: (
        "A row that is masked as a whole became NaN: {op}, since step {step}. All its scores are"
        " -inf, and its softmax is 0/0"
    ),
    FORWARD_NAN_UNDERFLOW.slug: (
        "{op} made {became} in {dtype} of finite inputs{inputs}, since step {step}: a divisor,"
        " or the argument of a logarithm, is zero or almost zero"
    ),
    INVALID_OPERATION.slug: (
        "{op} made {became} in {dtype} of finite inputs{inputs}, since step {step}: {why}, for these and"
        " for nearby values, in any precision"
    ),
    NONFINITE_INPUT.slug: (
        "The data was not finite before {reader} read it: {became} in a tensor that is read by"
        " {op}, at step {step}; another precision or loss scale does not help"
    ),
    BACKWARD_NONFINITE_ANY_SCALE.slug: (
        "The gradient of {where} is not finite at any loss scale, since step {step}: {when}"
        " {op} made {became} of finite inputs{inputs}, {why}"
    ),
    REDUCE_OVERFLOW.slug: (
        "{op} overflowed {dtype}, which ends at {limit}, where gradients that are finite{inputs}"
        " are summed or measured, at step {step}: the result for {where} is {became}"
    ),
}


def _why(found: Diagnosed) -> str:
    """Return the reason in the words of IEEE 754."""
    origin = found.origin
    if found.kind is INVALID_OPERATION:
        # A division by zero is what IEEE 754 calls any exact infinity of finite operands.
        return "an invalid operation" if origin.out.nans else "its exact result is infinite"
    if found.is_lasting:
        return "which did not become smaller while the loss scale fell"
    if fault_of(origin) is Fault.INVALID:
        return "an invalid operation in any precision"
    if is_of_scale(origin):
        return "which fit its format only at a loss scale too small for any other gradient"
    return "because it is at a point without a finite result, as a division by zero is"


_AUTOCAST_IS_OFF = (
    ". Autocast is off there: the op computes in half precision because its inputs are in it"
)


def _is_half_itself(found: Diagnosed) -> bool:
    origin = found.origin
    is_half = origin.has_autocast is False and origin.out.dtype in HALF
    return found.kind in CURABLE and is_half and not is_hidden(found)


def advice_of(found: Diagnosed, tried: Sequence[Tried] = ()) -> str:
    """Return what to change, for the dtype and the place in which it happened.

    Args:
        found: The failure.
        tried: Remedies that were tried; what was tried in vain is not advised again.
    """
    origin = found.origin
    if is_hidden(found):
        return _UNHIDE
    is_overflow = found.kind in (FORWARD_OVERFLOW, SILENT_OVERFLOW)
    if is_overflow and origin.reads_argument and origin.out.dtype == "float16":
        return _OUTLIER
    if is_overflow and (limit := limit_of(origin.out.dtype)) > WIDE:
        was_wider = any(limit_of(values.dtype) > limit for values in origin.inputs)
        return _NARROWED if was_wider else _TOO_LARGE
    if _is_half_itself(found) and is_overflow:
        return _HALF_ITSELF
    in_vain = [t.measure for t in tried if not t.cures]
    is_of_gradients = (
        found.phase == Phase.OPTIMIZER.label and found.kind is BACKWARD_NONFINITE_ANY_SCALE
    )
    if is_of_gradients or (
        found.kind is FORWARD_NAN_UNDERFLOW and Measure.MODULE_IN_FLOAT32 in in_vain
    ):
        return KEEP_OFF_ZERO
    own = _LOOK_AT_GIVEN if _is_given(found) else found.kind.advice
    # Advised where the op, computed again, has had a result for the same numbers in a wider format.
    is_of_format = origin.out.dtype in HALF and math.isfinite(origin.answer.amax)
    return _IN_FLOAT32.get(found.kind.slug, "") * is_of_format + own


_UNHIDE = (
    "Do not change gradients between backward and scaler.unscale_(optimizer): nan_to_num and clamp, in a"
    " hook or between backward and the step, hide the overflow from the GradScaler, which would skip the"
    " step and lower the scale. Clip after unscale_, with torch.nn.utils.clip_grad_norm_ or"
    " clip_grad_value_."
)

_LOOK_AT_GIVEN = (
    "Look at what this op reads besides the outputs of the model: targets, weights, advantages. Where they are data, find"
    " the sample and leave it out; where they are computed, keep a mean or a standard deviation of too few values,"
    " and a division by zero, out of them. Another precision or the loss scale does not help."
)

_OUTLIER = (
    "Check the data: a value of the model's own input does not fit float16. Normalize or clip the"
    " input where it is loaded, or keep the first layers in float32"
    " (torch.autocast(device_type, enabled=False) and .float()), or train in bfloat16."
)

_TOO_LARGE = (
    "No wider format is left, and the loss scale is not the cause: the values themselves are too large."
    " Find out why (check the inputs of this op, weights that grow, and the learning rate),"
    " normalize before this op, and take exponentials of differences: torch.logsumexp and log_softmax"
    " subtract the largest value first."
)

_NARROWED = (
    "Keep the values in the wider dtype that they had, or make them smaller before they are cast. A mask is"
    " filled with torch.finfo(x.dtype).min, of the dtype of the scores that it is added to."
)

_HALF_ITSELF = (
    "Run this op in float32: autocast is off there, and it computes in half precision because its inputs"
    " are in half precision. Call .float() on its inputs, keep this module in float32 when the model is cast"
    " (module.float() after model.half()), or train in bfloat16, which has the range of float32."
)

_IN_FLOAT32 = {
    FORWARD_NAN_UNDERFLOW.slug: "Compute this in float32 (.float() on what goes in). ",
    BACKWARD_NONFINITE_ANY_SCALE.slug: "Compute what has this derivative in float32. ",
}


def _op(origin: Origin) -> str:
    if origin.phase is Phase.BACKWARD and not (origin.is_hook or origin.is_inside):
        # A node is of the module whose forward has made it, if that is known.
        forward = origin.derivative_of
        op = origin.op if forward in origin.op else f"{origin.op} (derivative of {forward})"
        return f"{op} in {origin.module}" if origin.module else op
    return f"{origin.op} {_at(origin.place)}"


def _at(place: str) -> str:
    if place == "loss":
        return "outside of the model"
    return f"in {place}" if place else "in the root module"


def _inputs(origin: Origin) -> str:
    """Return the size of what went in, and the number that the program has written beside it."""
    parts = []
    if origin.reads_argument:
        parts.append("the model's own input")
    if not math.isnan(origin.in_amax):
        parts.append(f"largest magnitude {abs(origin.in_amax):.6g}")
    verb = _WITH_NUMBER.get(origin.op.rstrip("_").removeprefix("_foreach_"))
    if verb and not math.isnan(origin.number):
        parts.append(f"{verb} {origin.number:.6g}")
    return f" ({', '.join(parts)})" if parts else ""


_WITH_NUMBER = {
    "mul": "times",
    "div": "divided by",
    "pow": "to the power of",
    "add": "plus",
    "sub": "minus",
}
"""How a Python number is read with the op that takes it as its second argument."""
