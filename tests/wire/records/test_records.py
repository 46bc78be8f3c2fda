"""Tests of the record types."""

import dataclasses
import json
import pickle
import typing

import pytest

from ampwatch.wire import records
from ampwatch.wire.records import (
    MAX_OPTIMIZERS,
    OTHER_OPTIMIZERS,
    SKIP_CLASSES,
    Finding,
    FindingRecord,
    LayerRecord,
    OperandRecord,
    OptimizerRecord,
    RunState,
    Severity,
    SkipClass,
)

TYPES = [v for v in vars(records).values() if dataclasses.is_dataclass(v) and isinstance(v, type)]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_every_field_is_explained(kind: type) -> None:
    """A record is read by two programs; each field says in the docstring what it is."""
    undocumented = [
        f.name
        for f in dataclasses.fields(kind)
        if f"        {f.name}: " not in (kind.__doc__ or "")
    ]

    assert undocumented == []


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_a_record_holds_only_what_it_declares(kind: type) -> None:
    """No attribute can be added to a record on its way."""
    assert "__slots__" in vars(kind)


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


def test_an_optimizer_has_one_total_for_each_class_of_skips() -> None:
    """The type of ``total_skipped`` has as many places as there are classes."""
    hints = typing.get_type_hints(OptimizerRecord)

    assert len(typing.get_args(hints["total_skipped"])) == len(SKIP_CLASSES)


def test_the_number_for_the_other_optimizers_is_no_optimizer() -> None:
    """It is beyond those tracked one by one, and fits into one byte."""
    assert MAX_OPTIMIZERS <= OTHER_OPTIMIZERS <= 255


def test_states_and_severities_are_plain_words() -> None:
    """They become label values and JSON as they are."""
    words = json.loads(json.dumps([*RunState, *Severity]))

    assert words == ["running", "finished", "failed", "stale", "info", "warning", "critical"]


def test_a_finding_is_known_by_its_kind_and_place() -> None:
    """A failure in another place is another finding; reported again it is the same."""
    first = Finding("scale_collapse", Severity.WARNING, "optimizer:0", "before", "do this")
    again = Finding("scale_collapse", Severity.CRITICAL, "optimizer:0", "after", "do that")
    other = Finding("scale_collapse", Severity.WARNING, "optimizer:1", "before", "do this")

    assert first.key == again.key == "scale_collapse@optimizer:0"
    assert other.key == "scale_collapse@optimizer:1"


def test_findings_do_not_share_their_evidence() -> None:
    """The numbers of one finding are not those of the next."""
    first, second = (Finding("kind", Severity.INFO, where, "", "") for where in "ab")
    first.evidence["loss_scale"] = 1.0

    assert second.evidence == {}


def test_a_record_survives_pickling() -> None:
    """A user may send a finding from one process to another."""
    record = FindingRecord(Finding("kind", Severity.INFO, "loss", "s", "a", evidence={"x": 0.5}))

    assert pickle.loads(pickle.dumps(record)) == record
