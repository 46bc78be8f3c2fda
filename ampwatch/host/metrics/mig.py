"""Metrics of GPUs in MIG mode, and of their instances."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.host.fleet.gpus import Feature
from ampwatch.host.fleet.text import encodable
from ampwatch.host.metrics.gpus import answer, answers
from ampwatch.host.metrics.metric import Metric
from ampwatch.host.metrics.scopes import PER_GPU, PER_INSTANCE

if TYPE_CHECKING:
    from ampwatch.host.fleet.gpus import Instance
    from ampwatch.host.metrics.scopes import Table


def _devices(instance: Instance) -> Table:
    for device in instance.devices:
        values = (str(device.compute_instance), device.uuid, device.profile)
        yield tuple(map(encodable, values)), 1


MIG: tuple[Metric, ...] = (
    Metric(
        "ampwatch_gpu_mig_enabled",
        "gauge",
        "Whether the GPU is in MIG mode (1) or not (0); absent if it does not have that.",
        PER_GPU.one(answer(Feature.MIG)),
    ),
    Metric(
        "ampwatch_mig_info",
        "info",
        "The MIG devices of a GPU (value is always 1).",
        PER_INSTANCE.by("compute_instance", "mig_uuid", "profile", read=_devices),
    ),
    Metric(
        "ampwatch_mig_memory_used_bytes",
        "gauge",
        "Memory of a GPU instance in use (NVML).",
        PER_INSTANCE.one(answer(Feature.MEMORY, "used")),
        unit="bytes",
    ),
    Metric(
        "ampwatch_mig_memory_capacity_bytes",
        "gauge",
        "Memory of a GPU instance in all (NVML).",
        PER_INSTANCE.one(answer(Feature.MEMORY, "capacity")),
        unit="bytes",
    ),
    Metric(
        "ampwatch_mig_tensor_active_ratio",
        "gauge",
        "Share of cycles in which a tensor pipe of a GPU instance was active, mean since the look before (NVML GPM).",
        PER_INSTANCE.by("pipe", read=answers(Feature.TENSOR_ACTIVE)),
        unit="ratio",
    ),
    Metric(
        "ampwatch_mig_sm_active_ratio",
        "gauge",
        "Share of SMs of a GPU instance that were busy, mean since the look before (NVML GPM).",
        PER_INSTANCE.one(answer(Feature.SM_ACTIVE)),
        unit="ratio",
    ),
    Metric(
        "ampwatch_mig_sm_occupancy_ratio",
        "gauge",
        "Warps of a GPU instance that were resident over those that fit, mean since the look before (NVML GPM).",
        PER_INSTANCE.one(answer(Feature.SM_OCCUPANCY)),
        unit="ratio",
    ),
    Metric(
        "ampwatch_mig_dram_active_ratio",
        "gauge",
        "Share of the memory bandwidth of a GPU instance that was used, mean since the look before (NVML GPM).",
        PER_INSTANCE.one(answer(Feature.DRAM_ACTIVE)),
        unit="ratio",
    ),
)
