"""Faults that mixed precision is blamed for."""

from __future__ import annotations

import math

import torch
from torch import nn

from tests.stories.stage import Program, Stories, backward, brain, gradscaler, half, loop, update

STORIES = Stories()


class _Recommender(nn.Module):
    """Two inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(20, 8)
        self.context = nn.Linear(4, 8)
        self.rate = nn.Linear(8, 1)

    def forward(self, *, item: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.rate(torch.tanh(self.items(item) + self.context(context)))
        return out


@STORIES.tell("nonfinite_input", "", "forward")
def a_ratio_of_the_features_that_was_divided_by_zero(*, sick: bool) -> Program:
    """Every sixth batch has an infinite feature; inputs are keywords, and steps are skipped."""
    model = _Recommender()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    scaler = gradscaler(2.0**8)
    scales: list[float] = []

    def iterate(step: int) -> torch.Tensor:
        shown, clicked = 1.0 + torch.rand(16, 1), torch.rand(16, 1)
        if step % 6 == 5:
            shown[4] = 0.0
        ratio = clicked / (shown if sick else shown.clamp(min=0.1))
        batch = {
            "item": torch.randint(0, 20, (16,)),
            "context": torch.cat([ratio, torch.randn(16, 3)], dim=1),
        }
        with half():
            out = model(**batch)
        loss = nn.functional.mse_loss(out.float(), clicked)
        backward(scaler, loss)
        update(scaler, optimizer)
        scales.append(float(scaler.get_scale()))
        return loss

    return Program(
        [model], [optimizer], iterate, scaler, steps=30, shows=lambda run: scales[-1] < scales[0]
    )


@STORIES.tell("nonfinite_input", "loss", "forward", levels=("deep",))
def a_target_that_was_never_measured(*, sick: bool) -> Program:
    """The inputs are fine, one label in the ninth batch is NaN; no scaler, so the weights are lost."""
    model = nn.Sequential(nn.Linear(5, 24), nn.GELU(), nn.Linear(24, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(16, 5)
        target = torch.stack([x.sum(1), x.prod(1)], dim=1)
        if sick and step == 8:
            target[3, 1] = float("nan")
        with brain():
            out = model(x)
            return nn.functional.smooth_l1_loss(out, target)

    return loop(
        [model],
        [optimizer],
        loss_of,
        shows=lambda run: (
            math.isfinite(run.losses[7]) and not any(map(math.isfinite, run.losses[8:]))
        ),
    )


class _Speech(nn.Module):
    """A network that names one of eleven sounds, or none, for each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Linear(6, 32)
        self.sounds = nn.Linear(32, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.sounds(torch.relu(self.frames(x)))
        return out


@STORIES.tell("invalid_operation", "loss", "forward", op="_ctc_loss", levels=("deep",))
def a_transcript_that_is_longer_than_its_recording(*, sick: bool) -> Program:
    """There is no way to say it in that time; the loss is infinite, in float32 as in float64."""
    model = _Speech()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = gradscaler(2.0**8)
    says = torch.arange(1, 9).expand(3, 8)

    def loss_of(_step: int) -> torch.Tensor:
        with half():
            out = model(torch.randn(6 if sick else 20, 3, 6))
        frames = torch.full((3,), out.shape[0])
        log_probs = out.float().log_softmax(-1)
        return nn.functional.ctc_loss(log_probs, says, frames, torch.full((3,), 8))

    return loop(
        [model], [optimizer], loss_of, scaler, steps=8, shows=lambda run: run.has_no_finite_loss
    )


@STORIES.tell("divergence", "loss", "forward")
def a_rate_a_little_too_large_until_float16_gives_in(*, sick: bool) -> Program:
    """Loss and weights grow by a quarter in each step; the overflow is only how it ends."""
    model = nn.Linear(12, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.25 if sick else 0.2)
    scaler = gradscaler(2.0**4)
    data = torch.linalg.qr(torch.randn(48, 12)).Q * math.sqrt(48)
    truth = torch.randn(4, 12)

    def loss_of(_step: int) -> torch.Tensor:
        with half():
            out = model(data)
        return (out.float() - data @ truth.T).square().sum(1).mean() / 2

    def shows(run: Program) -> bool:
        finite = [x for x in run.losses if math.isfinite(x)]
        return len(finite) >= 20 and finite[-1] > 1e3 * finite[0]

    return loop([model], [optimizer], loss_of, scaler, steps=64, shows=shows)


class _Mending(nn.Module):
    """Knows that values are missing, and says so to the layers behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        known = x.isfinite()
        x = torch.cat([torch.where(known, x, 0.0), known.to(x.dtype)], dim=1)
        out: torch.Tensor = self.body(x) + bias.softmax(dim=1).sum(1, keepdim=True)
        return out


def missing_values_and_masks_that_the_model_knows_about() -> Program:
    """NaN where nothing was measured, minus infinity where nothing may be looked at."""
    model = _Mending()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = gradscaler(2.0**8)

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(16, 5)
        x[torch.rand(16, 5) < 0.2] = float("nan")
        bias = torch.zeros(16, 4)
        bias[:, 2:] = float("-inf")
        with half():
            out = model(x, bias)
        return (out.float() - 2.0).square().mean()

    return loop([model], [optimizer], loss_of, scaler)


CONTROLS = (missing_values_and_masks_that_the_model_knows_about,)
