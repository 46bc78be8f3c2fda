"""Everything in `scenarios/` passes, in processes in which the device is played."""

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
SCENARIOS = HERE / "scenarios"


@pytest.mark.parametrize(
    ("chosen", "path"),
    [
        ("not nightly", "."),
        *(
            pytest.param("nightly", path.name, marks=pytest.mark.nightly)
            for path in sorted(SCENARIOS.glob("test_*.py"))
        ),
    ],
)
def test_scenarios(chosen: str, path: str) -> None:
    """A device that punishes what a real one punishes finds nothing to punish.

    Those of a commit are run in one process, so that one compiles what is in C++; of the others each file is.
    """
    require(COMPILER)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, "-m", chosen, str(SCENARIOS / path)],
        cwd=HERE.parent.parent,
        env=os.environ | {PLAYED: "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
