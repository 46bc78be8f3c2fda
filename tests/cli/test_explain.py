"""``ampwatch explain``: pages for whoever has no checkout."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ampwatch import shipped
from ampwatch.cli import main
from ampwatch.diagnosis.kinds.registry import ROWS
from tests.host.daemon.parts import ROOT
from tests.workshop.alone import python

if TYPE_CHECKING:
    from pathlib import Path


def test_without_a_name_everything_is_listed_with_a_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Kinds as the registry has them, alerts, guides."""
    assert main(["explain"]) == 0

    said = capsys.readouterr().out
    words = " ".join(said.split())
    for row in ROWS:
        assert f"{row.slug} {row.meaning}".replace("`", "") in words
    assert "AmpwatchRunFailed It has ended with an error, or its process is gone." in words
    assert "settings Settings" in words
    assert {"Forward range", "Alerts", "Guides"} <= set(said.splitlines())


def test_pages_are_printed_in_the_order_in_which_they_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A kind, an alert and a guide."""
    assert main(["explain", "grad_underflow", "AmpwatchRunFailed", "settings"]) == 0

    said = capsys.readouterr().out
    headings = ["# `grad_underflow`: ", "# AmpwatchRunFailed\n", "# Settings\n"]
    places = [said.index(heading) for heading in headings]
    assert places == sorted(places)
    assert places[0] == 0
    assert "scaler.step(optimizer)" in said


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("forward_overflw", "got 'forward_overflw'; did you mean 'forward_overflow'?"),
        ("ampwatchrunfailed", "got 'ampwatchrunfailed'; did you mean 'AmpwatchRunFailed'?"),
        ("xyz", "got 'xyz'; `ampwatch explain` lists them"),
        ("../settings", "got '../settings'; did you mean 'settings'?"),
    ],
)
def test_a_name_without_a_page_is_a_usage_error(
    name: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is printed; with the name that was meant, if there is one."""
    assert main(["explain", "divergence", name]) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert told in said.err


def test_an_incomplete_installation_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody has copied the code alone."""
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path / "ampwatch")

    assert main(["explain"]) == 1

    assert capsys.readouterr().err.startswith("ampwatch: expected the docs in ")


def test_a_terminal_that_knows_no_utf_8_gets_what_it_can_show() -> None:
    """A question mark for a letter, no traceback."""
    asked = ("-m", "ampwatch", "explain", "page", "gpu")
    assert python(*asked, PYTHONIOENCODING="ascii").stderr == ""


def test_on_a_terminal_marks_are_shown_as_what_they_mean() -> None:
    """Rich, if it is there: headings without hashes, code in colours."""
    pytest.importorskip("rich")
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "ampwatch", "explain", "AmpwatchRunFailed"]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "90"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=follower) as process:
        os.close(follower)
        said = b""
        try:
            while chunk := os.read(leader, 65536):
                said += chunk
        except OSError:  # Linux says so that the other end is closed
            pass
    os.close(leader)

    assert process.returncode == 0
    assert b"AmpwatchRunFailed" in said
    assert b"# AmpwatchRunFailed" not in said
    assert b"\x1b[" in said
