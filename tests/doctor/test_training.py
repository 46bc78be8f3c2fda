"""Results of the doctor about torch."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ampwatch.doctor.check import State
from ampwatch.doctor.training import (
    cpu_autocast,
    cuda_devices,
    grad_scaler,
    torch_version,
    training,
)


class Cuda:
    """The part of torch that is asked for devices."""

    def __init__(self, capabilities: list[tuple[int, int]], warning: str = "") -> None:
        self.capabilities = capabilities
        self.warning = warning

    def is_available(self) -> bool:
        if self.warning:
            warnings.warn(self.warning, stacklevel=1)
        return bool(self.capabilities)

    def device_count(self) -> int:
        return len(self.capabilities)

    def get_device_name(self, index: int) -> str:
        return f"GPU model {index}"

    def get_device_capability(self, index: int) -> tuple[int, int]:
        return self.capabilities[index]


def build(cuda: Cuda, *, made_for: str | None = "12.8", hip: str | None = None) -> Any:
    return SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda=made_for, hip=hip))


def fails(error: Exception) -> Any:
    def load(name: str) -> Any:
        raise error

    return load


def test_this_torch_can_be_watched() -> None:
    """The real one, with the real sensor's own check."""
    states = {check.name: check.state for check in training()}

    assert states["torch"] is State.OK
    assert states["GradScaler"] is State.OK
    assert states["float16 autocast, CPU"] is State.OK
    assert states["bfloat16 autocast, CPU"] is State.OK


def test_without_torch_nothing_is_wrong() -> None:
    """A machine that only runs the daemon has none."""
    (check,) = training(fails(ModuleNotFoundError("No module named 'torch'")))

    assert (check.name, check.state) == ("torch", State.ABSENT)
    assert "pip install torch" in check.remedy


@pytest.mark.parametrize("error", [ImportError, OSError])
def test_a_torch_that_cannot_be_imported_is_a_problem(error: type[Exception]) -> None:
    """It says which library is missing."""
    (check,) = training(fails(error("libcudart.so.12: cannot open shared object file")))

    assert check.state is State.PROBLEM
    assert "libcudart.so.12" in check.why


@pytest.mark.parametrize(
    ("version", "state", "words"),
    [
        ("2.5.1", State.PROBLEM, "older"),
        ("2.6.0", State.OK, "supported"),
        ("2.13.0+cpu", State.OK, "the tests run with"),
        ("2.14.0.dev20260901", State.OK, "supported"),
        ("3.0.0", State.OK, "supported"),
    ],
)
def test_the_release_is_held_against_the_supported_and_the_tested_ones(
    version: str, state: State, words: str
) -> None:
    """Older ones lack what is needed; of the others only one is tested, and that is said."""
    check = torch_version(SimpleNamespace(__version__=version))

    assert check.state is state
    assert words in check.why
    assert version in check.why


def test_a_scaler_that_keeps_its_state_elsewhere_is_a_problem() -> None:
    """A future torch may keep it elsewhere."""

    class Moved(torch.amp.GradScaler):
        def __init__(self, device: str) -> None:
            super().__init__(device)
            del self._growth_tracker

    moved = SimpleNamespace(amp=SimpleNamespace(GradScaler=Moved))

    check = grad_scaler(moved, import_module)

    assert check.state is State.PROBLEM
    assert "_growth_tracker" in check.why


def test_autocast_is_believed_by_its_result() -> None:
    """One that silently goes on in float32 is a problem."""
    ignored = SimpleNamespace(
        float16=torch.float16, ones=torch.ones, autocast=lambda *_args, **_kwargs: nullcontext()
    )

    check = cpu_autocast(ignored, "float16")

    assert check.state is State.PROBLEM
    assert "torch.float32" in check.why


@pytest.mark.parametrize(
    ("capability", "words"),
    [
        ((6, 1), "no tensor cores"),
        ((7, 5), "tensor cores for float16, none for bfloat16"),
        ((9, 0), "tensor cores for float16 and bfloat16"),
    ],
)
def test_a_device_is_reported_by_what_its_generation_has(
    capability: tuple[int, int], words: str
) -> None:
    """With its name and compute capability."""
    first, second = cuda_devices(build(Cuda([(8, 0), capability])))

    assert (first.name, second.name) == ("device 0", "device 1")
    assert second.why.startswith("GPU model 1, compute capability ")
    assert "{}.{}".format(*capability) in second.why
    assert words in second.why


def test_why_there_is_no_cuda() -> None:
    """A build without it, or a build with it and no device: that is not the same."""
    (without,) = cuda_devices(build(Cuda([]), made_for=None))
    (no_device,) = cuda_devices(build(Cuda([], "the driver is too old")))

    assert without.state is no_device.state is State.ABSENT
    assert "built for the CPU only" in without.why
    assert "built for CUDA 12.8 and finds no device" in no_device.why
    assert "the driver is too old" in no_device.why


def test_a_rocm_device_is_reported_by_its_name() -> None:
    """The compute capability is not one of CUDA's."""
    (check,) = cuda_devices(build(Cuda([(9, 4)]), made_for=None, hip="6.4"))

    assert check.why == "GPU model 0, through ROCm"
