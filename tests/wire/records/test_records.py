"""Tests of the record types."""

import pickle
import typing
from dataclasses import replace

import pytest
from msgspec import Struct

from ampwatch.diagnosis.calls.kinds import API_ERROR
from ampwatch.diagnosis.kinds.kind import Kind
from ampwatch.diagnosis.scale.kinds import SCALE_COLLAPSE
from ampwatch.diagnosis.state.kinds import DIVERGENCE, PARAM_NONFINITE
from ampwatch.wire import records
from ampwatch.wire.records import (
    SKIP_CLASSES,
    Finding,
    FindingRecord,
    LayerRecord,
    Measure,
    OperandRecord,
    Severity,
    SkipClass,
    Tried,
)
from ampwatch.wire.records.remedies import advice_of

TYPES = [v for v in vars(records).values() if isinstance(v, type) and issubclass(v, Struct)]
MODULE = Tried(Measure.MODULE_IN_FLOAT32, "blocks.2", 7, cures=True)
SUMS = Tried(Measure.SUMS_IN_FLOAT32, "", 7, cures=False)
BFLOAT16 = Tried(Measure.BFLOAT16, "", 7, cures=True)


def test_the_union_names_every_record() -> None:
    """Every type whose name says that it is a record may go into the ring, but for those of reports alone."""
    named = {kind for kind in TYPES if kind.__name__.endswith("Record")}

    assert set(typing.get_args(records.Record)) == named - {LayerRecord, OperandRecord}


def test_classes_of_skips_have_a_fixed_order() -> None:
    """Totals per class are stored by position and read by another program."""
    expected = ["calibrating", "probe", "unprovoked", "storm"]

    assert [skip.label for skip in SKIP_CLASSES] == expected
    assert [int(skip) for skip in SKIP_CLASSES] == [1, 2, 3, 4]
    assert SkipClass(0) is SkipClass.NONE


def test_a_record_survives_pickling() -> None:
    """A user may send a finding from one process to another."""
    record = FindingRecord(Finding("kind", Severity.INFO, "loss", "s", "a", evidence={"x": 0.5}))

    assert pickle.loads(pickle.dumps(record)) == record


@pytest.mark.parametrize(
    ("tried", "words"),
    [
        ([], ""),
        (
            [MODULE],
            "Run module blocks.2 in float32 (tried on the batch of step 7: its forward pass is then finite; gradients may not be). Also possible: ",
        ),
        (
            [MODULE._replace(cures=False, then_op="mm", then_module="blocks.3")],
            "Tried on the batch of step 7: module blocks.2 in float32 (then mm in module blocks.3 fails) does not cure it. ",
        ),
        (
            [MODULE._replace(module=""), SUMS, BFLOAT16],
            "Run the model itself in float32 (tried on the batch of step 7: its forward pass is then finite; gradients may not be). Also finite with bfloat16 instead of float16. Not finite with the residual stream in float32 (its output is not finite either). Also possible: ",
        ),
    ],
)
def test_what_cured_it_comes_before_what_did_not(tried: list[Tried], words: str) -> None:
    """As an instruction; what was not tried comes last."""
    assert advice_of(tried, "Clamp it.") == f"{words}Clamp it."


@pytest.mark.parametrize(
    ("kind", "goal", "rest"),
    [
        (PARAM_NONFINITE, "find the cause", "restore the last good checkpoint."),
        (SCALE_COLLAPSE, "Find the op", "Stop the run before the scale reaches 2^-128"),
        (DIVERGENCE, "learning rate", "Continue from a checkpoint"),
        (replace(API_ERROR, advice=f"Cast it. {API_ERROR.advice}"), "Cast it", API_ERROR.advice),
    ],
)
def test_nobody_is_sent_to_mend_a_symptom_whose_cause_is_named(
    kind: Kind, goal: str, rest: str
) -> None:
    """The finding is beside the one that explains it."""
    alone = Finding(kind.slug, Severity.CRITICAL, "", "", kind.advice)
    caused = replace(alone, root=False, caused_by="masked_row_nan@attn")

    assert goal in alone.advice
    assert goal not in caused.advice
    assert rest in caused.advice
