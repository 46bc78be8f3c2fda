"""Remedies: what is tried for a failure."""

from __future__ import annotations

from ampwatch.diagnosis.evidence.origins import Origin, OriginKind, Values
from ampwatch.diagnosis.forward.culprit_words import remedies_for
from ampwatch.diagnosis.forward.kinds import FORWARD_OVERFLOW, MASKED_ROW_NAN
from ampwatch.diagnosis.forward.origins import Diagnosed
from ampwatch.numerics.units.ops import Phase
from ampwatch.wire.records import Measure, Remedy


def found(
    *, kind: object = FORWARD_OVERFLOW, inside: bool = True, dtype: str = "float16"
) -> Diagnosed:
    origin = Origin(
        0,
        OriginKind.OP,
        "",
        "mul",
        "aten.mul.Tensor",
        "blocks.2",
        inside,
        Phase.FORWARD,
        Values(dtype, 8, posinf=True),
    )
    return Diagnosed(kind, origin, origin.place, "forward")  # type: ignore[arg-type]


def test_the_smallest_change_is_tried_first() -> None:
    """The module, then the residual stream, then the format of all."""
    assert remedies_for(found(), ["float16"]) == [
        Remedy(Measure.MODULE_IN_FLOAT32, "blocks.2"),
        Remedy(Measure.SUMS_IN_FLOAT32),
        Remedy(Measure.BFLOAT16),
    ]


def test_what_is_no_matter_of_the_dtype_has_no_remedy_to_try() -> None:
    """Nor has a training without autocast."""
    assert not remedies_for(found(kind=MASKED_ROW_NAN), ["float16"])
    assert not remedies_for(found(), [])


def test_bfloat16_is_no_remedy_for_bfloat16() -> None:
    """And outside of the model there is no module to run otherwise."""
    assert remedies_for(found(inside=False), ["bfloat16"]) == []
    assert Remedy(Measure.BFLOAT16) not in remedies_for(found(), ["bfloat16"])
