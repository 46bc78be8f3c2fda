"""How XID errors are waited for: back-off, starting over, giving back."""

from __future__ import annotations

from ctypes import c_void_p
from types import SimpleNamespace
from typing import Any

from ampwatch.host.fleet.gpus import Reason
from ampwatch.host.gpu.xid import XidWatcher


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
