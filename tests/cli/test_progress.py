"""What a command is doing, where it takes long."""

from __future__ import annotations

import io
import sys
import threading
from typing import TYPE_CHECKING

from ampwatch.cli import output
from tests.host.daemon.parts import eventually

if TYPE_CHECKING:
    import pytest


class Tty(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_what_takes_long_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it has taken long, and again with each thing that is done after it."""
    stream = Tty()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(output, "PATIENCE_SECONDS", 0.0)
    with output.progress("reading reports") as say:
        eventually(lambda: "reading reports ..." in stream.getvalue(), "the text")
        say("drawing [red]")

    assert stream.getvalue() == "ampwatch: reading reports ...\nampwatch: drawing [red] ...\n"


def test_what_is_over_before_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither later, nor where a person would take it for an error."""
    stream = Tty()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(output, "PATIENCE_SECONDS", 30.0)
    with output.progress("reading reports") as say:
        say("reading more")

    assert stream.getvalue() == ""


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reads the error stream reads errors."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(output, "PATIENCE_SECONDS", 0.0)
    before = threading.active_count()
    with output.progress("reading reports") as say:
        assert threading.active_count() == before
        say("reading more")

    assert stream.getvalue() == ""
