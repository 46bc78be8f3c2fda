"""The log of a daemon that nobody watches."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ampwatch.cli import main
from ampwatch.host.daemon import detach
from tests.host.daemon.parts import ROOT

LOG_MUCH = """
import logging, sys
from ampwatch.host.daemon import detach
detach.MAX_LOG, detach.KEPT_LOG = 10_000, 2_000
logging.basicConfig(handlers=[detach.BoundedLog()], format="%(message)s")
for number in range(5_000):
    logging.warning("line %d", number)
print("last words", file=sys.stderr)
"""


def test_the_log_stays_bounded_while_the_daemon_runs(tmp_path: Path) -> None:
    """It keeps its end, in whole lines, with what was not logged but printed."""
    log = tmp_path / "daemon.log"
    with log.open("a+b") as file:
        subprocess.run([sys.executable, "-c", LOG_MUCH], cwd=ROOT, stderr=file, check=True)

    *lines, last = log.read_text().splitlines()
    assert 2_000 <= log.stat().st_size <= 10_100
    assert last == "last words"
    assert lines == [f"line {number}" for number in range(5_000 - len(lines), 5_000)]


def test_a_log_that_was_left_too_large_is_cut_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A descriptor that is not one of these is left alone."""
    monkeypatch.setattr(detach, "MAX_LOG", 100)
    monkeypatch.setattr(detach, "KEPT_LOG", 10)
    log = tmp_path / "daemon.log"
    for content, kept in ((b"a" * 50, b"a" * 50), (b"b" * 200 + b"\ntail\n", b"tail\n")):
        log.write_bytes(content)
        with log.open("a+b") as file:
            detach.cut(file.fileno())
        assert log.read_bytes() == kept


def test_a_terminal_or_a_pipe_is_never_cut() -> None:
    """They have no size."""
    reader, writer = os.pipe()
    try:
        os.write(writer, b"hello")
        detach.cut(writer)
        assert os.read(reader, 10) == b"hello"
    finally:
        os.close(reader)
        os.close(writer)


def test_only_a_detached_daemon_cuts_its_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that a user sends stderr to belongs to the user."""
    chosen: list[object] = []
    monkeypatch.setattr("ampwatch.host.daemon.app.serve", lambda *_: None)
    monkeypatch.setattr(logging, "basicConfig", lambda **given: chosen.extend(given["handlers"]))

    assert main(["daemon"]) == 0
    assert main(["daemon", "--lock-fd", "9"]) == 0

    assert [isinstance(handler, detach.BoundedLog) for handler in chosen] == [False, True]
