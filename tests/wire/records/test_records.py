"""Tests of the record types."""

import dataclasses
import pickle
import typing

from ampwatch.wire import records
from ampwatch.wire.records import (
    SKIP_CLASSES,
    Finding,
    FindingRecord,
    LayerRecord,
    OperandRecord,
    Severity,
    SkipClass,
)

TYPES = [v for v in vars(records).values() if dataclasses.is_dataclass(v) and isinstance(v, type)]


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
