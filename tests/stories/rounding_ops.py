"""Values that single ops round away: positions, sums, averages, accumulated gradients."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tests.stories.stage import Program, Stories, backward, brain, loop, update

STORIES = Stories()


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


@STORIES.tell("lossy_integer_cast", "loss", "forward", "_to_copy")
def labels_that_are_packed_with_the_features_in_bfloat16(*, sick: bool) -> Program:
    """One tensor for a row: of a thousand classes the upper ones change their names."""
    model = nn.Linear(16, 1001)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    labels = torch.randint(0, 1000, (8, 64, 1)).float()
    rows = torch.cat([torch.randn(8, 64, 16), labels], -1)
    rows = rows.to(torch.bfloat16 if sick else torch.float32)

    def loss_of(step: int) -> torch.Tensor:
        row = rows[step % 8]
        return nn.functional.cross_entropy(model(row[:, :16].float()), row[:, 16].long())

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


@STORIES.tell("metric_accum_rounding", "pool", "forward", "add")
def a_mean_over_time_that_is_added_up_in_bfloat16(*, sick: bool) -> Program:
    """Six hundred steps, of which those after the third hundred no longer count in full."""

    class Pool(nn.Module):
        def forward(self, states: torch.Tensor) -> torch.Tensor:
            states = states if sick else states.float()
            total = torch.zeros_like(states[:, 0])
            for state in states.unbind(1):
                total = total + state
            return total.float() / states.shape[1]

    model = nn.Sequential()
    model.add_module("step", nn.Linear(4, 8))
    model.add_module("pool", Pool())
    model.add_module("head", nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def loss_of(_step: int) -> torch.Tensor:
        states = model.step(torch.randn(4, 600, 4)).sigmoid().bfloat16()
        return model.head(model.pool(states)).square().mean()

    return loop([model], [optimizer], loss_of, steps=6)


@STORIES.tell("metric_accum_rounding", "buffer:seen.count", "forward")
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


@STORIES.tell("ema_rounding", "buffer:norm.running_var", "forward", "native_batch_norm")
def statistics_of_a_norm_that_stay_at_one(*, sick: bool) -> Program:
    """A slow BatchNorm in bfloat16: the fused kernel takes a thousandth, and rounds it away."""
    model = nn.Sequential()
    model.add_module("stem", nn.Linear(8, 32))
    model.add_module("norm", nn.BatchNorm1d(32, momentum=1e-3, affine=False))
    model.add_module("head", nn.Linear(32, 2))
    model.norm.to(torch.bfloat16 if sick else torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def loss_of(_step: int) -> torch.Tensor:
        hidden = model.stem(torch.randn(64, 8)).bfloat16()
        return model.head(model.norm(hidden).float()).square().mean()

    return loop([model], [optimizer], loss_of, steps=60)


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


@STORIES.tell("grad_accum_rounding", "param:0.weight", "backward")
def a_large_gradient_before_many_small_ones(*, sick: bool) -> Program:
    """The first loss weighs 300 times as much: what follows is nothing beside it."""
    dtype = torch.bfloat16 if sick else torch.float32
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 1)).to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.abs_()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def iterate(_step: int) -> torch.Tensor:
        total = torch.zeros(())
        for number in range(120):
            x = torch.rand(4, 8).to(dtype)
            scale = 300.0 if number == 0 else 1.0
            loss = scale * model(x).float().mean()
            backward(None, loss)
            total += loss.detach()
        update(None, optimizer)
        return total

    return Program([model], [optimizer], iterate, steps=2)
