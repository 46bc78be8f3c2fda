"""When the training process writes its box, and that nothing of it reaches the training."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from ampwatch.settings import Settings
from ampwatch.state import Recorder
from ampwatch.state.writer import AFTERMATH, AT_ONCE, BoxWriter
from ampwatch.wire.blackbox import Box, files
from ampwatch.wire.records import FindingRecord, RunState, Severity
from tests.workshop.records import IDENTITY, alarm, end, step


def say_where(box: Box) -> None:
    box.notes = ["described"]


class Patient(BoxWriter):
    """Has each box on disk before it goes on."""

    def write(self) -> None:
        super().write()
        assert self.written.wait(60)
        self._heed()


def writer(directory: Path, **settings: object) -> Patient:
    resolved = Settings.resolve({"report_dir": str(directory), **settings})
    return Patient(Recorder(IDENTITY), resolved, say_where)


def written(directory: Path) -> list[Box]:
    return [box for path in files.paths(directory) for box in files.read(path)]


def test_a_finding_is_on_disk_the_moment_it_is_made(tmp_path: Path) -> None:
    """With the step before it, and what the process knows besides."""
    box = writer(tmp_path)
    box.put(step(0))
    assert not written(tmp_path)

    box.put(FindingRecord(alarm()))

    (read,) = written(tmp_path)
    assert [f.kind for f in read.findings] == ["scale_collapse"]
    assert [s.step for s in read.steps] == [0]
    assert (read.notes, read.state, read.written_by) == (
        ["described"],
        RunState.RUNNING,
        "training",
    )


def test_what_came_of_it_is_written_after_a_while_and_then_ever_more_rarely(
    tmp_path: Path,
) -> None:
    """The cost does not grow with the run."""
    box = writer(tmp_path)
    box.put(FindingRecord(alarm()))
    (file,) = files.paths(tmp_path)
    seen, known = [], file.stat().st_ino
    for index in range(2000):
        box.put(step(index))
        if file.stat().st_ino != known:
            known = file.stat().st_ino
            seen += written(tmp_path)[0].steps[-1:]

    assert [s.step for s in seen] == [
        15,
        15 + 4 * AFTERMATH,
        79 + 16 * AFTERMATH,
        335 + 64 * AFTERMATH,
    ]


def test_what_explains_what_is_written_with_the_next_step(tmp_path: Path) -> None:
    """The root is found after its symptom, which is attached to it then."""
    box = writer(tmp_path)
    symptom = alarm("scale_collapse")
    box.put(FindingRecord(symptom))
    root = alarm("forward_overflow", "fc")
    box.put(FindingRecord(root))
    symptom.root, symptom.caused_by = False, root.key
    box.put(FindingRecord(symptom))
    box.put(step(1))

    assert [(f.kind, f.root) for f in written(tmp_path)[0].findings] == [
        ("scale_collapse", False),
        ("forward_overflow", True),
    ]


def test_a_symptom_whose_cause_is_known_is_written_at_once(tmp_path: Path) -> None:
    """It is a finding like any other."""
    box = writer(tmp_path)
    box.put(FindingRecord(alarm("param_nonfinite", "param:w", root=False, caused_by="a@b")))

    assert written(tmp_path)[0].findings[0].caused_by == "a@b"


def test_a_flood_of_findings_is_not_a_flood_of_writes(tmp_path: Path) -> None:
    """The first are written one by one; the last word has all of them."""
    box = writer(tmp_path)
    files_seen = set()
    for index in range(AT_ONCE + 200):
        box.put(FindingRecord(alarm("param_nonfinite", f"param:{index}")))
        files_seen.add(len(written(tmp_path)[0].findings))
    writes = len(files_seen)

    assert AT_ONCE <= writes < AT_ONCE + 20
    box.close()
    assert len(written(tmp_path)[0].findings) == AT_ONCE + 200


def test_a_healthy_run_leaves_nothing(tmp_path: Path) -> None:
    """Not even a directory; an information is no alarm."""
    box = writer(tmp_path / "runs")
    for index in range(100):
        box.put(step(index))
    box.put(FindingRecord(alarm("no_memory_gain", severity=Severity.INFO)))
    box.put(end())
    box.close()

    assert not (tmp_path / "runs").exists()


def test_a_run_that_failed_leaves_its_last_steps(tmp_path: Path) -> None:
    """Although nothing was found."""
    box = writer(tmp_path)
    box.put(step(7))
    box.put(end(RunState.FAILED, "ValueError: no"))
    box.close()

    (read,) = written(tmp_path)
    assert (read.state, read.reason) == (RunState.FAILED, "ValueError: no")
    assert [s.step for s in read.steps] == [7]


def test_with_room_for_none_nothing_is_written(tmp_path: Path) -> None:
    """``report_files=0`` switches it off."""
    box = writer(tmp_path, report_files=0)
    box.put(FindingRecord(alarm()))
    box.close()

    assert not written(tmp_path)


def test_a_disk_that_refuses_is_counted_reported_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """There is room again when somebody has tidied up."""
    (tmp_path / "runs").write_text("in the way")
    box = writer(tmp_path / "runs")
    with caplog.at_level(logging.WARNING):
        box.put(FindingRecord(alarm("one")))
        box.put(FindingRecord(alarm("two")))

    assert box.failures == 2
    assert [r.message.split(":")[0] for r in caplog.records] == ["cannot write the report"]
    (tmp_path / "runs").unlink()
    box.put(FindingRecord(alarm("three")))
    assert [f.kind for f in written(tmp_path / "runs")[0].findings] == ["one", "two", "three"]


def test_what_comes_while_a_box_is_written_is_written_with_a_later_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training waits for no disk; at the end what is on its way comes first."""
    begun, may_go_on = threading.Event(), threading.Event()

    def slowly(*args: Any) -> Path:
        begun.set()
        assert may_go_on.wait(60)
        return files.write(*args)

    monkeypatch.setattr("ampwatch.state.writer.write", slowly)
    box = BoxWriter(
        Recorder(IDENTITY, 8), Settings.resolve({"report_dir": str(tmp_path)}), say_where
    )
    box.put(FindingRecord(alarm("one")))
    assert begun.wait(60)
    box.put(FindingRecord(alarm("two")))
    box.put(step(0))
    assert not written(tmp_path)
    may_go_on.set()
    assert box.written.wait(60)
    assert [f.kind for f in written(tmp_path)[0].findings] == ["one"]
    box.put(step(1))
    box.close()

    assert [f.kind for f in written(tmp_path)[0].findings] == ["one", "two"]


def test_a_fault_of_its_own_is_raised_where_a_guard_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the next box, and not in a thread, whose exceptions Python prints."""

    def broken(*_args: Any) -> Path:
        msg = "out of order"
        raise ValueError(msg)

    monkeypatch.setattr("ampwatch.state.writer.write", broken)
    box = writer(tmp_path)

    with pytest.raises(ValueError, match="out of order"):
        box.put(FindingRecord(alarm("one")))


def _no_thread(*_args: Any) -> None:
    raise MemoryError


@pytest.mark.parametrize("where", ["at the end", "where no thread is to be had"])
def test_a_time_limit_of_the_program_reaches_it(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an ``OSError``, and no fault of the disk."""

    def late(*_args: Any) -> None:
        signal.raise_signal(signal.SIGALRM)

    def stop(_number: int, _frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    box = writer(tmp_path)
    try:
        if where == "at the end":
            box.put(FindingRecord(alarm()))
        else:
            monkeypatch.setattr("ampwatch.state.writer.start_new_thread", _no_thread)
        monkeypatch.setattr("ampwatch.state.writer.write", late)
        with pytest.raises(TimeoutError):
            box.close() if where == "at the end" else box.put(FindingRecord(alarm()))
    finally:
        signal.signal(signal.SIGALRM, before)

    assert box.written.is_set()
    assert box.failures == 0


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    """The box is its parent's."""
    box = writer(tmp_path)
    child = os.fork()
    if not child:
        box.put(FindingRecord(alarm()))
        box.close()
        os._exit(bool(written(tmp_path)))
    _, status = os.waitpid(child, 0)

    assert status == 0
