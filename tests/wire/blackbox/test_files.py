"""Where boxes are, and that they are there whole or not at all."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from ampwatch.errors import ReportError
from ampwatch.wire.blackbox import Box, files
from tests.workshop.boxes import box
from tests.workshop.clocks import SECOND, START
from tests.workshop.records import IDENTITY


def box_of(**changes: object) -> Box:
    made = box()
    made.identity = replace(IDENTITY, **changes)
    return made


@contextmanager
def no_room(size: int) -> Iterator[None]:
    """Files may grow to ``size`` bytes only: a write fails in the middle, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_box_is_readable_by_its_user_alone(tmp_path: Path) -> None:
    """It tells what somebody trains; nothing else is in its directory."""
    path = files.write(tmp_path / "state" / "runs", box(), most=4)

    assert path == tmp_path / "state/runs/gpt/20231114T221320.000000Z-rank0-node-4711.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [stat.S_IMODE(p.stat().st_mode) for p in list(path.parents)[:3]] == [0o700] * 3
    assert list(path.parent.iterdir()) == [path]
    assert repr(files.read(path)) == repr([box()])


def test_a_newer_one_of_the_same_process_takes_its_place(tmp_path: Path) -> None:
    """Other ranks and other starts have their own."""
    files.write(tmp_path, box(), most=9)
    again = box()
    again.reason = "newer"
    path = files.write(tmp_path, again, most=9)
    files.write(tmp_path, box_of(rank=1), most=9)
    files.write(tmp_path, box_of(started_ns=(START + 1) * SECOND), most=9)

    assert len(list(files.paths(tmp_path))) == 3
    assert files.read(path)[0].reason == "newer"


def test_a_full_disk_leaves_the_older_one(tmp_path: Path) -> None:
    """No draft is left."""
    path = files.write(tmp_path, box(), most=4)
    newer = box()
    newer.reason = "x" * 100_000
    with no_room(50_000), pytest.raises(OSError, match="too large"):
        files.write(tmp_path, newer, most=4)

    assert repr(files.read(path)) == repr([box()])
    assert list(path.parent.iterdir()) == [path]


def test_it_has_reached_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file first, then its name, then the directory: a power cut leaves one or the other."""
    happened: list[str] = []
    replace_file, fsync = Path.replace, os.fsync

    def noted_fsync(descriptor: int) -> None:
        kind = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        happened.append("directory" if kind else "file")
        fsync(descriptor)

    def noted_replace(self: Path, target: Path) -> Path:
        happened.append("name")
        return replace_file(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    files.write(tmp_path, box(), most=4)

    assert happened == ["file", "name", "directory"]


def test_only_so_many_of_a_run_are_kept(tmp_path: Path) -> None:
    """The newest, and the one just written in any case; other runs are left alone."""
    files.write(tmp_path, box_of(run="other", started_ns=0), most=2)
    for second in range(5):
        files.write(tmp_path, box_of(started_ns=(START + second) * SECOND), most=2)
    old = files.write(tmp_path, box_of(started_ns=SECOND), most=2)

    names = [p.name[:15] for p in files.paths(tmp_path) if p.parent.name == "gpt"]
    assert names == ["19700101T000001", "20231114T221324"]
    assert old.exists()
    assert len(list(files.paths(tmp_path))) == 3


def test_a_draft_of_a_process_that_died_while_it_wrote_goes(tmp_path: Path) -> None:
    """One that is being written stays."""
    home = files.write(tmp_path, box(), most=2).parent
    old, new = home / ".0a.part", home / ".0b.part"
    for draft in (old, new):
        draft.write_text("{")
    os.utime(old, (START, START))
    files.write(tmp_path, box(), most=2)

    assert (old.exists(), new.exists()) == (False, True)
    assert len(list(files.paths(tmp_path))) == 1


@pytest.mark.parametrize(
    ("run", "name"),
    [("team/a:b", "team_a_b"), ("../../etc", "_.._etc"), (".hidden", "hidden"), ("..", "_")],
)
def test_no_name_of_a_run_leads_out_of_the_directory(tmp_path: Path, run: str, name: str) -> None:
    """Whatever a ring says."""
    path = files.write(tmp_path, box_of(run=run, host="../x"), most=2)

    assert path.parent == tmp_path / name
    assert path.resolve().is_relative_to(tmp_path)


def test_a_directory_that_lets_others_in_is_refused(tmp_path: Path) -> None:
    """They could replace what is in it."""
    (tmp_path / "gpt").mkdir(mode=0o755)
    (tmp_path / "gpt").chmod(0o755)

    with pytest.raises(ReportError, match="other users can enter"):
        files.write(tmp_path, box(), most=2)


def test_a_place_that_cannot_be_written_says_which_setting(tmp_path: Path) -> None:
    """A file where the directory should be: root is not stopped by rights."""
    (tmp_path / "runs").write_text("")

    with pytest.raises(ReportError, match="set AMPWATCH_REPORT_DIR to a writable directory"):
        files.write(tmp_path / "runs", box(), most=2)


def test_the_default_is_the_state_directory_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The place is that of the XDG specification; a relative one does not count."""
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert files.report_directory() == Path("/state/ampwatch/runs")
    assert files.report_directory("/given") == Path("/given")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/ada")
    assert files.report_directory() == Path("/home/ada/.local/state/ampwatch/runs")


def test_what_cannot_be_read_is_an_error_of_ours(tmp_path: Path) -> None:
    """A pipe does not stop whoever reads, either."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nothing"):
        with pytest.raises(ReportError, match="expected a"):
            files.read(path)
