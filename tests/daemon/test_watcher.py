"""From the first record of a ring to its end."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

from ampwatch.aggregate import Fleet
from ampwatch.daemon.watcher import FLIGHT_RECORDER_SECONDS, RingWatcher
from ampwatch.records import RunState
from ampwatch.ring import RingWriter
from ampwatch.settings import Settings
from tests.aggregate.made_up import START, Clock, end, identity, step

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.daemon.parts import Place

GRACE = 600.0


class Setting:
    """A watcher on one directory, with a clock that is set by hand."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = Clock(START + 10)
        self.fleet = Fleet(Settings(grace_seconds=GRACE), self.clock)
        self.watcher = RingWatcher(self.fleet, lambda: [directory], clock=self.clock)

    def write(self, run: str = "gpt") -> RingWriter:
        return RingWriter.create([self.directory], identity(run=run), slots=64)

    def states(self) -> dict[str, RunState]:
        return {rank.run: rank.state for rank in self.fleet.ranks()}


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    setting = Setting(tmp_path / "of-this-test")
    yield setting
    setting.watcher.close()


def test_records_reach_the_fleet_once_each(setting: Setting) -> None:
    """What was written since the last poll, in order."""
    writer = setting.write()
    writer.put(step(5))
    setting.watcher.poll()
    writer.put(step(6))
    setting.watcher.poll()
    setting.watcher.poll()

    (rank,) = setting.fleet.ranks()

    assert rank.newest == step(6)
    assert sum(bucket.num_steps for bucket in rank.history.buckets) == 2
    assert setting.watcher.num_followed == 1
    writer.close(end(), keep=False)


@pytest.mark.parametrize("moved", ["before the end is read", "after the end is read"])
def test_the_records_of_an_ended_run_are_read_once(setting: Setting, moved: str) -> None:
    """The file's time stamp moves after the last read; that is no reason to read it again."""
    writer = setting.write()
    writer.put(step(0))
    setting.watcher.poll()
    writer.put(step(1))
    writer.close(end(), keep=True)
    if moved == "after the end is read":
        setting.watcher.poll()
    if writer.path.exists():
        os.utime(writer.path, ns=(1, 1))
    setting.watcher.poll()
    setting.watcher.poll()

    (rank,) = setting.fleet.ranks()

    assert sum(bucket.num_steps for bucket in rank.history.buckets) == 2


def test_a_finished_run_is_kept_for_the_grace_time_and_then_gone(setting: Setting) -> None:
    """Its file is removed at once: what it said is in memory."""
    writer = setting.write()
    writer.put(step(5))
    setting.watcher.poll()
    writer.close(end(), keep=True)
    setting.watcher.poll()
    assert not writer.path.exists()
    assert setting.watcher.num_followed == 0

    setting.clock.now += GRACE - 1
    setting.watcher.poll()
    assert setting.states() == {"gpt": RunState.FINISHED}

    setting.clock.now += 2
    setting.watcher.poll()
    assert setting.states() == {}
    assert setting.fleet.expired() == []


def test_the_end_is_read_even_if_the_writer_has_removed_the_file(setting: Setting) -> None:
    """The open file outlives its name."""
    writer = setting.write()
    setting.watcher.poll()
    writer.put(step(5))
    writer.close(end(RunState.FAILED, "ValueError: no"), keep=False)

    setting.watcher.poll()

    (rank,) = setting.fleet.ranks()
    assert (rank.state, rank.end_reason, rank.newest) == (
        RunState.FAILED,
        "ValueError: no",
        step(5),
    )


def test_the_ring_of_a_killed_run_stays_for_a_day_as_its_flight_recorder(
    setting: Setting, place: Place
) -> None:
    """Shown as failed for the grace time, on disk until a day after its last sign of life."""
    setting = Setting(place.rings)
    with place.writer("doomed") as doomed:
        doomed.do("step")
        setting.watcher.poll()
        doomed.kill()
    setting.watcher.poll()
    assert setting.states() == {"doomed": RunState.FAILED}
    (rank,) = setting.fleet.ranks()
    died = rank.last_record_ns / 1e9

    setting.clock.now = died + FLIGHT_RECORDER_SECONDS - 1
    setting.watcher.poll()
    assert doomed.path.exists()
    assert setting.states() == {}

    setting.clock.now = died + FLIGHT_RECORDER_SECONDS + 1
    setting.watcher.poll()
    assert not doomed.path.exists()


def test_a_hostile_file_beside_a_good_ring_does_no_harm(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    """The good one is read, the other one is told once, with the reason."""
    good = setting.write("good")
    hostile = setting.directory / "evil.ring"
    hostile.write_bytes(b"\xff" * 5000)

    with caplog.at_level(logging.WARNING):
        assert setting.watcher.poll() is True
        setting.watcher.poll()

    assert set(setting.states()) == {"good"}
    assert list(setting.fleet.problems) == [str(hostile)]
    assert caplog.text.count("evil.ring") >= 1
    assert len(caplog.records) == 1
    good.close(end(), keep=False)


def test_a_problem_goes_away_with_its_file(setting: Setting) -> None:
    """The page does not show for ever what was put right."""
    setting.directory.mkdir()
    hostile = setting.directory / "evil.ring"
    hostile.touch()
    setting.watcher.poll()
    assert setting.fleet.problems

    hostile.unlink()
    setting.watcher.poll()

    assert setting.fleet.problems == {}


def test_a_bad_file_that_becomes_a_ring_is_taken_up(setting: Setting) -> None:
    """A file that was refused is tried again when it has changed."""
    writer = setting.write()
    path = setting.directory / "bad.ring"
    path.write_bytes(b"nothing")
    moved = setting.directory / "aside"
    writer.path.rename(moved)
    setting.watcher.poll()
    assert setting.states() == {}

    moved.rename(path)
    setting.watcher.poll()

    assert setting.states() == {"gpt": RunState.RUNNING}
    assert setting.fleet.problems == {}
    writer.close(end(), keep=False)


def test_another_ring_under_the_same_name_is_another_run(setting: Setting) -> None:
    """The inode tells: what comes is not mixed with what was."""
    old, new = setting.write("old"), setting.write("new")
    setting.watcher.poll()

    new.path.rename(old.path)
    setting.watcher.poll()
    setting.watcher.poll()

    assert "new" in setting.states()
    assert setting.watcher.num_followed >= 1
    for writer in (old, new):
        writer.close(end(), keep=False)


def test_a_living_run_whose_file_was_removed_by_hand_is_still_followed(setting: Setting) -> None:
    """Cleaning up /dev/shm does not end the watching."""
    writer = setting.write()
    setting.watcher.poll()
    writer.path.unlink()
    writer.put(step(5))

    setting.watcher.poll()

    (rank,) = setting.fleet.ranks()
    assert (rank.state, rank.newest) == (RunState.RUNNING, step(5))
    writer.close(end(), keep=False)


def test_a_directory_that_cannot_be_looked_into_makes_the_pass_fail(tmp_path: Path) -> None:
    """The watcher's own health is reported, with the reason beside it."""
    (tmp_path / "of-this-test").touch()
    setting = Setting(tmp_path / "of-this-test")

    assert setting.watcher.poll() is False
    assert "expected a directory" in setting.fleet.problems[str(tmp_path / "of-this-test")]
