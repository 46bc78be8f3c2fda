"""The daemon as a process, with a driver that is a stand-in, with none, and with synthetic GPUs; errors of drivers."""

from __future__ import annotations

from ctypes import c_void_p
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ampwatch.host.fleet.gpus import Reason
from ampwatch.host.gpu import source as module
from ampwatch.host.gpu.xid import XidWatcher
from ampwatch.wire.ring import RingReader
from tests.host.daemon.parts import Daemon, Place, eventually
from tests.host.gpu.standin import directory_of_library, write


def driver(tmp_path: Path, **settings: object) -> dict[str, str]:
    """Return the environment in which the stand-in is the driver."""
    write(tmp_path / "driver", settings)
    library = str(directory_of_library())
    return {"NVML_STANDIN": str(tmp_path / "driver"), "LD_LIBRARY_PATH": library}


def metrics(daemon: Daemon, wanted: str) -> str:
    """Wait for ``wanted`` in a scrape; return the scrape."""

    def scrape() -> str:
        text = daemon.ask("/metrics").text
        return text if wanted in text else ""

    return eventually(scrape, wanted)


@pytest.mark.rotating
def test_a_driver_is_found_and_read(place: Place, tmp_path: Path) -> None:
    """By the loader of the system, with an XID error that comes later and a rank that computes."""
    environment = driver(tmp_path, gpus=8)
    with place.daemon(**environment) as daemon, place.writer("gpt") as writer:
        writer.do("step")
        text = metrics(daemon, "ampwatch_gpu_tensor_active_ratio{")
        write(
            tmp_path / "driver",
            {"gpus": 8, "xids": "5:79", "pid": writer.process.pid},
        )
        later = metrics(daemon, 'ampwatch_gpu_xid_last_timestamp_seconds{gpu="5"')
        if module.is_of_the_host():  # else nobody believes a pid of the stand-in
            metrics(
                daemon,
                'gpu_process_info{gpu="0",gpu_instance="",rank="0",run="gpt",uuid="GPU-00000000"} 1.0',
            )
        state = daemon.ask("/state.json").json["gpus"]

    assert 'ampwatch_gpu_up{gpu="7",uuid="GPU-00000007"} 1.0' in text
    assert 'ampwatch_collector_success{collector="gpu"} 1.0' in text
    assert 'ampwatch_gpu_xid_errors_total{gpu="5",uuid="GPU-00000005",xid="79"} 1.0' in later
    assert len(state["gpus"]) == 8


def test_the_writer_of_a_ring_is_known_by_its_pid(place: Place) -> None:
    """The kernel says the pid as this process sees it; the writer's own word is not needed."""
    with place.writer("gpt") as writer:
        writer.do("step")
        reader = RingReader(writer.path)
        before = reader.writer_pid
        reader.writer_alive()
        alive = reader.writer_pid
        writer.kill()
        reader.writer_alive()

    assert (before, alive, reader.writer_pid) == (0, writer.process.pid, 0)
    reader.close()


@pytest.mark.rotating
def test_a_driver_that_hangs_stalls_no_scrape(place: Place, tmp_path: Path) -> None:
    """The rings are read and the page is served while NVML does not answer."""
    environment = driver(tmp_path, hang=600)
    with place.daemon(**environment) as daemon, place.writer("gpt") as writer:
        writer.do("step")
        text = metrics(daemon, 'ampwatch_steps_total{rank="0",run="gpt"} 1.0')

    assert 'feature="nvml",gpu="",reason="waiting"' in text
    assert 'collector="gpu"' not in text


def test_gpus_can_be_left_alone(place: Place, tmp_path: Path) -> None:
    """Where dcgm-exporter reads them; nothing of NVIDIA's is loaded then."""
    with place.daemon("--no-gpu", **driver(tmp_path)) as daemon:
        text = metrics(daemon, "switched_off")
        loaded = Path(f"/proc/{daemon.process.pid}/maps").read_text(encoding="utf-8")

    assert "ampwatch_gpu_up{" not in text
    assert "libnvidia-ml" not in loaded


def test_synthetic_gpus_are_shown_on_request(place: Place) -> None:
    """Synthetic GPUs are marked as what they are."""
    with place.daemon("--demo-gpu") as daemon:
        text = metrics(daemon, "ampwatch_gpu_up{")

    assert text.count("ampwatch_gpu_up{") == text.count('synthetic="true"') == 4


class Driver:
    """Answers ``nvmlEventSetWait_v2`` from a list; everything else succeeds unless it is told."""

    def __init__(self, *waits: Any, **failing: Reason) -> None:
        self.waits = list(waits)
        self.failing = failing
        self.calls: list[str] = []

    def call(self, name: str, *_: Any) -> Any:
        self.calls.append(name)
        if name in self.failing:
            return self.failing[name]
        if name == "nvmlEventSetWait_v2":
            return self.waits.pop(0)
        return {"nvmlDeviceGetSupportedEventTypes": 0x8, "nvmlEventSetCreate": object()}.get(name)


def event(address: int, code: int, kind: int = 0x8) -> SimpleNamespace:
    return SimpleNamespace(device=c_void_p(address), eventType=kind, eventData=code)


def listen(driver: Driver, pauses: int) -> tuple[list[tuple[str, int]], list[float], XidWatcher]:
    """Listen until the driver has failed so often; return errors, waits and the watcher."""
    seen: list[tuple[str, int]] = []
    waited: list[float] = []

    def pause(seconds: float) -> bool:
        waited.append(seconds)
        return len(waited) == pauses

    handles = {"GPU-a": c_void_p(1), "GPU-b": c_void_p(2)}
    watcher = XidWatcher(driver, handles, lambda *error: seen.append(error), pause)
    watcher.run()
    return seen, waited, watcher


def test_errors_are_reported_with_their_gpu() -> None:
    """Other events, and those of a GPU that is not ours, are not."""
    driver = Driver(
        event(2, 79), event(1, 31), event(1, 4, kind=0x4), event(3, 79), Reason.GPU_LOST
    )

    seen, _, _ = listen(driver, pauses=1)

    assert seen == [("GPU-b", 79), ("GPU-a", 31)]


def test_after_an_error_of_the_driver_it_waits_longer_each_time() -> None:
    """From 1 s to 30 s, with a new event set each time; one answer, and it starts at 1 s again."""
    lost = [Reason.GPU_LOST] * 6
    driver = Driver(*lost, Reason.TIMEOUT, Reason.ERROR)

    _, waited, watcher = listen(driver, pauses=7)

    assert waited == [1, 2, 4, 8, 16, 30, 1]
    assert watcher.stop()
    assert driver.calls.count("nvmlEventSetCreate") == driver.calls.count("nvmlEventSetFree") == 7


def test_a_timeout_is_how_a_quiet_second_ends() -> None:
    """No pause, no new event set."""
    driver = Driver(Reason.TIMEOUT, Reason.TIMEOUT, event(1, 48), Reason.ERROR)

    seen, waited, _ = listen(driver, pauses=1)

    assert (seen, waited) == ([("GPU-a", 48)], [1])
    assert driver.calls.count("nvmlEventSetCreate") == 1


def test_it_says_for_which_gpu_it_cannot_listen() -> None:
    """The watcher asks again, in case that changes."""
    refused = Driver(nvmlDeviceRegisterEvents=Reason.NO_PERMISSION)
    missing = Driver(nvmlEventSetCreate=Reason.NOT_IN_DRIVER)

    _, waited, watcher = listen(refused, pauses=3)
    _, _, deaf = listen(missing, pauses=1)

    assert watcher.states == dict.fromkeys(("GPU-a", "GPU-b"), Reason.NO_PERMISSION)
    assert deaf.states == dict.fromkeys(("GPU-a", "GPU-b"), Reason.NOT_IN_DRIVER)
    assert waited == [1, 2, 4]
    assert "nvmlEventSetWait_v2" not in refused.calls
