"""Losses that hold gradients of a scaled loss: the wrong ones, and all that are right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.autograd import grad as imported_grad

from ampwatch.diagnosis.evidence.calls import ScaledPenalty
from ampwatch.training.sensors.calls.penalties import PenaltySensor, _are_ones
from tests.training.bench import Bench

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

pytestmark = pytest.mark.usefixtures("one_thread")

SCALE = 2.0**16


class Critic(NamedTuple):
    """A critic in training, and a batch."""

    model: nn.Module
    scaler: torch.amp.GradScaler
    x: Tensor

    @property
    def score(self) -> Tensor:
        return self.model(self.x).square().sum()  # type: ignore[no-any-return]

    def taken(self) -> Tensor:
        """Gradients of the scaled score."""
        return torch.autograd.grad(self.scaler.scale(self.score), self.x, create_graph=True)[0]


def observed(loss: Callable[[Critic], Tensor], steps: int = 1) -> list[tuple[int, bool, float]]:
    """Train with a loss that is scaled; return steps, whether it is the critic's optimizer, and scales."""
    torch.manual_seed(0)
    model, other = nn.Linear(4, 2), nn.Linear(4, 2)
    optimizer, second = (torch.optim.SGD(m.parameters(), lr=1e-6) for m in (model, other))
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    bench = Bench([model, other], scaler)
    bench.install(PenaltySensor(bench.context))
    try:
        for bench.iteration.step in range(steps):
            critic = Critic(model, scaler, torch.ones(3, 4, requires_grad=True))
            scaler.scale(loss(critic) + other(critic.x).sum()).backward()
            scaler.step(second)
            scaler.step(optimizer)
            scaler.update()
    finally:
        bench.remove()
    seen = [one for one in bench.seen if isinstance(one, ScaledPenalty)]
    assert all("test_penalties.py:" in one.source for one in seen)
    number = bench.context.registry.index_of(optimizer)
    return [(one.step, one.optimizer == number, one.scale) for one in seen]


def by_an_imported_name(c: Critic) -> Tensor:
    (taken,) = imported_grad(c.scaler.scale(c.score), c.x, create_graph=True)
    return taken.square().sum()


WRONG: dict[str, Callable[[Critic], Tensor]] = {
    "slope of one": lambda c: 10.0 * (c.taken().norm(2, dim=1) - 1).square().mean(),
    "squares": lambda c: c.taken().pow(2).sum() / 2,
    "mean squared error": lambda c: nn.functional.mse_loss(c.taken().norm(dim=1), torch.ones(3)),
    "imported name": by_an_imported_name,
    "beside the loss itself": lambda c: c.score + c.taken().abs().mean() * 0.25,
}


class Norm(torch.autograd.Function):
    """Divides by a norm; its node has the name of one of PyTorch's, but for a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.norm = x.norm()
        return x / ctx.norm

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient / ctx.norm


def started_with_its_reciprocal(c: Critic) -> Tensor:
    scaled = c.scaler.scale(c.score)
    starts = torch.full_like(scaled, 1.0 / SCALE)
    return imported_grad(scaled, c.x, grad_outputs=starts, create_graph=True)[0].norm()


def changed_in_place(c: Critic) -> Tensor:
    taken = c.taken()
    with torch.no_grad():
        taken /= SCALE
    return taken.square().sum()


RIGHT: dict[str, Callable[[Critic], Tensor]] = {
    "divided": lambda c: (c.taken() / c.scaler.get_scale()).square().sum(),
    "multiplied": lambda c: (c.taken() * (1.0 / c.scaler.get_scale())).norm(),
    "norm divided": lambda c: (c.taken().norm() / c.scaler.get_scale() - 1).square(),
    "square divided": lambda c: c.taken().square().sum() / c.scaler.get_scale() ** 2,
    "weight and scale in one": lambda c: (10.0 / c.scaler.get_scale()) * c.taken().norm(),
    "batch and scale in one": lambda c: c.taken().square().sum() / (SCALE**2 * 8),
    "fourth power": lambda c: c.taken().pow(4).sum() / SCALE**4,
    "in two steps": lambda c: (c.taken() / 256.0).norm() / 256.0,
    "weight of zero": lambda c: c.score + 0.0 * c.taken().norm(),
    "alpha": lambda c: torch.add(c.score, c.taken().norm(), alpha=1.0 / SCALE),
    "a tensor of several": lambda c: (c.taken() / torch.full((4,), SCALE)).square().sum(),
    "direction": lambda c: nn.functional.normalize(c.taken(), dim=1).sum(),
    "quotient": lambda c: (c.taken() / c.taken().norm()).sum(),
    "detached norm": lambda c: (c.taken() / c.taken().norm().detach()).square().sum(),
    "norm as a number": lambda c: (c.taken() / c.taken().norm().item()).square().sum(),
    "reciprocal": lambda c: (1.0 / c.taken().norm()) + c.taken().norm().pow(-1),
    "function of the program": lambda c: Norm.apply(c.taken()).sum(),
    "begun with the reciprocal": started_with_its_reciprocal,
    "changed in place": changed_in_place,
    "not scaled": lambda c: imported_grad(c.score, c.x, create_graph=True)[0].square().sum(),
    "without a graph": lambda c: (
        c.score * imported_grad(c.scaler.scale(c.score), c.x)[0].square().sum().item()
    ),
    "not in the loss": lambda c: c.score + 0.0 * c.taken().detach().sum(),
    "scaled and not gone back from": lambda c: (
        c.score + 0.0 * c.scaler.scale(c.taken().norm()).detach()
    ),
}


@pytest.mark.parametrize("loss", WRONG.values(), ids=WRONG)
def test_gradients_of_a_scaled_loss_in_another_one_are_seen(
    loss: Callable[[Critic], Tensor],
) -> None:
    """In each step, for the optimizer whose parameters they lead to, at the line that took them."""
    assert observed(loss, steps=3) == [(step, True, SCALE) for step in range(3)]


@pytest.mark.parametrize("loss", RIGHT.values(), ids=RIGHT)
def test_gradients_that_are_divided_or_not_scaled_are_none(
    loss: Callable[[Critic], Tensor],
) -> None:
    """Nothing is claimed where the scale may have been taken out of them."""
    assert observed(loss) == []


class Asked(torch.Tensor):
    """Is not to be computed with: for a ``DTensor`` that would wait for other ranks."""

    @classmethod
    def __torch_function__(cls, func: Any, *_: Any, **__: Any) -> Any:
        pytest.fail(f"expected nothing to be computed, got {func}")


def test_nothing_is_computed_with_a_subclass() -> None:
    """It is not known what such a gradient is, so nothing is claimed."""
    assert not _are_ones((torch.Tensor._make_subclass(Asked, torch.ones(1)),))
