"""What a command is doing, where it takes long."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from ampwatch.cli.progress import progress
from tests.host.daemon.parts import eventually


class Tty(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(params=[True, False], ids=["rich", "plain"])
def has_rich(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr("ampwatch.cli.progress.importlib.util.find_spec", lambda name: None)
    return bool(request.param)


def test_what_takes_long_is_said(*, has_rich: bool) -> None:
    """With Rich as a line that goes again, without it as one that stays."""
    stream = Tty()
    with progress("reading reports", stream, seconds=0.0) as shown:
        eventually(lambda: "reading reports ..." in stream.getvalue(), "the text")
        shown.update("drawing \x5bred]")

    said = stream.getvalue()
    assert "reading reports ..." in said
    assert "drawing [red] ..." in said
    assert has_rich or said == "ampwatch: reading reports ...\nampwatch: drawing [red] ...\n"


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reads the error stream reads errors."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    before = threading.active_count()
    with progress("reading reports", seconds=0.0) as shown:
        assert threading.active_count() == before
        shown.update("reading more")

    assert stream.getvalue() == ""


def test_an_error_takes_it_away(*, has_rich: bool) -> None:
    """So that the error's own line stands alone."""
    stream = Tty()

    def fail() -> None:
        with progress("reading reports", stream, seconds=0.0):
            eventually(lambda: "reading reports ..." in stream.getvalue(), "the text")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    if has_rich:  # the cursor is shown again
        assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("reports")
