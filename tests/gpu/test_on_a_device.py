"""The promises and the readback on a real device."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.diagnosis.evidence.iteration import Iteration
from ampwatch.diagnosis.records.range_records import RangeRecorder
from ampwatch.wire.records import Topic
from tests.gpu.syncs import sync_debug_mode
from tests.training.kernels import reference

DEVICE = "cuda"

LOADED = 8
"""Steps after which every kernel of a step has been compiled and loaded, which may wait."""

STORM = 6
"""Skips in a row: from two growths above the lowest scale that worked to far below it."""


# A warm-up in another stream than the steps before: from 2.10 on PyTorch warns of it.
other_stream = pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")


def _training(
    flavour: str, dtype: torch.dtype = torch.float16, init_scale: float = 2.0**24
) -> tuple[nn.Module, Any, Any, Any]:
    """A small float16 training: model, optimizer, scaler and ``step(factor)``."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **{flavour: True})
    scaler = torch.amp.GradScaler(DEVICE, init_scale=init_scale, growth_interval=5)
    batch = torch.randn(32, 64, device=DEVICE)

    def step(factor: float = 1.0) -> torch.Tensor:
        with torch.autocast(DEVICE, dtype=dtype):
            loss = model(batch).float().square().mean() * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    return model, optimizer, scaler, step


def _factors() -> list[float]:
    return [1.0] * 12 + [math.inf] * STORM + [1.0] * 8


@pytest.mark.parametrize("level", ["light", "standard"])
def test_a_watched_step_with_a_fused_optimizer_never_waits(level: str) -> None:
    """PyTorch itself would raise at the first synchronisation."""
    model, _, scaler, step = _training("fused")
    with ampwatch.monitor(model, scaler, level=level, serve=False) as watch:
        step()
        with sync_debug_mode("error"):
            for factor in _factors():
                step(factor)
        torch.cuda.synchronize()

    assert watch.last_step.step == len(_factors())


def test_a_watched_step_with_foreach_waits_as_often_as_without() -> None:
    """One wait a step is PyTorch's own; none is added."""
    counts = []
    for watched in (False, True):
        model, _, scaler, step = _training("foreach")
        watch = ampwatch.monitor(model, scaler, serve=False) if watched else None
        step()
        with sync_debug_mode("warn"), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for factor in _factors():
                step(factor)
        counts.append(sum("synchroniz" in str(w.message) for w in caught))
        if watch is not None:
            watch.close()

    assert counts[0] == len(_factors())
    assert counts[1] == counts[0]


@pytest.mark.parametrize("flavour", ["foreach", "fused"])
def test_bits_are_the_same_watched_and_not(flavour: str) -> None:
    """Losses, scale and weights, with overflows on the way."""
    results = []
    for watched in (False, True):
        model, _, scaler, step = _training(flavour)
        watch = ampwatch.monitor(model, scaler, serve=False) if watched else None
        losses = torch.stack([step(factor) for factor in _factors()])
        results.append([losses, *model.state_dict().values(), torch.tensor(scaler.get_scale())])
        if watch is not None:
            watch.close()

    assert all(torch.equal(a, b) or torch.isnan(a).any() for a, b in zip(*results, strict=True))
    assert all(
        torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(*results, strict=True)
    )


@pytest.mark.parametrize("flavour", ["foreach", "fused"])
def test_what_arrives_is_what_happened(flavour: str) -> None:
    """Scale, skips and losses agree with reading them one by one."""
    model, _, scaler, step = _training(flavour)
    skipped, scales = 0, []
    with ampwatch.monitor(model, scaler, serve=False) as watch:
        for factor in _factors():
            before = scaler.get_scale()
            step(factor)
            scales.append(scaler.get_scale())
            skipped += scales[-1] < before
    totals = watch._diagnosis.totals

    assert sum(totals.skipped[0]) == skipped > STORM
    assert totals.steps[0] == len(_factors())
    assert totals.nonfinite_losses == STORM
    assert watch.last_step.loss_scale == scales[-1]
    assert "scale_collapse" in [f.kind for f in watch.findings]


def test_without_a_fused_optimizer_the_verdict_is_there_at_once() -> None:
    """The scheduler recipe is exact on a device as well, without waiting for it."""
    model, _, scaler, step = _training("foreach")
    with ampwatch.monitor(model, scaler, serve=False) as watch:
        for number, factor in enumerate(_factors()):
            step(factor)
            assert watch.last_step.step == number
            assert watch.last_step.skipped == math.isinf(factor) or number < 8


@pytest.mark.nightly
def test_with_a_fused_optimizer_the_verdict_is_unknown_until_the_device_has_got_there() -> None:
    """``None`` lets a schedule go on as without ampwatch, whatever the timing."""
    model, _, scaler, step = _training("fused", init_scale=1024.0)
    with ampwatch.monitor(model, scaler, serve=False) as watch:
        for _ in range(LOADED):
            step()
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000_000)
        step(math.inf)
        early = watch.last_step
        torch.cuda.synchronize()
        late = watch.last_step

    assert (early.step, early.skipped) == (LOADED, None)
    assert (late.step, late.skipped) == (LOADED, True)


@other_stream
def test_a_captured_step_replays_without_ampwatch_in_its_graph() -> None:
    """Nothing is added to a CUDA graph, and the eager steps around it are seen."""
    model, _, scaler, step = _training("fused", init_scale=1024.0)
    with ampwatch.monitor(model, scaler, serve=False) as watch:
        for _ in range(3):
            step()
        batch = torch.randn(32, 64, device=DEVICE)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.autocast(DEVICE, dtype=torch.float16):
            for _ in range(3):
                scaler.scale(model(batch).float().mean()).backward()
        torch.cuda.current_stream().wait_stream(side)
        for parameter in model.parameters():
            parameter.grad = None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), torch.autocast(DEVICE, dtype=torch.float16):
            scaler.scale(model(batch).float().mean()).backward()
        graph.replay()
        before = watch.last_step.step
        step()
        torch.cuda.synchronize()

    assert watch.last_step.step > before


@other_stream
def test_an_update_inside_a_capture_does_not_break_it() -> None:
    """Asking an event would end the capture of the user's graph."""
    model, optimizer, scaler, step = _training("fused", init_scale=1024.0)
    with ampwatch.monitor(model, scaler, serve=False) as watch:
        for _ in range(3):
            step()
        torch.cuda._sleep(500_000_000)
        step()  # its values are on their way when the capture begins
        batch = torch.randn(32, 64, device=DEVICE)
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph), torch.autocast(DEVICE, dtype=torch.float16):
            scaler.scale(model(batch).float().mean()).backward()
            scaler.update(512.0)
        graph.replay()
        torch.cuda.synchronize()

    assert watch._session.cost().sensor_errors == 0


def test_below_two_to_the_minus_127_a_finite_step_poisons_the_weights_and_counts_as_applied() -> (
    None
):
    """The silent zone that the forecast warns of: found_inf is 0 and the weights are not finite."""
    weight = nn.Parameter(torch.ones(4, device=DEVICE))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**-128)
    with ampwatch.monitor(None, scaler, serve=False) as watch:
        scaler.scale(weight.sum() * 2.0**20).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.cuda.synchronize()

    assert not torch.isfinite(weight).all()
    assert watch._diagnosis.totals.skipped[0] == [0, 0, 0, 0]
    assert watch.last_step.skipped is False


@pytest.mark.parametrize("flavour", ["foreach", "fused"])
@pytest.mark.parametrize("level", ["standard", "deep"])
def test_ranges_reach_the_host_and_nothing_waits_for_them(
    level: str, flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients, outputs, weights and updates, as PyTorch counts them on the host."""
    seen: list[Iteration] = []
    monkeypatch.setattr(
        RangeRecorder, "detect", lambda _self, iteration, _judged: seen.append(iteration)
    )
    model, _, scaler, step = _training(flavour, init_scale=1024.0)
    # On a busy host the budget of 40 iterations is too small for a sample of each topic.
    settings = {"level": level, "sample_every": 1}
    with ampwatch.monitor(model, scaler, **settings, serve=False) as watch:
        step()
        torch.cuda.synchronize()
        weight = reference.histogram(model[0].weight)
        with sync_debug_mode("error" if flavour == "fused" else "default"):
            for _ in range(40):
                step()
        torch.cuda.synchronize()
        watch.last_step  # noqa: B018 - takes in what has arrived

    first = next(i for i in seen if i.step == 0)
    weights = {r.name: r for r in first.ranges if r.topic is Topic.WEIGHT}
    assert weights["0.weight"].histogram == weight
    assert {r.topic for i in seen for r in i.ranges} >= set(Topic) - {Topic.BUFFER}
    assert all(r.histogram.numel for i in seen for r in i.ranges)


def test_a_skip_is_checked_by_the_device_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel runs behind the scaler's verdict: only the skipped iteration has gradients."""
    seen: list[Iteration] = []
    monkeypatch.setattr(
        RangeRecorder, "detect", lambda _self, iteration, _judged: seen.append(iteration)
    )
    model, _, scaler, step = _training("fused", init_scale=1024.0)
    with ampwatch.monitor(model, scaler, serve=False, sample_every=10_000) as watch:
        for number in range(20):
            step(math.inf if number == 7 else 1.0)
        torch.cuda.synchronize()
        watch.last_step  # noqa: B018 - takes in what has arrived

    looked = {i.step: [r for r in i.ranges if r.topic is Topic.GRADIENT] for i in seen}
    broken = {step for step, ranges in looked.items() if any(r.histogram.nonfinite for r in ranges)}
    assert broken == {7}
    assert {step for step, ranges in looked.items() if ranges} <= {0, 7, 8, 9, 10, 11, 12, 13}
