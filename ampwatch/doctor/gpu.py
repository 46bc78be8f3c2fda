"""Probe of the host's GPUs: whether they answer, what the daemon would read, who else sees them. No torch here."""

from __future__ import annotations

import os
import time
from importlib import import_module
from typing import TYPE_CHECKING

from ampwatch.doctor.check import Check, State
from ampwatch.doctor.joins import seen_by_pytorch, visible_devices
from ampwatch.host.fleet.gpus import CAPABILITY_STATES, NOTHING_WRONG, Pass, Reason
from ampwatch.host.gpu.nvml import LIBRARY, open_nvml
from ampwatch.host.gpu.source import NvmlSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ampwatch.doctor.check import Load
    from ampwatch.doctor.training import Devices
    from ampwatch.host.fleet.gpus import Gpu, Instance
    from ampwatch.host.gpu.nvml import Nvml

GPM_SECONDS = 0.2
"""Time between the two samples without which GPM has no value. Unit: s."""

REMEDIES = {
    Reason.LIBRARY_NOT_FOUND: "on a machine with a GPU, install the driver; in a container, start it with --gpus",
    Reason.LIBRARY_UNUSABLE: "in a container, have `utility` in NVIDIA_DRIVER_CAPABILITIES, and no libnvidia-ml of its own in the image: an empty one is left there if it was built with GPUs",
    Reason.DRIVER_NOT_LOADED: "load it: modprobe nvidia; nvidia-smi should work then",
    Reason.BINDING_NOT_FOUND: "pip install nvidia-ml-py",
    Reason.NOT_IN_BINDING: "pip install --upgrade nvidia-ml-py",
    Reason.NOT_IN_DRIVER: "update the NVIDIA driver",
    Reason.NO_PERMISSION: "give access to /dev/nvidiactl and /dev/nvidia*; a container that has lost them gets them back when it is restarted",
    Reason.NO_DEVICES: "in a container, start it with --gpus",
    Reason.NOT_SHOWN: "run the daemon where NVML shows it: on the machine itself, or in a container with NVIDIA_VISIBLE_DEVICES=all",
    Reason.VERSION_MISMATCH: "after an update of the driver, reload it or reboot; in a container, take the driver's libraries out of the image: those of the machine are mounted into it",
    Reason.RESET_REQUIRED: "nvidia-smi --gpu-reset, with nothing running on it",
    Reason.GPU_LOST: "look for its XID errors: dmesg | grep -i xid; it may need a reboot",
    Reason.TIMEOUT: "nvidia-smi should hang as well; the machine may need a reboot",
    Reason.ERROR: "nvidia-smi should say the same; a container that has lost its GPUs gets them back when it is restarted",
}

OF_FEATURES = {
    Reason.NO_PERMISSION: "let root run the daemon, or have the driver loaded with NVreg_RestrictProfilingToAdminUsers=0",
}
"""Remedies where NVML answers and one of its features does not."""

ABSENT = frozenset(
    {
        Reason.NOT_SUPPORTED,
        Reason.NOT_IN_DRIVER,
        Reason.NOT_IN_BINDING,
        Reason.WAITING,
        Reason.NO_DATA,
    }
)
"""Reasons for which a feature is absent without anything being wrong."""


def gpus(
    load: Load = import_module,
    find: Callable[[str], object] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    shown: Callable[[], Devices | None] = lambda: None,
    environ: Mapping[str, str] = os.environ,
) -> list[Check]:
    """Check what NVML reports, with the code by which the daemon reads it, and who else sees it.

    Args:
        load: Imports a module.
        find: Loads a shared library, by default as the daemon does.
        sleep: Waits so many seconds.
        shown: Returns what PyTorch shows of devices, ``None`` where there is no PyTorch.
        environ: The environment, which may hide GPUs from CUDA.

    Cost:
        Without a GPU nothing; with some, NVML is opened and all are read twice within a second.
    """
    nvml = open_nvml(load) if find is None else open_nvml(load, find)
    if isinstance(nvml, Pass):
        checks, found = [_of_host("NVML", nvml)], nvml
    else:
        source = NvmlSource(nvml)
        try:
            source.read()
            sleep(GPM_SECONDS)
            checks, found = [_driver(nvml)], source.read()
        finally:
            source.close()
        checks += _checks(found)
    devices = shown()
    if devices is None:
        return checks
    checks += [seen_by_pytorch(gpu, devices, environ) for gpu in found.gpus if gpu.is_up]
    if devices.kind == "CUDA":  # of other makers' devices NVML knows nothing
        hidden = [device for device in devices.shown if found.hides(device.uuid)]
        checks += [_problem(f"device {device.index}", Reason.NOT_SHOWN) for device in hidden]
    return checks + visible_devices(environ, found)


def _driver(nvml: Nvml) -> Check:
    version = nvml.call("nvmlSystemGetDriverVersion")
    driver = f"{LIBRARY} answers" if isinstance(version, Reason) else f"driver {version}"
    return Check("NVML", State.OK, driver)


def _checks(found: Pass) -> list[Check]:
    checks = []
    if found.host is not Reason.OK:
        checks.append(_of_host("GPUs", found))
    for index, reason in found.unnamed.items():
        checks.append(_problem(f"GPU {index}", reason))
    for gpu in found.gpus:
        checks += _of_gpu(gpu)
    return checks


def _of_host(name: str, found: Pass) -> Check:
    state = State.ABSENT if found.host in NOTHING_WRONG else State.PROBLEM
    return Check(name, state, found.text, REMEDIES.get(found.host, ""))


def _of_gpu(gpu: Gpu) -> list[Check]:
    """Return one check for what is read of it and each instance, and one per reason for the rest."""
    name = f"GPU {gpu.index}"
    if not gpu.is_up:
        return [_problem(name, gpu.gone, f"{gpu.uuid}: ")]
    checks = _told(name, f"{gpu.facts['name']} ({gpu.uuid})", gpu)
    for instance in gpu.instances:
        parts = ", ".join(f"{device.profile} ({device.uuid})" for device in instance.devices)
        checks += _told(f"{name} instance {instance.number}", parts, instance)
    return checks


def _told(name: str, what: str, gpu: Gpu | Instance) -> list[Check]:
    by_reason: dict[Reason, list[str]] = {}
    for feature, reason in gpu.capabilities():
        by_reason.setdefault(reason, []).append(feature)
    read = ", ".join(by_reason.pop(Reason.OK, [])) or "nothing"
    checks = [Check(name, State.OK, f"{what}; it reports {read}")]
    for reason in sorted(by_reason, key=lambda reason: CAPABILITY_STATES.index(reason.state)):
        state = State.ABSENT if reason in ABSENT else State.PROBLEM
        why = f"{', '.join(by_reason[reason])}: {reason.text}"
        remedy = OF_FEATURES.get(reason, REMEDIES.get(reason, ""))
        checks.append(Check(f"{name} {reason.value}", state, why, remedy))
    return checks


def _problem(name: str, reason: Reason, what: str = "") -> Check:
    return Check(name, State.PROBLEM, f"{what}{reason.text}", REMEDIES.get(reason, ""))
