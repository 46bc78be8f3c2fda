"""Tests of the workshop: it builds every record, and it alone does."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import shutil
import typing
from pathlib import Path

import pytest

from ampwatch.diagnosis.evidence.iteration import Iteration
from ampwatch.training.kernels import native
from ampwatch.wire.records import KernelRow, OpRow, Record, RunIdentity, RunState, StepRecord
from ampwatch.wire.ring import RingReader, RingWriter
from tests.workshop import records
from tests.workshop.compiler import put_in_front
from tests.workshop.iterations import iteration

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
KINDS: tuple[type[Record], ...] = typing.get_args(Record)

ENVELOPES = {"FactsRecord", "FindingRecord", "EndRecord"}
"""Records that are one value in a wrapping, or two: a builder would say no more."""

BUILT = {kind.__name__ for kind in (*KINDS, RunIdentity, Iteration, OpRow, KernelRow)} - ENVELOPES
"""Types with many fields, whose constructors are called in the workshop only."""


def builder(kind: type[Record]) -> typing.Callable[[], Record]:
    return records.BUILDERS[kind]


def test_the_workshop_builds_every_record() -> None:
    """A new type of record gets a builder here, from which every test and benchmark has it."""
    assert set(records.BUILDERS) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_record_without_arguments_can_be_written_and_read(
    kind: type[Record], tmp_path: Path
) -> None:
    """A reader of the ring gets it as it was put."""
    record = builder(kind)()
    writer = RingWriter.create([tmp_path], records.identity(), slots=64)
    reader = RingReader(writer.path)
    writer.put(record)

    assert type(record) is kind
    assert repr(reader.poll()) == repr([record])  # repr: NaN is not equal to itself
    reader.close()
    writer.close(records.end(), keep=False)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_two_records_share_nothing_that_can_change(kind: type[Record]) -> None:
    """A test that writes into its record changes no other test's."""
    first, second = builder(kind)(), builder(kind)()
    shared = {
        field.name
        for field in dataclasses.fields(kind)
        if getattr(first, field.name) is getattr(second, field.name)
        and isinstance(getattr(first, field.name), (dict, list, set))
    }

    assert first is not second
    assert shared == set()
    assert iteration().found_inf is not iteration().found_inf


def test_an_argument_changes_its_field_and_no_other() -> None:
    """A field that a test does not name is as in every other test."""
    plain, changed = records.step(3), records.step(3, loss_scale=8.0)

    assert dataclasses.asdict(changed) == {**dataclasses.asdict(plain), "loss_scale": 8.0}
    assert records.step(4).step == 4
    with pytest.raises(TypeError):
        records.step(0, losses=2.0)
    assert records.end(RunState.FAILED, "why").reason == "why"


def test_a_step_is_one_second_after_the_one_before() -> None:
    """The first one has no duration, as the first of a training."""
    steps: list[StepRecord] = [records.step(index) for index in range(3)]

    assert [record.time_ns - steps[0].time_ns for record in steps] == [0, 10**9, 2 * 10**9]
    assert [step.duration_s for step in steps[1:]] == [1.0, 1.0]
    assert math.isnan(steps[0].duration_s)


def test_a_field_that_is_added_is_added_in_one_place() -> None:
    """No other test or benchmark spells a constructor that would then miss an argument."""
    call = re.compile(rf"\b({'|'.join(sorted(BUILT))})\(")
    files = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]
    spelled = {
        f"{file.relative_to(ROOT)}: {match[1]}"
        for file in files
        if HERE not in file.parents
        for match in call.finditer(file.read_text(encoding="utf-8"))
    }

    assert len(files) > 100
    assert spelled == set()
    once = [
        name
        for name in BUILT
        if sum(
            len(re.findall(rf"\b{name}\(", file.read_text(encoding="utf-8")))
            for file in HERE.glob("*.py")
        )
        != 1
    ]
    assert once == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler on this machine")
def test_what_ampwatch_compiles_is_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time it is a copy of what was kept, and so as broken as that."""
    monkeypatch.setenv("PATH", os.environ["PATH"])  # as it is, to be so again after the test
    put_in_front(tmp_path / "compiled")

    assert native.load() is not None
    (kept,) = [file for file in (tmp_path / "compiled").iterdir() if file.name != "cc"]
    kept.write_bytes(b"")
    assert native.load() is None
