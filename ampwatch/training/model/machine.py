"""The machine that a training runs on: the GPU and its peaks, or the CPU and its instructions; and its leave to use TF32."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.diagnosis.evidence.ops import Machine
from ampwatch.guard import Suppress
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.units.ops import HALF_DTYPES, OpKind
from ampwatch.report.op_shares import peaks_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.settings import Settings


def allows_tf32(kind: OpKind) -> bool:
    """Whether matmuls, or convolutions, of float32 may use TF32 on a GPU."""
    if kind is OpKind.CONVOLUTION:
        return _allows(torch.backends.cudnn)
    return _allows(torch.backends.cuda.matmul)


def _allows(switches: Any) -> bool:
    # PyTorch 2.9 and newer raises where its older and newer switches were both used. The newer
    # one of cuDNN is split by operation, that of matmul is not.
    try:
        return bool(switches.allow_tf32)
    except RuntimeError:
        switches = getattr(switches, "conv", switches)
        return bool(getattr(switches, "fp32_precision", "") == "tf32")


CPUINFO = Path("/proc/cpuinfo")

CUDA_LIBRARY = "libcuda.so.1"
# Numbers of CUdevice_attribute in cuda.h.
CLOCK_RATE, MEMORY_CLOCK_RATE, MEMORY_BUS_WIDTH = 13, 36, 37

REFUSALS = (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError)
"""Exceptions with which PyTorch refuses to describe a CUDA device: a driver that is too old or has
died, a build without CUDA, an initialisation that failed later than it was asked for."""

MAX_REFUSAL = 200
"""Characters that are kept of the words of a refusal."""

_INSTRUCTIONS = {fmt.name: fmt.cpu_flags for fmt in FORMATS.values() if fmt.cpu_flags}


def machine_of(device: torch.device | None, settings: Settings) -> Machine:
    """Describe the machine that a training runs on.

    Args:
        device: Device of the model's first parameter; ``None`` without one.
        settings: ``peak_flops`` is used.

    Cost:
        Reads a file of some kB; where the device is a GPU, asks PyTorch for its properties.
    """
    facts = gpu_facts(device)
    capability = None
    if "gpu_capability" in facts:
        major, _, minor = facts["gpu_capability"].partition(".")
        capability = int(major), int(minor)
    return Machine(
        device_type="" if device is None else device.type,
        device_name=facts.get("device", ""),
        capability=capability,
        cpu_dtypes=cpu_dtypes(),
        matmul_tf32=allows_tf32(OpKind.MATMUL),
        convolution_tf32=allows_tf32(OpKind.CONVOLUTION),
        cudnn_benchmark=bool(torch.backends.cudnn.benchmark),
        peak_flops=peaks_of(facts | {"peak_flops": settings.peak_flops}).flops,
        memory_bandwidth=float(facts.get("gpu_memory_bandwidth", 0.0)),
    )


def no_peak(device: torch.device | None, settings: Settings) -> str:
    """Return why the peak of a GPU is not known; empty if it is, and without a GPU."""
    if device is None or device.type != "cuda":
        return ""
    return peaks_of(gpu_facts(device) | {"peak_flops": settings.peak_flops}).reason


def cpu_dtypes(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """Return the low-precision dtypes that this CPU has instructions for.

    All of them where the system does not list its instructions: advice needs a known lack.
    """
    line = None
    with Suppress(OSError):
        line = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
    if line is None:
        return HALF_DTYPES
    flags = set(line[1].split())
    return frozenset(dtype for dtype, any_of in _INSTRUCTIONS.items() if any_of & flags)


def gpu_facts(
    device: torch.device | None, find: Callable[[str], Any] = ctypes.CDLL
) -> dict[str, str]:
    """Return the name and the properties of a CUDA device, as facts of the run; empty without one.

    Properties that nobody tells are left out. Where PyTorch cannot describe the device at all,
    ``gpu_unknown`` is its reason. Of AMD's GPUs only the name is a fact: the meaning of the others
    is NVIDIA's.

    Args:
        device: The device.
        find: Loads a shared library, raises OSError where there is none.
    """
    if device is None or device.type != "cuda":
        return {}
    try:
        known = torch.cuda.get_device_properties(device)
    except REFUSALS as error:
        words = str(error).strip().partition("\n")[0][:MAX_REFUSAL]
        return {"device": device.type, "gpu_unknown": words or type(error).__name__}
    facts = {"device": str(known.name)}
    if torch.version.hip is not None:
        return facts
    facts["gpu_capability"] = f"{known.major}.{known.minor}"
    facts["gpu_sms"] = str(known.multi_processor_count)
    if uuid := gpu_uuid(known):
        facts["gpu_uuid"] = uuid

    def number(name: str, attribute: int) -> int:
        try:
            value = getattr(known, name, 0)
        except REFUSALS:  # where PyTorch asks the driver only when it is asked itself
            value = 0
        return value or _attribute(find, device.index, attribute)

    if clock_khz := number("clock_rate", CLOCK_RATE):
        facts["gpu_clock_hertz"] = repr(clock_khz * 1e3)
    memory_khz = number("memory_clock_rate", MEMORY_CLOCK_RATE)
    bits = number("memory_bus_width", MEMORY_BUS_WIDTH)
    if memory_khz and bits:
        # Two transfers per clock, as NVIDIA's own samples reckon.
        facts["gpu_memory_bandwidth"] = repr(2 * memory_khz * 1e3 * bits / 8)
    return facts


def gpu_uuid(known: Any) -> str:
    """Return the name for life of a device, as the driver writes it; empty if PyTorch has none.

    Args:
        known: The properties of the device.
    """
    uuid = str(getattr(known, "uuid", None) or "")
    if not uuid or uuid.startswith(("GPU-", "MIG-")):
        return uuid
    # PyTorch prints 16 bytes without saying whose; only the name of the product tells of MIG mode.
    return f"{'MIG' if ' MIG ' in known.name else 'GPU'}-{uuid}"


def _attribute(find: Callable[[str], Any], ordinal: int | None, attribute: int) -> int:
    """Return an attribute of a device as the CUDA driver tells it, 0 where it does not.

    CUDA 13 took the clocks out of the properties that PyTorch hands on; the driver still has them.
    """
    if ordinal is None:
        return 0
    device, value = ctypes.c_int(), ctypes.c_int()
    with Suppress(OSError):
        driver = find(CUDA_LIBRARY)
        is_known = not driver.cuDeviceGet(ctypes.byref(device), ordinal)
        if is_known and not driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return value.value
    return 0
