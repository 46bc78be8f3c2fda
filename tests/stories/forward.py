"""Forwards that leave float16, loudly or not, and softmax without anything to choose from."""

from __future__ import annotations

import math

import torch
from torch import nn

from tests.stories.stage import Program, Stories, backward, gradscaler, half, loop, update

STORIES = Stories()


class _Residual(nn.Module):
    """A residual block without normalisation."""

    def __init__(self, width: int, gain: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        with torch.no_grad():
            self.conv.weight.mul_(gain)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.conv(x))


@STORIES.tell("forward_overflow", "blocks.3.conv", "forward", "convolution")
def a_convnet_without_norms_that_is_twelve_times_louder_in_each_block(*, sick: bool) -> Program:
    """Images of ordinary size; the fourth convolution leaves float16. Nesterov, two groups."""
    model = nn.Module()
    model.stem = nn.Conv2d(3, 8, 3, padding=1)
    model.blocks = nn.ModuleList(_Residual(8, 40.0 if sick else 1.0) for _ in range(5))
    model.head = nn.Linear(8, 5)
    optimizer = torch.optim.SGD(
        [{"params": model.blocks.parameters(), "lr": 1e-6}, {"params": model.head.parameters()}],
        lr=1e-3,
        momentum=0.9,
        nesterov=True,
    )
    scaler = gradscaler(2.0**8)

    def loss_of(_step: int) -> torch.Tensor:
        images, labels = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))
        with half():
            x = model.stem(images)
            for block in model.blocks:
                x = block(x)
            return nn.functional.cross_entropy(model.head(x.mean((2, 3))), labels)

    return loop(
        [model], [optimizer], loss_of, scaler, clip=1.0, shows=lambda run: run.has_no_finite_loss
    )


class _SumPool(nn.Module):
    """Adds up what a mask leaves."""

    def __init__(self, *, mean: bool) -> None:
        super().__init__()
        self.mean = mean

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1) if self.mean else x.sum(1)


@STORIES.tell("forward_overflow", "pool", "eval", "sum")
def sequences_of_the_validation_set_that_are_too_long_to_be_summed(*, sick: bool) -> Program:
    """Training sums 16 positions, validation 2048; only validation is infinite."""
    model = nn.Module()
    model.embed = nn.Linear(6, 12)
    model.pool = _SumPool(mean=not sick)
    model.head = nn.Linear(12, 1)
    nn.init.constant_(model.embed.bias, 200.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, foreach=True)
    scaler = gradscaler(1.0)
    validated: list[float] = []

    def score(x: torch.Tensor) -> torch.Tensor:
        with half():
            out: torch.Tensor = model.head(model.pool(torch.relu(model.embed(x))))
        return (out.float() / 1e3).square().mean()

    def iterate(step: int) -> torch.Tensor:
        model.train()
        loss = score(torch.randn(4, 16, 6))
        backward(scaler, loss)
        update(scaler, optimizer)
        if step % 4 == 3:
            model.eval()
            with torch.no_grad():
                validated.append(float(score(torch.randn(1, 2048, 6))))
        return loss

    return Program(
        [model],
        [optimizer],
        iterate,
        scaler,
        shows=lambda run: not any(map(math.isfinite, validated)),
    )


class _Assign(nn.Module):
    """Soft assignment to centres by the kernel of Student's t, as deep clustering does it."""

    def __init__(self, *, wide: bool) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(5, 32))
        self.wide = wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        away = x[:, None] - self.centres.to(x.dtype)
        if self.wide:
            away = away.float()
        closeness = 1.0 / (1.0 + (away * away).sum(-1))
        return closeness / (closeness.sum(1, keepdim=True) + (1e-12 if self.wide else 1e-4))


@STORIES.tell("silent_overflow", "assign", "forward", "sum")
def clusters_that_nobody_belongs_to(*, sick: bool) -> Program:
    """Each squared difference fits, their sum does not; 1 / (1 + inf) is 0 for every centre."""
    model = nn.Module()
    model.encode = nn.Linear(24, 32)
    model.assign = _Assign(wide=not sick)
    model.values = nn.Linear(5, 24)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = gradscaler(32.0)
    assigned: list[float] = []

    def iterate(_step: int) -> torch.Tensor:
        x = torch.randn(16, 24).sign()
        with half():
            shares = model.assign(180.0 * torch.tanh(2.0 * model.encode(x)))
            out = model.values(shares)
        loss = nn.functional.mse_loss(out.float(), x)
        backward(scaler, loss)
        update(scaler, optimizer)
        assigned.append(float(shares.detach().float().sum(1).mean()))
        return loss

    return Program([model], [optimizer], iterate, scaler, shows=lambda run: max(assigned) == 0.0)


class _GraphAttention(nn.Module):
    """Attention over neighbours; the mask is the logarithm of the adjacency."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        h = self.project(x)
        scores = (h @ h.T) / math.sqrt(h.shape[1]) + adjacency.log().to(h.dtype)
        return torch.relu(scores.softmax(dim=-1) @ h)


@STORIES.tell("masked_row_nan", "layers.0", "forward", "_softmax")
def a_node_of_a_graph_without_a_neighbour(*, sick: bool) -> Program:
    """Not even itself: its row of the mask is ``log(0)`` throughout."""
    model = nn.Module()
    model.layers = nn.ModuleList(_GraphAttention(16) for _ in range(2))
    model.classify = nn.Linear(16, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    scaler = gradscaler(2.0**9)

    def loss_of(_step: int) -> torch.Tensor:
        adjacency = (torch.rand(12, 12) < 0.4).float()
        adjacency.fill_diagonal_(1.0)
        if sick:
            adjacency[5] = 0.0
        x, labels = torch.randn(12, 16), torch.randint(0, 3, (12,))
        with half():
            for layer in model.layers:
                x = layer(x, adjacency)
            return nn.functional.cross_entropy(model.classify(x), labels)

    return loop([model], [optimizer], loss_of, scaler, shows=lambda run: run.has_no_finite_loss)
