"""Remedies: what is tried for a failure, and what is said of it."""

from __future__ import annotations

import pytest

from ampwatch.diagnosis.evidence.births import Birth, Origin, Values
from ampwatch.diagnosis.evidence.remedies import Measure, Remedy, Tried
from ampwatch.diagnosis.forward.births import Diagnosed
from ampwatch.diagnosis.forward.kinds import FORWARD_OVERFLOW, MASKED_ROW_NAN
from ampwatch.diagnosis.forward.remedies import remedies_for, words_of
from ampwatch.numerics.units.ops import Phase


def found(
    *, kind: object = FORWARD_OVERFLOW, inside: bool = True, dtype: str = "float16"
) -> Diagnosed:
    birth = Birth(
        0,
        Origin.OP,
        "",
        "mul",
        "aten.mul.Tensor",
        "blocks.2",
        inside,
        Phase.FORWARD,
        Values(dtype, 8, posinf=True),
    )
    return Diagnosed(kind, birth, birth.place, "forward")  # type: ignore[arg-type]


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


MODULE = Remedy(Measure.MODULE_IN_FLOAT32, "blocks.2")
SUMS = Remedy(Measure.SUMS_IN_FLOAT32)
BFLOAT16 = Remedy(Measure.BFLOAT16)


@pytest.mark.parametrize(
    ("tried", "words"),
    [
        ([], ""),
        (
            [Tried(MODULE, cures=True)],
            "Tried on the batch of step 7: module blocks.2 in float32 cures it.",
        ),
        (
            [Tried(MODULE, cures=False, then_op="_to_copy", then_module="blocks.3")],
            (
                "Tried on the batch of step 7: module blocks.2 in float32 (then _to_copy in module blocks.3 fails)"
                " does not cure it."
            ),
        ),
        (
            [
                Tried(Remedy(Measure.MODULE_IN_FLOAT32), cures=True),
                Tried(SUMS, cures=False),
                Tried(BFLOAT16, cures=True),
            ],
            (
                "Tried on the batch of step 7: the model itself in float32 and bfloat16 instead of"
                " float16 each cure it; the residual stream in float32 (its output is not finite"
                " either) does not."
            ),
        ),
    ],
)
def test_what_cured_it_comes_before_what_did_not(tried: list[Tried], words: str) -> None:
    """One sentence, with what failed next."""
    assert words_of(tried, 7) == words
