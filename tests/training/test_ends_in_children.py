"""A training in a process of multiprocessing, which catches the exception that ends it itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.workshop.nursery import Nursery

PROGRAM = """
import multiprocessing, sys
import torch
import ampwatch

def train(rank, ends_by):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ampwatch.monitor(model, serve=False)
    for step in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if ends_by == "error":
        raise ValueError("a bad batch")

if __name__ == "__main__":
    how, ends_by = sys.argv[1:]
    if how == "torch":
        try:
            torch.multiprocessing.spawn(train, args=(ends_by,), nprocs=1)
        except torch.multiprocessing.ProcessRaisedException:
            pass
    else:
        child = multiprocessing.get_context(how).Process(target=train, args=(0, ends_by))
        child.start()
        child.join()
"""


@pytest.mark.parametrize(
    "how",
    [
        "fork",
        pytest.param("spawn", marks=pytest.mark.nightly),
        pytest.param("torch", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("ends_by", ["error", "return"])
def test_the_exception_that_ends_a_child_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: Nursery, how: str, ends_by: str
) -> None:
    """A report says that it failed, and by what; one that returns leaves none."""
    monkeypatch.setenv("AMPWATCH_REPORT_DIR", str(tmp_path / "reports"))
    if how == "fork":
        assert nursery.start(PROGRAM, how, ends_by).wait() == 0
    else:  # the child begins with the file of its parent's program
        program = tmp_path / "program.py"
        program.write_text(PROGRAM, encoding="utf-8")
        subprocess.run(
            [sys.executable, program, how, ends_by], check=True, capture_output=True, timeout=240
        )

    reports = [p.read_text(encoding="utf-8") for p in tmp_path.glob("reports/**/*.json")]
    assert len(reports) == (ends_by == "error")
    assert all("ValueError: a bad batch" in report for report in reports)
