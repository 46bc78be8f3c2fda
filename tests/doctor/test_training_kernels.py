"""Results of the doctor about the kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ampwatch.doctor.check import State
from ampwatch.doctor.training import cpu_kernel, device_kernel


def _native(kernel: object) -> Any:
    return lambda _name: SimpleNamespace(load=lambda: kernel)


def _torch(*, available: bool) -> Any:
    return SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: available))


def test_a_kernel_that_can_be_compiled_is_fine_and_none_is_not_a_problem() -> None:
    """PyTorch measures then; it says what to install."""
    compiled, absent = cpu_kernel(_native(object())), cpu_kernel(_native(None))

    assert (compiled.state, absent.state) == (State.OK, State.ABSENT)
    assert "PyTorch" in absent.why
    assert "gcc" in absent.remedy


def test_a_device_needs_triton() -> None:
    """Without a device there is nothing to say."""
    nothing = device_kernel(_torch(available=False))
    (present,) = device_kernel(_torch(available=True), lambda _name: object())
    (missing,) = device_kernel(_torch(available=True), lambda _name: None)

    assert nothing == []
    assert (present.state, missing.state) == (State.OK, State.ABSENT)
