"""Probe of the training process: torch, its GradScaler, autocast, the CUDA devices, the kernels."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ampwatch.doctor.check import Check, Load, State
from ampwatch.errors import AttachError
from ampwatch.numerics.formats import HALF

OLDEST, TESTED = (2, 6), (2, 13)
"""The oldest release of torch that is supported, and the one that the tests run with."""

TENSOR_CORES, BFLOAT16_TENSOR_CORES = (7, 0), (8, 0)
"""Compute capability from which on there are tensor cores for float16, for bfloat16.

Source: CUDA C++ Programming Guide, table of features per compute capability.
"""

BUILDS = {"CUDA": "cuda", "ROCm": "hip", "XPU": "xpu"}
"""Kinds of devices that PyTorch is built for, and where it keeps the version of each."""

NO_DRIVER = "Found no NVIDIA driver"
"""Words of a PyTorch for CUDA on a machine without a GPU, where nothing is wrong."""

UPDATE = "update the NVIDIA driver, or install a torch built for a CUDA that it knows"
TROUBLE = {
    "driver on your system is too old": UPDATE,
    "driver version is insufficient": UPDATE,
    "Error 802": "start nvidia-fabricmanager, without which these GPUs do not compute",
    "Error 803": "have one libcuda of the driver's version: take cuda-compat, or the image's own driver, out of LD_LIBRARY_PATH",
    "Error 804": "take cuda-compat out of LD_LIBRARY_PATH: this GPU does not support it; update the NVIDIA driver instead",
    "Error 999": "nvidia-smi should say more; reload nvidia_uvm, or restart the container or the machine",
}
"""Remedies by what PyTorch says when CUDA ought to work and does not.

Source: CUDA Runtime API, cudaError: 35, 802, 803, 804, 999.
"""


@dataclass(frozen=True, slots=True)
class Shown:
    """A device that PyTorch shows to this process."""

    index: int  # number that PyTorch gives it
    name: str = ""  # name of the product
    uuid: str = ""  # name for life as the driver writes it; empty if PyTorch does not tell
    capability: tuple[int, int] = (0, 0)  # CUDA compute capability, (0, 0) if it has none
    trouble: str = ""  # why it cannot be described, in PyTorch's words; empty if it can


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices that PyTorch shows to this process."""

    kind: str = ""  # what this PyTorch is built for, a key of ``BUILDS``; empty for the CPU only
    version: str = ""  # version of that
    shown: tuple[Shown, ...] = ()
    trouble: str = ""  # why there is none, in PyTorch's words; empty if it says nothing

    @property
    def build(self) -> str:
        """What this PyTorch is built for, in words."""
        return f"{self.kind} {self.version}" if self.kind else "the CPU only"


def shown_devices(load: Load = import_module) -> Devices | None:
    """Return what PyTorch shows of devices, ``None`` where there is no PyTorch.

    Cost:
        Initialises CUDA, which takes up to some seconds and memory on each device.
    """
    try:
        torch = load("torch")
    except (ImportError, OSError):
        return None
    return devices_of(torch, load("ampwatch.training.model.machine"))


def training(
    load: Load = import_module, shown: Callable[[], Devices | None] = shown_devices
) -> list[Check]:
    """Check what a training process needs.

    Cost:
        Imports torch, a second or two. On CUDA only properties are asked for.
    """
    try:
        torch = load("torch")
    except ModuleNotFoundError:
        why = f"{sys.executable} has no torch; the daemon and the page do without"
        return [Check("torch", State.ABSENT, why, "pip install torch, where training happens")]
    except (ImportError, OSError) as error:
        why = f"it is installed, but cannot be imported: {error}"
        return [Check("torch", State.PROBLEM, why, "reinstall torch with the CUDA it asks for")]
    found = shown() or Devices()
    return [
        torch_version(torch),
        grad_scaler(torch, load),
        *[cpu_autocast(torch, dtype) for dtype in HALF],
        cpu_kernel(load),
        *device_checks(found, load=load),
        *device_kernel(found, load),
    ]


def torch_version(torch: Any) -> Check:
    """Return whether this release of torch is supported, and whether it is the tested one."""
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    release = (int(found[1]), int(found[2])) if found else OLDEST
    oldest = "{}.{}".format(*OLDEST)
    tested = "{}.{}".format(*TESTED)
    if release < OLDEST:
        why = f"{torch.__version__} is older than what ampwatch supports ({oldest} and newer)"
        return Check("torch", State.PROBLEM, why, "pip install --upgrade torch")
    if release == TESTED:
        return Check("torch", State.OK, f"{torch.__version__}, the release the tests run with")
    why = f"{torch.__version__}, supported ({oldest} and newer); the tests run with {tested}"
    return Check("torch", State.OK, why)


def grad_scaler(torch: Any, load: Load) -> Check:
    """Return whether GradScaler keeps its state where the loss-scale sensor reads it."""
    try:
        check_scaler = load("ampwatch.training.model.scaler").check_scaler
        check_scaler(torch.amp.GradScaler("cpu"))
    except (AttachError, AttributeError, TypeError) as error:
        why = f"the loss scale cannot be watched: {error}"
        return Check("GradScaler", State.PROBLEM, why, "upgrade ampwatch, or use a tested torch")
    why = "loss scale, skipped steps and growth can be watched"
    return Check("GradScaler", State.OK, why)


def cpu_autocast(torch: Any, dtype: str) -> Check:
    """Return whether autocast on the CPU really multiplies matrices in ``dtype``."""
    name = f"{dtype} autocast, CPU"
    wanted = getattr(torch, dtype)
    try:
        ones = torch.ones(8, 8)
        with torch.autocast("cpu", dtype=wanted):
            got = (ones @ ones).dtype
    except RuntimeError as error:
        why = f"this torch refuses it: {error}"
        return Check(name, State.PROBLEM, why, "upgrade torch, or train on CUDA")
    if got is not wanted:
        why = f"a matrix product came out as {got}"
        return Check(name, State.PROBLEM, why, "upgrade torch, or train on CUDA")
    return Check(name, State.OK, "matrix products run in it")


def devices_of(torch: Any, machine: Any) -> Devices:
    """Ask ``torch`` for its devices, once; nothing that it says or raises gets past this.

    Args:
        torch: The module.
        machine: ``ampwatch.training.model.machine``, which knows how PyTorch refuses.
    """
    versions = (getattr(torch.version, name, None) for name in BUILDS.values())
    kind, version = next(
        ((kind, version) for kind, version in zip(BUILDS, versions, strict=True) if version),
        ("", ""),
    )
    backend = torch.xpu if kind == "XPU" else torch.cuda
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            count = backend.device_count() if kind and backend.is_available() else 0
            trouble = ""
        except machine.REFUSALS as error:
            count, trouble = 0, _first_line(error)
        devices = tuple(_shown(backend, index, machine) for index in range(count))
    # A device that works has had its say by then: what PyTorch grumbles of is another matter.
    words = trouble or "; ".join(_first_line(warning.message) for warning in caught)
    return Devices(kind, str(version), devices, "" if devices else words)


def _shown(backend: Any, index: int, machine: Any) -> Shown:
    try:
        known = backend.get_device_properties(index)
    except machine.REFUSALS as error:
        return Shown(index, trouble=_first_line(error))
    capability = (getattr(known, "major", 0), getattr(known, "minor", 0))
    return Shown(index, str(known.name), machine.gpu_uuid(known), capability)


def _first_line(words: object) -> str:
    return str(words).strip().partition("\n")[0]


def device_checks(
    found: Devices, environ: Mapping[str, str] = os.environ, load: Load = import_module
) -> list[Check]:
    """Report which devices PyTorch sees, or why it sees none."""
    if not found.kind:
        why = "this torch is built for the CPU only"
        remedy = "on a machine with a GPU, install a build for it: pytorch.org/get-started"
        return [Check("CUDA", State.ABSENT, why, remedy)]
    if found.shown:
        beside = load("ampwatch.training.devices").limitation(_type_of(found.kind))
        return [_device(device, found.kind, beside) for device in found.shown]
    why = f"this torch is built for {found.build} and finds no device"
    if "CUDA_VISIBLE_DEVICES" in environ:
        why += f", with CUDA_VISIBLE_DEVICES={environ['CUDA_VISIBLE_DEVICES']!r}"
    if found.trouble:
        why += f"; it says: {found.trouble}"
    is_absent = not found.trouble or NO_DRIVER in found.trouble
    otherwise = "see GPU below; look at CUDA_VISIBLE_DEVICES and, in a container, at --gpus"
    remedy = next((TROUBLE[words] for words in TROUBLE if words in found.trouble), otherwise)
    return [Check(found.kind, State.ABSENT if is_absent else State.PROBLEM, why, remedy)]


def _type_of(kind: str) -> str:
    """Return the type of the devices of a kind of build: ROCm's are of type ``cuda``."""
    return "xpu" if kind == "XPU" else "cuda"


def _device(device: Shown, kind: str, beside: str) -> Check:
    name = f"device {device.index}"
    if device.trouble:
        why = f"PyTorch counts it and cannot use it: {device.trouble}"
        remedy = "see GPU below; dmesg | grep -i xid says whether it broke"
        return Check(name, State.PROBLEM, why, remedy)
    if kind != "CUDA":
        why = f"{device.name}, through {kind}: its numbers are watched; what the daemon reads is of NVIDIA's GPUs only"
        why += f"; {beside}" if beside else ""
        return Check(name, State.OK, why, "for shares of its peak, set peak_flops")
    if device.capability >= BFLOAT16_TENSOR_CORES:
        cores = "tensor cores for float16 and bfloat16"
    elif device.capability >= TENSOR_CORES:
        cores = "tensor cores for float16, none for bfloat16"
    else:
        cores = "no tensor cores, so AMP saves memory at best"
    major, minor = device.capability
    return Check(name, State.OK, f"{device.name}, compute capability {major}.{minor}: {cores}")


def cpu_kernel(load: Load) -> Check:
    """Return whether ampwatch has its C part here."""
    core = load("ampwatch.training.native").core
    if core is not None:
        return Check("ranges, CPU", State.OK, f"measured in C, with {core.instructions()[0]}")
    why = (
        "ampwatch was installed without its C part: measured by PyTorch, which takes three times as"
        " long, and each step is watched in Python alone"
    )
    remedy = (
        "install a wheel for this machine, or gcc and the headers of this Python (Debian:"
        " python3-dev) and then ampwatch again"
    )
    return Check("ranges, CPU", State.ABSENT, why, remedy)


HEADERS = Path(sysconfig.get_paths()["include"], "Python.h")

NEEDED = {
    "Triton, which": "pip install triton, at the version that this torch asks for",
    "C compiler": "install gcc or clang, or name one in CC: Triton compiles its launcher with it",
    "Python.h": "install the headers of this Python (Debian: python3-dev), for Triton's launcher",
    "Read-only": "set TRITON_CACHE_DIR to a folder that can be written to",
    "Permission": "set TRITON_CACHE_DIR to a folder that can be written to",
    "out of memory": "free some memory of the device: the slabs of a training take up to 80 MB",
}
"""Remedies by what is said where the kernel for a device cannot be made ready."""


def device_kernel(
    found: Devices, load: Load = import_module, headers: Path = HEADERS
) -> list[Check]:
    """Return whether ranges can be measured on the devices that PyTorch sees, by compiling for one."""
    usable = [device for device in found.shown if not device.trouble]
    if not usable:
        return []
    device = load("torch").device(_type_of(found.kind), usable[0].index)
    if found.kind == "XPU":
        why = "there is a kernel for CUDA and ROCm only, so ranges are not measured"
        return [Check("ranges, device", State.ABSENT, why)]
    reason = load("ampwatch.training.transfer.measuring").kernel_trouble(device)
    if not reason:
        return [Check("ranges, device", State.OK, "measured by Triton, compiled here just now")]
    # Triton says that gcc has failed, and gcc says why on stderr.
    if "exit status" in reason and not headers.exists():
        reason += f"; there is no {headers}"
    otherwise = "the words are PyTorch's or Triton's; everything but ranges is watched anyway"
    remedy = next((NEEDED[words] for words in NEEDED if words in reason), otherwise)
    return [Check("ranges, device", State.PROBLEM, f"not measured: {reason}", remedy)]
