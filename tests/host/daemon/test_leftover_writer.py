"""The daemon keeps what processes leave that die, hang or end well."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from ampwatch.host.daemon.watcher import RingWatcher
from ampwatch.host.fleet import Fleet
from ampwatch.settings import Settings
from ampwatch.state.leftovers import ENDED_STEPS
from ampwatch.wire.blackbox import Box, files
from ampwatch.wire.records import RunState, Severity
from ampwatch.wire.ring import RingWriter
from tests.host.daemon.parts import Place, eventually
from tests.workshop.clocks import SECOND, START, Clock
from tests.workshop.records import end, finding, identity, step


class Watch:
    """A watcher that writes leftovers, and a clock that is set by hand."""

    def __init__(self, directory: Path) -> None:
        self.reports = directory / "runs"
        self.rings = directory / "rings-here"
        settings = Settings.resolve({"report_dir": str(self.reports), "stale_seconds": 120})
        self.clock = Clock(START + 10)
        self.fleet = Fleet(settings, self.clock)
        self.watcher = RingWatcher(
            self.fleet,
            lambda: [self.rings],
            grace_seconds=600,
            leftovers=settings,
            clock=self.clock,
        )

    def ring(self, *steps: int) -> RingWriter:
        writer = RingWriter.create([self.rings], identity(), slots=128)
        for index in steps:
            writer.put(step(index))
        return writer

    def left(self) -> list[Box]:
        return [box for path in files.paths(self.reports) for box in files.read(path)]


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path)


def test_a_process_that_closed_its_descriptors_and_goes_on_was_not_dead(watch: Watch) -> None:
    """Its lock goes with them, and comes back with its next record; the report of its death goes."""
    writer = watch.ring(0, 1)
    watch.watcher.poll()
    os.close(writer._descriptor)
    watch.watcher.poll()
    (box,) = watch.left()
    assert box.state is RunState.FAILED

    writer.put(step(2))
    watch.watcher.poll()

    (rank,) = watch.fleet.ranks()
    assert (rank.state, rank.newest) == (RunState.RUNNING, step(2))
    assert sum(bucket.num_steps for bucket in rank.history.spans) == 3
    assert not watch.left()
    writer.close(end(), keep=True)
    watch.watcher.poll()
    assert [rank.state for rank in watch.fleet.ranks()] == [RunState.FINISHED]


def test_a_process_that_hangs_leaves_a_report_while_it_hangs(watch: Watch) -> None:
    """Whoever ends the machine ends shared memory as well. If it goes on, nothing was wrong."""
    writer = watch.ring(0)
    watch.watcher.poll()
    watch.clock.now = START + 500
    watch.watcher.poll()
    assert [box.state for box in watch.left()] == [RunState.STALE]

    writer.put(step(1, time_ns=(START + 500) * SECOND))
    watch.watcher.poll()
    assert not watch.left()

    watch.clock.now = START + 5000
    watch.watcher.poll()
    assert [s.step for s in watch.left()[0].steps] == [0, 1]
    writer.close(end(), keep=True)
    watch.watcher.poll()
    (box,) = watch.left()
    assert (box.state, box.reason) == (RunState.FINISHED, "")


def test_a_process_that_ends_well_leaves_a_short_report(watch: Watch) -> None:
    """Once: what was written already stays as it is, also for a daemon that finds the ring anew."""
    writer = watch.ring(*range(ENDED_STEPS + 2))
    watch.watcher.poll()
    assert not watch.left()
    writer.close(end(), keep=True)
    watch.watcher.poll()

    (box,) = watch.left()
    assert (box.state, box.written_by, box.findings) == (RunState.FINISHED, "daemon", [])
    assert [s.step for s in box.steps] == list(range(2, ENDED_STEPS + 2))
    (path,) = files.paths(watch.reports)
    before = path.stat().st_ino
    Watch(watch.reports.parent).watcher.poll()
    assert path.stat().st_ino == before


def test_the_report_of_a_run_that_ended_well_takes_the_place_of_no_other(tmp_path: Path) -> None:
    """However many runs of that name come after it. Its own is gone a month later, whoever writes the next."""

    def box(pid: int, run: str = "gpt") -> Box:
        return Box(identity(pid=pid, run=run), state=RunState.FINISHED)

    broken = files.write(tmp_path, box(1), 2)
    calm = [files.write(tmp_path, box(pid), 2, is_calm=True) for pid in (2, 3, 4)]
    assert set(files.paths(tmp_path)) == {broken, *calm[1:]}
    for path in (broken, *calm[1:]):
        os.utime(path, (0, 0))

    other = files.write(tmp_path, box(5, "other"), 2, is_calm=True)

    assert set(files.paths(tmp_path)) == {broken, other}


def test_a_process_that_was_taken_for_dead_and_ends_well_was_not_dead(watch: Watch) -> None:
    """Nobody killed it."""
    writer = watch.ring(0)
    writer.put(finding(severity=Severity.CRITICAL))
    watch.watcher.poll()
    os.close(writer._descriptor)
    watch.watcher.poll()
    assert [box.state for box in watch.left()] == [RunState.FAILED]

    writer.put(step(1))
    watch.watcher.poll()
    writer.close(end(), keep=True)
    watch.watcher.poll()

    (left,) = watch.left()
    assert (left.state, left.reason, len(left.findings)) == (RunState.FINISHED, "", 1)


def test_a_process_without_a_step_leaves_no_report(watch: Watch) -> None:
    """There was no training."""
    watch.ring().close(end(), keep=True)
    watch.watcher.poll()

    assert [rank.state for rank in watch.fleet.ranks()] == [RunState.FINISHED]
    assert not watch.left()


def test_a_report_that_cannot_be_written_is_reported(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """The page goes on."""
    watch.reports.write_text("in the way")
    writer = watch.ring(0)
    watch.clock.now = START + 500
    with caplog.at_level(logging.WARNING):
        watch.watcher.poll()

    assert caplog.text.count("cannot write the report of run gpt (stale): the directory") == 1
    writer.close(end(), keep=False)


def test_a_daemon_writes_the_report_of_a_process_that_was_killed(tmp_path: Path) -> None:
    """Real processes, a real SIGKILL."""
    place = Place(tmp_path)
    reports = tmp_path / "reports"
    with (
        place.daemon(AMPWATCH_REPORT_DIR=str(reports)) as daemon,
        place.writer("bert") as training,
    ):
        training.do("step")
        eventually(lambda: daemon.states() == {"bert": "running"}, "the run")
        training.kill()
        (path,) = eventually(lambda: list(files.paths(reports)), "a report")

    (box,) = files.read(path)
    assert (box.identity.run, box.state, len(box.steps)) == ("bert", RunState.FAILED, 1)
    assert "killed" in box.reason
