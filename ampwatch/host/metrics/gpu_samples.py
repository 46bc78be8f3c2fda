"""What the GPUs have to say about each metric of the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ampwatch.host.fleet.gpu_users import users
from ampwatch.host.fleet.gpus import Feature, Reason
from ampwatch.host.fleet.text import encodable
from ampwatch.host.metrics.catalog import GPU_FACTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ampwatch.host.fleet import Fleet, RankView
    from ampwatch.host.fleet.gpus import Answers, Gpu
    from ampwatch.host.metrics.reading import Samples

    OfFleet = Callable[[Fleet], Samples]

SEVERITIES = ("correctable", "uncorrectable")


def _one(feature: Feature, part: str = "") -> OfFleet:
    """Return the samples of a family with one value a GPU, absent where it is not known."""

    def samples(fleet: Fleet) -> Samples:
        for gpu in fleet.gpus.all():
            value = gpu.number(feature, part)
            if value is not None:
                yield _labels(gpu), value

    return samples


def _parts(feature: Feature, only: Iterable[str] = ()) -> OfFleet:
    """Return the samples of a family with a value per part, its name as the last label."""
    wanted = frozenset(only)

    def samples(fleet: Fleet) -> Samples:
        for gpu in fleet.gpus.all():
            for part, value in _numbers(gpu.answers, feature):
                if not wanted or part in wanted:
                    yield (*_labels(gpu), part), value

    return samples


def _of_instances(feature: Feature, part: str | None = "") -> OfFleet:
    """Return the samples of a family of GPU instances; of every part if ``part`` is ``None``."""

    def samples(fleet: Fleet) -> Samples:
        for gpu in fleet.gpus.all():
            for instance in gpu.instances:
                labels = (*_labels(gpu), str(instance.number))
                for name, value in _numbers(instance.answers, feature):
                    if part is None:
                        yield (*labels, name), value
                    elif name == part:
                        yield labels, value

    return samples


def _numbers(answers: Answers, feature: Feature) -> Iterator[tuple[str, float]]:
    for part, answer in answers.get(feature, {}).items():
        if not isinstance(answer, Reason):
            yield part, answer


def _labels(gpu: Gpu) -> tuple[str, str]:
    return str(gpu.index), encodable(gpu.uuid)


def _info(fleet: Fleet) -> Samples:
    for gpu in fleet.gpus.all():
        yield (*_labels(gpu), *(encodable(gpu.facts.get(name, "")) for name in GPU_FACTS)), 1


def _mig_info(fleet: Fleet) -> Samples:
    for gpu in fleet.gpus.all():
        for instance in gpu.instances:
            for device in instance.devices:
                more = (str(device.compute_instance), device.uuid, device.profile)
                yield (*_labels(gpu), str(instance.number), *map(encodable, more)), 1


def _up(fleet: Fleet) -> Samples:
    for gpu in fleet.gpus.all():
        yield _labels(gpu), int(gpu.is_up)


def _capabilities(fleet: Fleet) -> Samples:
    gpus = fleet.gpus
    yield ("", "", "nvml", *_words(gpus.host)), 1
    for index, reason in sorted(gpus.unnamed.items()):
        yield (str(index), "", "uuid", *_words(reason)), 1
    for gpu in gpus.all():
        for feature, reason in gpu.capabilities():
            yield (*_labels(gpu), feature, *_words(reason)), 1


def _words(reason: Reason) -> tuple[str, str]:
    return reason.state, reason.value


def _xids(name: str) -> OfFleet:
    """Return the samples of XID errors, of GPUs that are listened to or once were."""

    def samples(fleet: Fleet) -> Samples:
        for gpu in fleet.gpus.all():
            xids = fleet.gpus.xids(gpu.uuid)
            if xids.seen or gpu.answers.get(Feature.XID) == {"": Reason.OK}:
                values: dict[str, Any] = getattr(xids, name)
                for code, value in values.items():
                    yield (*_labels(gpu), code), value

    return samples


def _rank_labels(rank: RankView, gpu: Gpu) -> tuple[str, ...]:
    return (rank.run, str(rank.identity.rank), *_labels(gpu))


def _process_info(fleet: Fleet) -> Samples:
    for rank, gpu, _ in users(fleet):
        yield _rank_labels(rank, gpu), 1


def _process_memory(fleet: Fleet) -> Samples:
    for rank, gpu, used in users(fleet):
        if used is not None:
            yield _rank_labels(rank, gpu), used


OF_GPUS: dict[str, OfFleet] = {
    "ampwatch_gpu_info": _info,
    "ampwatch_gpu_up": _up,
    "ampwatch_gpu_capability": _capabilities,
    "ampwatch_gpu_utilization_ratio": _one(Feature.UTILIZATION),
    "ampwatch_gpu_tensor_active_ratio": _parts(Feature.TENSOR_ACTIVE),
    "ampwatch_gpu_sm_active_ratio": _one(Feature.SM_ACTIVE),
    "ampwatch_gpu_sm_occupancy_ratio": _one(Feature.SM_OCCUPANCY),
    "ampwatch_gpu_dram_active_ratio": _one(Feature.DRAM_ACTIVE),
    "ampwatch_gpu_tensor_active_cycles_total": _parts(Feature.TENSOR_CYCLES),
    "ampwatch_gpu_sm_active_cycles_total": _one(Feature.SM_CYCLES, "active"),
    "ampwatch_gpu_sm_cycles_total": _one(Feature.SM_CYCLES, "elapsed"),
    "ampwatch_gpu_memory_used_bytes": _one(Feature.MEMORY, "used"),
    "ampwatch_gpu_memory_reserved_bytes": _one(Feature.MEMORY, "reserved"),
    "ampwatch_gpu_memory_capacity_bytes": _one(Feature.MEMORY, "capacity"),
    "ampwatch_gpu_energy_joules_total": _one(Feature.ENERGY),
    "ampwatch_gpu_power_watts": _one(Feature.POWER),
    "ampwatch_gpu_power_limit_watts": _one(Feature.POWER_LIMIT),
    "ampwatch_gpu_temperature_celsius": _one(Feature.TEMPERATURE, "gpu"),
    "ampwatch_gpu_memory_temperature_celsius": _one(Feature.TEMPERATURE, "memory"),
    "ampwatch_gpu_clock_hertz": _parts(Feature.CLOCK),
    "ampwatch_gpu_clock_max_hertz": _parts(Feature.CLOCK_MAX),
    "ampwatch_gpu_throttle_seconds_total": _parts(Feature.THROTTLE),
    "ampwatch_gpu_xid_errors_total": _xids("counts"),
    "ampwatch_gpu_xid_last_timestamp_seconds": _xids("seen"),
    "ampwatch_gpu_ecc_errors_total": _parts(Feature.ECC),
    "ampwatch_gpu_remapped_rows": _parts(Feature.REMAPPED_ROWS, SEVERITIES),
    "ampwatch_gpu_row_remap_pending": _one(Feature.REMAPPED_ROWS, "pending"),
    "ampwatch_gpu_row_remap_failed": _one(Feature.REMAPPED_ROWS, "failure"),
    "ampwatch_gpu_pcie_transmit_bytes_per_second": _one(Feature.PCIE, "transmit"),
    "ampwatch_gpu_pcie_receive_bytes_per_second": _one(Feature.PCIE, "receive"),
    "ampwatch_gpu_nvlink_transmit_bytes_total": _one(Feature.NVLINK, "transmit"),
    "ampwatch_gpu_nvlink_receive_bytes_total": _one(Feature.NVLINK, "receive"),
    "ampwatch_gpu_processes": _one(Feature.PROCESSES),
    "ampwatch_gpu_process_info": _process_info,
    "ampwatch_gpu_process_memory_used_bytes": _process_memory,
    "ampwatch_gpu_mig_enabled": _one(Feature.MIG),
    "ampwatch_mig_info": _mig_info,
    "ampwatch_mig_memory_used_bytes": _of_instances(Feature.MEMORY, "used"),
    "ampwatch_mig_memory_capacity_bytes": _of_instances(Feature.MEMORY, "capacity"),
    "ampwatch_mig_tensor_active_ratio": _of_instances(Feature.TENSOR_ACTIVE, None),
    "ampwatch_mig_sm_active_ratio": _of_instances(Feature.SM_ACTIVE),
    "ampwatch_mig_sm_occupancy_ratio": _of_instances(Feature.SM_OCCUPANCY),
    "ampwatch_mig_dram_active_ratio": _of_instances(Feature.DRAM_ACTIVE),
}
"""Name of a metric to its samples of all GPUs."""
