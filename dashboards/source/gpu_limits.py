"""The rows of the dashboard GPU about what is limited: clocks, memory, links."""

from __future__ import annotations

from dashboards.source.fields import (
    BAD,
    GOOD,
    NEUTRAL,
    WARN,
    Step,
    described,
    thresholds,
)
from dashboards.source.gpus import NAME, NO_GPU, ON, SHOWN, most, of_gpu
from dashboards.source.panels import Panel, TimeSeries
from dashboards.source.queries import Query, largest

_POWER, _LIMIT = "ampwatch_gpu_power_watts", "ampwatch_gpu_power_limit_watts"
_ENERGY = "ampwatch_gpu_energy_joules_total"
_CLOCK, _MAX = "ampwatch_gpu_clock_hertz", "ampwatch_gpu_clock_max_hertz"
_THROTTLED = "ampwatch_gpu_throttle_seconds_total"
_CORE, _MEMORY = "ampwatch_gpu_temperature_celsius", "ampwatch_gpu_memory_temperature_celsius"
_USED, _CAPACITY = "ampwatch_gpu_memory_used_bytes", "ampwatch_gpu_memory_capacity_bytes"
_RESERVED = "ampwatch_gpu_memory_reserved_bytes"
_OF_RANK = "ampwatch_gpu_process_memory_used_bytes"
_NOT_BY_PROCESS = (
    "Not known: the driver does not say which process has how much, or no watched rank is on a GPU"
)
_PCIE = "ampwatch_gpu_pcie_{}_bytes_per_second"
_NVLINK = "ampwatch_gpu_nvlink_{}_bytes_total"

_HOT = thresholds(NEUTRAL, Step(80, WARN), Step(90, BAD))
"""Unit: degrees Celsius. Most data-centre GPUs begin to slow down between 85 and 95."""

_FULL = thresholds(GOOD, Step(0.9, WARN), Step(0.97, BAD))
"""Above 0.97 the next longer batch may be out of memory; below 0.9 there is room for a larger one."""


def clocks() -> tuple[Panel, ...]:
    """Return power, clocks, what holds them down, and heat."""
    return (
        TimeSeries(
            id=301,
            title="Power of its limit",
            description=described(
                shows=f"Power drawn over the limit that is enforced, of the {SHOWN} GPUs with most.",
                good="80 to 100 % while training: being held by the power cap is how these GPUs"
                " work, and no fault.",
                act="one GPU below the others: it waits for data or for another rank. All low:"
                " see the tensor cores above.",
                metrics=[_POWER, _LIMIT],
            ),
            unit="percentunit",
            no_value=NO_GPU,
            queries=(Query(most(f"{of_gpu(_POWER)} / {of_gpu(_LIMIT)}"), NAME),),
            minimum=0,
        ),
        TimeSeries(
            id=302,
            title="Energy by machine",
            description=described(
                shows="Mean power of the GPUs that were chosen, from their energy counters: no"
                " peak between two scrapes is missed. One line for each machine.",
                good="flat while a run trains.",
                act="regular dips are checkpoints and evaluations; a machine that dips alone is"
                " the one that the others wait for.",
                metrics=[_ENERGY],
            ),
            unit="watt",
            no_value="Not measured: it takes Volta or newer",
            queries=(
                Query(
                    largest(
                        SHOWN, f"sum by (instance) (rate({of_gpu(_ENERGY)}[$__rate_interval]))"
                    ),
                    "{{instance}}",
                ),
            ),
            minimum=0,
        ),
        TimeSeries(
            id=303,
            title="Clocks of their maximum",
            description=described(
                shows="Clock over the highest one the GPU can run at: the slowest GPU, and the"
                " mean of those that were chosen.",
                good="SMs above 70 % under load, memory at 100 %.",
                act="the slowest far below the mean: see beside what holds it down.",
                metrics=[_CLOCK, _MAX],
            ),
            unit="percentunit",
            no_value=NO_GPU,
            queries=(
                Query(f"min by (domain) ({of_gpu(_CLOCK)} / {of_gpu(_MAX)})", "{{domain}} slowest"),
                Query(f"avg by (domain) ({of_gpu(_CLOCK)} / {of_gpu(_MAX)})", "{{domain}} mean"),
            ),
            minimum=0,
            maximum=1,
            width=8,
        ),
        TimeSeries(
            id=304,
            title="Clocks held down, by reason",
            description=described(
                shows="Share of the time for which clocks were held down, mean of the GPUs that"
                " were chosen; several reasons may hold at once.",
                good="sw_power_cap only.",
                act="sw_thermal, hw_thermal: cooling. hw_power_brake: the power supply of the"
                " machine. reliability, board_limit: the voltage or the board; tell the vendor."
                " sync_boost: a GPU waits for its group.",
                metrics=[_THROTTLED],
            ),
            unit="percentunit",
            no_value="No reasons are read: see below why",
            queries=(
                Query(
                    f"avg by (reason) (rate({of_gpu(_THROTTLED)}[$__rate_interval]))",
                    "{{reason}}",
                ),
            ),
            minimum=0,
            width=8,
        ),
        TimeSeries(
            id=305,
            title="Temperature",
            description=described(
                shows="The hottest core and the hottest memory, and the means of the GPUs that"
                " were chosen.",
                good="core below 80, memory below 90.",
                act="the hottest far above the mean is one GPU with a cooling problem: the table"
                " Every GPU, by temperature, says which.",
                metrics=[_CORE, _MEMORY],
            ),
            unit="celsius",
            no_value=NO_GPU,
            queries=(
                Query(f"max({of_gpu(_CORE)})", "core, hottest"),
                Query(f"avg({of_gpu(_CORE)})", "core, mean"),
                Query(f"max({of_gpu(_MEMORY)})", "memory, hottest"),
                Query(f"avg({of_gpu(_MEMORY)})", "memory, mean"),
            ),
            thresholds=_HOT,
            reaches_from=20,
            reaches_to=90,
            width=8,
        ),
    )


def memory() -> tuple[Panel, ...]:
    """Return how full the memory is, and whose it is."""
    used = of_gpu(_USED)
    reserved = of_gpu(_RESERVED)
    capacity = of_gpu(_CAPACITY)
    ours = f"sum by (job, instance, gpu, uuid) ({of_gpu(_OF_RANK)})"
    return (
        TimeSeries(
            id=401,
            title="Memory used",
            description=described(
                shows="Memory in use, with what the driver keeps for itself, over all there is."
                f" The {SHOWN} fullest GPUs.",
                good="flat, below 97 %.",
                act="a line that rises step by step is a leak in the training process, or a cache"
                " of shapes. Room above 30 %: a larger batch uses tensor cores better.",
                metrics=[_USED, _RESERVED, _CAPACITY],
            ),
            unit="percentunit",
            no_value=NO_GPU,
            queries=(Query(most(f"({used} + ({reserved} or 0 * {used})) / {capacity}"), NAME),),
            minimum=0,
            maximum=1,
            thresholds=_FULL,
        ),
        TimeSeries(
            id=402,
            title="Memory of watched ranks",
            description=described(
                shows=f"What watched ranks use, CUDA context included; the {SHOWN} with most.",
                good="alike on all ranks of a job.",
                act="a rank with more than the others holds what they do not: the whole"
                " checkpoint, the evaluation, outputs gathered on rank 0.",
                metrics=[_OF_RANK],
            ),
            unit="bytes",
            no_value=_NOT_BY_PROCESS,
            queries=(
                Query(
                    largest(SHOWN, f"max by (run, rank, gpu) ({of_gpu(_OF_RANK)})"),
                    "{{run}} rank {{rank}} on GPU {{gpu}}",
                ),
            ),
            minimum=0,
            width=6,
        ),
        TimeSeries(
            id=403,
            title="Memory of others",
            description=described(
                shows="What is used on GPUs with watched ranks, and not by them.",
                good="below 1 GiB: contexts and what the driver has.",
                act="several GiB: another process computes there; nvidia-smi on the machine names"
                " it.",
                metrics=[_USED, _OF_RANK, ON],
            ),
            unit="bytes",
            no_value=_NOT_BY_PROCESS,
            queries=(
                Query(
                    most(
                        f"({used} - on (job, instance, gpu, uuid) {ours}) and"
                        f" on (job, instance, uuid) {of_gpu(ON)}"
                    ),
                    NAME,
                ),
            ),
            minimum=0,
            width=6,
        ),
    )


def links() -> tuple[Panel, ...]:
    """Return the traffic over PCIe and NVLink."""
    directions = ("transmit", "receive")
    pcie, nvlink = ([name.format(way) for way in directions] for name in (_PCIE, _NVLINK))
    return (
        TimeSeries(
            id=601,
            title="PCIe",
            description=described(
                shows="Traffic from and to the GPUs over PCIe, sum by machine.",
                good="a few GB/s: the batches. With NVLink, gradients do not go here.",
                act="near the limit of the slot (25 GB/s for PCIe 4, 50 for 5): pin memory, move"
                " less, keep offloaded state on the GPU. No value before Hopper: turn"
                " gpu_link_throughput on.",
                metrics=pcie,
            ),
            unit="Bps",
            no_value="Not measured: before Hopper gpu_link_throughput has to be on",
            queries=tuple(
                Query(
                    largest(SHOWN, f"sum by (instance) ({of_gpu(name)})"), f"{{{{instance}}}} {way}"
                )
                for name, way in zip(pcie, directions, strict=True)
            ),
            minimum=0,
        ),
        TimeSeries(
            id=602,
            title="NVLink",
            description=described(
                shows="Data over all NVLinks of the GPUs, without protocol, sum by machine.",
                good="bursts at the end of each step: the reduction of the gradients.",
                act="constant and high: communication is not overlapped with backward. None with"
                " several GPUs: NCCL does not use it, see NCCL_DEBUG=INFO.",
                metrics=nvlink,
            ),
            unit="Bps",
            no_value="Not measured: these GPUs have no NVLink, or see below",
            queries=tuple(
                Query(
                    largest(SHOWN, f"sum by (instance) (rate({of_gpu(name)}[$__rate_interval]))"),
                    f"{{{{instance}}}} {way}",
                )
                for name, way in zip(nvlink, directions, strict=True)
            ),
            minimum=0,
        ),
    )
