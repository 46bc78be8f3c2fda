"""On a device the op at fault is named as on a host, and a healthy run waits for nothing more."""

from __future__ import annotations

import torch
from torch import nn

import ampwatch
from tests.gpu.syncs import sync_debug_mode

DEVICE = "cuda"


def _train(model: nn.Module, scaler: torch.amp.GradScaler, steps: int, scale: float) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    # Positive: sums of them overflow in every row, and no ReLU makes zeros of them.
    x = scale * torch.rand(16, 64, device=DEVICE)
    total = torch.zeros((), device=DEVICE, dtype=torch.bfloat16)
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total += loss.detach()


def test_a_healthy_run_whose_ops_are_checked_waits_for_nothing() -> None:
    """Casts, sums, inputs and what each op has made are read later."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).to(DEVICE)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=256.0)
    watching = ampwatch.monitor(model, scaler, serve=False, sample_every=1)
    with watching as watch, sync_debug_mode("error"):
        _train(model, scaler, 40, 1.0)

    assert [f for f in watch.findings if f.severity != "info"] == []
    assert "switched off" not in watch.report()


def _overflowing() -> tuple[nn.Module, torch.amp.GradScaler]:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).to(DEVICE)
    with torch.no_grad():
        model[0].weight.fill_(600.0)
    return model, torch.amp.GradScaler(DEVICE, init_scale=2.0)


def test_a_failing_run_that_is_traced_waits_for_nothing() -> None:
    """The ops are followed while it fails, and the one at fault is named anyway."""
    model, scaler = _overflowing()
    with ampwatch.monitor(model, scaler, serve=False) as watch:
        _train(model, scaler, 1, 10.0)
        with sync_debug_mode("error"):
            _train(model, scaler, 24, 10.0)

    roots = [(f.kind, f.where) for f in watch.findings if f.root and f.severity == "critical"]
    assert roots == [("forward_overflow", "0")]
    assert "switched off" not in watch.report()
    assert "were not followed" not in watch.report()
