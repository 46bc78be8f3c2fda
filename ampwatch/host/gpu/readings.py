"""Readings of one device by NVML: a function per feature, in the base units of Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ampwatch.host.fleet.gpus import THROTTLE_REASONS, Feature, Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.host.fleet.gpus import Answer, Answers
    from ampwatch.host.gpu.nvml import Nvml

    Parts = dict[str, Answer]

CLOCK_DOMAINS = {"sm": 1, "memory": 2}
ECC_SEVERITIES = {"corrected": 0, "uncorrected": 1}
SINCE_DRIVER_LOAD = 0
CORE_SENSOR = 0

# Numbers of fields (NVML_FI_DEV_*). Those of the slowdowns were others for a while in
# pynvml and nvml.h, so they are not taken from there.
MEMORY_TEMPERATURE = 82
THROTTLE_FIELDS = dict(zip(THROTTLE_REASONS, (74, 76, 77, 79, 269, 270, 271), strict=True))
THERMAL = 75
"""All thermal slowdown, for drivers that count its two kinds together."""


def _scaled(answer: Any, scale: float) -> Answer:
    return answer if isinstance(answer, Reason) else float(answer) * scale


def _utilization(nvml: Nvml, handle: Any) -> Parts:
    rates = nvml.call("nvmlDeviceGetUtilizationRates", handle)
    return {"": rates if isinstance(rates, Reason) else rates.gpu / 100}


def memory(nvml: Nvml, handle: Any) -> dict[str, Answer]:
    """Return the memory of a device or MIG device; before v2, what is reserved counts as used."""
    version = nvml.constant("nvmlMemory_v2")
    got: Any = Reason.NOT_IN_BINDING
    if version is not None:
        got = nvml.call("nvmlDeviceGetMemoryInfo", handle, version)
    reserved = got if isinstance(got, Reason) else float(got.reserved)
    if reserved is Reason.NOT_IN_DRIVER or reserved is Reason.NOT_IN_BINDING:
        got = nvml.call("nvmlDeviceGetMemoryInfo", handle)
    if isinstance(got, Reason):
        return dict.fromkeys(("used", "reserved", "capacity"), got)
    return {"used": float(got.used), "reserved": reserved, "capacity": float(got.total)}


def _in_thousandths(function: str) -> Callable[[Nvml, Any], Parts]:
    return lambda nvml, handle: {"": _scaled(nvml.call(function, handle), 1e-3)}


def _clock(function: str) -> Callable[[Nvml, Any], Parts]:
    def read(nvml: Nvml, handle: Any) -> Parts:
        return {
            domain: _scaled(nvml.call(function, handle, number), 1e6)
            for domain, number in CLOCK_DOMAINS.items()
        }

    return read


def _ecc(nvml: Nvml, handle: Any) -> Parts:
    return {
        severity: _scaled(
            nvml.call("nvmlDeviceGetTotalEccErrors", handle, number, SINCE_DRIVER_LOAD), 1
        )
        for severity, number in ECC_SEVERITIES.items()
    }


def _remapped_rows(nvml: Nvml, handle: Any) -> Parts:
    got = nvml.call("nvmlDeviceGetRemappedRows", handle)
    if isinstance(got, Reason):
        return dict.fromkeys(("pending", "failure"), got)
    _correctable, _uncorrectable, pending, failure = got
    return {"pending": float(pending), "failure": float(failure)}


def _fields(nvml: Nvml, handle: Any) -> Answers:
    """Read everything that is a field in one call."""
    heat, *slowed = nvml.fields(handle, [MEMORY_TEMPERATURE, *THROTTLE_FIELDS.values(), THERMAL])
    core = nvml.first(
        ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"), handle, CORE_SENSOR
    )
    return {
        Feature.TEMPERATURE: {"gpu": _scaled(core, 1), "memory": heat},
        Feature.THROTTLE: _throttle([_scaled(answer, 1e-9) for answer in slowed]),
    }


def _throttle(seconds: list[Answer]) -> Parts:
    """Name the answers; those that an old driver gives twice or not at all count once."""
    parts = dict(zip(THROTTLE_FIELDS, seconds, strict=False))
    kinds = ("sw_thermal", "hw_thermal")
    if all(isinstance(parts[kind], Reason) for kind in kinds) and not isinstance(
        seconds[-1], Reason
    ):
        parts["thermal"] = seconds[-1]
    return parts


_READERS: dict[Feature, Callable[[Nvml, Any], Parts]] = {
    Feature.UTILIZATION: _utilization,
    Feature.MEMORY: memory,
    Feature.POWER: _in_thousandths("nvmlDeviceGetPowerUsage"),
    Feature.POWER_LIMIT: _in_thousandths("nvmlDeviceGetEnforcedPowerLimit"),
    Feature.CLOCK: _clock("nvmlDeviceGetClockInfo"),
    Feature.CLOCK_MAX: _clock("nvmlDeviceGetMaxClockInfo"),
    Feature.ECC: _ecc,
    Feature.REMAPPED_ROWS: _remapped_rows,
}


def read(nvml: Nvml, handle: Any) -> Answers:
    """Return the readings of a device without GPM, and without anything that takes long."""
    answers = {feature: reader(nvml, handle) for feature, reader in _READERS.items()}
    return answers | _fields(nvml, handle)


def facts(nvml: Nvml, handle: Any) -> dict[str, str]:
    """Return what does not change about a device; what is not known is empty."""
    capability = nvml.call("nvmlDeviceGetCudaComputeCapability", handle)
    bus = nvml.call("nvmlDeviceGetPciInfo", handle)
    cuda = nvml.call("nvmlSystemGetCudaDriverVersion")
    return {
        "name": text(nvml.call("nvmlDeviceGetName", handle)),
        "pci_bus_id": "" if isinstance(bus, Reason) else text(bus.busId).lower(),
        "compute_capability": (
            "" if isinstance(capability, Reason) else "{}.{}".format(*capability)
        ),
        "driver_version": text(nvml.call("nvmlSystemGetDriverVersion")),
        "cuda_version": ("" if isinstance(cuda, Reason) else f"{cuda // 1000}.{cuda % 1000 // 10}"),
    }


def text(value: Any) -> str:
    """Return a string of pynvml, whose older releases return bytes; empty if it is not known."""
    if isinstance(value, Reason):
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
