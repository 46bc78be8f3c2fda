"""What the doctor says about NVML."""

from __future__ import annotations

from typing import Any

import pytest

from ampwatch.doctor.check import State
from ampwatch.doctor.gpu import NOT_READ_YET, gpus


class Nvml:
    """A stand-in for the module pynvml: what is set fails with that code."""

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"code {value}")
            self.value = value

    def __init__(self, names: list[str | bytes] | None = None, **failing: int) -> None:
        self.names = names or []
        self.failing = failing
        self.open = 0

    def _answer(self, function: str, value: Any) -> Any:
        if function in self.failing:
            raise self.NVMLError(self.failing[function])
        return value

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        self._answer("init", None)
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> Any:  # noqa: N802
        return self._answer("driver", "580.65.06")

    def nvmlDeviceGetCount(self) -> Any:  # noqa: N802
        return self._answer("count", len(self.names))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        return self._answer(f"gpu{index}", index)

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:  # noqa: N802
        return self.names[handle]


class NvmlWithGpm(Nvml):
    def nvmlGpmQueryDeviceSupport(self, handle: int) -> Any:  # noqa: N802
        class Support:
            isSupportedDevice = int("H200" in str(self.names[handle]))  # noqa: N815

        return self._answer("gpm", Support())


def test_the_driver_and_each_gpu_are_told() -> None:
    """By name, with whether it counts tensor-pipe activity, and that nobody reads that yet."""
    nvml = NvmlWithGpm(["NVIDIA H200", b"NVIDIA A100"])

    driver, h200, a100 = gpus(lambda _name: nvml)

    assert driver.why == f"driver 580.65.06; {NOT_READ_YET}"
    assert (h200.name, a100.name) == ("GPU 0", "GPU 1")
    assert h200.why == "NVIDIA H200; it has tensor-pipe counters (GPM)"
    assert a100.why == "NVIDIA A100; it has no tensor-pipe counters (GPM)"
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("code", "state", "words"),
    [
        (12, State.ABSENT, "libnvidia-ml.so.1"),
        (9, State.ABSENT, "driver is not loaded"),
        (4, State.PROBLEM, "may not ask"),
        (18, State.PROBLEM, "different versions"),
        (999, State.PROBLEM, "code 999"),
    ],
)
def test_why_nvml_does_not_open(code: int, state: State, words: str) -> None:
    """Each reason with what to do about it; no GPU at all is nothing wrong."""
    (check,) = gpus(lambda _name: Nvml(init=code))

    assert check.state is state
    assert words in check.why
    assert check.remedy


def test_a_machine_without_its_library_says_so() -> None:
    """The real pynvml, here."""
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        assert [check.state for check in gpus()] == [State.ABSENT]
    else:
        pynvml.nvmlShutdown()
        assert gpus()[0].state is State.OK


def test_a_missing_pynvml_is_a_problem() -> None:
    """It is a dependency of ampwatch."""

    def load(name: str) -> Any:
        message = f"No module named {name!r}"
        raise ModuleNotFoundError(message)

    (check,) = gpus(load)

    assert check.state is State.PROBLEM
    assert "No module named 'pynvml'" in check.why


def test_a_gpu_that_fell_off_the_bus_does_not_hide_the_others() -> None:
    """NVML_ERROR_GPU_IS_LOST."""
    nvml = NvmlWithGpm(["NVIDIA H200", "NVIDIA H200"], gpu0=15)

    _, lost, other = gpus(lambda _name: nvml)

    assert (lost.state, other.state) == (State.PROBLEM, State.OK)
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("nvml", "words"),
    [
        (Nvml(["NVIDIA H200"]), "does not know"),
        (NvmlWithGpm(["NVIDIA H200"], gpm=13), "not known: code 13"),
    ],
)
def test_an_old_pynvml_or_driver_does_not_know_the_counters(nvml: Nvml, words: str) -> None:
    """The GPU is there all the same."""
    _, gpu = gpus(lambda _name: nvml)

    assert gpu.state is State.OK
    assert words in gpu.why


def test_a_driver_without_gpus_says_so() -> None:
    """A container that was given none."""
    _, check = gpus(lambda _name: Nvml([]))

    assert check.state is State.ABSENT
    assert "--gpus" in check.remedy
