"""``ampwatch url``: of what there is, and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ampwatch.cli import main
from ampwatch.wire.blackbox import Box, files
from ampwatch.wire.records import RunState
from tests.cli.test_daemon_state import list_of, serving
from tests.workshop.records import identity

if TYPE_CHECKING:
    from pathlib import Path

SHOWN = list_of("gpt", "gpt~2")


@pytest.fixture
def places(own_places: Path) -> Path:
    """The test's own places, with the report of a run that has ended."""
    reports = own_places / "state" / "ampwatch" / "runs"
    files.write(reports, Box(identity(run="over"), RunState.FAILED, "it broke"), most=4)
    return own_places


@pytest.mark.parametrize("run", ["gpt", "gpt~2"])
def test_a_run_that_is_shown_has_an_address(
    places: Path, capsys: pytest.CaptureFixture[str], run: str
) -> None:
    """By its name, or by what the daemon calls it."""
    with serving(places / "runtime", {"/ranks": (200, SHOWN)}, wants_token=False):
        assert main(["url", "--run", run]) == 0

    assert capsys.readouterr().out.startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    ("run", "shown", "advice"),
    [
        ("nosuch", SHOWN, "gpt, gpt~2; a run is there once its training"),
        ("gpr", SHOWN, "gpt, gpt~2; did you mean 'gpt'?"),
        ("over", SHOWN, "gpt, gpt~2; `ampwatch report over` says what is known of it"),
        ("over~2", SHOWN, "gpt, gpt~2; `ampwatch report over` says"),
        ("gpt", list_of(), "no run; a run is there once"),
    ],
)
@pytest.mark.usefixtures("places")
def test_a_run_that_is_not_shown_has_none(
    own_places: Path, capsys: pytest.CaptureFixture[str], run: str, shown: bytes, advice: str
) -> None:
    """Expected, given, what to do; one that has ended is in a report."""
    with serving(own_places / "runtime", {"/ranks": (200, shown)}, wants_token=False):
        assert main(["url", "--run", run]) == 1

    said, told = capsys.readouterr()
    assert said == ""
    assert f"the daemon does not show run {run!r}: it shows {advice}" in told


def test_a_daemon_that_does_not_answer_leaves_it_to_the_page(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may want a password; the page says what is not there."""
    with serving(places / "runtime", {}, wants_token=False, password="ada:secret"):
        assert main(["url", "--run", "nosuch"]) == 0

    assert "#run=nosuch" in capsys.readouterr().out


@pytest.mark.usefixtures("places")
def test_without_a_daemon_the_report_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """It is all that is left of a run that ended a while ago."""
    assert main(["url"]) == 1

    assert "; `ampwatch report` says what went wrong in runs that ended" in capsys.readouterr().err
