"""All GPUs of this machine through NVML: opened, read again and again, closed."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampwatch.host.fleet.gpus import GONE, Feature, Gpu, Instance, MigDevice, Pass, Reason
from ampwatch.host.gpu import gpm, readings
from ampwatch.host.gpu.gpm import Gpm
from ampwatch.host.gpu.nvml import Nvml, open_nvml
from ampwatch.host.gpu.xid import XidWatcher

if TYPE_CHECKING:
    from ampwatch.host.fleet.gpus import Answer, Answers
    from ampwatch.host.gpu.nvml import Nvml
    from ampwatch.host.gpu.xid import Report

    InstanceKey = tuple[int, tuple[MigDevice, ...]]


MIG_ENABLED = 1

INITIAL_NAMESPACE = 0xEFFFFFFC
"""Inode of the host's pid namespace, fixed in Linux (``PROC_PID_INIT_INO``)."""

PROCESS_FUNCTIONS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",
)


class Device:
    """A GPU that NVML has given a handle for.

    Args:
        uuid: Its name for life.
        is_host: The daemon sees the pids of the host.
    """

    def __init__(self, nvml: Nvml, index: int, handle: Any, uuid: str, *, is_host: bool) -> None:
        self.uuid = uuid
        self.handle = handle
        self._nvml = nvml
        self._index = index
        self._is_host = is_host
        self._facts = readings.facts(nvml, handle) | {"synthetic": "false"}
        self._minor = nvml.call("nvmlDeviceGetMinorNumber", handle)
        self._gpm_support = gpm.support(nvml, handle)
        self._gpm = Gpm(nvml, partial(nvml.call, "nvmlGpmSampleGet", handle))
        self._instance_gpm: dict[InstanceKey, Gpm] = {}

    def read(self, xid: Reason) -> Gpu:
        """Return everything that can be read of the GPU; ``xid`` is whether its errors are listened for.

        Cost: Some thirty calls, most of them microseconds.
        """
        gpu = Gpu(self._index, self.uuid, self._facts)
        gpu.answers = readings.read(self._nvml, self.handle)
        # Nothing more is asked of a GPU that is gone: it would answer the same, or not at all.
        if gone := _gone(gpu.answers):
            gpu.answers, gpu.gone = {}, gone
            return gpu
        gpu.answers |= self._activity_by(self._gpm)
        gpu.answers[Feature.XID] = {"": xid}
        processes = self._nvml.first(PROCESS_FUNCTIONS, self.handle)
        # The number of processes is right in any case; whose they are is left out where in doubt.
        known = processes if isinstance(processes, Reason) else float(len(processes))
        gpu.answers[Feature.PROCESSES] = {"": known}
        gpu.processes = self._certain(processes)
        self._read_instances(gpu)
        return gpu

    def close(self) -> None:
        """Give back what was taken of NVML."""
        for sampler in (self._gpm, *self._instance_gpm.values()):
            sampler.close()
        self._instance_gpm.clear()

    def _certain(self, got: Any) -> dict[int, int | None]:
        """Return the memory of those processes whose pid names the same process here."""
        if isinstance(got, Reason):
            return {}
        minor = None if isinstance(self._minor, Reason) else self._minor
        return {p.pid: p.usedGpuMemory for p in got if self._is_host or has_open(p.pid, minor)}

    def _read_instances(self, gpu: Gpu) -> None:
        mode = self._nvml.call("nvmlDeviceGetMigMode", self.handle)
        if isinstance(mode, Reason):
            gpu.answers[Feature.MIG] = {"": mode}
            return
        is_enabled = mode[0] == MIG_ENABLED
        parts: dict[str, Answer] = {"": float(is_enabled)}
        gpu.answers[Feature.MIG] = parts
        known, self._instance_gpm = self._instance_gpm, {}
        for key, handles in self._instances(parts) if is_enabled else ():
            # An id that comes again with other devices is another instance.
            take = partial(self._nvml.call, "nvmlGpmMigSampleGet", self.handle, key[0])
            sampler = known.pop(key, None) or Gpm(self._nvml, take)
            self._instance_gpm[key] = sampler
            answers: Answers = {Feature.MEMORY: readings.memory(self._nvml, handles[0])}
            answers |= self._activity_by(sampler)
            instance = Instance(*key, answers)
            # The GPU itself names the processes of its instances only to a privileged user.
            for handle in handles:
                instance.processes |= self._certain(self._nvml.first(PROCESS_FUNCTIONS, handle))
            gpu.instances.append(instance)
        for sampler in known.values():
            sampler.close()

    def _instances(self, parts: dict[str, Answer]) -> list[tuple[InstanceKey, list[Any]]]:
        """Return the GPU instances, each with the handles of its MIG devices.

        Why one of them cannot be looked at goes into ``parts``, as ``devices``.
        """
        found: dict[int, list[MigDevice]] = {}
        handles: dict[int, list[Any]] = {}
        count = self._nvml.call("nvmlDeviceGetMaxMigDeviceCount", self.handle)
        if isinstance(count, Reason):
            parts["devices"] = count
            return []
        for index in range(count):
            handle = self._nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", self.handle, index)
            if isinstance(handle, Reason):
                if handle is not Reason.NO_DATA:  # which is a place that is empty
                    parts["devices"] = handle
                continue
            number = self._nvml.call("nvmlDeviceGetGpuInstanceId", handle)
            compute = self._nvml.call("nvmlDeviceGetComputeInstanceId", handle)
            if isinstance(number, Reason) or isinstance(compute, Reason):
                continue  # it was taken down just now
            _, _, profile = readings.text(self._nvml.call("nvmlDeviceGetName", handle)).partition(
                " MIG "
            )
            uuid = readings.text(self._nvml.call("nvmlDeviceGetUUID", handle))
            found.setdefault(number, []).append(MigDevice(uuid, compute, profile))
            handles.setdefault(number, []).append(handle)
        return [((number, tuple(found[number])), handles[number]) for number in sorted(found)]

    def _activity_by(self, sampler: Gpm) -> Answers:
        if self._gpm_support is not Reason.OK:
            return gpm.nothing(self._gpm_support)
        return sampler.read()


def _gone(answers: Answers) -> Reason | None:
    """Return why the GPU itself does not answer: it says so, or there is not one number."""
    found = [answer for parts in answers.values() for answer in parts.values()]
    reasons = [answer for answer in found if isinstance(answer, Reason)]
    gone = next((reason for reason in reasons if reason in GONE), None)
    return gone or (reasons[0] if len(reasons) == len(found) else None)


def is_of_the_host() -> bool:
    """Return whether this process is in the pid namespace of the host.

    The pids that NVML returns are those of the host or, with a newer driver, of the caller's
    namespace: in a container a pid could be another process's.
    """
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == INITIAL_NAMESPACE
    except OSError:
        return False


def has_open(pid: int, minor: int | None) -> bool:
    """Return whether the process that has ``pid`` here uses the GPU ``/dev/nvidia<minor>``.

    ``False`` as well if this user may not see that, or the number is not known.
    """
    if minor is None:
        return False
    device = Path(f"/dev/nvidia{minor}")
    with suppress(OSError):
        # Each by itself: a descriptor can be closed between the listing and the reading.
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if link.readlink() == device:
                    return True
    return False


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
        handles = {device.uuid: device.handle for device in self._devices}
        self._xids = XidWatcher(nvml, handles, report or (lambda _uuid, _code: None))
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
        is_host = is_of_the_host()
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
