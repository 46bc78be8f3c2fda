"""Summaries of findings about an op in which finite became non-finite."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.diagnosis.forward.births import MEANS, limit_of
from ampwatch.diagnosis.forward.kinds import (
    BACKWARD_NONFINITE_ANY_SCALE,
    FORWARD_NAN_UNDERFLOW,
    FORWARD_OVERFLOW,
    MASKED_ROW_NAN,
    NONFINITE_INPUT,
    REDUCE_OVERFLOW,
    SILENT_OVERFLOW,
)
from ampwatch.numerics.units.ops import Phase

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.births import Birth
    from ampwatch.diagnosis.forward.births import Diagnosed


def summary_of(found: Diagnosed, step: int) -> str:
    """Return one sentence or two: what happened, in which op of which module, since when."""
    birth = found.birth
    words = {
        "op": _op(birth),
        "became": _became(found),
        "inputs": (
            "" if math.isnan(birth.in_amax) else f" (largest magnitude {abs(birth.in_amax):.6g})"
        ),
        "dtype": birth.out.dtype,
        "limit": f"{limit_of(birth.out.dtype):.6g}",
        "squashed": birth.absorbed_by.most_common(1)[0][0] if birth.absorbed_by else "",
        "where": found.where.removeprefix("param:"),
        "step": str(step),
    }
    if birth.is_unseen:
        return _UNSEEN.format(**words)
    if found.kind is FORWARD_NAN_UNDERFLOW and birth.op in MEANS:
        return _OF_NOTHING.format(**words)
    return _SENTENCES[found.kind.slug].format(**words)


_OF_NOTHING = (
    "{op} made {became} in {dtype}, since step {step}: there was nothing to take the mean of, no row"
    " or no label that counts, and the mean of nothing is 0/0"
)


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
        " became {became}, and {squashed} made finite numbers of it that are wrong. The outputs of"
        " the module do not show it: they are finite"
    ),
    MASKED_ROW_NAN.slug: (
        "A row that is masked as a whole became NaN: {op}, since step {step}. All its scores are"
        " -inf, and the softmax of nothing is 0/0"
    ),
    FORWARD_NAN_UNDERFLOW.slug: (
        "{op} made {became} in {dtype} of finite inputs{inputs}, since step {step}: something it"
        " divides by, or takes the logarithm of, has become zero or all but zero"
    ),
    NONFINITE_INPUT.slug: (
        "The data was not finite before the model saw it: {became} in a tensor that is read by"
        " {op}, at step {step}; no precision and no loss scale would help"
    ),
    BACKWARD_NONFINITE_ANY_SCALE.slug: (
        "The gradient of {where} is not finite at any loss scale, since step {step}: in backward"
        " {op} made {became} of finite inputs{inputs}, because it divides by zero; the forward pass"
        " is finite"
    ),
    REDUCE_OVERFLOW.slug: (
        "{op} overflowed {dtype}, which ends at {limit}, where gradients that are finite{inputs}"
        " are summed or measured, at step {step}: the result for {where} is {became}"
    ),
}


def _op(birth: Birth) -> str:
    if birth.phase is Phase.BACKWARD and not (birth.is_hook or birth.is_inside):
        # A node is of the module whose forward has made it, if that is known.
        return f"{birth.op} in {birth.module}" if birth.module else birth.op
    return f"{birth.op} {_at(birth.place)}"


def _at(place: str) -> str:
    if place == "loss":
        return "outside of the model"
    return f"in {place}" if place else "in the root module"


def _became(found: Diagnosed) -> str:
    out = found.birth.out
    names = ["NaN"] * out.nans + ["inf"] * out.posinf + ["-inf"] * out.neginf
    return " and ".join(names)
