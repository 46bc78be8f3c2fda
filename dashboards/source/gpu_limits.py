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
from dashboards.source.gpus import NAME, NO_GPU, SHOWN, most, of_gpu
from dashboards.source.panels import Panel, TimeSeries
from dashboards.source.queries import Query

_POWER, _LIMIT = "ampwatch_gpu_power_watts", "ampwatch_gpu_power_limit_watts"
_THROTTLED = "ampwatch_gpu_throttle_seconds_total"
_CORE, _MEMORY = "ampwatch_gpu_temperature_celsius", "ampwatch_gpu_memory_temperature_celsius"
_USED, _CAPACITY = "ampwatch_gpu_memory_used_bytes", "ampwatch_gpu_memory_capacity_bytes"
_RESERVED = "ampwatch_gpu_memory_reserved_bytes"
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
            id=304,
            title="Clocks held down, by reason",
            description=described(
                shows="Share of the time for which clocks were held down, mean of the GPUs that"
                " were chosen; several reasons may hold at once.",
                good="sw_power_cap only.",
                act="sw_thermal, hw_thermal: cooling. hw_power_brake: the power supply of the"
                " machine. reliability, board_limit: the voltage or the board; report it to the vendor."
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
        ),
    )


def memory() -> tuple[Panel, ...]:
    """Return how full the memory is, and whose it is."""
    used = of_gpu(_USED)
    reserved = of_gpu(_RESERVED)
    capacity = of_gpu(_CAPACITY)
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
    )
