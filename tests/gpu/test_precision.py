"""The op census, profiler windows and the classifier on a real device."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import ampwatch
from ampwatch.numerics.units.kernels.classifier import classify
from ampwatch.numerics.units.kernels.kernel_name import Unit
from ampwatch.numerics.units.ops import Fallback, Phase
from ampwatch.settings import Settings
from ampwatch.training.model.machine import gpu_facts, machine_of
from ampwatch.wire.records import CensusRecord
from tests.gpu.syncs import sync_debug_mode

DEVICE = torch.device("cuda", 0)


def _model(features: int = 512) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(features, features), nn.GELU(), nn.Linear(features, features))


def _train(
    model: nn.Module, steps: int, dtype: torch.dtype | None, level: str = "deep", **settings: float
) -> ampwatch.Monitor:
    """Train for some steps, and return the closed monitor."""
    model.to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = torch.randn(256, model[0].in_features, device=DEVICE)
    with ampwatch.monitor(model, optimizer=optimizer, level=level, serve=False, **settings) as w:
        for _ in range(steps):
            with torch.autocast(DEVICE.type, dtype=dtype, enabled=dtype is not None):
                loss = model(batch).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
    return w


def _census(watch: ampwatch.Monitor) -> CensusRecord:
    census = watch._session.census
    assert census is not None
    return census


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_flops_of_forward_and_backward_are_those_of_pytorchs_counter(dtype: torch.dtype) -> None:
    """Backward runs in another thread here, and is seen anyway."""
    model = _model().to(DEVICE)
    with FlopCounterMode(display=False) as counter, torch.autocast(DEVICE.type, dtype=dtype):
        model(torch.randn(256, 512, device=DEVICE)).float().square().mean().backward()

    census = _census(_train(_model(), 3, dtype))

    name = str(dtype).removeprefix("torch.")
    flops = {total.dtype: total.flops for total in census.ops if total.flops}
    assert flops == {name: counter.get_total_flops() * census.iterations}
    modules = {row.module for row in census.rows if row.phase is Phase.BACKWARD and row.flops}
    assert {"0", "2"} <= modules


@pytest.fixture
def precision(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set the precision of float32 matmuls for one test."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize(
    ("precision", "dtype"), [("high", "tf32"), ("highest", "float32")], indirect=["precision"]
)
def test_float32_matmuls_count_as_tf32_where_that_is_allowed(dtype: str) -> None:
    """A switch of PyTorch says what a float32 matmul computes in."""
    census = _census(_train(_model(), 2, None))

    assert {total.dtype for total in census.ops if total.flops} == {dtype}


def test_softmax_runs_in_float32_because_autocast_says_so() -> None:
    """On CUDA it is on the list, on a CPU it is not."""

    class Head(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(super().forward(x), dim=-1)

    census = _census(_train(Head(nn.Linear(512, 512)), 2, torch.float16))

    softmax = next(row for row in census.rows if "softmax" in row.op and row.phase is Phase.FORWARD)
    assert (softmax.dtype, softmax.fallback) == ("float32", Fallback.FP32_LIST)


def test_counting_ops_never_waits() -> None:
    """Every iteration is counted, and PyTorch would raise at the first synchronisation."""
    model = _model().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = torch.randn(256, 512, device=DEVICE)

    def step() -> None:
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            loss = model(batch).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    with ampwatch.monitor(model, optimizer=optimizer, level="deep", serve=False) as watch:
        step()
        with sync_debug_mode("error"):
            for _ in range(5):
                step()

    assert _census(watch).iterations == 6


def _kernels(work: Callable[[], object]) -> dict[str, int]:
    """Return the kernels that ``work`` runs, and their time in ns."""
    work()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    kernels: dict[str, int] = {}
    for event in profile.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            kernels[event.name()] = kernels.get(event.name(), 0) + event.duration_ns()
    return kernels


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [8192, 4096, 1000])
def test_a_matmul_in_half_precision_is_never_said_to_be_on_cuda_cores(
    dtype: torch.dtype, size: int
) -> None:
    """Unknown names are allowed, wrong ones are not."""
    if torch.cuda.get_device_capability(DEVICE) < (8, 0):
        pytest.skip("bfloat16 has no tensor cores before compute capability 8.0")
    a = torch.randn(size, size, device=DEVICE, dtype=dtype)

    kernels = _kernels(lambda: a @ a)

    longest = max(kernels, key=kernels.__getitem__)
    assert classify(longest).unit in (Unit.TENSOR, Unit.UNKNOWN), longest


@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize("precision", ["highest"], indirect=True)
def test_a_float32_matmul_without_tf32_is_never_said_to_be_on_tensor_cores() -> None:
    """The mistake of the published lists."""
    a = torch.randn(4096, 4096, device=DEVICE)

    kernels = _kernels(lambda: a @ a)

    longest = max(kernels, key=kernels.__getitem__)
    assert classify(longest).unit in (Unit.CUDA, Unit.UNKNOWN), longest


def test_a_window_finds_the_kernels_of_a_training() -> None:
    """Matmuls of bfloat16 on tensor cores, and the profiler is gone afterwards."""
    watch = _train(_model(4096), 200, torch.bfloat16, "standard", window_seconds=0.001)

    window = watch._session.window
    assert window is not None
    assert window.windows > window.invalid
    time = {}
    for total in window.totals:
        time[total.unit] = time.get(total.unit, 0) + total.nanoseconds
    assert time.get("cuda", 0) < 0.05 * (time.get("tensor", 0) + time.get("unknown", 0))
    assert any(row.op in ("mm", "addmm") for row in window.kernels)
    assert not torch.autograd._profiler_enabled()


def test_the_device_says_enough_for_its_peak() -> None:
    """SMs, clock and compute capability come from PyTorch, the rest is arithmetic."""
    facts = gpu_facts(DEVICE)
    machine = machine_of(DEVICE, Settings())

    assert {"gpu_uuid", "gpu_capability", "gpu_sms"} <= set(facts)
    assert machine.capability == torch.cuda.get_device_capability(DEVICE)
    if machine.peak_flops:
        assert 1e13 < machine.peak_flops["float16"] < 1e16
