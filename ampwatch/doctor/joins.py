"""Which of the two sides sees a GPU, PyTorch or NVML, and whether they mean the same. No torch here.

What the daemon reads of a GPU is joined with the ranks on it by the uuid that both sides tell. A
number is nobody's name: CUDA counts those GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, in an order
of its own, and NVML counts all.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.doctor.check import Check, State
from ampwatch.doctor.training import UPDATE
from ampwatch.host.fleet.gpus import Feature

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ampwatch.doctor.training import Devices
    from ampwatch.host.fleet.gpus import Gpu

VARIABLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


class Visible(NamedTuple):
    """What ``CUDA_VISIBLE_DEVICES`` leaves of the devices that NVML shows.

    Attributes:
        names: The entries that CUDA takes.
        refused: The entry at which it stops; ``None`` if it takes all.
        why: What is wrong with that one.
    """

    names: tuple[str, ...]
    refused: str | None = None
    why: str = ""


def visible(setting: str, gpus: Sequence[Gpu]) -> Visible:
    """Return what CUDA makes of a value of ``CUDA_VISIBLE_DEVICES``.

    Args:
        setting: Its value.
        gpus: The GPUs that NVML shows.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables": numbers, uuids or the
    beginnings of uuids that fit one device only; what follows an entry that is none is ignored.
    """
    taken: dict[str, str] = {}
    for entry in setting.split(","):
        name, why = _device_of(entry.strip(), gpus)
        if name in taken:
            return Visible((), entry, f"it is {taken[name]!r} once more, and CUDA shows none then")
        if why:
            return Visible(tuple(taken.values()), entry, why)
        taken[name] = entry.strip()
    return Visible(tuple(taken.values()))


def _device_of(entry: str, gpus: Sequence[Gpu]) -> tuple[str, str]:
    """Return the device that an entry names and an empty sentence, or what is wrong with it."""
    if number := re.match(r"[+-]?\d+", entry):  # CUDA reads as far as there are digits
        if 0 <= int(number[0]) < len(gpus):
            return str(int(number[0])), ""
        return "", "a number below 0 ends the list" if int(number[0]) < 0 else _none(gpus)
    if not entry.startswith(("GPU-", "MIG-")):
        return "", "it is no number, and no uuid with GPU- or MIG-" if entry else "it is empty"
    found = [name for name in _names(gpus) if name.startswith(entry)]
    if len(found) == 1:
        return found[0], ""
    return "", f"{len(found)} devices begin so" if found else "no device here begins so"


def _none(gpus: Sequence[Gpu]) -> str:
    return f"NVML shows {len(gpus)} GPUs, counted from 0"


def _names(gpus: Sequence[Gpu]) -> list[str]:
    """Return the uuids of all devices, those of MIG devices also as drivers before 470 wrote them."""
    names = [gpu.uuid for gpu in gpus]
    for gpu in gpus:
        for instance in gpu.instances:
            for device in instance.devices:
                names.append(device.uuid)
                names.append(f"MIG-{gpu.uuid}/{instance.number}/{device.compute_instance}")
    return names


def visible_devices(environ: Mapping[str, str], gpus: Sequence[Gpu]) -> list[Check]:
    """Report what ``CUDA_VISIBLE_DEVICES`` does, if it is set.

    Args:
        environ: The environment.
        gpus: The GPUs that NVML shows.
    """
    if VARIABLE not in environ:
        return []
    setting = environ[VARIABLE]
    found = visible(setting, gpus)
    if not setting.strip() or (not found.names and setting.strip().startswith("-")):
        return [Check(VARIABLE, State.ABSENT, f"{setting!r} hides all GPUs from CUDA")]
    if found.refused is not None:
        left = f"CUDA is left with {', '.join(found.names)}" if found.names else "CUDA has none"
        why = f"in {setting!r}, {found.refused.strip()!r} is no device: {found.why}; {left}"
        return [Check(VARIABLE, State.PROBLEM, why, "name devices as nvidia-smi -L lists them")]
    why = f"{setting!r} leaves CUDA {len(found.names)} of {len(gpus)} GPUs"
    counts = any(name[:1].isdigit() for name in found.names)
    if counts and len(gpus) > 1 and environ.get(ORDER) != "PCI_BUS_ID":
        why += f"; its numbers are CUDA's, the fastest GPU first: with {ORDER}=PCI_BUS_ID they are those of nvidia-smi"
    return [Check(VARIABLE, State.OK, why)]


def seen_by_pytorch(gpu: Gpu, found: Devices, environ: Mapping[str, str]) -> Check:
    """Report which devices of PyTorch a GPU is, or why it is none.

    Args:
        gpu: The GPU, as NVML shows it.
        found: What PyTorch shows.
        environ: ``CUDA_VISIBLE_DEVICES`` is looked up.
    """
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
        why = f"nobody knows: device {nameless} of PyTorch tells no uuid"
        return Check(name, State.ABSENT, why, "ranks are joined by their process where it is known")
    return _unseen(name, gpu, found, environ)


def _unseen(name: str, gpu: Gpu, found: Devices, environ: Mapping[str, str]) -> Check:
    if gpu.number(Feature.MIG) and not gpu.instances:
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
