"""Runs promtool on the rules, and says whose tests failed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.services import require

MEMORY = "/dev/shm"

_FAILURE = re.compile(
    r"^    (?:alertname: (\w+), time|expr: (.*), time: |rule: ([\w:]+), time: .*, err: )",
    re.MULTILINE,
)
_NAME = re.compile(r'alertname=\\?"(\w+)\\?"|([a-z_]+:[a-z0-9_]+:[a-z0-9_]+)')


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool, and return what it says."""
    command = [require("promtool"), *map(str, arguments)]
    # It writes a database for each test, which a disk makes slow; and its heap is small, so that it
    # would spend a fifth of its time on passes of the collector.
    env = {**os.environ, "GOGC": "400", **({"TMPDIR": MEMORY} if Path(MEMORY).is_dir() else {})}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def names_in(expr: str) -> set[str]:
    """Return the alerts and recording rules that the expression of a test asks for."""
    return {name for pair in _NAME.findall(expr) for name in pair if name}


def failures(said: subprocess.CompletedProcess[str]) -> set[str]:
    """Return the alerts and recording rules of which promtool says that a test or their evaluation fails."""
    text = said.stdout + said.stderr
    assert said.returncode == 0 or _FAILURE.search(text), text
    names: set[str] = set()
    for alert, expr, broken in _FAILURE.findall(text):
        names |= {alert, broken}
        names |= names_in(expr)
    return names - {""}
