"""Loops as people write them, each right in a place where others go wrong."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from tests.stories.healthy import adamw, simple
from tests.stories.stage import Program, backward, brain, gradscaler, half, loop, update

if TYPE_CHECKING:
    from collections.abc import Callable

CONTROLS: list[Callable[[], Program]] = []

STEPS = 30


def control(build: Callable[[], Program]) -> Callable[[], Program]:
    """Collect a program."""
    CONTROLS.append(build)
    return build


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


def full() -> torch.autocast:
    """Return the context of an island in float32."""
    return torch.autocast("cpu", enabled=False)


@control
def two_players_with_a_scaler_each() -> Program:
    """The one of the generator is the one that is watched."""
    maker, judge = net(outputs=16), net(outputs=1)
    optimizers = [adamw(maker, lr=2e-4), adamw(judge, lr=2e-4)]
    scalers = [gradscaler(), gradscaler(2.0**14)]

    def iterate(_step: int) -> torch.Tensor:
        bce = functional.binary_cross_entropy_with_logits
        with half():
            made = maker(torch.randn(16, 16))
            real, fake = judge(torch.randn(16, 16)), judge(made.detach())
            of_judge = bce(real, torch.ones_like(real)) + bce(fake, torch.zeros_like(fake))
        backward(scalers[1], of_judge)
        update(scalers[1], optimizers[1])
        with half():
            fooled = judge(made)
            of_maker = bce(fooled, torch.ones_like(fooled))
        backward(scalers[0], of_maker)
        optimizers[1].zero_grad()
        update(scalers[0], optimizers[0])
        return of_judge + of_maker

    return Program([maker, judge], optimizers, iterate, scalers[0], STEPS)


@control
def an_embedding_tied_to_the_head() -> Program:
    """One parameter, two modules, and a gradient from each."""
    model = nn.ModuleDict({"tokens": nn.Embedding(64, 16), "head": nn.Linear(16, 64, bias=False)})
    nn.init.normal_(model["tokens"].weight, std=0.02)
    model["head"].weight = model["tokens"].weight

    def forward() -> torch.Tensor:
        tokens = torch.randint(0, 64, (8, 12))
        logits = model["head"](model["tokens"](tokens))
        return functional.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())

    return simple(model, forward, scaler=gradscaler(), steps=STEPS)


@control
def mixed_precision_switched_off_by_a_flag() -> Program:
    """``enabled=False`` in both, and the loop as it is."""
    model = net()
    scaler = gradscaler(enabled=False)
    optimizer = adamw(model)

    def loss_of(_step: int) -> torch.Tensor:
        x, y = samples()
        with torch.autocast("cpu", dtype=torch.float16, enabled=False):
            return functional.cross_entropy(model(x), y)

    return loop([model], [optimizer], loss_of, scaler, clip=1.0, steps=STEPS)


@control
def no_mixed_precision_at_all() -> Program:
    """Float32, and an optimizer that is stepped as ever."""
    model = net()

    return simple(
        model, lambda: classified(model, nullcontext), scaler=None, context=full, steps=STEPS
    )


@control
def bfloat16_autocast_without_a_scaler() -> Program:
    """With clipping before the step, where nothing has to be unscaled."""
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
    optimizer = adamw(model, foreach=True)

    def loss_of(_step: int) -> torch.Tensor:
        return classified(model, brain)

    return loop([model], [optimizer], loss_of, clip=0.1, steps=STEPS)


@control
def activations_of_thirty_thousand_in_every_step() -> Program:
    """Half of what float16 holds, and no more tomorrow than today."""

    class Bright(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net(outputs=8)
            self.gain = nn.Linear(16, 8)
            with torch.no_grad():
                self.gain.weight.zero_()
                self.gain.bias.fill_(3e4)
            self.gain.requires_grad_(requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x).float() + self.gain(x).float() / 3e4

    model = Bright()

    def forward() -> torch.Tensor:
        return (model(torch.randn(32, 16)) - 0.5).square().mean()

    return simple(model, forward, scaler=gradscaler(), steps=60)


@control
def attention_scores_masked_with_minus_infinity() -> Program:
    """Causal and padded; no row is without a key."""
    query, key, value = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
    model = nn.ModuleList([query, key, value])
    future = torch.ones(10, 10, dtype=torch.bool).triu(1)

    def forward() -> torch.Tensor:
        x = torch.randn(4, 10, 16)
        padding = torch.arange(10) >= torch.tensor([10, 7, 4, 1])[:, None]
        scores = query(x) @ key(x).transpose(1, 2) / 4.0
        scores = scores.masked_fill(future, -math.inf)
        scores = scores.masked_fill(padding[:, None], -math.inf)
        return ((scores.softmax(-1) @ value(x)).float() - 0.2).square().mean()

    return simple(model, forward, scaler=gradscaler(1024.0), steps=STEPS)


@control
def classes_that_are_ruled_out_of_the_logits() -> Program:
    """Impossible actions get minus infinity; the chosen one never is one of them."""
    model = net(outputs=8)

    def forward() -> torch.Tensor:
        allowed = torch.rand(32, 8) < 0.5
        y = torch.randint(0, 8, (32,))
        allowed[torch.arange(32), y] = True
        logits = model(torch.randn(32, 16)).masked_fill(~allowed, -math.inf)
        return functional.cross_entropy(logits, y)

    return simple(model, forward, scaler=gradscaler(), steps=STEPS)


@control
def a_maximum_that_begins_at_minus_infinity() -> Program:
    """A running maximum over chunks, as in a streaming softmax."""
    model = net(outputs=24)

    def forward() -> torch.Tensor:
        out = model(torch.randn(32, 16))
        top = torch.full((32,), -math.inf, dtype=out.dtype)
        total = torch.zeros(32)
        for chunk in out.split(8, dim=1):
            higher = torch.maximum(top, chunk.amax(1))
            total = total * (top - higher).float().exp()
            total = total + (chunk - higher[:, None]).float().exp().sum(1)
            top = higher
        return (total.log() + top.float() - out.float()[:, 0]).mean()

    return simple(model, forward, scaler=gradscaler(1024.0), steps=STEPS)


@control
def batchnorms_of_three_momenta() -> Program:
    """Fast, slow, and a plain average of all batches; evaluated between the steps."""
    layers = [nn.BatchNorm1d(32, momentum=momentum) for momentum in (0.9, 0.001, None)]
    model = nn.Sequential(nn.Linear(16, 32), *layers, nn.ReLU(), nn.Linear(32, 4))
    optimizer, scaler = adamw(model), gradscaler()

    def iterate(step: int) -> torch.Tensor:
        loss = classified(model)
        backward(scaler, loss)
        update(scaler, optimizer)
        if step % 5 == 4:
            model.eval()
            with torch.no_grad(), half():
                model(torch.randn(128, 16))
            with torch.inference_mode():
                model(torch.randn(8, 16))
            model.train()
        return loss

    return Program([model], [optimizer], iterate, scaler, STEPS)


@control
def an_average_in_float32_of_weights_in_bfloat16() -> Program:
    """It moves by less than bfloat16 could tell, and can."""
    model = net().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    average = [p.detach().float().clone() for p in model.parameters()]

    def iterate(_step: int) -> torch.Tensor:
        x, y = samples()
        loss = functional.cross_entropy(model(x.bfloat16()).float(), y)
        backward(None, loss)
        update(None, optimizer)
        with torch.no_grad():
            for mean, new in zip(average, model.parameters(), strict=True):
                mean.mul_(0.999).add_(new.float(), alpha=0.001)
        return loss

    return Program([model], [optimizer], iterate, steps=STEPS)


@control
def an_averaged_model_of_torch() -> Program:
    """A copy is fed with weights, never with gradients."""
    model = net()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    optimizer, scaler = adamw(model), gradscaler()

    def iterate(step: int) -> torch.Tensor:
        x, y = samples()
        with half():
            loss = functional.cross_entropy(model(x), y)
        backward(scaler, loss)
        update(scaler, optimizer)
        average.update_parameters(model)
        if step % 10 == 9:
            with torch.no_grad(), half():
                average(x)
        return loss

    return Program([model, average], [optimizer], iterate, scaler, STEPS, watched=[model])


@control
def labels_that_are_smoothed_and_a_warm_up() -> Program:
    """A schedule per step, which waits for the steps that were skipped at the start."""
    model = net()
    optimizer, scaler = adamw(model, lr=3e-3), gradscaler(2.0**20)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS + 1)

    def iterate(_step: int) -> torch.Tensor:
        x, y = samples()
        with half():
            loss = functional.cross_entropy(model(x), y, label_smoothing=0.1)
        backward(scaler, loss)
        before = scaler.get_scale()
        update(scaler, optimizer)
        if scaler.get_scale() >= before:
            schedule.step()
        return loss

    return Program([model], [optimizer], iterate, scaler, STEPS)


@control
def lbfgs_with_a_closure() -> Program:
    """Many forwards and backwards to a step, all of them inside it."""
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

    def iterate(_step: int) -> torch.Tensor:
        x, y = samples()

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            with brain():
                loss = functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return Program([model], [optimizer], iterate, steps=12)


@control
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

    return Program([model], [optimizer], iterate, scaler, steps=12)


@control
def nine_tenths_dropped() -> Program:
    """Most activations and their gradients are zero, others each time."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.9), nn.Linear(64, 4))

    return simple(model, lambda: classified(model, nullcontext), scaler=gradscaler(), steps=STEPS)


@control
def two_losses_with_a_backward_each() -> Program:
    """Both scaled, one graph kept for the other, one step."""
    model = net(outputs=8)
    optimizer, scaler = adamw(model), gradscaler(2.0**12)

    def iterate(_step: int) -> torch.Tensor:
        x, y = samples()
        with half():
            out = model(x)
            first = functional.cross_entropy(out[:, :4], y)
            second = out[:, 4:].float().square().mean()
        scaler.scale(first).backward(retain_graph=True)
        scaler.scale(second).backward()
        update(scaler, optimizer, clip=1.0)
        return first + second

    return Program([model], [optimizer], iterate, scaler, STEPS)


@control
def a_norm_that_is_only_measured() -> Program:
    """``max_norm=inf`` clips nothing, scaled or not."""
    model = net()
    optimizer, scaler = adamw(model), gradscaler(2.0**12)

    def iterate(_step: int) -> torch.Tensor:
        loss = classified(model)
        backward(scaler, loss)
        scaled = nn.utils.clip_grad_norm_(model.parameters(), math.inf)
        update(scaler, optimizer)
        return loss + 0.0 * scaled.detach()

    return Program([model], [optimizer], iterate, scaler, STEPS)


@control
def weights_that_are_clipped() -> Program:
    """A critic's are, after each step; its gradients are not."""
    model = net(outputs=1)
    optimizer, scaler = adamw(model), gradscaler(2.0**12)

    def iterate(_step: int) -> torch.Tensor:
        with half():
            loss = model(torch.randn(32, 16)).mean() - model(1.0 + torch.randn(32, 16)).mean()
        loss = loss.float()
        backward(scaler, loss)
        update(scaler, optimizer)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.05, 0.05)
        return loss

    return Program([model], [optimizer], iterate, scaler, STEPS)


@control
def probabilities_whose_loss_is_taken_in_float32() -> Program:
    """``BCELoss`` on a sigmoid, once outside autocast and once in an island."""
    model = net(outputs=1)
    loss_of = nn.BCELoss()

    def forward() -> torch.Tensor:
        x, y = samples()
        target = (y > 1).float()[:, None]
        with half():
            logits = model(x)
            with full():
                inside = loss_of(logits.float().sigmoid(), target)
        return inside + loss_of(logits.float().sigmoid(), target)

    return simple(model, forward, scaler=gradscaler(), context=full, steps=STEPS)


@control
def a_backward_in_an_island_of_float32() -> Program:
    """The block of autocast goes on, but it is switched off where backward is called."""
    model = net()
    optimizer, scaler = adamw(model), gradscaler()

    def iterate(_step: int) -> torch.Tensor:
        x, y = samples()
        with half():
            loss = functional.cross_entropy(model(x), y)
            with full():
                backward(scaler, loss)
        update(scaler, optimizer)
        return loss

    return Program([model], [optimizer], iterate, scaler, STEPS)


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


@control
def a_function_of_ones_own() -> Program:
    """In float32 there and back."""
    model = net()

    def forward() -> torch.Tensor:
        x, y = samples()
        return functional.cross_entropy(_Cube.apply(model(x)), y)

    return simple(model, forward, scaler=gradscaler(), steps=STEPS)


@control
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

    return loop([student, teacher], [optimizer], loss_of, scaler, steps=STEPS)


@control
def a_scaler_that_is_saved_and_loaded() -> Program:
    """A checkpoint of all three in the middle, and on from there."""
    model = net()
    optimizer, scaler = adamw(model), gradscaler(2.0**13, growth_interval=8)

    def iterate(step: int) -> torch.Tensor:
        loss = classified(model)
        backward(scaler, loss)
        update(scaler, optimizer)
        if step == STEPS // 2:
            for thing in (model, optimizer, scaler):
                thing.load_state_dict(thing.state_dict())
        return loss

    return Program([model], [optimizer], iterate, scaler, STEPS)


@control
def a_step_that_is_left_out_where_the_norm_is_high() -> Program:
    """By hand, with ``update()`` all the same."""
    model = net()
    optimizer, scaler = adamw(model), gradscaler(2.0**12)

    def iterate(step: int) -> torch.Tensor:
        x, y = samples()
        with half():
            loss = functional.cross_entropy(model(x * (50.0 if step % 7 == 6 else 1.0)), y)
        backward(scaler, loss)
        scaler.unscale_(optimizer)
        if nn.utils.clip_grad_norm_(model.parameters(), 5.0) < 10.0:
            scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    return Program([model], [optimizer], iterate, scaler, STEPS)


@control
def two_micro_batches_in_bfloat16_gradients() -> Program:
    """Two fit into a bfloat16 sum."""
    model = net().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    def iterate(_step: int) -> torch.Tensor:
        for _ in range(2):
            x, y = samples()
            loss = functional.cross_entropy(model(x.bfloat16()).float(), y) / 2
            backward(None, loss)
        update(None, optimizer)
        return loss

    return Program([model], [optimizer], iterate, steps=STEPS)
