"""Search for what is left of runs: on disk, in rings, in both."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from ampwatch.errors import ReportError
from ampwatch.host.daemon.leftovers import VANISHED, WAS_RUNNING, find_leftovers, jobs, read_path
from ampwatch.settings import Settings
from ampwatch.wire.blackbox import Box, files
from ampwatch.wire.records import RunIdentity, RunState
from ampwatch.wire.ring import RingWriter
from tests.host.daemon.parts import Place
from tests.workshop.boxes import box
from tests.workshop.clocks import SECOND, START
from tests.workshop.records import IDENTITY, alarm, end, identity, step


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.resolve({"report_dir": str(tmp_path / "runs")})


def leave(directory: Path, state: RunState = RunState.RUNNING, **who: object) -> Box:
    made = Box(identity(**who), state, findings=[alarm()], steps=[step(3)])
    files.write(directory / "runs", made, most=64)
    return made


def now() -> float:
    return START + 10.0


def test_a_run_that_is_gone_is_read_from_disk(tmp_path: Path, settings: Settings) -> None:
    """One that did not say how it ended is said to have not."""
    leave(tmp_path, RunState.FAILED, rank=0)
    leave(tmp_path, RunState.RUNNING, rank=1)
    found = find_leftovers(settings, clock=now)

    assert [(b.state, b.reason) for b in found.boxes] == [
        (RunState.FAILED, ""),
        (RunState.RUNNING, VANISHED),
    ]
    assert not found.problems


def test_ring_and_disk_are_one_run(tmp_path: Path, settings: Settings) -> None:
    """The disk knows the finding as of then, the ring how it goes on."""
    leave(tmp_path)
    writer = RingWriter.create([tmp_path / "rings"], IDENTITY, slots=64)
    writer.put(step(8))
    (running,) = find_leftovers(settings, clock=now).boxes
    (hung,) = find_leftovers(settings, clock=lambda: START + 900.0).boxes
    writer.close(end(), keep=True)
    (ended,) = find_leftovers(settings, clock=now).boxes

    assert [s.step for s in running.steps] == [3, 8]
    assert [b.state for b in (running, hung, ended)] == [
        RunState.RUNNING,
        RunState.STALE,
        RunState.FINISHED,
    ]
    assert (running.reason, ended.reason) == ("", "")
    assert "has ended no step for a long time" in hung.reason


def test_a_killed_run_is_read_without_a_daemon(tmp_path: Path, settings: Settings) -> None:
    """From what is left in shared memory."""
    with Place(tmp_path).writer("bert") as training:
        training.do("step")
        training.kill()
        (left,) = find_leftovers(settings, "bert").boxes

    assert (left.state, len(left.steps)) == (RunState.FAILED, 1)


def test_only_the_run_that_was_asked_for_is_returned(tmp_path: Path, settings: Settings) -> None:
    """Names that become one directory are told apart."""
    for pid, run in enumerate(("a:b", "a/b", "c")):
        leave(tmp_path, run=run, pid=pid)

    assert [b.identity.run for b in find_leftovers(settings, "a:b", now).boxes] == ["a:b"]
    assert len(find_leftovers(settings, None, now).boxes) == 3


def test_a_report_that_is_damaged_does_not_hide_the_others(
    tmp_path: Path, settings: Settings
) -> None:
    """It is named."""
    leave(tmp_path, RunState.FAILED)
    (tmp_path / "runs" / "gpt" / "torn.json").write_text('{"format": "ampwatch-re')
    found = find_leftovers(settings, clock=now)

    assert len(found.boxes) == 1
    assert "torn.json" in found.problems[0]


def test_ranks_that_started_together_are_one_job() -> None:
    """A restart is another one, as is a run of another name or size."""

    def of(run: str, rank: int, second: int, size: int = 2) -> RunIdentity:
        who = replace(IDENTITY, run=run, rank=rank, world_size=size)
        return replace(who, started_ns=(START + second) * SECOND)

    a1, a0 = of("a", 1, 0), of("a", 0, 5)
    b, again, later = of("b", 0, 6), of("a", 0, 100), of("a", 1, 5000)
    found = jobs(Box(who) for who in (later, again, b, a0, a1))

    assert [[box.identity for box in job] for job in found] == [[a0, a1], [b], [again], [later]]


def test_a_file_a_ring_and_a_directory_can_be_named(tmp_path: Path) -> None:
    """From any machine: the file is all there is."""
    path = files.write(tmp_path / "runs", box(), most=4)
    copy = tmp_path / "from-elsewhere.json"
    copy.write_bytes(path.read_bytes())
    writer = RingWriter.create([tmp_path / "rings"], IDENTITY, slots=64)
    writer.put(step(8))

    assert [f.kind for f in read_path(copy)[0].findings] == ["forward_overflow", "scale_collapse"]
    assert read_path(copy)[0].reason == WAS_RUNNING
    assert [s.step for s in read_path(writer.path)[0].steps] == [8]
    assert len(read_path(tmp_path / "runs")) == 1
    writer.close(end(), keep=False)
    (tmp_path / "empty").mkdir()
    for nothing in (tmp_path / "empty", tmp_path / "gone.json"):
        with pytest.raises(ReportError):
            read_path(nothing)
