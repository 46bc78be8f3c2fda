"""Trainings that are well, each of which looks in some way like one that is not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tests.stories.stage import (
    PAID,
    Controls,
    Program,
    backward,
    brain,
    full,
    gradscaler,
    half,
    loop,
    update,
)

CONTROLS = Controls()


def adamw(*modules: nn.Module, lr: float = 1e-3, **options: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW([p for m in modules for p in m.parameters()], lr=lr, **options)


def simple(
    model: nn.Module,
    forward: Callable[[], torch.Tensor],
    *,
    scaler: Any,
    steps: int = 40,
    context: Callable[[], Any] = half,
    optimizer: torch.optim.Optimizer | None = None,
    **options: Any,
) -> Program:
    """Return the documented loop around ``forward``, which returns the loss."""

    def loss_of(_step: int) -> torch.Tensor:
        with context():
            return forward()

    return loop([model], [optimizer or adamw(model)], loss_of, scaler, steps=steps, **options)


@CONTROLS.add
def dead_relus_and_parameters_that_are_not_used() -> Program:
    """Their gradients are zero in any precision, or not there at all."""
    model = nn.ModuleDict(
        {"in": nn.Linear(16, 64), "out": nn.Linear(64, 8), "unused": nn.Linear(64, 64)}
    )
    with torch.no_grad():
        model["in"].bias[:60].fill_(-50.0)

    def forward() -> torch.Tensor:
        hidden = torch.relu(model["in"](torch.randn(32, 16)))
        out = model["out"](hidden) + 0.0 * model["unused"](hidden).mean()
        return (out.float() - 1.0).square().mean()

    return simple(model, forward, scaler=gradscaler())


def _embedding(*, sparse: bool) -> Program:
    model = nn.ModuleDict({"rows": nn.Embedding(2000, 16, sparse=sparse), "out": nn.Linear(16, 4)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def forward() -> torch.Tensor:
        hidden = model["rows"](torch.randint(0, 2000, (24,)))
        return nn.functional.cross_entropy(model["out"](hidden), torch.randint(0, 4, (24,)))

    return simple(model, forward, scaler=gradscaler(2.0**15), optimizer=optimizer)


@CONTROLS.add
def an_embedding_whose_rows_are_mostly_untouched() -> Program:
    """99 of 100 elements of its gradient are zero, because their tokens did not occur."""
    return _embedding(sparse=False)


@CONTROLS.add
def a_sparse_embedding() -> Program:
    """The gradient holds only the rows that occurred."""
    return _embedding(sparse=True)


@CONTROLS.add
def a_rare_expert() -> Program:
    """Most batches leave it out; then its gradient is zero, and was not before."""
    model = nn.ModuleDict({"often": nn.Linear(16, 8), "rare": nn.Linear(16, 256)})
    calls = iter(range(10**6))

    def forward() -> torch.Tensor:
        x = torch.randn(16, 16)
        chosen = 1.0 if next(calls) % 5 == 0 else 0.0
        rare = chosen * model["rare"](x).float().square().mean()
        return model["often"](x).float().square().mean() + 1e-3 * rare

    return simple(model, forward, scaler=gradscaler(), settings=PAID)


@CONTROLS.add
def attention_with_a_bias_in_its_keys() -> Program:
    """A softmax does not see it: its true gradient is zero, and rounding noise what is measured."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 16)
            self.value, self.out = nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weights = (self.query(x) @ self.key(x).transpose(1, 2) / 4.0).softmax(-1)
            out: torch.Tensor = self.out((weights @ self.value(x)).mean(1))
            return out

    model = Attention()

    def forward() -> torch.Tensor:
        return nn.functional.cross_entropy(model(torch.randn(8, 12, 16)), torch.randint(0, 4, (8,)))

    return simple(model, forward, scaler=gradscaler(256.0))


@CONTROLS.add
def labels_that_are_mostly_masked() -> Program:
    """In some batches all of them are: then the loss has no gradient."""
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50))
    calls = iter(range(10**6))

    def forward() -> torch.Tensor:
        labels = torch.randint(0, 50, (32,))
        labels[2 if next(calls) % 4 else 0 :] = -100
        logits = model(torch.randint(0, 50, (32,))).float()
        return nn.functional.cross_entropy(logits, labels, reduction="sum") / (
            labels >= 0
        ).sum().clamp(min=1)

    return simple(model, forward, scaler=gradscaler())


@CONTROLS.add
def a_warm_up_of_bfloat16_weights_from_nothing() -> Program:
    """For the first steps the learning rate is too small to move anything; then it is not."""
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 30)

    def iterate(_step: int) -> torch.Tensor:
        x = torch.randn(32, 16).bfloat16()
        loss = (model(x).float() - x.float()[:, :4].sin()).square().mean()
        backward(None, loss)
        update(None, optimizer)
        schedule.step()
        return loss

    return Program([model], [optimizer], iterate, steps=40)


@CONTROLS.add
def groups_with_a_rate_of_zero() -> Program:
    """Half of a bfloat16 model is held still on purpose."""
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).bfloat16()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)

    def forward() -> torch.Tensor:
        return (model(torch.randn(32, 16).bfloat16()).float() - 1.0).square().mean()

    return simple(model, forward, scaler=None, context=brain, optimizer=optimizer)


@CONTROLS.add
def a_mask_of_minus_infinities() -> Program:
    """A buffer that is full of infinities because it has to be."""

    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(16, 48)
            self.register_buffer("mask", torch.full((10, 10), float("-inf")).triu(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            query, key, value = self.mix(x).chunk(3, -1)
            return (query @ key.transpose(1, 2) / 4.0 + self.mask).softmax(-1) @ value

    model = Causal()

    def forward() -> torch.Tensor:
        return (model(torch.randn(4, 10, 16)).float() - 0.2).square().mean()

    return simple(model, forward, scaler=gradscaler(1024.0))


@CONTROLS.add
def outputs_that_are_large_and_only_vary() -> Program:
    """They come to half of float16's range in every batch, now here, now there."""
    model = nn.Linear(16, 32)
    with torch.no_grad():
        model.weight.mul_(4000.0)

    def forward() -> torch.Tensor:
        out = model(torch.randn(32, 16) * (0.5 + torch.rand(())))
        return 1e-3 * (out.float() / 3e4).square().mean()

    return simple(model, forward, scaler=gradscaler(), steps=160, settings=PAID)


@CONTROLS.add
def two_bad_batches_and_a_quick_recovery() -> Program:
    """Two skips, and a scaler that grows every ten steps."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    calls = iter(range(10**6))

    def forward() -> torch.Tensor:
        x = torch.randn(32, 16) * (1e7 if next(calls) in (24, 25) else 1.0)
        return 1e-3 * (model(x).float() - 1.0).square().mean()

    scaler = gradscaler(1024.0, growth_interval=10)
    return simple(model, forward, scaler=scaler, steps=60, settings=PAID)


@CONTROLS.add
def a_scale_set_by_hand() -> Program:
    """The user knows better, up and down."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = adamw(model)
    scaler = gradscaler()

    def iterate(step: int) -> torch.Tensor:
        with half():
            out = model(torch.randn(32, 16))
        loss = (out.float() - 1.0).square().mean()
        backward(scaler, loss)
        scaler.step(optimizer)
        scaler.update({12: 64.0, 30: 4096.0}.get(step))
        optimizer.zero_grad()
        return loss

    return Program([model], [optimizer], iterate, scaler, steps=50, settings=PAID)


@CONTROLS.add
def a_batchnorm_that_calibrates() -> Program:
    """One step is skipped again and again; what the forward writes is finite."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())

    def forward() -> torch.Tensor:
        return 50.0 * (model(torch.randn(8, 3, 6, 6)).float() - 1.0).square().mean()

    return simple(model, forward, scaler=gradscaler(2.0**26))


@CONTROLS.add
def a_gradient_penalty() -> Program:
    """Backward goes through backward; the first one is unscaled by hand, as documented."""
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = adamw(model)
    scaler = gradscaler(4096.0)

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(32, 8, requires_grad=True)
        with half():
            out = model(x)
            loss = (out.float() - 1.0).square().mean()
        (scaled,) = torch.autograd.grad(scaler.scale(loss), x, create_graph=True)
        with half():
            penalty = (scaled / scaler.get_scale()).float().square().sum().sqrt()
        return loss + 0.1 * penalty

    return loop([model], [optimizer], loss_of, scaler, steps=32)


@CONTROLS.add
def two_players_with_an_optimizer_each() -> Program:
    """Generator and discriminator, one scaler, one update at the end."""
    maker = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))
    judge = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    optimizers = [adamw(maker, lr=2e-4, fused=True), adamw(judge, lr=2e-4, foreach=True)]
    scaler = gradscaler()

    def iterate(_step: int) -> torch.Tensor:
        one, zero = torch.ones(16, 1), torch.zeros(16, 1)
        with half():
            made = maker(torch.randn(16, 4))
            real, fake = judge(torch.randn(16, 8)), judge(made.detach())
        bce = nn.functional.binary_cross_entropy_with_logits
        of_judge = bce(real.float(), one) + bce(fake.float(), zero)
        optimizers[1].zero_grad()
        backward(scaler, of_judge)
        scaler.step(optimizers[1])
        with half():
            fooled = judge(made)
        of_maker = bce(fooled.float(), one)
        optimizers[0].zero_grad()
        backward(scaler, of_maker)
        scaler.step(optimizers[0])
        scaler.update()
        return of_judge + of_maker

    return Program([maker, judge], optimizers, iterate, scaler, steps=32)


@CONTROLS.add
def copies_made_in_the_middle() -> Program:
    """A moving average begins as a deep copy of the watched model, and validates each ten steps."""
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = adamw(model, fused=True)
    scaler = gradscaler(growth_interval=15)
    average: list[nn.Module] = []

    def iterate(step: int) -> torch.Tensor:
        with half():
            out = model(torch.randn(32, 16))
        loss = (out.float() - 1.0).square().mean()
        backward(scaler, loss)
        update(scaler, optimizer, clip=1.0)
        if step == 12:
            average.append(copy.deepcopy(model))
        if average:
            with torch.no_grad():
                for mean, new in zip(average[0].parameters(), model.parameters(), strict=True):
                    mean.lerp_(new, 0.1)
        if step % 10 == 9:
            model.eval()
            with torch.no_grad(), half():
                model(torch.randn(64, 16) * 100.0)
            model.train()
        return loss

    return Program([model], [optimizer], iterate, scaler, steps=40)


@CONTROLS.add
def gradients_that_vanish_as_the_model_converges() -> Program:
    """True gradients come down to 1e-7 and less; at a scale of 65536 that is well within."""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    target = torch.randn(8, 8) / 4.0
    x = torch.randn(64, 8)

    def forward() -> torch.Tensor:
        return 0.02 * (model(x).float() - (x @ target).half().float()).square().mean()

    return simple(
        model, forward, scaler=gradscaler(), optimizer=optimizer, steps=120, settings=PAID
    )


@CONTROLS.add
def a_loss_that_reaches_zero() -> Program:
    """The hinge is met: nothing is left to learn, and all gradients are truly zero."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    x = torch.randn(64, 8)

    def forward() -> torch.Tensor:
        return torch.relu(1.0 - model(x).float() * x[:, :1].sign()).mean()

    return simple(model, forward, scaler=gradscaler(), optimizer=optimizer, steps=60, settings=PAID)


@CONTROLS.add
def three_micro_batches_and_a_start_that_is_skipped() -> Program:
    """Nothing moves while the scale is looked for; that is not rounding."""
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
    optimizer = adamw(model, lr=1e-4, foreach=True)
    scaler = gradscaler(2.0**30)

    def loss_of(_step: int) -> torch.Tensor:
        with half():
            out = model(torch.randn(32, 16))
        return (out.float() - 1.0).square().mean() / 3

    return loop([model], [optimizer], loss_of, scaler, clip=1.0, micro_batches=3, steps=40)


@CONTROLS.add
def a_loss_that_leaps_and_comes_back() -> Program:
    """A few steps with too high a rate, and clipping that holds it."""
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    target = torch.randn(16, 1)

    def loss_of(step: int) -> torch.Tensor:
        optimizer.param_groups[0]["lr"] = 0.8 if 20 <= step < 26 else 1e-2
        x = torch.randn(64, 16)
        return (model(x) - x @ target).square().mean()

    return loop([model], [optimizer], loss_of, steps=80)


@CONTROLS.add
def a_step_inside_of_a_region_that_is_left() -> Program:
    """Forward, backward and step in one block, which is entered anew each time."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = adamw(model)

    def iterate(_step: int) -> torch.Tensor:
        with brain():
            loss = model(torch.randn(8, 8)).float().square().mean()
            with full():
                backward(None, loss)
            update(None, optimizer)
        return loss

    return Program([model], [optimizer], iterate, None, steps=24)


@CONTROLS.add
def two_losses_whose_forwards_come_first() -> Program:
    """In one region: casts from before the first step, but forwards from before it as well."""
    first, second = nn.Linear(8, 4), nn.Linear(8, 4)
    optimizers = [adamw(first), adamw(second)]

    def iterate(_step: int) -> torch.Tensor:
        x = torch.randn(8, 8)
        with brain():
            one = first(x).float().square().mean()
            two = (first(x) + second(x)).float().square().mean()
            with full():
                backward(None, one)
            optimizers[1].step()
            with full():
                backward(None, two)
            optimizers[0].step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        return two

    return Program([first, second], optimizers, iterate, None, steps=24)


STEPS = 16


def net(*, outputs: int = 4) -> nn.Sequential:
    """Return a small classifier of 16 features."""
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, outputs))


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    """Return features and the classes they belong to."""
    x = torch.randn(32, 16)
    return x, x[:, :4].argmax(1)


def classified(model: nn.Module, context: Callable[[], Any] = half) -> torch.Tensor:
    """Return the loss of ``model`` on a batch of samples."""
    x, y = samples()
    with context():
        return functional.cross_entropy(model(x), y)


@CONTROLS.add
def no_mixed_precision_at_all() -> Program:
    """Float32, and an optimizer that is stepped as ever."""
    model = net()

    return simple(
        model,
        lambda: classified(model, nullcontext),
        scaler=None,
        context=full,
        steps=STEPS,
        settings=PAID,
    )


@CONTROLS.add
def bfloat16_autocast_without_a_scaler() -> Program:
    """With clipping before the step, where nothing has to be unscaled."""
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
    optimizer = adamw(model, foreach=True)

    def loss_of(_step: int) -> torch.Tensor:
        return classified(model, brain)

    return loop([model], [optimizer], loss_of, clip=0.1, steps=STEPS, settings=PAID)


@CONTROLS.add
def batches_from_a_worker_with_a_remainder() -> Program:
    """A process of its own loads them; the last one of an epoch is smaller; validation follows."""
    model = net()
    optimizer, scaler = adamw(model), gradscaler()
    x = torch.randn(70, 16)
    data = TensorDataset(x, x[:, :4].argmax(1))
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(
        data, 32, shuffle=True, generator=generator, num_workers=1, persistent_workers=True
    )
    losses: list[float] = []

    def iterate(_epoch: int) -> torch.Tensor:
        for features, classes in loader:
            with half():
                loss = functional.cross_entropy(model(features), classes)
            backward(scaler, loss)
            update(scaler, optimizer)
        with torch.no_grad(), half():
            losses.append(functional.cross_entropy(model(x), data.tensors[1]).item())
        return loss

    return Program([model], [optimizer], iterate, scaler, steps=12, settings=PAID)


class _Cube(torch.autograd.Function):
    """A function of the user's, with the decorators that autocast wants."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3.0 * grad * x**2


@CONTROLS.add
def a_function_of_ones_own() -> Program:
    """In float32 there and back."""
    model = net()

    def forward() -> torch.Tensor:
        x, y = samples()
        return functional.cross_entropy(_Cube.apply(model(x)), y)

    return simple(model, forward, scaler=gradscaler(), steps=STEPS, settings=PAID)


@CONTROLS.add
def a_teacher_that_does_not_learn() -> Program:
    """The teacher's forward runs under autocast without gradients; the student's follows."""
    teacher, student = net(), net()
    optimizer, scaler = adamw(student), gradscaler()

    def loss_of(_step: int) -> torch.Tensor:
        x, _ = samples()
        with half():
            with torch.no_grad():
                wanted = (teacher(x) / 2.0).softmax(-1)
            given = (student(x) / 2.0).log_softmax(-1)
            return functional.kl_div(given, wanted.float(), reduction="batchmean")

    return loop([student, teacher], [optimizer], loss_of, scaler, steps=STEPS, settings=PAID)
