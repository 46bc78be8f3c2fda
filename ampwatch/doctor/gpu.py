"""Can the host's GPUs be asked: NVML, the driver, the devices. No torch here."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ampwatch.doctor.check import Check, State

if TYPE_CHECKING:
    from ampwatch.doctor.check import Load

NOT_READ_YET = "ampwatch does not read GPU counters yet"

# Return codes of nvml.h, group nvmlReturn_t.
NO_PERMISSION, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, VERSION_MISMATCH = 4, 9, 12, 18

WHY_NOT = {
    LIBRARY_NOT_FOUND: (
        State.ABSENT,
        "libnvidia-ml.so.1, a part of the NVIDIA driver, is not on this machine",
        "on a machine with a GPU, install the driver; in a container, start it with --gpus",
    ),
    DRIVER_NOT_LOADED: (
        State.ABSENT,
        "the library is there, but the NVIDIA driver is not loaded",
        "load it: modprobe nvidia; nvidia-smi should work then",
    ),
    NO_PERMISSION: (
        State.PROBLEM,
        "this user may not ask the NVIDIA driver",
        "give access to /dev/nvidiactl and /dev/nvidia*",
    ),
    VERSION_MISMATCH: (
        State.PROBLEM,
        "the library and the loaded NVIDIA driver are of different versions",
        "reboot, or reload the driver: it was updated while loaded",
    ),
}


def gpus(load: Load = import_module) -> list[Check]:
    """Look at what NVML tells.

    Args:
        load: Imports a module.

    Cost:
        Opens and closes NVML, some 50 ms with a GPU.
    """
    try:
        nvml = load("pynvml")
    except ImportError as error:
        why = f"pynvml cannot be imported: {error}"
        return [Check("NVML", State.PROBLEM, why, "pip install nvidia-ml-py, which ampwatch needs")]
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        unknown = (State.PROBLEM, f"NVML says: {error}", "nvidia-smi should say the same")
        state, why, remedy = WHY_NOT.get(error.value, unknown)
        return [Check("NVML", state, why, remedy)]
    try:
        return [_driver(nvml), *_devices(nvml)]
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _driver(nvml: Any) -> Check:
    try:
        version = _text(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError as error:
        return Check("NVML", State.PROBLEM, f"the driver does not tell its version: {error}")
    return Check("NVML", State.OK, f"driver {version}; {NOT_READ_YET}")


def _devices(nvml: Any) -> list[Check]:
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return [Check("GPUs", State.PROBLEM, f"they cannot be counted: {error}")]
    if count == 0:
        remedy = "in a container, start it with --gpus"
        return [Check("GPUs", State.ABSENT, "the driver shows none to this process", remedy)]
    return [_device(nvml, index) for index in range(count)]


def _device(nvml: Any, index: int) -> Check:
    name = f"GPU {index}"
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        model = _text(nvml.nvmlDeviceGetName(handle))
    except nvml.NVMLError as error:
        return Check(name, State.PROBLEM, f"it does not answer: {error}")
    return Check(name, State.OK, f"{model}; {_gpm(nvml, handle)}")


def _gpm(nvml: Any, handle: Any) -> str:
    """Tell whether the device has the counters of tensor-pipe activity (GPM)."""
    try:
        supported = nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice
    except AttributeError:
        return "this pynvml does not know the tensor-pipe counters (GPM)"
    except nvml.NVMLError as error:
        return f"whether it has tensor-pipe counters (GPM) is not known: {error}"
    return (
        "it has tensor-pipe counters (GPM)" if supported else "it has no tensor-pipe counters (GPM)"
    )


def _text(value: str | bytes) -> str:
    # Older releases of pynvml return bytes.
    return value.decode() if isinstance(value, bytes) else value
