"""The daemon's GPU sensors on a real driver."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from ampwatch.host.fleet.gpus import Feature, Gpu, Reason
from ampwatch.host.gpu.source import NvmlSource, open_source
from ampwatch.training.model.machine import gpu_facts

DEVICE = torch.device("cuda", 0)


@pytest.fixture
def source() -> Iterator[NvmlSource]:
    source = open_source(None)
    assert isinstance(source, NvmlSource), source
    yield source
    source.close()


def _gpu(source: NvmlSource) -> Gpu:
    """The GPU that PyTorch calls 0, as NVML sees it."""
    found = source.read()
    assert found.host is Reason.OK
    uuid = gpu_facts(DEVICE)["gpu_uuid"]
    return next(gpu for gpu in found.gpus if gpu.uuid == uuid)


def test_pytorch_and_nvml_name_a_gpu_alike(source: NvmlSource) -> None:
    """A rank is joined to its GPU by this name."""
    assert _gpu(source).is_up


def test_values_are_plausible(source: NvmlSource) -> None:
    """Units: what NVML tells in mW, MHz and mJ comes out in W, Hz and J."""
    gpu = _gpu(source)

    capacity = gpu.number(Feature.MEMORY, "capacity")
    total = torch.cuda.get_device_properties(DEVICE).total_memory
    assert capacity == pytest.approx(total, rel=0.05)
    power = gpu.number(Feature.POWER)
    assert power is not None
    assert 1.0 < power < 2000.0
    temperature = gpu.number(Feature.TEMPERATURE, "gpu")
    assert temperature is not None
    assert 10.0 < temperature < 110.0
    clock, fastest = (gpu.number(f, "sm") for f in (Feature.CLOCK, Feature.CLOCK_MAX))
    assert clock is not None
    assert fastest is not None
    assert 1e8 < clock <= fastest < 5e9


@pytest.mark.nightly
def test_throttle_times_are_no_longer_than_the_time_that_has_passed(source: NvmlSource) -> None:
    """If their unit were another one, an idle or busy second would not fit."""
    before, began = _gpu(source), time.monotonic()
    time.sleep(2.0)
    after, seconds = _gpu(source), time.monotonic() - began
    for reason in after.answers.get(Feature.THROTTLE, {}):
        values = [gpu.number(Feature.THROTTLE, reason) for gpu in (before, after)]
        if None not in values:
            assert 0.0 <= values[1] - values[0] <= 1.5 * seconds


@pytest.mark.nightly
def test_tensor_pipes_are_active_in_a_matmul_and_idle_without(source: NvmlSource) -> None:
    """GPM, where there is any: Hopper and newer."""
    gpu = _gpu(source)
    if gpu.answers[Feature.TENSOR_ACTIVE]["any"] not in (Reason.WAITING, Reason.NO_DATA):
        pytest.skip("this GPU has no GPM")
    a = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    for _ in range(2):
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            a @ a
            torch.cuda.synchronize()
        busy = _gpu(source).number(Feature.TENSOR_ACTIVE, "any")
    torch.cuda.synchronize()
    _gpu(source)
    time.sleep(1.5)
    idle = _gpu(source).number(Feature.TENSOR_ACTIVE, "any")

    assert busy is not None
    assert idle is not None
    assert busy > 0.3
    assert idle < 0.1
