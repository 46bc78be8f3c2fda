"""Results of the doctor about the two sides that see a GPU: PyTorch and NVML."""

from __future__ import annotations

import pytest

from ampwatch.doctor.check import Check, State
from ampwatch.doctor.gpu import Visible, seen_by_pytorch, visible, visible_devices
from ampwatch.doctor.training import Devices, Shown
from ampwatch.host.fleet.gpus import Feature, Gpu, Instance, MigDevice, Pass, Reason

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


def test_a_gpu_is_found_in_pytorch_by_its_uuid_and_not_by_its_number() -> None:
    """CUDA counts what it is left, in its own order."""
    check = seen(SECOND, cuda("GPU-89aaaaaa", "GPU-8932f937"))

    assert check.state is State.OK
    assert check.why.startswith("device 0: ")


@pytest.mark.parametrize("uuid", ["MIG-22", "GPU-22", "22"])
def test_an_instance_is_found_on_its_gpu(uuid: str) -> None:
    """Whatever kind of device CUDA's 16 bytes are taken for."""
    check = seen(CUT, cuda(uuid))

    assert check.state is State.OK
    assert check.why.startswith("device 0 (instance 2): ")


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
