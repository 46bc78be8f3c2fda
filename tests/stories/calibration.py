"""Healthy trainings of many shapes whose loss scale begins far too high: the scaler calibrates, and all is well."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.stories.stage import Program, backward, gradscaler, half, loop, update

STEPS = 48
CRITIC_STEPS = 5
STARTS = (2.0**20, 2.0**24)


class _Folded(nn.Module):
    """Gives a network the 16 features of a sample in another shape, and takes the first of what it returns."""

    def __init__(self, shape: tuple[int, ...], *layers: nn.Module) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: Any = x.reshape(-1, *self.shape)
        for layer in self.layers:
            made = layer(made)
            made = made[0] if isinstance(made, tuple) else made
        return made  # type: ignore[no-any-return]


def mlp() -> nn.Module:
    """Return linear layers."""
    return nn.Sequential(
        nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)
    )


def convolutional() -> nn.Module:
    """Return convolutions and BatchNorm."""
    body = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3)
    return _Folded((1, 4, 4), *body, nn.Flatten(), nn.Linear(32, 4))


def transformer() -> nn.Module:
    """Return a layer of attention over four tokens."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return _Folded((4, 4), nn.Linear(4, 16), layer, nn.Flatten(), nn.Linear(64, 4))


def recurrent() -> nn.Module:
    """Return a GRU over four tokens."""
    return _Folded((4, 4), nn.GRU(4, 16, batch_first=True), nn.Flatten(), nn.Linear(64, 4))


def normalized() -> nn.Module:
    """Return linear layers with a residual path and LayerNorm."""
    return nn.Sequential(
        nn.Linear(16, 32),
        nn.LayerNorm(32),
        nn.GELU(),
        nn.Linear(32, 32),
        nn.GroupNorm(4, 32),
        nn.Linear(32, 4),
    )


NETWORKS = (mlp, convolutional, transformer, recurrent, normalized)


def _samples() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(32, 16)
    return x, x[:, :4].argmax(1)


def _loss(model: nn.Module) -> torch.Tensor:
    x, y = _samples()
    with half():
        return functional.cross_entropy(model(x), y)


def _adam(*models: nn.Module, lr: float = 1e-3) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for model in models for p in model.parameters()], lr=lr)


def one_network(make: Callable[[], nn.Module], start: float) -> Program:
    """PyTorch's own example."""
    model = make()
    return loop([model], [_adam(model)], lambda _: _loss(model), gradscaler(start), steps=STEPS)


def clipped(make: Callable[[], nn.Module], start: float) -> Program:
    """Gradients are unscaled and clipped."""
    model = make()
    return loop(
        [model], [_adam(model)], lambda _: _loss(model), gradscaler(start), clip=0.5, steps=STEPS
    )


def accumulated(make: Callable[[], nn.Module], start: float) -> Program:
    """Three micro-batches to a step."""
    model = make()
    return loop(
        [model],
        [_adam(model)],
        lambda _: _loss(model) / 3,
        gradscaler(start),
        micro_batches=3,
        steps=STEPS,
    )


def two_optimizers(make: Callable[[], nn.Module], start: float) -> Program:
    """Layers and a head of their own, each with an optimizer."""
    body, head = make(), nn.Linear(4, 4)
    model = nn.Sequential(body, head)
    return loop(
        [model],
        [_adam(body), _adam(head, lr=1e-2)],
        lambda _: _loss(model),
        gradscaler(start),
        steps=STEPS,
    )


def two_networks(make: Callable[[], nn.Module], start: float) -> Program:
    """Two networks, one loss, one scaler."""
    one, other = make(), mlp()
    return loop(
        [one, other],
        [_adam(one), _adam(other)],
        lambda _: _loss(one) + 30 * _loss(other),
        gradscaler(start),
        steps=STEPS,
    )


def two_scalers(make: Callable[[], nn.Module], start: float) -> Program:
    """Two networks, each with a loss and a scaler of its own."""
    pairs = [(model, _adam(model), gradscaler(start)) for model in (make(), mlp())]

    def iterate(_step: int) -> torch.Tensor:
        for model, optimizer, scaler in pairs:
            loss = _loss(model)
            backward(scaler, loss)
            update(scaler, optimizer)
        return loss

    models = [model for model, *_ in pairs]
    return Program(models, [o for _, o, _ in pairs], iterate, pairs[0][2], steps=STEPS)


def lbfgs(make: Callable[[], nn.Module], start: float) -> Program:
    """A scaler takes no closure: the optimizer is given the loss that has been computed."""
    model = make()
    losses: list[torch.Tensor] = []

    class Lbfgs(torch.optim.LBFGS):
        """Evaluates once a step."""

        def step(self, closure: Any = None) -> Any:
            return super().step(closure or losses.pop)  # type: ignore[no-untyped-call]

    optimizer = Lbfgs(model.parameters(), lr=1e-2, max_iter=1)

    def loss_of(_step: int) -> torch.Tensor:
        loss = _loss(model)
        losses[:] = [loss.detach()]
        return loss

    return loop([model], [optimizer], loss_of, gradscaler(start), steps=STEPS)


class _Game:
    """A generator and a critic, of which the critic learns 50 times as fast."""

    def __init__(self, make: Callable[[], nn.Module], start: float) -> None:
        self.generator, self.critic = (
            nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16)),
            make(),
        )
        self.models = nn.ModuleDict({"generator": self.generator, "critic": self.critic})
        self.slow, self.fast = _adam(self.generator, lr=1e-4), _adam(self.critic, lr=5e-3)
        self.scaler = gradscaler(start)

    def fake(self) -> torch.Tensor:
        with half():
            made: torch.Tensor = self.generator(torch.randn(32, 8))
        return made

    def critic_loss(self, fake: torch.Tensor) -> torch.Tensor:
        with half():
            real, other = self.critic(torch.randn(32, 16) + 3), self.critic(fake.detach())
        return functional.softplus(-real.float()).mean() + functional.softplus(other.float()).mean()

    def generator_loss(self, fake: torch.Tensor) -> torch.Tensor:
        with half():
            return 5 * functional.softplus(-self.critic(fake).float()).mean()

    def program(self, iterate: Callable[[int], torch.Tensor]) -> Program:
        return Program([self.models], [self.slow, self.fast], iterate, self.scaler, steps=STEPS)


def adversarial(make: Callable[[], nn.Module], start: float) -> Program:
    """Two backwards to an update, each on a line of its own."""
    game = _Game(make, start)

    def iterate(_step: int) -> torch.Tensor:
        fake = game.fake()
        game.fast.zero_grad()
        game.scaler.scale(game.critic_loss(fake)).backward()
        game.scaler.step(game.fast)
        game.slow.zero_grad()
        loss = game.generator_loss(fake)
        game.scaler.scale(loss).backward()
        game.scaler.step(game.slow)
        game.scaler.update()
        return loss

    return game.program(iterate)


def adversarial_of_one_line(make: Callable[[], nn.Module], start: float) -> Program:
    """Two updates to an iteration, and one function for the backward of both."""
    game = _Game(make, start)

    def iterate(_step: int) -> torch.Tensor:
        fake = game.fake()
        for optimizer, loss_of in ((game.fast, game.critic_loss), (game.slow, game.generator_loss)):
            loss = loss_of(fake)
            optimizer.zero_grad()
            backward(game.scaler, loss)
            game.scaler.step(optimizer)
            game.scaler.update()
        return loss

    return game.program(iterate)


def adversarial_of_five(make: Callable[[], nn.Module], start: float) -> Program:
    """The critic steps five times as often, and each step is an update."""
    game = _Game(make, start)

    def iterate(step: int) -> torch.Tensor:
        is_critic = step % (CRITIC_STEPS + 1) < CRITIC_STEPS
        loss = (game.critic_loss if is_critic else game.generator_loss)(game.fake())
        optimizer = game.fast if is_critic else game.slow
        optimizer.zero_grad()
        backward(game.scaler, loss)
        game.scaler.step(optimizer)
        game.scaler.update()
        return loss

    return game.program(iterate)


SHAPES = (
    one_network,
    clipped,
    accumulated,
    two_optimizers,
    two_networks,
    two_scalers,
    lbfgs,
    adversarial,
    adversarial_of_one_line,
    adversarial_of_five,
)

TRAININGS = list(product(SHAPES, NETWORKS, STARTS))
