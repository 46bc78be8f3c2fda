"""Probe of the training process: torch, its GradScaler, autocast, the CUDA devices, the kernels."""

from __future__ import annotations

import re
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ampwatch.doctor.check import Check, State
from ampwatch.errors import AttachError
from ampwatch.numerics.formats import HALF

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.doctor.check import Load

OLDEST, TESTED = (2, 6), (2, 13)
"""The oldest release of torch that is supported, and the one that the tests run with."""

TENSOR_CORES, BFLOAT16_TENSOR_CORES = (7, 0), (8, 0)
"""Compute capability from which on there are tensor cores for float16, for bfloat16.

Source: CUDA C++ Programming Guide, table of features per compute capability.
"""


def training(load: Load = import_module) -> list[Check]:
    """Check what a training process needs.

    Args:
        load: Imports a module.

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
    return [
        torch_version(torch),
        grad_scaler(torch, load),
        *[cpu_autocast(torch, dtype) for dtype in HALF],
        cpu_kernel(load),
        *cuda_devices(torch),
        *device_kernel(torch),
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


def cuda_devices(torch: Any) -> list[Check]:
    """Report which CUDA or ROCm devices torch sees, or why it sees none."""
    cuda = torch.version.cuda
    hip = getattr(torch.version, "hip", None)
    if cuda is None and hip is None:
        why = "this torch is built for the CPU only"
        remedy = "on a machine with a GPU, install a build for it: pytorch.org/get-started"
        return [Check("CUDA", State.ABSENT, why, remedy)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        build = f"CUDA {cuda}" if cuda else f"ROCm {hip}"
        why = f"this torch is built for {build} and finds no device"
        why += "".join(f"; it says: {warning.message}" for warning in said)
        remedy = "see NVML below; look at CUDA_VISIBLE_DEVICES and, in a container, at --gpus"
        return [Check("CUDA", State.ABSENT, why, remedy)]
    return [_device(torch, index, rocm=cuda is None) for index in range(torch.cuda.device_count())]


def _device(torch: Any, index: int, *, rocm: bool) -> Check:
    name = torch.cuda.get_device_name(index)
    if rocm:
        return Check(f"device {index}", State.OK, f"{name}, through ROCm")
    capability = torch.cuda.get_device_capability(index)
    if capability >= BFLOAT16_TENSOR_CORES:
        cores = "tensor cores for float16 and bfloat16"
    elif capability >= TENSOR_CORES:
        cores = "tensor cores for float16, none for bfloat16"
    else:
        cores = "no tensor cores, so AMP saves memory at best"
    why = f"{name}, compute capability {capability[0]}.{capability[1]}: {cores}"
    return Check(f"device {index}", State.OK, why)


def cpu_kernel(load: Load) -> Check:
    """Return whether the C kernel can be compiled and loaded here, by doing it."""
    if load("ampwatch.training.kernels.native").load() is not None:
        return Check("ranges, CPU", State.OK, "measured by C, compiled here when a training starts")
    why = "no C compiler whose library can be loaded: measured by PyTorch, which takes longer"
    remedy = "install gcc or clang; the temporary directory must allow programs"
    return Check("ranges, CPU", State.ABSENT, why, remedy)


def device_kernel(torch: Any, find: Callable[[str], object] = find_spec) -> list[Check]:
    """Return whether ranges can be measured on the devices that torch sees, if it sees any."""
    if not torch.cuda.is_available():
        return []
    if find("triton") is not None:
        return [Check("ranges, device", State.OK, "measured by Triton")]
    why = "Triton is not installed, so no ranges are measured on a device"
    return [Check("ranges, device", State.ABSENT, why, "pip install triton")]
