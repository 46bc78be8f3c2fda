"""What outlives a step and is broken: it stays so until it was seen to be mended."""

from __future__ import annotations

import json
import math
from typing import Literal

import pytest
import torch
from torch import nn

import ampwatch

SKIPPED = (6, 24)
"""Iterations whose loss is infinite: parameters are measured in these, and in the first one."""


@pytest.mark.parametrize(("is_repaired", "level"), [(False, "broken"), (True, "finished")])
def test_an_embedding_with_a_row_of_nan_is_broken_until_it_is_repaired(
    *, is_repaired: bool, level: str
) -> None:
    """That row is not looked up again, so nothing else shows it, and no parameter is measured again."""
    torch.manual_seed(0)
    embedding, linear = nn.Embedding(16, 4), nn.Linear(4, 16)
    model = nn.Sequential(embedding, linear)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with ampwatch.monitor(model, scaler, sample_every=10_000, serve=False) as watch:
        for step in range(300):
            with torch.no_grad():
                if step == 5:
                    embedding.weight[15] = math.nan
                if step == 12 and is_repaired:
                    embedding.weight[15] = 0.0
            tokens = torch.randint(15, (32,))
            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(tokens), tokens)
            optimizer.zero_grad()
            scaler.scale(loss * math.inf if step in SKIPPED else loss).backward()
            scaler.step(optimizer)
            scaler.update()

    (found,) = [f for f in watch.findings if f.kind == "param_nonfinite"]
    assert (found.where, found.last_step < 40) == ("param:0.weight", True)
    assert json.loads(watch.report(format="json"))["verdict"]["level"] == level


class Limited(nn.Module):
    """Has a vocabulary that is padded, and limits that are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 6)
        self.limit = nn.Parameter(torch.tensor([1.0, math.inf]))
        with torch.no_grad():
            self.net.bias[4:] = -math.inf

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x.clamp(max=self.limit[0]).minimum(self.limit[1]))


@pytest.mark.parametrize(
    ("breaks", "sample_every", "is_loaded"),
    [
        ({}, 1, False),
        ({}, 1, True),
        ({}, 10_000, False),
        ({"net.bias": -math.inf}, 10_000, False),
        ({"limit": math.inf}, 10_000, False),
        ({"net.weight": math.inf}, 10_000, True),
        ({"net.weight": math.inf}, 1, False),
    ],
)
def test_infinities_from_before_the_first_step_are_meant_and_those_that_come_later_are_not(
    breaks: dict[str, float], sample_every: int, *, is_loaded: bool
) -> None:
    """Also where a checkpoint has brought them, at the start and again in the middle of the run."""
    torch.manual_seed(0)
    model = Limited()
    start = {name: values.clone() for name, values in model.state_dict().items()}
    if is_loaded:
        with torch.no_grad():
            model.net.bias.zero_()
            model.limit.fill_(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with ampwatch.monitor(model, scaler, sample_every=sample_every, serve=False) as watch:
        for step in range(20):
            if is_loaded and step in {0, 8}:
                model.load_state_dict(start)
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(torch.randn(8, 4))
            loss = nn.functional.cross_entropy(out.float(), torch.randint(4, (8,)))
            optimizer.zero_grad()
            scaler.scale(loss * math.inf if step == 14 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if step == 12:
                with torch.no_grad():
                    for name, value in breaks.items():
                        model.get_parameter(name).view(-1)[0] = value

    found = [f.where for f in watch.findings if f.kind == "param_nonfinite"]
    assert found == [f"param:{name}" for name in breaks]
    verdict = json.loads(watch.report(format="json"))["verdict"]
    assert (verdict["level"] == "broken") is bool(breaks)


@pytest.mark.parametrize("level", ["standard", "deep"])
@pytest.mark.parametrize("is_scaled", [True, False])
@pytest.mark.parametrize(
    ("name", "value"),
    [("3.weight", -math.inf), ("0.weight", math.inf), ("3.bias", math.inf), ("1.weight", math.inf)],
)
def test_infinities_of_a_broken_checkpoint_are_no_mask(
    name: str, value: float, level: Literal["standard", "deep"], *, is_scaled: bool
) -> None:
    """Nothing but they makes the loss non-finite. With a scaler the weights stay, and each step is skipped."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    with torch.no_grad():
        model.get_parameter(name).view(-1)[0] = value
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=is_scaled)
    with ampwatch.monitor(model, scaler, level=level, serve=False) as watch:
        for _ in range(12):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(8, 4)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()

    critical = [f for f in watch.findings if f.severity.name == "CRITICAL"]
    found = critical[0]
    assert [f for f in critical if f.root] == [found]
    assert (found.kind, found.where, found.is_gone) == ("param_nonfinite", f"param:{name}", False)
    assert "from before step 0 on" in found.summary
    assert [f.kind for f in critical[1:]] == ["scale_collapse"] * is_scaled
