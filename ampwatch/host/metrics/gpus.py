"""Metrics of the GPUs of the machine, and of the instances of those in MIG mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.host.fleet.gpus import Feature, Reason, unseen, users
from ampwatch.host.metrics.scopes import (
    GPU_LABELS,
    ONCE,
    PER_GPU,
    PER_INSTANCE,
    PER_RANK,
    Scope,
    each,
)
from ampwatch.state.text import encodable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ampwatch.host.fleet.gpus import Gpu, Instance, Xids
    from ampwatch.host.metrics.metric import Rows, ScrapeState
    from ampwatch.host.metrics.scopes import Table


GPU_FACTS = (
    "name",
    "pci_bus_id",
    "compute_capability",
    "driver_version",
    "cuda_version",
    "synthetic",
)
"""Facts of a GPU that are labels of ``ampwatch_gpu_info``."""


def answer(feature: Feature, part: str = "") -> Callable[[Gpu | Instance], float | None]:
    """Return what reads one part of what a GPU or an instance answers; ``None`` where unknown."""

    def read(gpu: Gpu | Instance) -> float | None:
        found = gpu.answers.get(feature, {}).get(part)
        return None if isinstance(found, Reason) else found

    return read


def answers(feature: Feature) -> Callable[[Gpu | Instance], Table]:
    """Return what reads the known parts of what a GPU or an instance answers, by their names."""

    def read(gpu: Gpu | Instance) -> Table:
        for part, found in gpu.answers.get(feature, {}).items():
            if not isinstance(found, Reason):
                yield (part,), found

    return read


def _info(gpu: Gpu) -> Table:
    yield tuple(encodable(gpu.facts.get(name, "")) for name in GPU_FACTS), 1


def _devices(instance: Instance) -> Table:
    for device in instance.devices:
        values = (str(device.compute_instance), device.uuid, device.profile)
        yield tuple(map(encodable, values)), 1


def _capabilities(state: ScrapeState) -> Table:
    newest = state.fleet.gpus.newest
    yield ("", "", "nvml", newest.host.state, newest.host.value), 1
    for index, reason in sorted(newest.unnamed.items()):
        yield (str(index), "", "uuid", reason.state, reason.value), 1
    for uuid, reason in unseen(state.fleet.ranks(), state.fleet.gpus).items():
        yield ("", encodable(uuid), "nvml", reason.state, reason.value), 1
    for values, gpu in state.gpus:
        for feature, reason in gpu.capabilities():
            yield (*values, feature, reason.state, reason.value), 1


def _listened(state: ScrapeState) -> Iterator[tuple[tuple[str, ...], Xids]]:
    """Yield the XID errors of the GPUs that are listened to or once were: a lost one is not."""
    for values, gpu in state.gpus:
        # By uuid: a GPU that has fallen off the bus has no readings, and XID 79 says why.
        xids = state.fleet.gpus.xids(gpu.uuid)
        if xids.seen or gpu.answers.get(Feature.XID) == {"": Reason.OK}:
            yield values, xids


def _processes(state: ScrapeState) -> Iterator[tuple[tuple[str, ...], int | None]]:
    """Yield the memory that watched ranks use on their GPUs, ``None`` if not known. Unit: bytes."""
    for rank, gpu, instance, used in users(state.fleet.ranks(), state.fleet.gpus):
        who = (rank.run, str(rank.identity.rank))
        part = "" if instance is None else str(instance.number)
        yield (*who, str(gpu.index), encodable(gpu.uuid), part), used


_PER_LISTENED: Scope[Xids] = Scope(GPU_LABELS, _listened)
_PER_PROCESS: Scope[int | None] = Scope((*PER_RANK.labels, *GPU_LABELS, "gpu_instance"), _processes)


GPUS: Rows = {
    "ampwatch_gpu_info": (
        "Static facts of a GPU; an unknown fact is empty (value is always 1).",
        PER_GPU.by(*GPU_FACTS, read=_info),
    ),
    "ampwatch_gpu_up": (
        "Whether a GPU that was seen before answers (1) or not (0): off the bus, to be reset, or without a driver.",
        PER_GPU.one(lambda gpu: int(gpu.is_up)),
    ),
    "ampwatch_gpu_capability": (
        "State of each reading of a GPU, and why it is absent (value is always 1). Without gpu and uuid: NVML itself.",
        ONCE.by(*GPU_LABELS, "feature", "state", "reason", read=_capabilities),
    ),
    "ampwatch_gpu_utilization_ratio": (
        "Share of the driver's newest sample period in which any kernel ran (NVML), however few SMs it used. Absent in MIG mode.",
        PER_GPU.one(answer(Feature.UTILIZATION)),
    ),
    "ampwatch_gpu_tensor_active_ratio": (
        "Mean share of cycles in which a tensor pipe was active (NVML GPM; Hopper and newer). A pipe is not a dtype: hmma counts float16, bfloat16 and TF32. About 0.75 is a full load.",
        PER_GPU.by("pipe", read=answers(Feature.TENSOR_ACTIVE)),
    ),
    "ampwatch_gpu_sm_active_ratio": (
        "Mean share of SMs that were busy (NVML GPM; Hopper and newer).",
        PER_GPU.one(answer(Feature.SM_ACTIVE)),
    ),
    "ampwatch_gpu_tensor_active_cycles_total": (
        "SM cycles in which a tensor pipe was active, since the machine was started (NVML GPM; drivers from 595).",
        PER_GPU.by("pipe", read=answers(Feature.TENSOR_CYCLES)),
    ),
    "ampwatch_gpu_sm_cycles_total": (
        "SM cycles that have elapsed since the machine was started (NVML GPM; drivers from 595).",
        PER_GPU.one(answer(Feature.SM_CYCLES)),
    ),
    "ampwatch_gpu_memory_used_bytes": (
        "GPU memory in use (NVML), without the reserved part where the driver separates it.",
        PER_GPU.one(answer(Feature.MEMORY, "used")),
    ),
    "ampwatch_gpu_memory_reserved_bytes": (
        "GPU memory reserved by driver and firmware (NVML).",
        PER_GPU.one(answer(Feature.MEMORY, "reserved")),
    ),
    "ampwatch_gpu_memory_capacity_bytes": (
        "GPU memory in all (NVML).",
        PER_GPU.one(answer(Feature.MEMORY, "capacity")),
    ),
    "ampwatch_gpu_power_watts": (
        "Power drawn (NVML): on most GPUs from Ampere on the mean of a second.",
        PER_GPU.one(answer(Feature.POWER)),
    ),
    "ampwatch_gpu_power_limit_watts": (
        "Power limit that is enforced (NVML).",
        PER_GPU.one(answer(Feature.POWER_LIMIT)),
    ),
    "ampwatch_gpu_temperature_celsius": (
        "Temperature of the GPU core (NVML).",
        PER_GPU.one(answer(Feature.TEMPERATURE, "gpu")),
    ),
    "ampwatch_gpu_memory_temperature_celsius": (
        "Temperature of the GPU memory (NVML).",
        PER_GPU.one(answer(Feature.TEMPERATURE, "memory")),
    ),
    "ampwatch_gpu_clock_hertz": (
        "Clock right now (NVML).",
        PER_GPU.by("domain", read=answers(Feature.CLOCK)),
    ),
    "ampwatch_gpu_clock_max_hertz": (
        "Highest clock the GPU can run at (NVML).",
        PER_GPU.by("domain", read=answers(Feature.CLOCK_MAX)),
    ),
    "ampwatch_gpu_throttle_seconds_total": (
        "Time for which the clocks were held down (NVML); several reasons may hold at once.",
        PER_GPU.by("reason", read=answers(Feature.THROTTLE)),
    ),
    "ampwatch_gpu_xid_errors_total": (
        "XID errors since this daemon began to listen (NVML).",
        _PER_LISTENED.by("xid", read=lambda xids: each(xids.counts)),
    ),
    "ampwatch_gpu_xid_last_timestamp_seconds": (
        "Unix time of the newest XID error of this code.",
        _PER_LISTENED.by("xid", read=lambda xids: each(xids.seen)),
    ),
    "ampwatch_gpu_ecc_errors_total": (
        "ECC errors in the memories of the GPU since the driver was loaded (NVML).",
        PER_GPU.by("severity", read=answers(Feature.ECC)),
    ),
    "ampwatch_gpu_row_remap_pending": (
        "Whether a row waits to be replaced at the next reset (1) or not (0) (NVML).",
        PER_GPU.one(answer(Feature.REMAPPED_ROWS, "pending")),
    ),
    "ampwatch_gpu_row_remap_failed": (
        "Whether a row could not be replaced (1) or not (0): exchange the GPU (NVML).",
        PER_GPU.one(answer(Feature.REMAPPED_ROWS, "failure")),
    ),
    "ampwatch_gpu_processes": (
        "Processes that compute on the GPU, watched or not (NVML).",
        PER_GPU.one(answer(Feature.PROCESSES)),
    ),
    "ampwatch_gpu_process_info": (
        "GPU, or MIG instance, on which a watched rank computes (value is always 1).",
        _PER_PROCESS.one(lambda _used: 1),
    ),
    "ampwatch_gpu_process_memory_used_bytes": (
        "GPU memory that a watched rank uses, its CUDA context included (NVML).",
        _PER_PROCESS.one(lambda used: used),
    ),
    "ampwatch_gpu_mig_enabled": (
        "Whether the GPU is in MIG mode (1) or not (0).",
        PER_GPU.one(answer(Feature.MIG)),
    ),
    "ampwatch_mig_info": (
        "The MIG devices of a GPU (value is always 1).",
        PER_INSTANCE.by("compute_instance", "mig_uuid", "profile", read=_devices),
    ),
    "ampwatch_mig_memory_used_bytes": (
        "Memory of a GPU instance in use (NVML).",
        PER_INSTANCE.one(answer(Feature.MEMORY, "used")),
    ),
    "ampwatch_mig_memory_capacity_bytes": (
        "Memory of a GPU instance in all (NVML).",
        PER_INSTANCE.one(answer(Feature.MEMORY, "capacity")),
    ),
    "ampwatch_mig_tensor_active_ratio": (
        "Mean share of cycles in which a tensor pipe of a GPU instance was active (NVML GPM).",
        PER_INSTANCE.by("pipe", read=answers(Feature.TENSOR_ACTIVE)),
    ),
    "ampwatch_mig_sm_active_ratio": (
        "Mean share of SMs of a GPU instance that were busy (NVML GPM).",
        PER_INSTANCE.one(answer(Feature.SM_ACTIVE)),
    ),
}
