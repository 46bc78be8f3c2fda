"""Results of the doctor about NVML and the GPUs: what the daemon would read of them, and who sees them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampwatch.doctor.check import Check, State
from ampwatch.doctor.gpu import REMEDIES, Visible, gpus, seen_by_pytorch, visible, visible_devices
from ampwatch.doctor.training import Devices, Shown
from ampwatch.host.fleet.gpus import Feature, Gpu, Instance, MigDevice, Pass, Reason
from tests.host.gpu.standin import Standin


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standin:
    return Standin(tmp_path / "driver", monkeypatch)


def examine(waits: Callable[[float], None] = lambda _seconds: None) -> list[Check]:
    return gpus(find=lambda _name: None, sleep=waits)


def joined(driver: Standin, *uuids: str, **environ: str) -> dict[str, Check]:
    """Examine with devices of PyTorch that have these uuids; return the checks by name."""
    devices = Devices("CUDA", "12.8", tuple(Shown(i, "H100", u) for i, u in enumerate(uuids)))
    found = gpus(
        find=lambda _name: None, sleep=lambda _s: None, shown=lambda: devices, environ=environ
    )
    assert driver.leftovers == (0, 0, 0)
    return {check.name: check for check in found}


def no_library(name: str) -> None:
    message = f"{name}: cannot open shared object file: No such file or directory"
    raise OSError(message)


def test_the_driver_and_what_each_gpu_tells(driver: Standin) -> None:
    """By name and uuid, with the features that the daemon would read; NVML is closed again."""
    driver.plays(gpus=2)
    waited: list[float] = []

    nvml, *both = examine(waited.append)

    assert (nvml.state, nvml.why) == (State.OK, "driver 580.65.06")
    assert [(gpu.name, gpu.state) for gpu in both] == [("GPU 0", State.OK), ("GPU 1", State.OK)]
    assert "NVIDIA Stand-in (GPU-00000001)" in both[1].why
    assert "tensor_active" in both[1].why
    assert waited == [0.2]
    assert driver.leftovers == (0, 0, 0)


def test_what_a_gpu_does_not_answer_is_listed_by_reason(driver: Standin) -> None:
    """Absent is no problem; a permission that is missing is one, with a remedy."""
    driver.plays(gpm=0, nvmlDeviceRegisterEvents=4)

    _, gpu, *others = examine()

    assert "tensor_active" not in gpu.why
    found = {check.name.removeprefix("GPU 0 "): check for check in others}
    assert {name: check.state for name, check in found.items()} == {
        "not_supported": State.ABSENT,
        "no_permission": State.PROBLEM,
    }
    assert found["not_supported"].why.startswith("tensor_active, sm_active, ")
    assert found["no_permission"].why.startswith("xid: ")
    assert found["no_permission"].remedy


@pytest.mark.parametrize(
    ("code", "state", "words"),
    [
        (9, State.ABSENT, "driver is not loaded"),
        (4, State.PROBLEM, "may not ask"),
        (17, State.PROBLEM, "may not ask"),
        (18, State.PROBLEM, "different versions"),
        (999, State.PROBLEM, "error"),
    ],
)
def test_why_nvml_does_not_open(driver: Standin, code: int, state: State, words: str) -> None:
    """Each reason with what to do about it; no driver at all is nothing wrong."""
    driver.plays(nvmlInitWithFlags=code)

    (check,) = examine()

    assert check.state is state
    assert words in check.why
    assert check.remedy


def test_a_missing_pynvml_is_a_problem() -> None:
    """It is a dependency of ampwatch."""

    def load(name: str) -> Any:
        raise ModuleNotFoundError(name)

    (check,) = gpus(load, find=lambda _name: None)

    assert check.state is State.PROBLEM
    assert check.remedy == "pip install nvidia-ml-py"


def test_a_gpu_that_fell_off_the_bus_does_not_hide_the_others(driver: Standin) -> None:
    """Before it could tell its name, or after."""
    driver.plays(gpus=2, lost=0)
    _, lost, other = examine()
    driver.plays(lost=None)

    _, fine, gone = examine(lambda _seconds: driver.plays(lost=1))

    assert (lost.name, lost.state, other.state) == ("GPU 0", State.PROBLEM, State.OK)
    assert (fine.state, gone.name, gone.state) == (State.OK, "GPU 1", State.PROBLEM)
    assert gone.why.startswith("GPU-00000001: ")


def test_a_driver_without_gpus_says_so(driver: Standin) -> None:
    """A container that was given none."""
    driver.plays(gpus=0)

    _, check = examine()

    assert check.state is State.ABSENT
    assert "--gpus" in check.remedy


def test_each_gpu_says_which_side_sees_it(driver: Standin) -> None:
    """Both, only NVML, only PyTorch; numbers differ and do not matter."""
    driver.plays(gpus=2)

    found = joined(driver, "GPU-00000001", "GPU-elsewhere", CUDA_VISIBLE_DEVICES="1")

    assert found["GPU 1 in PyTorch"].why.startswith("device 0: ")
    assert found["GPU 0 in PyTorch"].state is State.ABSENT
    assert "CUDA_VISIBLE_DEVICES" in found["GPU 0 in PyTorch"].why
    assert found["device 1"].why == Reason.NOT_SHOWN.text
    assert found["device 1"].remedy == REMEDIES[Reason.NOT_SHOWN]
    assert found["CUDA_VISIBLE_DEVICES"].state is State.OK


def test_an_instance_says_what_it_tells_and_who_sees_it(driver: Standin) -> None:
    """In MIG mode, where CUDA shows one instance, by the name that NVML has for it."""
    driver.plays(mig=1)

    found = joined(driver, "MIG-00000000-1")

    assert "3g.40gb (MIG-00000000-0)" in found["GPU 0 instance 1"].why
    assert "tensor_active" in found["GPU 0 instance 2"].why
    assert found["GPU 0 in PyTorch"].why.startswith("device 0 (instance 2): ")
    assert "device 0" not in found


def test_without_nvml_the_devices_of_pytorch_are_named() -> None:
    """A container without the library, and one whose library is the problem already."""
    devices = Devices("CUDA", "12.8", (Shown(0, "H100", "GPU-1"),))

    nvml, device = gpus(find=no_library, shown=lambda: devices, environ={})

    assert (nvml.name, device.name) == ("NVML", "device 0")
    assert nvml.state is State.ABSENT
    assert "libnvidia-ml.so.1" in nvml.why
    assert device.why == Reason.NOT_SHOWN.text


def test_every_reason_that_can_be_fixed_has_a_remedy() -> None:
    """The others are a fact of the hardware, or a moment."""
    nothing_to_do = {
        Reason.OK,
        Reason.WAITING,
        Reason.NO_DATA,
        Reason.NOT_SUPPORTED,
        Reason.SWITCHED_OFF,
    }

    assert set(REMEDIES) == set(Reason) - nothing_to_do


DRIVER = {"cuda_version": "12.2"}
FIRST = Gpu(0, "GPU-8932f937", DRIVER)
SECOND = Gpu(1, "GPU-89aaaaaa", DRIVER)
CUT = Gpu(
    2,
    "GPU-cccccccc",
    DRIVER,
    {Feature.MIG: {"": 1.0}},
    instances=[
        Instance(1, (MigDevice("MIG-11", 0, "3g.40gb"),)),
        Instance(2, (MigDevice("MIG-22", 0, "3g.40gb"),)),
    ],
)
UNCUT = Gpu(2, "GPU-cccccccc", DRIVER, {Feature.MIG: {"": 1.0}})
ALL = Pass(Reason.OK, [FIRST, SECOND, CUT])


def cuda(*uuids: str, version: str = "12.8") -> Devices:
    return Devices("CUDA", version, tuple(Shown(i, "H100", uuid) for i, uuid in enumerate(uuids)))


def seen(gpu: Gpu, found: Devices, **environ: str) -> Check:
    return seen_by_pytorch(gpu, found, environ)


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("0", ("0",)),
        ("2, 0", ("2", "0")),
        ("1gpu2,2ampere", ("1gpu2", "2ampere")),
        ("GPU-8932", ("GPU-8932",)),
        ("GPU-89a,GPU-c", ("GPU-89a", "GPU-c")),
        ("MIG-22", ("MIG-22",)),
        ("MIG-GPU-cccccccc/2/0", ("MIG-GPU-cccccccc/2/0",)),
    ],
)
def test_devices_are_named_by_number_or_by_the_beginning_of_a_uuid(
    setting: str, names: tuple[str, ...]
) -> None:
    """Of a GPU, or of an instance in either form that drivers have given its name."""
    assert visible(setting, ALL) == Visible(names)


@pytest.mark.parametrize(
    ("setting", "names", "refused", "words"),
    [
        ("0,7,1", ("0",), "7", "the last one is 2"),
        ("1,-1,0", ("1",), "-1", "below 0"),
        ("GPU-89", (), "GPU-89", "2 devices begin so"),
        ("GPU-8932f937,GPU-dead", ("GPU-8932f937",), "GPU-dead", "no device here begins so"),
        ("0,cuda:1", ("0",), "cuda:1", "no number"),
        ("0,,1", ("0",), "", "empty"),
        ("0,1,0", (), "0", "once more"),
        ("GPU-8932f937,GPU-8932", (), "GPU-8932", "once more"),
    ],
)
def test_cuda_stops_at_an_entry_that_is_no_device(
    setting: str, names: tuple[str, ...], refused: str, words: str
) -> None:
    """What follows it is ignored in silence; a device that comes twice leaves none."""
    found = visible(setting, ALL)
    (check,) = visible_devices({"CUDA_VISIBLE_DEVICES": setting}, ALL)

    assert (found.names, found.refused) == (names, refused)
    assert words in found.why
    assert check.state is State.PROBLEM
    assert found.why in check.why
    assert check.remedy


def test_a_gpu_that_is_lost_counts_and_has_no_name() -> None:
    """NVML counts it, and cannot say what it is called."""
    found = Pass(Reason.OK, [FIRST], {1: Reason.GPU_LOST})

    assert visible("0,1", found) == Visible(("0", "1"))
    assert visible("0,2", found).refused == "2"


@pytest.mark.parametrize("setting", ["", " ", "-1"])
def test_all_gpus_can_be_hidden_on_purpose(setting: str) -> None:
    """Nothing is wrong then."""
    (check,) = visible_devices({"CUDA_VISIBLE_DEVICES": setting}, ALL)

    assert check.state is State.ABSENT
    assert "hides all GPUs" in check.why


def test_numbers_are_cudas_own_unless_the_order_is_that_of_the_bus() -> None:
    """Of one GPU, and of uuids, there is no order."""

    def said(setting: str, found: Pass, **environ: str) -> str:
        (check,) = visible_devices({"CUDA_VISIBLE_DEVICES": setting, **environ}, found)
        assert check.state is State.OK
        return check.why

    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in said("1", ALL)
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in said("1", ALL, CUDA_DEVICE_ORDER="nonsense")
    assert "fastest" not in said("1", ALL, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert "fastest" not in said("0", Pass(Reason.OK, [FIRST]))
    assert "fastest" not in said("GPU-8932", ALL)
    assert visible_devices({}, ALL) == []


@pytest.mark.parametrize(
    ("gpu", "found", "environ", "state", "words"),
    [
        (FIRST, Devices(), {}, State.ABSENT, "built for the CPU only"),
        (FIRST, Devices("ROCm", "6.4"), {}, State.ABSENT, "built for ROCm 6.4"),
        (UNCUT, cuda(), {}, State.PROBLEM, "MIG mode and has no instance"),
        (FIRST, cuda(""), {}, State.ABSENT, "PyTorch reports no uuid for device 0"),
        (
            FIRST,
            cuda(version="13.0"),
            {},
            State.PROBLEM,
            "driver knows CUDA up to 12.2, this torch is built for 13.0",
        ),
        (
            FIRST,
            cuda("GPU-89aaaaaa"),
            {"CUDA_VISIBLE_DEVICES": "1"},
            State.ABSENT,
            "with CUDA_VISIBLE_DEVICES='1'",
        ),
        (FIRST, cuda("GPU-89aaaaaa"), {}, State.PROBLEM, "PyTorch does not see it"),
    ],
)
def test_why_pytorch_does_not_see_a_gpu(
    gpu: Gpu, found: Devices, environ: dict[str, str], state: State, words: str
) -> None:
    """Each cause with its own words; what somebody has hidden is no problem."""
    check = seen(gpu, found, **environ)

    assert check.state is state
    assert words in check.why
