"""Several findings of one incident: what was seen is the root, what follows is attached to it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ampwatch


@pytest.mark.parametrize("level", ["standard", pytest.param("deep", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("root", ["nonfinite_input", "forward_nan_underflow"])
def test_a_burst_of_broken_batches_is_one_incident(root: str, level: str) -> None:
    """Until its end and after it: the scale that it leaves behind is not a second one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")
    with ampwatch.monitor(model, scaler, level=level, serve=False) as watch:
        for step in range(150):
            batch, sizes = torch.randn(16, 16), torch.ones(16, 1)
            if 90 <= step < 110 and root == "nonfinite_input":
                batch[0, 0] = float("nan")
            elif 90 <= step < 110:
                sizes[0] = 0.0
            with torch.autocast("cpu", dtype=torch.float16):
                loss = (model(batch) / (sizes.half() + 1e-8)).float().square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    assert [f.kind for f in watch.findings if f.root] == [root]
    assert "scale_stuck_low" in [f.kind for f in watch.findings]


@pytest.mark.parametrize(
    ("level", "period"),
    [
        ("standard", 3),
        pytest.param("deep", 1, marks=pytest.mark.nightly),
        pytest.param("deep", 10, marks=pytest.mark.nightly),
    ],
)
def test_optimizers_fall_apart_because_one_network_overflows(level: str, period: int) -> None:
    """However often it does: the desync, the period and the scale are what becomes of it."""
    torch.manual_seed(0)
    maker, judge = nn.Linear(8, 16), nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-4) for m in (judge, maker)]
    scaler = torch.amp.GradScaler("cpu")
    with ampwatch.monitor([maker, judge], scaler, level=level, serve=False) as watch:
        for step in range(100):
            loud = 1e6 if step >= 30 and step % period == 0 else 1.0
            with torch.autocast("cpu", dtype=torch.float16):
                fake = maker(torch.randn(16, 8))
                of_judge = judge(loud * torch.randn(16, 16)) - judge(fake.detach())
            optimizers[0].zero_grad()
            scaler.scale(nn.functional.softplus(of_judge.float()).mean()).backward()
            scaler.step(optimizers[0])
            with torch.autocast("cpu", dtype=torch.float16):
                of_maker = -judge(fake)
            optimizers[1].zero_grad()
            scaler.scale(nn.functional.softplus(of_maker.float()).mean()).backward()
            scaler.step(optimizers[1])
            scaler.update()

    kinds = [f.kind for f in watch.findings]
    assert [f.kind for f in watch.findings if f.root] == ["forward_overflow"]
    assert "shared_scaler_desync" in kinds


def test_an_op_of_the_loss_has_broken_the_weights() -> None:
    """In float32 behind a bfloat16 model, in the very step in which the weights became NaN."""
    torch.manual_seed(0)
    model = nn.Linear(16, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with ampwatch.monitor(model, level="deep", serve=False) as watch:
        for step in range(30):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(torch.randn(16, 16)).float()
            loss = (1e4 * out).exp().mean() if step == 20 else out.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    roots = [(f.kind, f.where, f.op) for f in watch.findings if f.root]
    assert roots == [("forward_overflow", "loss", "exp")]
    (broken,) = [f for f in watch.findings if f.kind == "param_nonfinite"]
    assert (broken.first_step, broken.caused_by) == (20, "forward_overflow@loss")
