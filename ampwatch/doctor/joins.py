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
    from ampwatch.host.fleet.gpus import Gpu, Pass

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


def visible(setting: str, found: Pass) -> Visible:
    """Return what CUDA makes of a value of ``CUDA_VISIBLE_DEVICES``.

    Args:
        setting: Its value.
        found: What NVML shows.

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
    """Report what ``CUDA_VISIBLE_DEVICES`` does, if it is set and NVML shows a GPU.

    Args:
        environ: The environment.
        found: What NVML shows.
    """
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
