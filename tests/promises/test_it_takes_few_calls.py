"""What each step costs: the functions of ampwatch that Python calls in a plain one.

Counted and not timed: a clock tells of the machine as well.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest
import torch

import ampwatch
from ampwatch.training.native import core

PACKAGE = str(Path(ampwatch.__file__).parent)

SETTLED = 100
"""Steps after which no sensor wants each of them."""


@pytest.mark.parametrize(
    ("level", "by_hand", "limit"),
    [("light", False, 17), ("light", True, 43), ("standard", False, 49)],
)
def test_a_plain_step_makes_few_calls(level: str, limit: int, *, by_hand: bool) -> None:
    """Of functions written in Python; more where the program unscales and clips itself, or where its calls are kept.

    15, 40 and 43 in a process of its own, some more in one that has done other things.
    """
    if core is None:
        pytest.skip("without its C part ampwatch makes more calls")
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    inputs = torch.randn(2, 4)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(inputs).float().square().mean()
        scaler.scale(loss).backward()
        if by_hand:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    counts = []
    with ampwatch.monitor(model, scaler, level=level, serve=False):
        for _ in range(SETTLED):
            step()
        for _ in range(33):
            calls = 0
            sys.setprofile(count)
            step()
            sys.setprofile(None)
            counts.append(calls)

    assert 0 < min(counts) <= limit, counts
