"""Readings of GPUs: the real pynvml on a stand-in that plays one driver after another."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ampwatch.host.fleet.gpus import TENSOR_PIPES, Feature, Gpu, Pass, Reason
from ampwatch.host.gpu import source as module
from ampwatch.host.gpu.nvml import Nvml, open_nvml
from tests.host.gpu.standin import Standin

GIB = 1 << 30

OF_GPM = ("tensor_active", "sm_active", "sm_cycles", "tensor_cycles")


def read(driver: Standin, *, times: int = 2) -> list[Gpu]:
    """Open, read so often, close; return what the last time gave."""
    source = driver.source()
    for _ in range(times):
        found = source.read()
    assert source.close()
    assert driver.leftovers[:2] == (0, 0)
    return found.gpus


def unloadable(words: str) -> Callable[[str], None]:
    """Return what loads libraries on a machine whose loader says ``words``."""

    def find(name: str) -> None:
        raise OSError(words)

    return find


def absent(gpu: Gpu) -> dict[str, Reason]:
    return {feature: reason for feature, reason in gpu.capabilities() if reason is not Reason.OK}


def test_a_gpu_of_today_tells_everything_in_base_units(driver: Standin) -> None:
    """Each number against what the stand-in was made to say, in the units of NVML."""
    (gpu,) = read(driver)

    assert (gpu.index, gpu.uuid, gpu.is_up, absent(gpu)) == (0, "GPU-00000000", True, {})
    assert gpu.facts == {
        "name": "NVIDIA Stand-in",
        "pci_bus_id": "00000000:00:00.0",
        "compute_capability": "9.0",
        "driver_version": "580.65.06",
        "cuda_version": "13.0",
        "synthetic": "false",
    }
    assert {
        feature: pytest.approx(parts) for feature, parts in gpu.answers.items() if len(parts) < 5
    } == {
        Feature.UTILIZATION: {"": 0.40},
        Feature.MEMORY: {"used": 10 * GIB, "reserved": 2 * GIB, "capacity": 80 * GIB},
        Feature.POWER: {"": 350.5},
        Feature.POWER_LIMIT: {"": 700},
        Feature.TEMPERATURE: {"gpu": 61, "memory": 70},
        Feature.CLOCK: {"sm": 1755e6, "memory": 2619e6},
        Feature.CLOCK_MAX: {"sm": 1980e6, "memory": 2619e6},
        Feature.ECC: {"corrected": 7, "uncorrected": 1},
        Feature.REMAPPED_ROWS: {"pending": 1, "failure": 0},
        Feature.SM_ACTIVE: {"": 0.02},
        Feature.SM_CYCLES: {"": 248e9},
        Feature.PROCESSES: {"": 0},
        Feature.XID: {"": Reason.OK},
        Feature.MIG: {"": 0},
    }


def test_each_tensor_pipe_and_each_reason_for_slow_clocks_has_its_own_number(
    driver: Standin,
) -> None:
    """The numbers of nvml.h: 5 any, 6 DFMA, 7 HMMA, 8 DMMA, 9 IMMA; 250 to 254 for cycles.

    The driver counts nanoseconds; the total of thermal reasons is not counted beside its parts.
    """
    (gpu,) = read(driver)

    shares = {"any": 0.05, "hmma": 0.07, "imma": 0.09, "dmma": 0.08, "dfma": 0.06}
    cycles = {"any": 250e9, "hmma": 252e9, "imma": 253e9, "dmma": 251e9, "dfma": 254e9}
    assert gpu.answers[Feature.TENSOR_ACTIVE] == pytest.approx(shares)
    assert gpu.answers[Feature.TENSOR_CYCLES] == pytest.approx(cycles)
    assert set(shares) == set(TENSOR_PIPES)
    quiet = ("sync_boost", "board_limit", "reliability", "hw_thermal", "hw_power_brake")
    slow = {"sw_power_cap": 1.5, "sw_thermal": 0.25}
    assert gpu.answers[Feature.THROTTLE] == dict.fromkeys(quiet, 0) | slow


def test_gpm_has_no_value_before_the_second_look(driver: Standin) -> None:
    """Not a zero either; everything else is there at once."""
    (gpu,) = read(driver, times=1)

    assert absent(gpu) == dict.fromkeys(OF_GPM, Reason.WAITING)


def test_a_gpu_without_gpm_says_so(driver: Standin) -> None:
    """Ampere."""
    driver.plays(gpm=0)

    (gpu,) = read(driver)

    assert absent(gpu) == dict.fromkeys(OF_GPM, Reason.NOT_SUPPORTED)
    assert gpu.number(Feature.UTILIZATION) == pytest.approx(0.40)


def test_an_old_driver_is_asked_in_its_own_way(old_driver: Standin) -> None:
    """Functions that it lacks are absent, or have a predecessor."""
    old_driver.plays(pid=os.getpid())

    (gpu,) = read(old_driver)

    assert absent(gpu) == dict.fromkeys(
        (
            *OF_GPM,
            "remapped_rows",
            "mig",
            "memory_reserved",
            *(f"throttle_{kind}" for kind in ("sw_thermal", "hw_thermal", "hw_power_brake")),
        ),
        Reason.NOT_IN_DRIVER,
    )
    assert gpu.number(Feature.MEMORY, "used") == 12 * GIB
    assert gpu.number(Feature.TEMPERATURE, "gpu") == 60
    assert gpu.number(Feature.THROTTLE, "thermal") == pytest.approx(0.9)
    assert gpu.number(Feature.PROCESSES) == 1


def test_a_driver_without_cycle_counters_still_tells_the_shares(driver: Standin) -> None:
    """It refuses the whole question, not one metric of it."""
    driver.plays(cycles=0)

    (gpu,) = read(driver)

    assert absent(gpu) == dict.fromkeys(("sm_cycles", "tensor_cycles"), Reason.NOT_IN_DRIVER)
    assert gpu.number(Feature.TENSOR_ACTIVE, "hmma") == pytest.approx(0.07)


def test_the_status_of_each_metric_counts(driver: Standin) -> None:
    """The call succeeds, one metric does not, and one is NaN: neither becomes a 0."""
    driver.plays(gpm8=3, gpm7="nan", field82=3)

    (gpu,) = read(driver)

    assert absent(gpu) == {
        "tensor_active_dmma": Reason.NOT_SUPPORTED,
        "tensor_active_hmma": Reason.NO_DATA,
        "temperature_memory": Reason.NOT_SUPPORTED,
    }
    assert gpu.number(Feature.TENSOR_ACTIVE, "any") == pytest.approx(0.05)
    assert gpu.number(Feature.TEMPERATURE, "gpu") == 61


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (3, Reason.NOT_SUPPORTED),
        (4, Reason.NO_PERMISSION),
        (10, Reason.TIMEOUT),
        (13, Reason.NOT_IN_DRIVER),
        (21, Reason.NO_DATA),
        (25, Reason.NOT_IN_DRIVER),
        (999, Reason.ERROR),
    ],
)
def test_a_call_that_fails_makes_one_feature_absent(
    driver: Standin, code: int, reason: Reason
) -> None:
    """With the reason; the others are read."""
    driver.plays(nvmlDeviceGetPowerUsage=code)

    (gpu,) = read(driver)

    assert absent(gpu) == {"power": reason}
    assert gpu.number(Feature.POWER) is None


def test_a_name_that_cannot_be_read_is_empty(driver: Standin) -> None:
    """A damaged board; the rest of it is read."""
    driver.plays(garbled=1)

    (gpu,) = read(driver)

    assert (gpu.facts["name"], gpu.is_up, absent(gpu)) == ("", True, {})


def test_an_error_without_a_name_is_logged_once(
    driver: Standin, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it is that all calls fail with: a line, not one per call and look."""
    driver.plays(nvmlDeviceGetPowerUsage=999, nvmlDeviceGetClockInfo=999)

    read(driver, times=3)

    assert [record.getMessage() for record in caplog.records] == [
        "nvmlDeviceGetPowerUsage: NVML returned 999, Unknown Error"
    ]


def test_a_gpu_in_mig_mode_has_instances(driver: Standin) -> None:
    """Memory and tensor pipes are theirs; utilisation does not exist then."""
    driver.plays(mig=1)

    (gpu,) = read(driver)

    assert gpu.number(Feature.MIG) == 1
    assert absent(gpu) == {"utilization": Reason.NOT_SUPPORTED}
    first, second = gpu.instances
    assert (first.number, second.number) == (1, 2)
    (device,) = first.devices
    assert (device.uuid, device.compute_instance, device.profile) == (
        "MIG-00000000-0",
        0,
        "3g.40gb",
    )
    assert first.answers[Feature.MEMORY] == {
        "used": 5 * GIB,
        "reserved": GIB,
        "capacity": 40 * GIB,
    }
    # The stand-in adds 0.125 % for each hundred instances: samples of the right one were taken.
    assert first.answers[Feature.SM_ACTIVE][""] == pytest.approx(0.02 + 100 * 0.00125)
    assert second.answers[Feature.SM_ACTIVE][""] == pytest.approx(0.02 + 200 * 0.00125)


@pytest.mark.parametrize("unprivileged", [0, 1])
def test_the_processes_of_an_instance_are_its_own(
    driver: Standin, monkeypatch: pytest.MonkeyPatch, unprivileged: int
) -> None:
    """Also where the GPU itself names them to nobody but root."""
    monkeypatch.setattr(module, "is_of_the_host", lambda: True)
    driver.plays(mig=1, pid=4711, in_instance=2, unprivileged=unprivileged)

    (gpu,) = read(driver)

    assert [instance.processes for instance in gpu.instances] == [{}, {4711: GIB}]
    assert (gpu.answers[Feature.PROCESSES] == {"": Reason.NO_PERMISSION}) == bool(unprivileged)


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"]
)
def test_instances_that_may_not_be_looked_at_have_a_reason(driver: Standin, function: str) -> None:
    """Not the same as a GPU that has none."""
    driver.plays(mig=1, **{function: 4})

    (gpu,) = read(driver)

    assert gpu.instances == []
    assert absent(gpu)["mig_devices"] is Reason.NO_PERMISSION


def test_instances_that_go_give_their_samples_back(driver: Standin) -> None:
    """A GPU taken out of MIG mode while it is watched."""
    driver.plays(mig=1)
    source = driver.source()
    source.read()
    source.read()
    before = driver.leftovers[0]

    driver.plays(mig=0)
    (gpu,) = source.read().gpus

    assert (gpu.instances, before - driver.leftovers[0]) == ([], 4)
    assert source.close()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (15, Reason.GPU_LOST),
        (16, Reason.RESET_REQUIRED),
        (28, Reason.GPU_LOST),
        (999, Reason.ERROR),
    ],
)
def test_a_gpu_that_falls_off_the_bus_takes_no_other_with_it(
    driver: Standin, code: int, reason: Reason
) -> None:
    """It is gone, with the reason for every feature, and the other goes on."""
    driver.plays(gpus=2)
    source = driver.source()
    source.read()

    driver.plays(lost=1, lost_code=code)
    fine, lost = source.read().gpus

    assert (fine.is_up, lost.is_up, lost.gone) == (True, False, reason)
    assert fine.number(Feature.SM_ACTIVE) is not None
    assert {reason for _, reason in lost.capabilities()} == {reason}
    assert len(list(lost.capabilities())) == len(Feature)
    assert source.close()


def test_nvml_that_somebody_else_shut_down_is_noticed(driver: Standin) -> None:
    """The driver was taken away, or another library in this process closed it."""
    source = driver.source()
    driver.library.nvmlShutdown()

    found = source.read()

    assert found.host is Reason.ERROR
    assert [gpu.is_up for gpu in found.gpus] == [False]


@pytest.mark.parametrize(
    "module",
    [
        "NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:20:39 UTC 2025",
        "NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (builder@host)",
    ],
)
def test_a_library_of_another_driver_is_named_with_both_versions(
    driver: Standin, tmp_path: Path, module: str
) -> None:
    """One that the image of a container brought along, or one from before an update."""
    image = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.129.03"
    for path, text in {
        "proc/self/maps": f"7f00-7f01 r--p 00000000 00:2a 77\t{image}\n",
        "proc/driver/nvidia/version": f"NVRM version: {module}\nGCC version: 12.3.0\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    driver.plays(nvmlInitWithFlags=18)

    found = open_nvml(find=lambda _name: None, root=tmp_path)

    assert isinstance(found, Pass)
    assert found.text.endswith(f"different versions: {image} was loaded, the driver is 580.65.06")


def test_without_the_library_pynvml_is_not_even_imported() -> None:
    """A daemon on a machine without a GPU does not pay for it."""

    def load(name: str) -> None:
        raise AssertionError(name)

    found = open_nvml(load, unloadable("cannot open shared object file"), Path("/nowhere"))

    assert isinstance(found, Pass)
    assert found.host is Reason.LIBRARY_NOT_FOUND


@pytest.mark.parametrize(
    "words",
    [
        "libnvidia-ml.so.1: cannot open shared object file: No such file or directory",
        "libnvidia-ml.so.1: file too short",
        "libnvidia-ml.so.1: wrong ELF class: ELFCLASS32",
    ],
)
def test_a_gpu_whose_library_cannot_be_loaded_is_not_taken_for_none(
    words: str, tmp_path: Path
) -> None:
    """A container that was given the devices without it, or whose image has one that is empty."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()

    found = open_nvml(find=unloadable(words), root=tmp_path)

    assert isinstance(found, Pass)
    assert found.host is Reason.LIBRARY_UNUSABLE
    assert found.text.endswith(f"cannot be loaded: {words}")


def test_an_old_pynvml_lacks_functions_and_structures() -> None:
    """Readings that it does not have are absent, and nothing raises."""

    class OldPynvml:
        class NVMLError(Exception):
            pass

        @staticmethod
        def nvmlInit() -> None:  # noqa: N802 - NVML's name
            pass

    nvml = open_nvml(lambda _name: OldPynvml, lambda _name: None)

    assert isinstance(nvml, Nvml)
    assert nvml.call("nvmlGpmSampleAlloc") is Reason.NOT_IN_BINDING
    assert nvml.constant("c_nvmlGpmMetricsGet_t") is None


def test_processes_are_known_with_their_memory(
    driver: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the pid namespace of the host, where a pid means the same to everybody."""
    monkeypatch.setattr(module, "is_of_the_host", lambda: True)
    driver.plays(gpus=2, pid=4711)

    _, gpu = read(driver)
    driver.plays(memory=0)
    _, untold = read(driver)

    assert (gpu.number(Feature.PROCESSES), gpu.processes) == (1, {4711: 2 * GIB})
    assert untold.processes == {4711: None}


def test_in_a_container_only_processes_that_have_the_gpu_open_are_believed(
    driver: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML may tell a pid of the host that is another process here."""
    monkeypatch.setattr(module, "is_of_the_host", lambda: False)
    asked = []

    def has_open(pid: int, minor: int) -> bool:
        asked.append((pid, minor))
        return minor == 1

    monkeypatch.setattr(module, "has_open", has_open)
    driver.plays(gpus=2, pid=4711)

    other, ours = read(driver, times=1)

    assert (other.processes, list(ours.processes)) == ({}, [4711])
    assert other.number(Feature.PROCESSES) == 1
    assert asked == [(4711, 0), (4711, 1)]


def test_a_process_that_has_no_gpu_open_is_found_out() -> None:
    """This one; and one that does not exist."""
    assert not module.has_open(os.getpid(), 0)
    assert not module.has_open(2**22 + 1, 0)


def test_a_gpu_that_reports_no_xids_says_so(driver: Standin) -> None:
    """Only ECC events, as some virtual GPUs."""
    driver.plays(events=3)

    (gpu,) = read(driver)

    assert absent(gpu) == {"xid": Reason.NOT_SUPPORTED}
