"""All GPUs of this machine through NVML: opened, read again and again, closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ampwatch.host.fleet.gpus import Pass, Reason
from ampwatch.host.gpu import pids, readings
from ampwatch.host.gpu.device import Device
from ampwatch.host.gpu.nvml import Nvml, open_nvml
from ampwatch.host.gpu.xid import XidWatcher

if TYPE_CHECKING:
    from ampwatch.host.gpu.xid import Report


class Source(Protocol):
    """A source of readings of GPUs. Used by one thread."""

    def read(self) -> Pass:
        """Return the readings of all GPUs now."""

    def close(self) -> bool:
        """Let go of everything; return whether a new one may be opened in this process."""


class NvmlSource:
    """The GPUs that NVML shows.

    Which there are is found out once: NVML itself does not notice a GPU that comes.

    Args:
        nvml: NVML, which this closes in the end.
        report: Called for each XID error; they are not listened for without it.
    """

    def __init__(self, nvml: Nvml, report: Report | None = None) -> None:
        self._nvml = nvml
        self._host = Reason.OK
        self._devices: list[Device] = []
        self._unnamed: dict[int, Reason] = {}
        self._find()
        self._xids = XidWatcher(
            nvml, {d.uuid: d.handle for d in self._devices}, report or _nobody_listens
        )
        if report is not None and self._devices:
            self._xids.start()

    def read(self) -> Pass:
        """Return the readings of all GPUs now, one after the other."""
        states = self._xids.states
        gpus = [device.read(states.get(device.uuid, Reason.WAITING)) for device in self._devices]
        # Shut down by somebody else in this process, or the driver has gone: the collector opens it anew.
        host = Reason.ERROR if self._nvml.is_lost else self._host
        return Pass(host, gpus, self._unnamed)

    def close(self) -> bool:
        """Give back everything in the order in which NVML wants it.

        Returns:
            Whether NVML was closed. It is not while a call of the other thread hangs in it.
        """
        # First the other thread, then what it uses, then NVML itself.
        if not self._xids.stop():
            return False
        for device in self._devices:
            device.close()
        self._nvml.close()
        return True

    def _find(self) -> None:
        is_host = pids.is_of_the_host()
        count = self._nvml.call("nvmlDeviceGetCount")
        if isinstance(count, Reason):
            self._host = count
            return
        if count == 0:
            self._host = Reason.NO_DEVICES
        for index in range(count):
            handle = self._nvml.call("nvmlDeviceGetHandleByIndex", index)
            uuid = (
                handle
                if isinstance(handle, Reason)
                else self._nvml.call("nvmlDeviceGetUUID", handle)
            )
            if isinstance(uuid, Reason):
                self._unnamed[index] = uuid
            else:
                name = readings.text(uuid)
                self._devices.append(Device(self._nvml, index, handle, name, is_host=is_host))


def open_source(report: Report | None) -> NvmlSource | Pass:
    """Return the GPUs of this machine, or a pass that says why they cannot be asked."""
    nvml = open_nvml()
    if isinstance(nvml, Pass):
        return nvml
    return NvmlSource(nvml, report)


def _nobody_listens(_uuid: str, _code: int) -> None:
    pass
