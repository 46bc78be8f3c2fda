"""Updates of weights in half precision, by optimizers that PyTorch does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import ampwatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.wire.records import Finding

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 20


class Own(torch.optim.Optimizer):
    """Updates each weight by a function of ``(weight, update, state)``."""

    def __init__(self, parameters: Any, update: Callable[..., None], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self._update = update

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                # Of one size, as sign descent has it.
                self._update(p, -group["lr"] * p.grad.float().sign(), self.state[p])


def adds(weight: Any, update: Any, _state: Any) -> None:
    weight.add_(update)


def subtracts(weight: Any, update: Any, _state: Any) -> None:
    weight.sub_(update.neg(), alpha=1)


def divides(weight: Any, update: Any, _state: Any) -> None:
    weight.addcdiv_(update, torch.full_like(update, 2.0), value=2.0)


def adds_in_a_list(weight: Any, update: Any, _state: Any) -> None:
    torch._foreach_add_([weight], [update.to(weight.dtype)])


def adds_to_data(weight: Any, update: Any, _state: Any) -> None:
    weight.data += update


def keeps_what_is_lost(weight: Any, update: Any, state: Any) -> None:
    """Kahan summation."""
    lost = state.setdefault("lost", torch.zeros_like(weight)).add_(update)
    before = weight.clone()
    weight.add_(lost)
    lost.add_(before.sub_(weight))


def keeps_what_is_lost_in_a_list(weight: Any, update: Any, state: Any) -> None:
    lost = state.setdefault("lost", torch.zeros_like(weight)).add_(update)
    before = weight.clone()
    torch._foreach_add_([weight], [lost])
    torch._foreach_sub_([before], [weight])
    lost.add_(before)


def keeps_a_master(weight: Any, update: Any, state: Any) -> None:
    master = state.setdefault("master", weight.detach().float().clone())
    weight.copy_(master.add_(update))


def adds_what_a_master_has_more(weight: Any, update: Any, state: Any) -> None:
    master = state.setdefault("master", weight.detach().float().clone()).add_(update)
    weight.add_((master - weight.float()).to(weight.dtype))


def feeds_back(weight: Any, update: Any, state: Any) -> None:
    lost = state.setdefault("lost", torch.zeros_like(weight, dtype=torch.float32))
    step = (lost + update).to(weight.dtype)
    lost.add_(update).sub_((weight + step).float() - weight.float())
    weight.add_(step)


def rounds_at_random(weight: Any, update: Any, _state: Any) -> None:
    bits = (weight.float() + update).view(torch.int32)
    bits.add_(torch.randint_like(bits, 1 << 16)).bitwise_and_(-65536)
    weight.copy_(bits.view(torch.float32))


def found(
    update: Callable[..., None],
    lr: float = 1e-4,
    level: str = "deep",
    *,
    dtype: Any = torch.bfloat16,
) -> list[Finding]:
    """Return what is said of the updates of a model whose weights lie around 0.1 to 0.3."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(dtype)
    optimizer = Own(model.parameters(), update, lr)
    with ampwatch.monitor(model, optimizer=optimizer, level=level, serve=False) as watch:
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(16, 8, dtype=dtype)).float().square().mean().backward()
            optimizer.step()
        assert not any(guard.off for guard in watch._session.bus.guards)
    return [finding for finding in watch.findings if finding.kind == "update_rounding"]


@pytest.mark.parametrize(
    ("update", "level"),
    [
        *((update, "deep") for update in (adds, subtracts, divides, adds_in_a_list, adds_to_data)),
        (adds, "standard"),
    ],
)
def test_updates_that_vanish_are_named(update: Callable[..., None], level: str) -> None:
    """The largest of the weights, whatever adds to them."""
    (finding,) = found(update, level=level)

    assert finding.where == "param:0.weight"
    assert finding.evidence["unchanged_share"] > 0.9
    assert "test_weight_additions.py" in finding.source


@pytest.mark.rotating
@pytest.mark.parametrize(
    "update",
    [
        keeps_what_is_lost,
        keeps_what_is_lost_in_a_list,
        keeps_a_master,
        adds_what_a_master_has_more,
        feeds_back,
        rounds_at_random,
    ],
)
def test_an_optimizer_that_loses_nothing_in_the_end_is_left_alone(
    update: Callable[..., None],
) -> None:
    """It stands still for many steps, and moves anyway."""
    assert found(update) == []


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("lr", "dtype"), [(1e-2, torch.bfloat16), (1e-4, torch.float32)], ids=["large", "float32"]
)
def test_updates_that_are_kept_are_left_alone(lr: float, dtype: Any) -> None:
    """As large as a spacing of the weights, or added to float32."""
    assert found(adds, lr, dtype=dtype) == []


def test_updates_in_hooks_are_named_without_an_optimizer() -> None:
    """No iteration ends then: each weight is followed from one addition to the next."""
    torch.manual_seed(0)
    model = nn.Linear(8, 16).bfloat16()

    def update(parameter: Any) -> None:
        with torch.no_grad():
            parameter.add_(parameter.grad.sign(), alpha=-1e-4)
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    with ampwatch.monitor(model, level="deep", serve=False) as watch:
        for _ in range(STEPS):
            model(torch.randn(16, 8).bfloat16()).float().square().mean().backward()

    (finding,) = (f for f in watch.findings if f.kind == "update_rounding")
    assert finding.where.startswith("param:")
    assert finding.op == "add_"


def test_compensation_in_a_function_is_left_alone() -> None:
    """Without an optimizer, and with each weight read again by a difference."""
    torch.manual_seed(0)
    model = nn.Linear(8, 16).bfloat16()
    lost = {p: torch.zeros_like(p) for p in model.parameters()}
    with ampwatch.monitor(model, level="deep", serve=False) as watch:
        for _ in range(STEPS):
            model.zero_grad()
            model(torch.randn(16, 8).bfloat16()).float().square().mean().backward()
            with torch.no_grad():
                for p in model.parameters():
                    lost[p].add_(p.grad.sign(), alpha=-1e-4)
                    before = p.clone()
                    p.add_(lost[p])
                    lost[p].copy_(lost[p] + (before - p))

    assert not [f for f in watch.findings if f.kind == "update_rounding"]
