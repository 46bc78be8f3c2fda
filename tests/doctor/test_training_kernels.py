"""Results of the doctor about the kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ampwatch.doctor.check import State
from ampwatch.doctor.training import Devices, Shown, cpu_kernel, device_kernel

ONE_DEVICE = Devices("CUDA", "12.8", (Shown(0, "H100"),))


def _native(kernel: object) -> Any:
    return lambda _name: SimpleNamespace(load=lambda: kernel)


def test_a_kernel_that_can_be_compiled_is_fine_and_none_is_not_a_problem() -> None:
    """PyTorch measures then; it says what to install."""
    compiled, absent = cpu_kernel(_native(object())), cpu_kernel(_native(None))

    assert (compiled.state, absent.state) == (State.OK, State.ABSENT)
    assert "PyTorch" in absent.why
    assert "gcc" in absent.remedy


def test_a_device_needs_triton() -> None:
    """Without a device there is nothing to say."""
    nothing = device_kernel(Devices())
    (present,) = device_kernel(ONE_DEVICE, lambda _name: object())
    (missing,) = device_kernel(ONE_DEVICE, lambda _name: None)

    assert nothing == []
    assert (present.state, missing.state) == (State.OK, State.ABSENT)
