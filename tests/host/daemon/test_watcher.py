"""From the first record of a ring to its end."""

from __future__ import annotations

import errno
import logging
import math
import os
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ampwatch.host.daemon import settled as settled_module
from ampwatch.host.daemon import watcher as watcher_module
from ampwatch.host.daemon.discovery import Signature
from ampwatch.host.daemon.settled import FLIGHT_RECORDER_SECONDS
from ampwatch.host.daemon.watcher import RingWatcher
from ampwatch.host.fleet import Fleet, RankView
from ampwatch.report.verdict import Level
from ampwatch.settings import Settings
from ampwatch.wire.records import RunState
from ampwatch.wire.ring import RingReader, RingWriter
from ampwatch.wire.ring.layout import LAYOUT
from tests.host.daemon.parts import Place
from tests.workshop.clocks import SECOND, START, Clock
from tests.workshop.records import end, finding, identity, step

GRACE = 600.0


class Setting:
    """A watcher on one directory, with a clock that is set by hand."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = Clock(START + 10)
        self.fleet = Fleet(Settings(grace_seconds=GRACE), self.clock)
        self.watcher = self.new_watcher()
        self.writers: list[RingWriter] = []

    def new_watcher(self, **known: float) -> RingWatcher:
        return RingWatcher(
            self.fleet, lambda: [self.directory], grace_seconds=GRACE, clock=self.clock, **known
        )

    def restart(self, read_until: float = math.inf) -> None:
        """End the daemon, and start another one that knows nothing but when that was."""
        self.watcher.close()
        self.fleet = Fleet(Settings(grace_seconds=GRACE), self.clock)
        self.watcher = self.new_watcher(read_until_ns=read_until * SECOND)

    def write(self, run: str = "gpt", **who: Any) -> RingWriter:
        writer = RingWriter.create([self.directory], identity(run=run, **who), slots=64)
        self.writers.append(writer)
        return writer

    def crash(self, run: str = "gpt", at: float = START, **who: Any) -> Path:
        """Leave the ring of a run that started and died at ``at``, without a farewell."""
        path = self.directory / f"{run}-{at}-{who.get('rank', 0)}.ring"
        writer = self.write(run, started_ns=int(at * SECOND), **who)
        writer.put(step(0, time_ns=int(at * SECOND)), finding())
        data = bytearray(writer.path.read_bytes())  # a copy: nobody holds its lock
        writer.close(end(), keep=False)
        path.write_bytes(data)
        path.chmod(0o600)
        os.utime(path, (at, at))
        return path

    def states(self) -> dict[str, RunState]:
        return {rank.run: rank.state for rank in self.fleet.ranks()}


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    setting = Setting(tmp_path / "of-this-test")
    yield setting
    for writer in setting.writers:
        writer.close(end(), keep=False)
    setting.watcher.close()


def test_records_reach_the_fleet_once_each(setting: Setting) -> None:
    """Records written since the last poll come in order."""
    writer = setting.write()
    writer.put(step(5))
    setting.watcher.poll()
    writer.put(step(6))
    setting.watcher.poll()
    setting.watcher.poll()

    (rank,) = setting.fleet.ranks()

    assert rank.newest == step(6)
    assert sum(bucket.num_steps for bucket in rank.history.spans) == 2
    assert setting.watcher.num_followed == 1


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

    assert sum(bucket.num_steps for bucket in rank.history.spans) == 2


def test_a_finished_run_is_kept_for_the_grace_time_and_then_gone(setting: Setting) -> None:
    """Its file as well: a daemon that is started again has nothing else to show it from."""
    writer = setting.write()
    writer.put(step(5))
    setting.watcher.poll()
    writer.close(end(), keep=True)
    setting.watcher.poll()
    assert setting.watcher.num_followed == 0

    setting.clock.now += GRACE - 1
    setting.watcher.poll()
    assert setting.states() == {"gpt": RunState.FINISHED}
    assert writer.path.exists()

    setting.clock.now += 2
    setting.watcher.poll()
    assert setting.states() == {}
    assert setting.fleet.expired() == []
    assert not writer.path.exists()


def shown(fleet: Fleet) -> list[tuple[object, ...]]:
    """What a fleet shows: the verdict on each run, and of each rank how it goes, step and findings."""
    found: list[tuple[object, ...]] = []
    for run, (ranks, verdict) in fleet.judge().items():
        found.append((run, verdict.level, verdict.sentence, verdict.root, verdict.cause))
        # As text: NaN, the duration of a first step, equals nothing.
        found += [
            (r.identity.rank, r.state, r.end_reason, repr(r.newest), r.findings) for r in ranks
        ]
    return found


def test_a_daemon_that_is_started_again_shows_what_the_one_before_it_showed(
    setting: Setting, place: Place
) -> None:
    """Eight ranks of a dead job: one raised, four lost their connection, three hung until killed."""
    setting = Setting(place.rings)
    setting.clock.now = time.time()  # dates of files are the system's
    who = {"run": "gpt", "world_size": 8, "started_ns": int(setting.clock.now) * SECOND}
    ended = [setting.write(rank=rank, **who) for rank in range(5)]
    hour_ago = int(setting.clock.now - 3600) * SECOND
    for writer in ended:
        writer.put(step(5, time_ns=hour_ago))
        writer.put(finding())
    with ExitStack() as stack:
        hung = [stack.enter_context(place.writer("gpt", n, 8)) for n in range(5, 8)]
        for writer in hung:
            writer.do("step an hour ago")
        setting.watcher.poll()
        reasons = ["ValueError: no", *["DistBackendError: lost"] * 4]
        for writer, reason in zip(ended, reasons, strict=True):
            writer.close(end(RunState.FAILED, reason, hour_ago), keep=True)
        for writer in hung:
            # Silent for an hour: its records are older than the grace time, and so is its file.
            writer.kill()
            os.utime(writer.path, ns=(hour_ago, hour_ago))
        setting.watcher.poll()
    before = shown(setting.fleet)
    assert len(before) == 1 + 8

    setting.restart()
    setting.clock.now += GRACE - 60
    setting.watcher.poll()
    assert shown(setting.fleet) == before

    setting.clock.now += 120
    setting.watcher.poll()
    assert shown(setting.fleet) == []
    assert [writer.path.exists() for writer in ended] == [False] * 5
    assert [writer.path.exists() for writer in hung] == [True] * 3, "flight recorders"


@pytest.mark.parametrize(("by_itself", "level"), [(True, Level.BROKEN), (False, Level.FAILED)])
def test_the_end_of_a_run_while_there_was_no_daemon_is_shown_by_the_next_one(
    setting: Setting, *, by_itself: bool, level: Level
) -> None:
    """Hours later, for the grace time, and once: nobody has heard of it, and alerts rest on it."""
    setting.clock.now = now = time.time()  # dates of files are the system's
    hour_ago = now - 3600
    if by_itself:
        writer = setting.write(started_ns=int(hour_ago * SECOND))
        writer.put(step(0, time_ns=int(hour_ago * SECOND)), finding())
        writer.close(end(time_ns=int(hour_ago * SECOND)), keep=True)
        os.utime(writer.path, (hour_ago, hour_ago))
    else:
        setting.crash(at=hour_ago)

    setting.restart(read_until=now - 7200)
    setting.watcher.poll()
    verdict = setting.fleet.judge()["gpt"][1]
    assert (verdict.level, verdict.root.finding) == (level, finding().finding)

    setting.clock.now += GRACE - 60
    setting.restart(read_until=setting.clock.now)
    setting.watcher.poll()
    assert setting.fleet.judge()["gpt"][1].level is level

    setting.clock.now += 120
    for _ in range(2):
        setting.watcher.poll()
        assert setting.states() == {}
        setting.restart(read_until=setting.clock.now)


def test_a_run_that_ended_long_before_the_daemon_came_is_tidied_away(setting: Setting) -> None:
    """Not shown, and its file is in nobody's way."""
    writer = setting.write()
    writer.put(step(5))
    writer.close(end(), keep=True)
    os.utime(writer.path, (START, START))
    setting.clock.now = START + GRACE + 100

    setting.watcher.poll()

    assert setting.states() == {}
    assert not writer.path.exists()


def test_the_file_of_a_run_that_ended_makes_way_for_its_successor(setting: Setting) -> None:
    """A job that raises again and again leaves one file for each rank."""
    first = setting.write(started_ns=START * SECOND)
    first.close(end(RunState.FAILED, "ValueError: no"), keep=True)
    os.utime(first.path, (START + 1, START + 1))
    setting.watcher.poll()
    assert first.path.exists()

    setting.write(started_ns=(START + 10) * SECOND)
    setting.watcher.poll()

    assert not first.path.exists()


def test_runs_that_ended_leave_room_to_flight_recorders(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in a report on disk goes first, even if it is newer."""
    died = setting.crash("died", at=START)
    ended = [setting.write(f"ended{n}", started_ns=(START + n) * SECOND) for n in (1, 2)]
    for n, writer in enumerate(ended):
        writer.close(end(time_ns=(START + n) * SECOND), keep=True)
        os.utime(writer.path, (START + n, START + n))
    size = died.stat().st_size

    monkeypatch.setattr(settled_module, "MAX_LEFT_BYTES", 2 * size)
    setting.watcher.poll()

    assert [died.exists(), *(writer.path.exists() for writer in ended)] == [True, False, True]


@pytest.mark.parametrize("ends", [True, False])
def test_what_comes_after_the_file_was_removed_is_read(setting: Setting, *, ends: bool) -> None:
    """The open file outlives its name: cleaning up /dev/shm ends no watching, and the end is not missed."""
    writer = setting.write()
    setting.watcher.poll()
    writer.put(step(5))
    if ends:
        writer.close(end(RunState.FAILED, "ValueError: no"), keep=False)
    else:
        writer.path.unlink()

    setting.watcher.poll()

    (rank,) = setting.fleet.ranks()
    state = (RunState.FAILED, "ValueError: no") if ends else (RunState.RUNNING, "")
    assert (rank.state, rank.end_reason, rank.newest) == (*state, step(5))


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


def test_a_run_that_died_before_the_daemon_came_is_not_shown_as_newly_failed(
    setting: Setting,
) -> None:
    """Within the grace time it is news, after it an old story; its flight recorder stays."""
    old = setting.crash("yesterday", at=setting.clock.now - GRACE - 1)
    setting.crash("now", at=setting.clock.now - GRACE + 1)

    setting.watcher.poll()

    assert setting.states() == {"now": RunState.FAILED}
    assert old.exists()


def test_a_run_that_died_and_has_a_recent_file_is_shown(setting: Setting) -> None:
    """The last record may be old: a run that hung for hours before it was killed."""
    path = setting.crash("hung", at=setting.clock.now - GRACE - 1)
    os.utime(path, (setting.clock.now, setting.clock.now))

    setting.watcher.poll()

    assert setting.states() == {"hung": RunState.FAILED}


def test_a_loop_of_crashes_leaves_one_flight_recorder(setting: Setting) -> None:
    """Of each rank the newest: the next start takes the place of the one before."""
    crashes = [setting.crash(at=START + n, rank=r) for n in range(1, 4) for r in (0, 1)]

    setting.watcher.poll()
    assert [path for path in crashes if path.exists()] == crashes[-2:]

    setting.write(started_ns=(START + 5) * SECOND)
    setting.watcher.poll()
    assert [path for path in crashes if path.exists()] == [crashes[-1]]


@pytest.mark.parametrize(
    "other", [{"run": "bert"}, {"rank": 1}, {"host": "elsewhere"}, {"started_ns": 1}]
)
def test_a_flight_recorder_makes_way_for_its_successor_only(
    setting: Setting, other: dict[str, Any]
) -> None:
    """Not for another run, rank or host, and not for one that ran beside it."""
    path = setting.crash(at=START + 1)
    who = {"started_ns": (START + 5) * SECOND} | other

    setting.write(**who)
    setting.watcher.poll()

    assert path.exists()


@pytest.mark.parametrize(("total", "kept"), [(2, 1), (4, 1), (12, 3), (0, 4)])
def test_flight_recorders_take_a_quarter_of_a_small_file_system(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, total: int, kept: int
) -> None:
    """The shared memory of a container; 0 is one without a limit. The newest stays whatever its size."""
    paths = [setting.crash(f"run{n}", at=START + n) for n in range(4)]
    status = SimpleNamespace(f_frsize=paths[0].stat().st_size, f_blocks=total)
    monkeypatch.setattr(settled_module.os, "statvfs", lambda _: status)

    setting.watcher.poll()

    assert [path.exists() for path in paths] == [False] * (4 - kept) + [True] * kept


def test_a_ring_that_cannot_be_removed_is_a_problem_until_it_is_gone(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon without the right to fills the shared memory, and must say so."""
    writer = setting.write()
    writer.close(end(), keep=True)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(settled_module.os, "unlink", refuse)
        setting.watcher.poll()
        assert setting.states() == {"gpt": RunState.FINISHED}
        setting.clock.now += GRACE + 1
        setting.watcher.poll()
    assert setting.states() == {}
    assert "cannot be removed (Permission denied)" in setting.fleet.problems[str(writer.path)]

    setting.watcher.poll()
    setting.watcher.poll()

    assert not writer.path.exists()
    assert setting.fleet.problems == {}


def test_nothing_is_removed_through_a_directory_that_became_a_link(
    setting: Setting, tmp_path: Path
) -> None:
    """The owner could have another user's file removed by a daemon that may do so."""
    path = setting.crash()
    signature = Signature.of(path.stat())
    setting.directory.rename(tmp_path / "elsewhere")
    setting.directory.symlink_to("elsewhere")

    assert settled_module.remove(path, signature) != ""
    assert path.exists()


def test_a_hostile_file_beside_a_good_ring_does_no_harm(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    """The good one is read, the other one is told once, with the reason."""
    setting.write("good")
    hostile = setting.directory / "evil.ring"
    hostile.write_bytes(b"\xff" * 5000)

    with caplog.at_level(logging.WARNING):
        assert setting.watcher.poll() is True
        setting.watcher.poll()

    assert set(setting.states()) == {"good"}
    assert list(setting.fleet.problems) == [str(hostile)]
    assert caplog.text.count("evil.ring") >= 1
    assert len(caplog.records) == 1


def of_another_release(path: Path) -> None:
    """Write another layout into the header of a ring."""
    with path.open("r+b") as file:
        file.seek(8)
        file.write(struct.pack("<H", LAYOUT - 1))


def test_a_ring_of_another_release_is_a_problem_while_its_writer_lives(tmp_path: Path) -> None:
    """The process is not watched, and its user can do something about it until it has ended."""
    place = Place(tmp_path)
    setting = Setting(place.rings)
    with place.writer("gpt") as writer:
        of_another_release(writer.path)
        setting.watcher.poll()
        assert "of an older ampwatch" in setting.fleet.problems[str(writer.path)]
        writer.kill()
        setting.watcher.poll()
    assert setting.fleet.problems == {}


def test_what_a_process_of_another_release_has_left_is_no_news_and_is_removed_after_a_day(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    path = setting.crash()
    of_another_release(path)
    os.utime(path, (START, START))

    setting.watcher.poll()
    setting.clock.now = START + FLIGHT_RECORDER_SECONDS - 1
    setting.watcher.poll()
    assert path.exists()
    assert (setting.fleet.problems, setting.states(), caplog.text) == ({}, {}, "")

    setting.clock.now = START + FLIGHT_RECORDER_SECONDS
    setting.watcher.poll()
    assert not path.exists()


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


def test_a_file_that_is_replaced_between_look_and_opening_is_left_for_the_next_poll(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that was checked is the file that is read, or none is."""
    setting.write("seen")
    setting.write("other").path.rename(setting.directory / "aside")

    def swap_and_open(path: Path) -> RingReader:
        (setting.directory / "aside").rename(path)
        return RingReader(path)

    with monkeypatch.context() as patch:
        patch.setattr(watcher_module, "RingReader", swap_and_open)
        setting.watcher.poll()
    assert setting.states() == {}

    setting.watcher.poll()
    assert setting.states() == {"other": RunState.RUNNING}


def test_records_that_cannot_be_taken_in_end_nothing_but_themselves(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run beside it goes on, and so does the daemon; the log has it once."""
    apply = RankView.apply

    def fail_for_bad_runs(view: RankView, record: Any) -> None:
        if view.identity.run == "bad":
            raise OverflowError
        apply(view, record)

    monkeypatch.setattr(RankView, "apply", fail_for_bad_runs)
    bad, good = setting.write("bad"), setting.write("good")
    for number in range(3):
        bad.put(step(number))
        good.put(step(number))
        setting.watcher.poll()

    ranks = {rank.run: rank for rank in setting.fleet.ranks()}
    assert ranks["good"].newest == step(2)
    assert "OverflowError" in setting.fleet.problems[str(bad.path)]
    assert caplog.text.count("Traceback") == 1


def test_a_directory_that_cannot_be_listed_makes_the_pass_fail(tmp_path: Path) -> None:
    """The watcher's own health is reported, with the reason beside it."""
    (tmp_path / "of-this-test").touch()
    setting = Setting(tmp_path / "of-this-test")

    assert setting.watcher.poll() is False
    assert "not a directory" in setting.fleet.problems[str(tmp_path / "of-this-test")]


class Stopwatch:
    """Time that passes only while a ring is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_user_who_keeps_the_reader_busy_waits_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ring takes 0.4 s: three of a user fit into a poll, the others come first in the next one."""
    stopwatch = Stopwatch()
    reading = RingReader.poll

    def slow(reader: RingReader) -> list[Any]:
        stopwatch.now += 0.4
        return reading(reader)

    monkeypatch.setattr(RingReader, "poll", slow)
    fleet = Fleet(Settings(grace_seconds=GRACE), Clock(START + 10))
    watcher = RingWatcher(
        fleet, lambda: [tmp_path], grace_seconds=GRACE, clock=Clock(START + 10), stopwatch=stopwatch
    )
    names = [f"a{number}" for number in range(5)]
    with ExitStack() as writers:
        for name in names:
            writer = RingWriter.create([tmp_path], identity(run=name), slots=64)
            writers.callback(writer.close, end(), keep=False)
        seen = []
        for _ in range(2):
            before = stopwatch.now
            watcher.poll()
            seen.append((len(fleet.ranks()), round(stopwatch.now - before, 1)))
        watcher.close()

    assert seen == [(3, 1.2), (5, 1.2)]
    assert watcher.num_followed == 0


def test_a_name_of_a_file_begins_no_line_in_the_log(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the choice of whoever made the file, who may be another user."""
    setting.directory.mkdir(mode=0o700)
    (setting.directory / "a\n\x1b[31mERROR all is lost.ring").write_bytes(b"no ring")

    setting.watcher.poll()

    assert caplog.messages
    assert all(message.isprintable() for message in caplog.messages)
