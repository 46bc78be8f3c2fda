"""Probe of the host's GPUs: whether they answer, what the daemon would read, who else sees them. No torch here."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import NamedTuple

from ampwatch.doctor.check import Check, Load, State
from ampwatch.doctor.training import UPDATE, Devices
from ampwatch.host.fleet.gpus import (
    CAPABILITY_STATES,
    NOTHING_WRONG,
    Feature,
    Gpu,
    Instance,
    Pass,
    Reason,
)
from ampwatch.host.gpu.nvml import LIBRARY, open_nvml
from ampwatch.host.gpu.source import NvmlSource

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
            version = nvml.call("nvmlSystemGetDriverVersion")
            found = source.read()
        finally:
            source.close()
        driver = f"{LIBRARY} answers" if isinstance(version, Reason) else f"driver {version}"
        checks = [Check("NVML", State.OK, driver), *_checks(found)]
    devices = shown()
    if devices is None:
        return checks
    checks += [seen_by_pytorch(gpu, devices, environ) for gpu in found.gpus if gpu.is_up]
    if devices.kind == "CUDA":  # of other makers' devices NVML knows nothing
        hidden = [device for device in devices.shown if found.hides(device.uuid)]
        checks += [_problem(f"device {device.index}", Reason.NOT_SHOWN) for device in hidden]
    return checks + visible_devices(environ, found)


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
    checks = _checks_of(name, f"{gpu.facts['name']} ({gpu.uuid})", gpu)
    for instance in gpu.instances:
        parts = ", ".join(f"{device.profile} ({device.uuid})" for device in instance.devices)
        checks += _checks_of(f"{name} instance {instance.number}", parts, instance)
    return checks


def _checks_of(name: str, what: str, gpu: Gpu | Instance) -> list[Check]:
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


VARIABLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


# What the daemon reads of a GPU is joined with the ranks on it by the uuid that both sides tell. A number is nobody's
# name: CUDA counts those GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, in an order of its own, and NVML counts all.


class Visible(NamedTuple):
    """What ``CUDA_VISIBLE_DEVICES`` leaves of the devices that NVML shows."""

    names: tuple[str, ...]  # the entries that CUDA takes
    refused: str | None = None  # the entry at which it stops; ``None`` if it takes all
    why: str = ""  # what is wrong with that one


def visible(setting: str, found: Pass) -> Visible:
    """Return what CUDA makes of a value of ``CUDA_VISIBLE_DEVICES``.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables": numbers, uuids or the
    beginnings of uuids that fit one device only; what follows an entry that is none is ignored.
    """
    taken: dict[str, str] = {}
    for entry in map(str.strip, setting.split(",")):
        name, why = _device_of(entry, found)
        if name in taken:
            return Visible((), entry, f"it is {taken[name]!r} once more, and CUDA shows none then")
        if why:
            return Visible(tuple(taken.values()), entry, why)
        taken[name] = entry
    return Visible(tuple(taken.values()))


def _device_of(entry: str, found: Pass) -> tuple[str, str]:
    """Return the device that an entry names and an empty sentence, or what is wrong with it."""
    if number := re.match(r"[+-]?\d+", entry):  # CUDA reads as far as there are digits
        count = len(found.gpus) + len(found.unnamed)
        if 0 <= int(number[0]) < count:
            return str(int(number[0])), ""
        is_below = int(number[0]) < 0
        return "", "a number below 0 ends the list" if is_below else f"the last one is {count - 1}"
    if not entry.startswith(("GPU-", "MIG-")):
        return "", "it is no number, and no uuid with GPU- or MIG-" if entry else "it is empty"
    fitting = [name for name in _names(found.gpus) if name.startswith(entry)]
    if len(fitting) == 1:
        return fitting[0], ""
    return "", f"{len(fitting)} devices begin so" if fitting else "no device here begins so"


def _names(gpus: Sequence[Gpu]) -> list[str]:
    """Return the uuids of all devices, those of MIG devices also as drivers before 470 wrote them."""
    names = [gpu.uuid for gpu in gpus]
    for gpu in gpus:
        for instance in gpu.instances:
            for device in instance.devices:
                names.append(device.uuid)
                names.append(f"MIG-{gpu.uuid}/{instance.number}/{device.compute_instance}")
    return names


def visible_devices(environ: Mapping[str, str], found: Pass) -> list[Check]:
    """Report what ``CUDA_VISIBLE_DEVICES`` does, if it is set and NVML shows a GPU."""
    if VARIABLE not in environ or not found.gpus:
        return []
    setting = environ[VARIABLE]
    left = visible(setting, found)
    if not setting.strip() or (not left.names and setting.strip().startswith("-")):
        return [Check(VARIABLE, State.ABSENT, f"{setting!r} hides all GPUs from CUDA")]
    why = f"CUDA is left with {', '.join(map(repr, left.names)) or 'nothing'}"
    if left.refused is not None:
        why = f"in {setting!r}, {left.refused!r} is no device: {left.why}; {why}"
        return [Check(VARIABLE, State.PROBLEM, why, "name devices as nvidia-smi -L lists them")]
    counts = any(name[:1].isdigit() for name in left.names)
    if counts and len(found.gpus) > 1 and environ.get(ORDER) != "PCI_BUS_ID":
        why += f"; it counts the fastest GPU first: with {ORDER}=PCI_BUS_ID it counts as nvidia-smi does"
    return [Check(VARIABLE, State.OK, why)]


def seen_by_pytorch(gpu: Gpu, found: Devices, environ: Mapping[str, str]) -> Check:
    """Report which devices of PyTorch a GPU is, or why it is none."""
    name = f"GPU {gpu.index} in PyTorch"
    parts = []
    for device in found.shown:
        if gpu.shows(device.uuid):
            instance = gpu.instance_of(device.uuid)
            where = "" if instance is None else f" (instance {instance.number})"
            parts.append(f"device {device.index}{where}")
    if parts:
        why = f"{', '.join(parts)}: its readings are joined with the ranks on it, by uuid"
        return Check(name, State.OK, why)
    if found.kind != "CUDA":
        why = f"it does not see it: this torch is built for {found.build}"
        return Check(name, State.ABSENT, why, "install a torch that is built for CUDA")
    if nameless := ", ".join(str(device.index) for device in found.shown if not device.uuid):
        why = f"unknown: PyTorch reports no uuid for device {nameless}"
        return Check(name, State.ABSENT, why, "ranks are joined by their process where it is known")
    return _unseen(name, gpu, found, environ)


def _unseen(name: str, gpu: Gpu, found: Devices, environ: Mapping[str, str]) -> Check:
    # With a reason beside it, nobody knows whether there is an instance.
    if gpu.answers.get(Feature.MIG) == {"": 1.0} and not gpu.instances:
        why = "it does not see it: it is in MIG mode and has no instance"
        return Check(name, State.PROBLEM, why, "nvidia-smi mig -cgi <profile> -C, or -mig 0")
    known = gpu.facts.get("cuda_version", "")
    if not found.shown and 0 < _major(known) < _major(found.version):
        why = f"it does not see it: the driver knows CUDA up to {known}, this torch is built for {found.version}"
        return Check(name, State.PROBLEM, why, UPDATE)
    if VARIABLE in environ:
        why = f"it does not see it, with {VARIABLE}={environ[VARIABLE]!r}"
        return Check(name, State.ABSENT, why)
    why = "NVML shows it, and PyTorch does not see it"
    return Check(name, State.PROBLEM, why, "see CUDA above, and where libcuda.so.1 comes from")


def _major(version: str) -> int:
    number = version.partition(".")[0]
    return int(number) if number.isdigit() else 0
