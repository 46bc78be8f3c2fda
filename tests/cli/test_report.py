"""``ampwatch report``: of a run here, of a file from anywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ampwatch.cli import main
from ampwatch.wire.blackbox import Box, files
from ampwatch.wire.blackbox.document import from_json
from ampwatch.wire.records import RunState
from tests.host.daemon.parts import ROOT
from tests.workshop.boxes import box
from tests.workshop.clocks import SECOND, START
from tests.workshop.records import alarm, identity

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of reports."""
    monkeypatch.setenv("AMPWATCH_REPORT_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "runs"


def leave(runs: Path, run: str, started: int = START, rank: int = 0, kind: str = "") -> Path:
    who = identity(run=run, started_ns=started * SECOND, rank=rank)
    findings = [alarm(kind or f"{run}_kind")]
    return files.write(runs, Box(who, RunState.FAILED, "it broke", findings=findings), most=64)


def test_the_run_that_was_started_last_is_reported(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All its ranks, and that there are others."""
    leave(runs, "old", START - 9000)
    leave(runs, "new", rank=0)
    leave(runs, "new", rank=1)

    assert main(["report"]) == 0

    said = capsys.readouterr().out
    assert said.startswith("ampwatch report: run new, 2 of 2 ranks\n")
    assert "CRITICAL  new_kind" in said
    assert "old_kind" not in said
    assert "It failed: it broke" in said
    assert said.endswith("1 earlier run: ampwatch report --all\n")
    assert max(map(len, said.splitlines())) <= 80


def test_a_run_is_found_although_a_directory_has_its_name(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts and directories are mostly called alike."""
    leave(runs, "train")
    (tmp_path / "train").mkdir()
    monkeypatch.chdir(tmp_path)

    assert main(["report", "train"]) == 0
    assert "train_kind" in capsys.readouterr().out


def test_short_is_one_screen(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How it went, what, where, what to do first; the rest counted, and where to read on."""
    files.write(runs, box(), most=4)
    leave(runs, "old", START - 9000)

    assert main(["report", "--short"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("gpt: failed") or lines[0].startswith("gpt: failing")
    assert lines[1:5] == [
        "what      mm in decoder.3.ffn overflowed float16",
        "where     module decoder.3.ffn, op mm, in float16, forward pass, rank 0 of 2",
        "do first  change forward_overflow.",
        "explains  1 finding: scale_collapse",
    ]
    assert lines[5:] == [
        "more      ampwatch explain --run gpt",
        "",
        "1 earlier run: ampwatch report --all",
    ]


def test_short_of_all_is_some_lines_for_each_run(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest first."""
    leave(runs, "old", START - 9000)
    leave(runs, "new")

    assert main(["report", "--all", "--short"]) == 0

    new, old = capsys.readouterr().out.split("\n\n")
    assert new.startswith("new: failed")
    assert old.startswith("old: failed")


def test_json_is_a_report_that_can_be_taken_along(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file can be named on another machine."""
    files.write(runs, box(), most=4)
    assert main(["report", "gpt", "--json"]) == 0
    said = capsys.readouterr().out
    (tmp_path / "gpt.json").write_text(said)

    assert [f.kind for f in from_json(said, "x")[0].findings] == [
        "forward_overflow",
        "scale_collapse",
    ]
    assert main(["report", str(tmp_path / "gpt.json")]) == 0
    assert "forward_overflow happened." in capsys.readouterr().out


def test_a_page_is_written(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where it was asked for; a place that cannot be is an error."""
    leave(runs, "gpt")

    assert main(["report", "--html", str(tmp_path / "x.html")]) == 0
    assert (tmp_path / "x.html").read_text().startswith("<!doctype html>")
    assert capsys.readouterr().out == ""
    assert main(["report", "--html", str(tmp_path / "no" / "x.html")]) == 1
    assert "cannot write " in capsys.readouterr().err


def test_a_page_is_the_owners_and_no_report(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It holds what the report holds; handed in as one, it is called by its name."""
    leave(runs, "gpt")
    page = tmp_path / "r.html"
    assert main(["report", "gpt", "--html", str(page)]) == 0
    assert page.stat().st_mode & 0o077 == 0
    page.rename(tmp_path / "r.json")

    assert main(["report", str(tmp_path / "r.json")]) != 0
    assert "got an HTML page made from one" in capsys.readouterr().err


def test_a_directory_without_a_slash_is_said_to_be_one(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A word that was typed may be a path, where no run has the name."""
    leave(runs, "gpt")
    (tmp_path / "kept").mkdir()
    monkeypatch.chdir(tmp_path)

    assert main(["report", "kept"]) != 0
    assert "to read the directory, write ./kept" in capsys.readouterr().err


def test_all_runs_are_listed(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest first, each with what was found; all of them as JSON, too."""
    leave(runs, "old", START - 9000)
    leave(runs, "new", rank=0)
    leave(runs, "new", rank=1)

    assert main(["report", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2023-11-14 22:13:20 UTC  new (2 ranks): failed, new_kind"
    assert lines[2].endswith("old: failed, old_kind")
    monkeypatch.setattr("ampwatch.cli.report.MAX_LISTED", 1)
    assert main(["report", "--all"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "1 earlier run: ampwatch report --all --short"
    ]
    assert main(["report", "--all", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["ranks"]) == 3


def test_nothing_to_report_is_said_with_where_it_was_searched_for(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And why a healthy run may have left nothing."""
    assert main(["report"]) == 1
    said = capsys.readouterr().err
    assert f"no running training in {runs}, {tmp_path / 'rings'}" in said
    assert "without a daemon a run that ended well leaves none" in said
    assert main(["report", "bert"]) == 1
    assert f"no run or file 'bert' in {runs}" in capsys.readouterr().err

    leave(runs, "gpt")
    assert main(["report", "bert"]) == 1
    assert ", only gpt" in capsys.readouterr().err


def test_whoever_has_read_enough_may_stop(runs: Path) -> None:
    """A reader may stop early, as in ``ampwatch report | head``; and it runs without torch."""
    for index in range(40):
        leave(runs, f"run{index}", kind="k" * 2000)
    code = (
        "import sys; from ampwatch.cli import main; status = main(['report', '--all']);"
        " sys.exit(status or 7 * ('torch' in sys.modules))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        process.stdout.read(10)
        process.stdout.close()
        said = process.stderr.read()

    assert (process.returncode, said) == (0, b"")
