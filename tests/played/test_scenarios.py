"""Everything in `scenarios/` passes, each file in a process in which the device is played."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.played.build import COMPILER
from tests.played.conftest import PLAYED
from tests.services import require

HERE = Path(__file__).parent
SCENARIOS = sorted(path.name for path in HERE.glob("scenarios/test_*.py"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str) -> None:
    """A device that punishes what a real one punishes finds nothing to punish."""
    require(COMPILER)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, str(HERE / "scenarios" / scenario)],
        cwd=HERE.parent.parent,
        env=os.environ | {PLAYED: "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
