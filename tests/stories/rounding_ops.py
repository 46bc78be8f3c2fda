"""Values that single ops round away: positions, sums, averages, accumulated gradients."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.stories.stage import Program, Stories, backward, brain, loop, update

STORIES = Stories()


class Timestep(nn.Module):
    """Sines of a time that is counted in steps of a simulation."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.register_buffer("rate", 1.0 / 10000 ** torch.linspace(0, 1, 8))

    def forward(self, ticks: torch.Tensor) -> torch.Tensor:
        angle = ticks.to(self.dtype)[:, None] * self.rate.to(self.dtype)
        return torch.cat((angle.sin().float(), angle.cos().float()), 1)


@STORIES.tell("lossy_integer_cast", "embed.time", "forward")
def ticks_of_a_clock_in_float16(*, sick: bool) -> Program:
    """A float16 tells every tick up to 2048 apart; the recording has 6000."""
    time = Timestep(torch.float16 if sick else torch.float32)
    model = nn.ModuleDict({"embed": nn.ModuleDict({"time": time}), "head": nn.Linear(16, 4)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ticks = torch.arange(2000, 8000, 3, dtype=torch.int64)

    def loss_of(_step: int) -> torch.Tensor:
        with brain():
            return model["head"](time(ticks)).float().square().mean()

    return loop([model], [optimizer], loss_of, steps=6)


@STORIES.tell("lossy_integer_cast", "bias", "forward")
def distances_built_in_the_dtype_of_the_model(*, sick: bool) -> Program:
    """``arange`` in bfloat16 repeats itself: no cast is written anywhere."""

    class Distances(nn.Module):
        def forward(self, scores: torch.Tensor) -> torch.Tensor:
            dtype = scores.dtype if sick else torch.float32
            places = torch.arange(scores.shape[-1], dtype=dtype, device=scores.device)
            return scores - (0.01 * (places.max() - places)).to(scores.dtype)

    model = nn.Sequential()
    model.add_module("mix", nn.Linear(8, 600))
    model.add_module("bias", Distances())
    model.add_module("out", nn.Linear(600, 2))
    model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of(_step: int) -> torch.Tensor:
        return model(torch.randn(16, 8, dtype=torch.bfloat16)).float().square().mean()

    return loop([model], [optimizer], loss_of, steps=6)


@STORIES.tell("lossy_integer_cast", "loss", "forward")
def targets_by_position_made_outside_of_the_model(*, sick: bool) -> Program:
    """The loss weighs each place by its number, in bfloat16."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    places = torch.arange(1, 1001)

    def loss_of(_step: int) -> torch.Tensor:
        with brain():
            out = model(torch.randn(1000, 8)).squeeze(1)
            weight = places.to(torch.bfloat16 if sick else torch.float32) / 1000
            return (out.float() * weight).square().mean()

    return loop([model], [optimizer], loss_of, steps=6)


@STORIES.tell("metric_accum_rounding", "loss", "forward")
def a_mean_loss_that_is_summed_in_bfloat16(*, sick: bool) -> Program:
    """From 256 on another loss of about 0.4 is nothing."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    kept = {"total": torch.full((), 240.0, dtype=torch.bfloat16 if sick else torch.float32)}

    def iterate(_step: int) -> torch.Tensor:
        with brain():
            loss = nn.functional.cross_entropy(
                model(torch.randn(32, 8)), torch.randint(0, 2, (32,))
            )
        backward(None, loss)
        update(None, optimizer)
        kept["total"] = kept["total"] + loss.detach().to(kept["total"].dtype)
        return loss

    return Program([model], [optimizer], iterate, steps=60)


@STORIES.tell("metric_accum_rounding", "seen", "forward")
def a_counter_of_batches_in_a_model_of_float16(*, sick: bool) -> Program:
    """A buffer that counts goes to float16 with its module: 2048 and 1 are 2048."""

    class Seen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.tensor(2038.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x

    model = nn.Sequential()
    model.add_module("seen", Seen().to(torch.float16 if sick else torch.float32))
    model.add_module("head", nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def loss_of(_step: int) -> torch.Tensor:
        return model(torch.randn(8, 8)).square().mean()

    return loop([model], [optimizer], loss_of, steps=24)


@STORIES.tell("ema_rounding", "param:0.weight", "optimizer")
def an_averaged_model_of_bfloat16_weights(*, sick: bool) -> Program:
    """PyTorch's own average, of lists, in the dtype of the weights."""
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model.to(torch.bfloat16 if sick else torch.float32)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))

    def iterate(_step: int) -> torch.Tensor:
        x = torch.randn(32, 16, dtype=model[0].weight.dtype)
        loss = (model(x).float() - 1.0).square().mean()
        backward(None, loss)
        update(None, optimizer)
        average.update_parameters(model)
        return loss

    return Program([model], [optimizer], iterate, steps=24)


@STORIES.tell("ema_rounding", "param:weight", "optimizer")
def a_target_network_that_is_written_out_by_hand(*, sick: bool) -> Program:
    """``target = tau * online + (1 - tau) * target``, copied into float16 weights."""
    online = nn.Linear(16, 8)
    target = copy.deepcopy(online).to(torch.float16 if sick else torch.float32)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
    tau = 1e-4

    def iterate(_step: int) -> torch.Tensor:
        x = torch.randn(32, 16)
        loss = (online(x) - 2.0).square().mean()
        backward(None, loss)
        update(None, optimizer)
        for mine, theirs in zip(target.parameters(), online.parameters(), strict=True):
            mine.data.copy_(tau * theirs.data + (1.0 - tau) * mine.data)
        return loss

    return Program([online], [optimizer], iterate, steps=24)


def _summed(dtype: torch.dtype, micro_batches: int, first: float) -> Program:
    """Train with many small backward passes for each step."""
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 1)).to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.abs_()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def iterate(_step: int) -> torch.Tensor:
        total = torch.zeros(())
        for number in range(micro_batches):
            x = torch.rand(4, 8).to(dtype)
            scale = first if number == 0 else 1.0
            loss = scale * model(x).float().mean()
            backward(None, loss)
            total += loss.detach()
        update(None, optimizer)
        return total

    return Program([model], [optimizer], iterate, steps=2)


@STORIES.tell("grad_accum_rounding", "param:0.weight", "backward")
def hundreds_of_micro_batches_in_bfloat16(*, sick: bool) -> Program:
    """Addends are rounded to the spacing of the sum, the more the larger it is."""
    return _summed(torch.bfloat16 if sick else torch.float32, 320, 1.0)


@STORIES.tell("grad_accum_rounding", "param:0.weight", "backward")
def a_large_gradient_before_many_small_ones(*, sick: bool) -> Program:
    """The first loss weighs 200 times as much: what follows is nothing beside it."""
    return _summed(torch.bfloat16 if sick else torch.float32, 120, 300.0)
