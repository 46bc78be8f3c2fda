"""A Python in a process of its own, run to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python(*words: str, place: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one that finds the ampwatch of ``place``, and is to end well; return what it has said."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(place)} | environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done
