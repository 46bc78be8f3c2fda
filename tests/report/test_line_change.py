"""The remedy as a difference: only where it is what was tried, and then it works as it stands."""

from __future__ import annotations

import importlib.util
import re
import textwrap
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ampwatch
from ampwatch.report.line_change import change_of
from ampwatch.report.notebook import finding_card
from ampwatch.wire.records import Measure, Tried
from tests.workshop.records import alarm

if TYPE_CHECKING:
    from pathlib import Path

MODELS = """\
import torch
from torch import nn

class Norm(nn.Module):
    def forward(self, x):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 8)
        self.norm = Norm()

    def forward(self, x):
        x = self.up(x)
        return self.norm(x)

class Wide(nn.Module):
    def forward(self, x, mask):
        return x * x

def helper(self, x):
    y = self.up(x) + 1
    z = self.up(x, 1)
    if x: z = self.up(x)
    z = (
        self.up(x)
    )
"""
REGION = "+ with torch.autocast(x.device.type, enabled=False):"
OF_NORM = (
    "- return x / torch.sqrt((x * x).mean(-1, keepdim=True))",
    REGION,
    "+     x = x.float()",
    "+     return x / torch.sqrt((x * x).mean(-1, keepdim=True))",
)
OF_UP = ("- x = self.up(x)", REGION, "+     x = self.up(x.float())")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of models."""
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return path


def found(source: str, where: str, op: str, measure: Measure = Measure.MODULE_IN_FLOAT32) -> Any:
    """A finding that its module in float32 cures."""
    tried = (Tried(measure, where, 3, cures=True),)
    return replace(alarm("forward_overflow"), source=source, where=where, op=op, tried=tried)


@pytest.mark.parametrize(
    ("line", "where", "op", "change"),
    [
        (6, "blocks.0.norm", "mul", OF_NORM),
        (15, "blocks.0.up", "addmm", OF_UP),
        (6, "blocks.0.norm", "exp", ()),  # the line has no such op
        (15, "blocks.0.down", "addmm", ()),  # the line calls another module
        (20, "wide", "mul", ()),  # a mask cannot be made float32
        (23, "a.up", "addmm", ()),
        (24, "a.up", "addmm", ()),
        (25, "a.up", "addmm", ()),
        (27, "a.up", "addmm", ()),
        (99, "a.up", "addmm", ()),
    ],
)
def test_a_difference_is_what_was_tried_or_nothing(
    file: Path, line: int, where: str, op: str, change: tuple[str, ...]
) -> None:
    """The line is the call of the module, or the whole of its forward."""
    made = found(f"{file}:{line}", where, op)

    assert change_of(made) == change
    assert all(f"{escape(one)}\n" in f"{finding_card(made)}\n" for one in change[:-1])


def test_without_the_cure_or_the_file_there_is_no_difference(file: Path, tmp_path: Path) -> None:
    """Nor where the source is no Python: a report may come from anywhere."""
    fine = found(f"{file}:6", "norm", "mul")
    (tmp_path / "broken.py").write_text("def f(:\n")
    others = [
        replace(fine, tried=()),
        replace(fine, where="other"),
        found(f"{file}:6", "norm", "mul", Measure.BFLOAT16),
        *(
            replace(fine, source=s)
            for s in ("", "x:y", "/dev/zero:1", f"{tmp_path}/no.py:1", f"{tmp_path}/broken.py:1")
        ),
    ]

    assert change_of(fine) == OF_NORM
    assert [change_of(other) for other in others] == [()] * len(others)


def trained(path: Path) -> str:
    """Return the report of a training whose normalization overflows float16."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    models = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(models)
    torch.manual_seed(0)
    model = torch.nn.Sequential()
    model.add_module("block", models.Block())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with ampwatch.monitor(model, scaler, level="standard", serve=False) as watch:
        for step in range(6):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(10.0 ** (4 if step > 2 else 0) * torch.ones(4, 8)).float().sum()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return str(watch.report())


@pytest.mark.usefixtures("one_thread")
def test_a_difference_that_is_made_cures_it(file: Path) -> None:
    """As it stands in the report."""
    file.write_text(
        MODELS.replace(
            "x / torch.sqrt((x * x).mean(-1, keepdim=True))", "torch.sqrt((x * x).mean(-1))"
        )
    )
    report = trained(file)
    change = re.search(r"  In \S+/models.py:(\d+):\n((?:    [-+] .*\n)+)", report)
    assert change is not None, report
    new = textwrap.indent(re.sub(r"(?m)^    \+ |^    - .*\n", "", change[2]), " " * 8)
    lines = file.read_text().splitlines(keepends=True)
    lines[int(change[1]) - 1] = new
    file.write_text("".join(lines))

    assert "There are no findings" in trained(file)
