"""The three promises where an error budget is asked for in the middle of a training."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

import ampwatch
from ampwatch import lab
from ampwatch.lab.budget import ErrorBudget
from tests.promises.conftest import ahead, each_recipe
from tests.promises.test_it_replays_unnoticed import BANK, MODELS, Loss
from tests.trainings import build

pytestmark = ahead

IN_TURN = (None, torch.bfloat16, torch.float16)


@each_recipe
def test_recipes_are_what_they_are_without_budgets(recipe: str) -> None:
    """Losses, scales, weights, buffers, optimizers and random numbers, with a budget after every fourth step.

    One of them as it is trained, and two under autocast to other formats.
    """
    bare = build(recipe)
    bare.loop()

    watched, budgets = build(recipe), list[Any]()
    with ampwatch.monitor(
        watched.models, watched.scaler, optimizer=watched.optimizers, serve=False, lab=True
    ) as watch:
        watched.after_step = lambda step: (
            budgets.append(lab.error_budget(watch, dtype=IN_TURN[step % 3]))
            if step % 4 == 1
            else None
        )
        watched.loop()

    assert watched.digest() == bare.digest()
    assert len(budgets) == 3
    assert all(budget.rows for budget in budgets)
    assert {("bfloat16",), ("float16",)} <= {budget.formats for budget in budgets}


def train(name: str, *, asks: bool) -> tuple[Any, list[ErrorBudget]]:
    """Train one of the models that make it hard; return all of its state, and the budgets."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the state of the process
    BANK.zero_()
    model = MODELS[name][0]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses, budgets = [], []
    with ampwatch.monitor(model, optimizer=optimizer, serve=False, lab=True) as watch:
        for step in range(6):
            x = torch.randn(16, 8)
            # In one region, whose casts are cached: a budget comes while they are there.
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(x)
                if asks and step % 2:
                    budgets.append(lab.error_budget(watch))
                again = model(x) if step == 3 else out
            loss = sum(
                (o["loss"] if isinstance(o, dict) else o.float().square().mean())
                for o in (out, again)
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    state = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
    others = torch.get_rng_state().numpy().tobytes(), random.getstate(), BANK.sum().item()
    return (losses, state, others), budgets


@pytest.mark.rotating
@pytest.mark.parametrize("name", [name for name, (_, outcome) in MODELS.items() if outcome])
def test_models_are_what_they_are_without_budgets(name: str) -> None:
    """Within a region of autocast, between forward and backward; those that cannot be copied say so."""
    bare, _ = train(name, asks=False)
    asked, budgets = train(name, asks=True)

    assert asked == bare
    assert len(budgets) == 3
    assert all(budget.rows or budget.why_not for budget in budgets)
    if MODELS[name][1] == "replayed":
        assert any(budget.rows for budget in budgets)


def test_nothing_stays_of_a_budget() -> None:
    """Neither a mode, nor a hook, nor a gradient, nor a state of autocast or of autograd."""
    torch.manual_seed(0)
    model = Loss()
    with ampwatch.monitor(model, serve=False, lab=True) as watch:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(torch.randn(16, 8))
        modes = torch._C._len_torch_dispatch_stack()
        assert lab.error_budget(watch).rows
        assert torch._C._len_torch_dispatch_stack() == modes
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        assert all(p.grad is None for p in model.parameters())
        assert torch.is_grad_enabled()
        assert torch.is_autocast_cache_enabled()
        assert not torch.is_autocast_enabled("cpu")
    assert torch._C._len_torch_dispatch_stack() == 0
