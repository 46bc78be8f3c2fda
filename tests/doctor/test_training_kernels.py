"""Results of the doctor about the kernels."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ampwatch.doctor.check import State
from ampwatch.doctor.training import Devices, Shown, cpu_kernel, device_kernel

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
