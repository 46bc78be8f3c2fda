"""Results of the doctor about torch and its kernels."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ampwatch.doctor.check import Check, State
from ampwatch.doctor.training import (
    Devices,
    Shown,
    cpu_autocast,
    cpu_kernel,
    device_checks,
    device_kernel,
    devices_of,
    grad_scaler,
    shown_devices,
    torch_version,
    training,
)
from ampwatch.training.model import machine

H100 = {"name": "GPU model", "uuid": "1-2", "major": 9, "minor": 0}


class Cuda:
    """The part of torch that is asked for devices.

    Args:
        devices: Properties of each, or what is raised when they are asked for.
        warning: What is warned of when the devices are counted.
        error: What is raised then.
    """

    def __init__(
        self,
        *devices: dict[str, Any] | Exception,
        warning: str = "",
        error: Exception | None = None,
    ) -> None:
        self.devices = devices
        self.warning = warning
        self.error = error

    def is_available(self) -> bool:
        if self.warning:
            warnings.warn(self.warning, stacklevel=1)
        return bool(self.device_count())

    def device_count(self) -> int:
        if self.error is not None:
            raise self.error
        return len(self.devices)

    def get_device_properties(self, index: int) -> Any:
        device = self.devices[index]
        if isinstance(device, Exception):
            raise device
        return SimpleNamespace(**device)


def build(cuda: Cuda, /, **made_for: str | None) -> Any:
    versions = {"cuda": None, "hip": None, "xpu": None} | (made_for or {"cuda": "12.8"})
    return SimpleNamespace(cuda=cuda, xpu=cuda, version=SimpleNamespace(**versions))


def checks_of(
    cuda: Cuda, environ: dict[str, str] | None = None, /, **made_for: str | None
) -> list[Check]:
    return device_checks(devices_of(build(cuda, **made_for), machine), environ or {})


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
    major, minor = capability
    first, second = checks_of(Cuda(H100, H100 | {"major": major, "minor": minor}))

    assert (first.name, second.name) == ("device 0", "device 1")
    assert second.why.startswith("GPU model, compute capability ")
    assert f"{major}.{minor}" in second.why
    assert words in second.why


def test_why_there_is_no_cuda() -> None:
    """A build without it, or a build with it and no device: that is not the same."""
    (without,) = checks_of(Cuda(), cuda=None)
    (no_device,) = checks_of(Cuda(warning="Found no NVIDIA driver on your system."))

    assert without.state is no_device.state is State.ABSENT
    assert "built for the CPU only" in without.why
    assert "built for CUDA 12.8 and finds no device" in no_device.why
    assert "Found no NVIDIA driver" in no_device.why


OLD = "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040)."


@pytest.mark.parametrize(
    ("cuda", "remedy"),
    [
        (Cuda(warning=OLD), "update the NVIDIA driver"),
        (Cuda(error=RuntimeError(OLD)), "update the NVIDIA driver"),
        (
            Cuda(error=RuntimeError("CUDA driver version is insufficient for CUDA runtime")),
            "update the NVIDIA driver",
        ),
        (Cuda(warning="Error 802: system not yet initialized"), "fabricmanager"),
        (
            Cuda(warning="Error 803: system has unsupported display driver combination"),
            "cuda-compat",
        ),
        (
            Cuda(warning="Error 804: forward compatibility was attempted on non supported HW"),
            "cuda-compat",
        ),
        (Cuda(error=RuntimeError("Error 999: unknown error")), "nvidia-smi"),
        (Cuda(error=AssertionError("something new")), "see GPU below"),
    ],
)
def test_cuda_that_ought_to_work_is_a_problem_with_its_remedy(cuda: Cuda, remedy: str) -> None:
    """Whether PyTorch warns of it or raises, at once or when the devices are counted."""
    (check,) = checks_of(cuda)

    assert check.state is State.PROBLEM
    assert (cuda.warning or str(cuda.error)) in check.why
    assert remedy in check.remedy


def test_what_hides_the_devices_is_said() -> None:
    """An empty variable hides all, and looks like none."""
    (check,) = checks_of(Cuda(), {"CUDA_VISIBLE_DEVICES": ""})

    assert check.why.endswith("finds no device, with CUDA_VISIBLE_DEVICES=''")


def test_a_device_that_died_does_not_hide_the_others() -> None:
    """PyTorch counts it and cannot use it; the first line of its words is kept."""
    dead = RuntimeError("CUDA error: unspecified launch failure\nCompile with DSA")
    first, second = checks_of(Cuda(dead, H100))

    assert (first.name, first.state) == ("device 0", State.PROBLEM)
    assert first.why.endswith("cannot use it: CUDA error: unspecified launch failure")
    assert second.state is State.OK


@pytest.mark.parametrize(("kind", "version"), [("ROCm", "hip"), ("XPU", "xpu")])
def test_a_device_of_another_maker_is_reported_by_its_name(kind: str, version: str) -> None:
    """A compute capability would not be one of CUDA's; a build for it is no build for the CPU."""
    (check,) = checks_of(Cuda({"name": "some GPU"}), **{version: "6.4"})
    (none,) = checks_of(Cuda(), **{version: "6.4"})

    assert check.state is State.OK
    assert check.why.startswith(f"some GPU, through {kind}: ")
    assert "peak_flops" in check.remedy
    assert ("not recorded" in check.why) is (kind == "XPU")
    assert f"built for {kind} 6.4 and finds no device" in none.why


def test_without_torch_no_device_is_asked_for() -> None:
    """Not the same as a torch that shows none."""
    assert shown_devices(fails(ModuleNotFoundError("No module named 'torch'"))) is None
    assert shown_devices() is not None


ONE_DEVICE = Devices("CUDA", "12.8", (Shown(0, "H100"),))


def test_the_c_part_says_with_what_it_measures_and_none_is_not_a_problem() -> None:
    """PyTorch measures then; it says what to install."""
    core = SimpleNamespace(instructions=lambda: ["AVX2", "SSE4.2"])
    there, absent = (cpu_kernel(lambda _, is_=x: SimpleNamespace(core=is_)) for x in (core, None))

    assert (there.state, absent.state) == (State.OK, State.ABSENT)
    assert there.why == "measured in C, with AVX2"
    assert "PyTorch" in absent.why
    assert "gcc" in absent.remedy


def _trying(why: str) -> Any:
    return lambda _name: SimpleNamespace(
        device=torch.device,
        kernel_trouble=lambda _device: why,
    )


@pytest.mark.parametrize(
    ("why", "state", "remedy"),
    [
        ("", State.OK, ""),
        ("Failed to find C compiler. Please specify via CC", State.PROBLEM, "gcc"),
        (
            "Command '['gcc', 'main.c']' returned non-zero exit status 1",
            State.PROBLEM,
            "python3-dev",
        ),
        ("[Errno 30] Read-only file system: '/root/.triton'", State.PROBLEM, "TRITON_CACHE_DIR"),
        ("CUDA out of memory. Tried to allocate 26 MiB", State.PROBLEM, "free some memory"),
        ("something that nobody has seen", State.PROBLEM, "anyway"),
    ],
)
def test_a_kernel_that_cannot_be_made_ready_says_what_it_needs(
    why: str, state: State, remedy: str, tmp_path: Path
) -> None:
    """By trying it on the first device that works."""
    (check,) = device_kernel(ONE_DEVICE, _trying(why), tmp_path / "Python.h")

    assert check.state is state
    assert why in check.why
    assert remedy in check.remedy


def test_without_a_device_there_is_nothing_to_say_and_an_xpu_has_no_kernel() -> None:
    """What is not there cannot be mended."""
    xpu = Devices("XPU", "2025", (Shown(0, "Max 1550"),))
    (check,) = device_kernel(xpu)

    assert device_kernel(Devices()) == []
    assert check.state is State.ABSENT
    assert "CUDA and ROCm only" in check.why
