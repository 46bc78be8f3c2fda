"""`ampwatch doctor`, as a user runs it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ampwatch import __version__
from ampwatch.cli import main
from ampwatch.cli.doctor import as_text
from ampwatch.doctor.check import Check, State
from tests.host.daemon.parts import Place

if TYPE_CHECKING:
    from pathlib import Path

FOUND = {
    "training": [
        Check("torch", State.OK, "2.13.0, tested"),
        Check("CUDA", State.ABSENT, "word " * 30 + "end", "install a build with-hyphens for it"),
    ],
    "ring": [Check("fallback", State.PROBLEM, "[no] room", blocks=True)],
}


def everything_below(path: Path) -> set[Path]:
    return set(path.rglob("*"))


@pytest.mark.rotating
def test_it_examines_this_machine_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Exit status 0 on a machine where ampwatch works, whatever is absent."""
    place = Place(tmp_path)
    before = everything_below(tmp_path)

    doctor = place.command("doctor")
    said, complained = doctor.communicate(timeout=200)

    assert (doctor.returncode, complained) == (0, "")
    assert said.startswith(f"ampwatch {__version__}\n\ntraining\n  + ok       torch ")
    assert "\nring\n  + ok       AMPWATCH_RING_DIR" in said
    assert "\ndaemon\n  - absent   daemon " in said
    assert everything_below(tmp_path) == before


def test_it_answers_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One object with every check, its group and its state."""
    assert main(["doctor", "--json"]) == 0

    answer = json.loads(capsys.readouterr().out)

    assert (answer["version"], answer["able"]) == (__version__, True)
    checks = {(check["group"], check["name"]): check for check in answer["checks"]}
    assert checks["training", "torch"]["state"] == "ok"
    assert checks["daemon", "daemon"]["state"] == "absent"
    assert checks["ring", "AMPWATCH_RING_DIR"].keys() == {
        "group",
        "name",
        "state",
        "why",
        "remedy",
        "blocks",
    }


def test_a_machine_where_no_ring_can_be_written_is_exit_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the reason and the remedy."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AMPWATCH_RING_DIR", str(tmp_path / "file" / "rings"))

    assert main(["doctor"]) == 1

    said = capsys.readouterr().out
    assert "! problem  AMPWATCH_RING_DIR" in said
    assert "-> set AMPWATCH_RING_DIR to a new directory" in said


def test_a_setting_that_is_not_usable_is_reported_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing else can be examined then."""
    monkeypatch.setenv("AMPWATCH_PORT", "many")

    assert main(["doctor"]) == 1

    assert capsys.readouterr().err.startswith("ampwatch: AMPWATCH_PORT: expected int, got 'many'")


@pytest.mark.parametrize("width", [72, 80, 110])
def test_the_text_keeps_to_its_columns(width: int) -> None:
    """Long sentences are wrapped below their beginning."""
    lines = as_text(FOUND, width).splitlines()

    assert lines[2:4] == ["training", "  + ok       torch                  2.13.0, tested"]
    assert max(map(len, lines)) <= width
    column = lines[3].index("2.13.0")
    wrapped = [line for line in lines if line.startswith(" " * column)]
    assert wrapped
    assert all(line[column] != " " for line in wrapped)
    assert "-> install a build with-hyphens" in as_text(FOUND, width)
