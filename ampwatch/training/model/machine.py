"""The machine that a training runs on: the GPU and its peaks, or the CPU and its instructions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ampwatch.diagnosis.evidence.ops import Machine
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.units.ops import HALF_DTYPES, OpKind
from ampwatch.numerics.units.peaks import parse_override, peak_flops
from ampwatch.training.model.tf32 import allows_tf32

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ampwatch.settings import Settings

CPUINFO = Path("/proc/cpuinfo")

_INSTRUCTIONS = {fmt.name: fmt.cpu_flags for fmt in FORMATS.values() if fmt.cpu_flags}


def machine_of(device: torch.device | None, settings: Settings, cpuinfo: Path = CPUINFO) -> Machine:
    """Describe the machine that a training runs on.

    Args:
        device: Device of the model's first parameter; ``None`` without one.
        settings: ``peak_flops`` is used.
        cpuinfo: File in which Linux describes the CPU.

    Raises:
        SettingsError: If the setting is not of its form.

    Cost:
        Reads a file of some kB; where the device is a GPU, asks PyTorch for its properties.
    """
    facts = gpu_facts(device)
    name = torch.cuda.get_device_name(device) if facts else ""
    peaks: Mapping[str, float] = {}
    capability = None
    if "gpu_capability" in facts:
        major, _, minor = facts["gpu_capability"].partition(".")
        capability = int(major), int(minor)
        clock = float(facts.get("gpu_clock_hertz", 0.0))
        peaks = peak_flops(capability, int(facts["gpu_sms"]), clock, name).flops
    return Machine(
        device_type="" if device is None else device.type,
        device_name=name,
        capability=capability,
        cpu_dtypes=cpu_dtypes(cpuinfo),
        matmul_tf32=allows_tf32(OpKind.MATMUL),
        convolution_tf32=allows_tf32(OpKind.CONVOLUTION),
        cudnn_benchmark=bool(torch.backends.cudnn.benchmark),
        peak_flops={**peaks, **parse_override(settings.peak_flops)},
        memory_bandwidth=float(facts.get("gpu_memory_bandwidth", 0.0)),
    )


def cpu_dtypes(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """Return the low-precision dtypes that this CPU has instructions for.

    All of them where the system does not list its instructions: advice needs a known lack.
    """
    try:
        text = cpuinfo.read_text()
    except OSError:
        return HALF_DTYPES
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    if line is None:
        return HALF_DTYPES
    flags = set(line[1].split())
    return frozenset(dtype for dtype, any_of in _INSTRUCTIONS.items() if any_of & flags)


def gpu_facts(device: torch.device | None) -> dict[str, str]:
    """Return the properties of an NVIDIA GPU, as facts of the run; empty without one.

    Properties that this version of PyTorch does not have are left out.
    """
    if device is None or device.type != "cuda" or torch.version.hip is not None:
        return {}
    known = torch.cuda.get_device_properties(device)
    facts = {
        "gpu_capability": f"{known.major}.{known.minor}",
        "gpu_sms": str(known.multi_processor_count),
    }
    uuid = getattr(known, "uuid", None)
    # With one prefix, however PyTorch prints it: NVML's has it, and both must name the same GPU.
    if uuid is not None:
        facts["gpu_uuid"] = f"GPU-{str(uuid).removeprefix('GPU-')}"
    clock_khz = getattr(known, "clock_rate", 0)
    if clock_khz:
        facts["gpu_clock_hertz"] = repr(clock_khz * 1e3)
    memory_khz = getattr(known, "memory_clock_rate", 0)
    bits = getattr(known, "memory_bus_width", 0)
    if memory_khz and bits:
        # Two transfers per clock, as NVIDIA's own samples reckon.
        facts["gpu_memory_bandwidth"] = repr(2 * memory_khz * 1e3 * bits / 8)
    return facts
