"""What the Triton kernel takes of a GPU, held against the numbers that are kept."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
TAKEN = ("registers", "spilled_bytes")

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None,
    reason="Triton is not installed; PyTorch's wheels for CUDA and ROCm bring it",
)


def _results(files: Iterable[Path]) -> list[dict[str, Any]]:
    return [r for f in files for r in json.loads(f.read_text(encoding="utf-8"))["results"]]


def _allowed(result: dict[str, Any], kept: list[dict[str, Any]]) -> dict[str, int]:
    """Return the most that a kernel may take: as with this version of Triton, or with any."""
    alike = [k for k in kept if (k["target"], k["dtype"]) == (result["target"], result["dtype"])]
    same = [k for k in alike if k["triton"] == result["triton"]]
    return {name: max(k[name] for k in same or alike) for name in TAKEN}


@pytest.mark.nightly
def test_the_kernel_takes_no_more_registers_than_is_kept_and_spills_none(tmp_path: Path) -> None:
    """For the dtypes of training on each of four GPUs; more registers are fewer threads at once."""
    kept = _results(sorted(ROOT.glob("benchmarks/results/*-registers-triton-*.json")))
    command = [sys.executable, "benchmarks/registers.py", "--json", str(tmp_path / "now.json")]
    subprocess.run(
        [*command, "--dtypes", "float32", "float16", "bfloat16"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    now = _results([tmp_path / "now.json"])

    assert len(now) == 12
    assert {k["triton"] for k in kept} >= {"3.6.0", "3.7.1", "3.9.0"}
    more = [r for r in now if any(r[name] > most for name, most in _allowed(r, kept).items())]
    assert more == []
    assert all(r["spilled_bytes"] == 0 for r in now)
