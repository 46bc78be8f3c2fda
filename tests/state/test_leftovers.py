"""Boxes made of a ring whose process is gone, or silent."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ampwatch.settings import Settings
from ampwatch.state.leftovers import forget_silence, read_ring, save_leftovers
from ampwatch.wire.blackbox import files
from ampwatch.wire.records import FindingRecord, RunState
from ampwatch.wire.ring import RingWriter
from tests.workshop.boxes import box
from tests.workshop.records import IDENTITY, alarm, end, identity, step


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.resolve({"report_dir": str(tmp_path / "runs")})


def ring(directory: Path, *records: object) -> RingWriter:
    writer = RingWriter.create([directory / "rings"], IDENTITY, slots=256)
    for record in records:
        writer.put(record)
    return writer


def only(directory: Path) -> object:
    (path,) = files.paths(directory / "runs")
    (read,) = files.read(path)
    return read


def test_what_the_process_has_written_itself_stays(tmp_path: Path, settings: Settings) -> None:
    """Settings are not in a ring; the steps after its last writing are."""
    own = box()
    own.state = RunState.RUNNING
    files.write(tmp_path / "runs", own, most=4)
    writer = ring(tmp_path, step(30), FindingRecord(alarm(count=9)))
    save_leftovers(writer.path, IDENTITY, RunState.STALE, settings)

    read = only(tmp_path)
    assert read.settings == own.settings
    assert [s.step for s in read.steps] == [*range(10), 30]
    assert {f.kind: f.count for f in read.findings} == {"forward_overflow": 1, "scale_collapse": 9}
    assert read.state is RunState.STALE
    writer.close(end(), keep=False)


def test_who_has_had_the_last_word_is_left_alone(tmp_path: Path, settings: Settings) -> None:
    """A run that ended well leaves nothing, and what an earlier daemon wrote holds."""
    writer = ring(tmp_path, step(1))
    writer.close(end(), keep=True)
    save_leftovers(writer.path, IDENTITY, RunState.FAILED, settings)
    assert not list(files.paths(tmp_path / "runs"))

    earlier = box()
    earlier.state = RunState.FAILED
    files.write(tmp_path / "runs", earlier, most=4)
    other = ring(tmp_path, step(99))
    save_leftovers(other.path, IDENTITY, RunState.FAILED, settings)
    assert repr(only(tmp_path)) == repr(earlier)
    other.close(end(), keep=False)


def test_another_process_at_the_same_path_is_not_mistaken(
    tmp_path: Path, settings: Settings
) -> None:
    """The file may have been replaced meanwhile."""
    writer = ring(tmp_path, step(1))
    save_leftovers(writer.path, identity(pid=1), RunState.FAILED, settings)

    assert not list(files.paths(tmp_path / "runs"))
    writer.close(end(), keep=False)


def test_what_hangs_and_goes_on_leaves_nothing(tmp_path: Path, settings: Settings) -> None:
    """Unless something was found."""
    writer = ring(tmp_path, step(1))
    save_leftovers(writer.path, IDENTITY, RunState.STALE, settings)
    assert only(tmp_path).state is RunState.STALE
    forget_silence(IDENTITY, settings)
    assert not (tmp_path / "runs" / "gpt").exists()

    writer.put(FindingRecord(alarm()))
    save_leftovers(writer.path, IDENTITY, RunState.STALE, settings)
    forget_silence(IDENTITY, settings)
    assert only(tmp_path).has_alarm
    writer.close(end(), keep=False)


def test_a_live_ring_is_only_checked(tmp_path: Path) -> None:
    """It goes on."""
    writer = ring(tmp_path, step(0, time_ns=time.time_ns()))
    contents = read_ring(writer.path, "report", 64)

    assert (contents.is_alive, contents.box.state) == (True, RunState.RUNNING)
    writer.put(step(1))
    assert len(read_ring(writer.path, "report", 64).box.steps) == 2
    writer.close(end(), keep=False)
