"""What do the GPUs do, and is one of them about to break? NVML and GPM beside the runs on them."""

from __future__ import annotations

from dashboards.source.fields import (
    BAD,
    GOOD,
    NEUTRAL,
    NOTE,
    WARN,
    Step,
    described,
    thresholds,
    words,
)
from dashboards.source.gpu_dcgm import dcgm
from dashboards.source.gpu_health import errors, known
from dashboards.source.gpu_limits import clocks, links, memory
from dashboards.source.gpu_mig import instances
from dashboards.source.gpus import (
    EXPORTERS,
    GPU,
    KEYS,
    NAME,
    NO_GPU,
    ON,
    RANK_KEYS,
    SHOWN,
    UP,
    beside,
    by_gpu,
    most,
    of_gpu,
    tensor_active,
)
from dashboards.source.page import Page, Row
from dashboards.source.panels import Panel, Stat, TimeSeries
from dashboards.source.queries import Query
from dashboards.source.tables import Column, Table

_CYCLES = "ampwatch_gpu_tensor_active_cycles_total"
_ELAPSED = "ampwatch_gpu_sm_cycles_total"
_ACTIVE_CYCLES = "ampwatch_gpu_sm_active_cycles_total"
_TENSOR = "ampwatch_gpu_tensor_active_ratio"
_SM = "ampwatch_gpu_sm_active_ratio"
_OCCUPANCY = "ampwatch_gpu_sm_occupancy_ratio"
_DRAM = "ampwatch_gpu_dram_active_ratio"
_UTILIZATION = "ampwatch_gpu_utilization_ratio"
_USED, _CAPACITY = "ampwatch_gpu_memory_used_bytes", "ampwatch_gpu_memory_capacity_bytes"
_OF_RANK = "ampwatch_gpu_process_memory_used_bytes"
_POWER, _LIMIT = "ampwatch_gpu_power_watts", "ampwatch_gpu_power_limit_watts"
_TEMPERATURE = "ampwatch_gpu_temperature_celsius"
_PROCESSES = "ampwatch_gpu_processes"
_THROTTLED = "ampwatch_gpu_throttle_seconds_total"
_LAST_XID = "ampwatch_gpu_xid_last_timestamp_seconds"

HARDWARE_XIDS = 'xid=~"48|62|64|74|79|95|119|120"'
"""Codes that mean the GPU or its driver, and not the program that ran."""

TOO_HOT = 'reason=~"sw_thermal|hw_thermal|thermal|hw_power_brake"'
"""What holds clocks down that ought not to; a power cap alone is how these GPUs work."""

ANY_PIPE, SINGLE_PIPES = 'pipe="any"', 'pipe=~"hmma|imma|dmma|dfma"'

_ANSWERS = words({1: ("answers", GOOD), 0: ("lost", BAD)})
_FULL = thresholds(NEUTRAL, Step(0.3, NOTE), Step(0.6, GOOD))
"""A load that fills the tensor cores shows about 0.75, so 0.6 is four fifths of full."""

_SHARE = thresholds(GOOD, Step(0.9, WARN), Step(0.97, BAD))


def page() -> Page:
    """Return the dashboard."""
    return Page(
        uid="ampwatch-gpu",
        title="ampwatch / GPU",
        description="What do the GPUs do, what holds them back, and is one about to break? From"
        " NVML and GPM, beside the runs on them.",
        rows=(
            Row(100, "Are the GPUs well, and who computes on them?", (*_tiles(), *_tables())),
            Row(200, "Are the tensor cores at work?", _work()),
            Row(300, "What holds the clocks down?", clocks()),
            Row(400, "Is there memory left?", memory()),
            Row(500, "Is the hardware failing?", errors()),
            Row(600, "What do the links carry?", links(), collapsed=True),
            Row(700, "How are GPUs in MIG mode used?", instances(), collapsed=True),
            Row(800, "What is not known of a GPU, and why?", known()),
            Row(900, "What does dcgm-exporter say?", dcgm(), collapsed=True),
        ),
        choices=(GPU,),
        exporters=EXPORTERS,
    )


def _tiles() -> tuple[Panel, ...]:
    up, none_bad = of_gpu(UP), thresholds(GOOD, Step(1, BAD))
    return (
        Stat(
            id=101,
            title="GPUs that answer",
            description=described(
                shows="GPUs that answered when the daemons last looked.",
                good="as many as the machines have.",
                act="if there is none at all, the row What is not known says why.",
                metrics=[UP],
            ),
            unit="none",
            no_value=NO_GPU,
            queries=(Query(f"sum({up})"),),
            thresholds=thresholds(BAD, Step(1, GOOD)),
        ),
        Stat(
            id=102,
            title="GPUs that are lost",
            description=described(
                shows="GPUs that were seen before and do not answer any more.",
                good="0.",
                act="the GPU has fallen off the bus, wants a reset, or the driver is gone: see its"
                " XID errors below, drain the machine, restart it.",
                metrics=[UP],
            ),
            unit="none",
            no_value=NO_GPU,
            queries=(Query(f"count({up}) - sum({up})"),),
            thresholds=none_bad,
        ),
        Stat(
            id=103,
            title="Hardware XIDs in the last hour",
            description=described(
                shows="XID codes that mean the GPU or its driver (48, 62, 64, 74, 79, 95, 119,"
                " 120), one for each GPU and code. Errors of programs (13, 31, 43) are in the"
                " table below.",
                good="0.",
                act="drain the machine, and look the code up in NVIDIA's XID table.",
                metrics=[_LAST_XID, UP],
            ),
            unit="none",
            no_value=NO_GPU,
            queries=(
                Query(
                    f"count(time() - {of_gpu(_LAST_XID, HARDWARE_XIDS)} < 3600) or 0 * sum({up})"
                ),
            ),
            thresholds=none_bad,
        ),
        Stat(
            id=104,
            title="Clocks held down by heat",
            description=described(
                shows="Share of the time for which heat or a power brake held the clocks of the"
                " worst GPU down. A power cap is not in it: that is how these GPUs work.",
                good="0 %.",
                act="above 10 %: look at fans, inlets and neighbours, see the row on clocks. All"
                " ranks of a job wait for the slowest GPU.",
                metrics=[_THROTTLED],
            ),
            unit="percentunit",
            no_value="No reasons are read: see below why",
            queries=(
                Query(
                    "max(sum by (job, instance, gpu, uuid)"
                    f" (rate({of_gpu(_THROTTLED, TOO_HOT)}[$__rate_interval])))"
                ),
            ),
            thresholds=thresholds(GOOD, Step(0.01, WARN), Step(0.1, BAD)),
        ),
        Stat(
            id=105,
            title="Tensor cores active",
            description=described(
                shows="Share of cycles in which a tensor pipe was active, mean of the GPUs that"
                " were chosen.",
                good="about 75 % is a full load; 40 % is usual for training.",
                act="near 0 with a run on it: see the dashboard Precision for why.",
                metrics=[_TENSOR, _CYCLES, _ELAPSED],
            ),
            unit="percentunit",
            no_value="Not measured: it takes Hopper or newer, see below",
            queries=(Query(f"avg({tensor_active()})"),),
            thresholds=_FULL,
        ),
        Stat(
            id=106,
            title="Power",
            description=described(
                shows="What the GPUs that were chosen draw together.",
                good="near the sum of the limits while they train.",
                act="a fall without a change of load: a rank waits, or clocks are held down.",
                metrics=[_POWER],
            ),
            unit="watt",
            no_value=NO_GPU,
            queries=(Query(f"sum({of_gpu(_POWER)})"),),
            sparkline=True,
        ),
    )


def _tables() -> tuple[Panel, ...]:
    by_rank, of_limit = (
        "max by (instance, gpu, run, rank)",
        f"({of_gpu(_POWER)} / {of_gpu(_LIMIT)})",
    )
    return (
        Table(
            id=107,
            title="Which rank computes on which GPU?",
            description=described(
                shows="Watched ranks, and what the GPU of each does.",
                good="one rank for each GPU, alike in every column.",
                act="two ranks on one GPU: LOCAL_RANK was not used to choose the device. A rank"
                " that differs: see the dashboard Ranks. No row for a rank: in Kubernetes the"
                " daemon needs hostPID to know.",
                metrics=[ON, _TENSOR, _UTILIZATION, _OF_RANK, _POWER, _LIMIT],
            ),
            unit="none",
            no_value="No watched rank is known to compute on a GPU",
            keys=RANK_KEYS,
            columns=(
                Column(
                    title="Tensor pipes active",
                    expr=f"{by_rank} ({beside(of_gpu(_TENSOR, ANY_PIPE))})",
                    unit="percentunit",
                    thresholds=_FULL,
                ),
                Column(
                    title="Any kernel",
                    expr=f"{by_rank} ({beside(of_gpu(_UTILIZATION))})",
                    unit="percentunit",
                ),
                Column(
                    title="Memory of the rank",
                    expr=f"{by_rank} ({of_gpu(_OF_RANK)})",
                    unit="bytes",
                ),
                Column(
                    title="Power of its limit",
                    expr=f"{by_rank} ({beside(of_limit)})",
                    unit="percentunit",
                ),
            ),
            sort_by="Machine",
            height=9,
        ),
        Table(
            id=108,
            title="Every GPU",
            description=described(
                shows="All GPUs that were chosen, watched ranks on them or not.",
                good="each answers; power near its limit, and cool, while it trains.",
                act="processes without a watched rank are somebody else's, or an old run that was"
                " not ended: nvidia-smi on the machine names them.",
                metrics=[UP, _PROCESSES, _USED, _CAPACITY, _POWER, _LIMIT, _TEMPERATURE],
            ),
            unit="none",
            no_value=NO_GPU,
            keys=KEYS,
            columns=(
                Column(title="Answers", expr=by_gpu(of_gpu(UP)), mappings=(_ANSWERS,), width=110),
                Column(title="Processes", expr=by_gpu(of_gpu(_PROCESSES)), width=110),
                Column(
                    title="Memory used",
                    expr=by_gpu(f"{of_gpu(_USED)} / {of_gpu(_CAPACITY)}"),
                    unit="percentunit",
                    thresholds=_SHARE,
                ),
                Column(
                    title="Power of its limit",
                    expr=by_gpu(f"{of_gpu(_POWER)} / {of_gpu(_LIMIT)}"),
                    unit="percentunit",
                ),
                Column(
                    title="Temperature",
                    expr=by_gpu(of_gpu(_TEMPERATURE)),
                    unit="celsius",
                    thresholds=thresholds(NEUTRAL, Step(80, WARN), Step(90, BAD)),
                ),
            ),
            sort_by="Machine",
            height=9,
        ),
    )


def _work() -> tuple[Panel, ...]:
    hopper = "Not measured: it takes GPM, of Hopper and newer; see below"
    pipe = "A pipe is not a dtype: hmma counts float16, bfloat16 and TF32 alike."
    cycles = (
        f"avg(rate({of_gpu(_ACTIVE_CYCLES)}[$__rate_interval])"
        f" / on (job, instance, gpu, uuid) (rate({of_gpu(_ELAPSED)}[$__rate_interval]) > 0))"
    )
    return (
        TimeSeries(
            id=201,
            title="Tensor pipes active",
            description=described(
                shows="Share of cycles in which any tensor pipe was active: the mean over the"
                " interval where the driver counts cycles, else of the newest look. The"
                f" {SHOWN} busiest GPUs.",
                good="about 75 % is a full load; the GPUs of a job alike.",
                act="low while the GPU is busy: the matmuls are not on tensor cores, or are not"
                " what takes the time: see the dashboard Precision. One GPU lower than the rest:"
                " it waits, see Ranks.",
                metrics=[_TENSOR, _CYCLES, _ELAPSED],
            ),
            unit="percentunit",
            no_value=hopper,
            queries=(Query(most(tensor_active()), NAME),),
            minimum=0,
            maximum=1,
            thresholds=_FULL,
        ),
        TimeSeries(
            id=202,
            title="Tensor pipes active, by run",
            description=described(
                shows="The same of the GPUs on which ranks of a run compute, mean over them.",
                good="flat. A fall right after a change of the loss scale or the dtype is AMP that"
                " was switched off without a word.",
                act="compare with the findings and annotations of that minute.",
                metrics=[_TENSOR, ON],
            ),
            unit="percentunit",
            no_value="Not known: no run on a GPU of Hopper or newer was chosen",
            queries=(Query(f"avg by (run) ({beside(of_gpu(_TENSOR, ANY_PIPE))})", "{{run}}"),),
            minimum=0,
            maximum=1,
        ),
        TimeSeries(
            id=203,
            title="Which pipe",
            description=described(
                shows=f"The pipes by themselves, mean of the GPUs that were chosen. {pipe}",
                good="hmma for training in 16 bits; imma for int8, dmma and dfma for float64.",
                act="dmma or dfma in a training: something computes in float64.",
                metrics=[_TENSOR],
            ),
            unit="percentunit",
            no_value=hopper,
            queries=(Query(f"avg by (pipe) ({of_gpu(_TENSOR, SINGLE_PIPES)})", "{{pipe}}"),),
            minimum=0,
        ),
        TimeSeries(
            id=204,
            title="What else is busy",
            description=described(
                shows="Means of the GPUs that were chosen: any kernel ran (a kernel on one SM"
                " counts in full), SMs that were busy, SM cycles that were busy, warps that were"
                " resident, bandwidth of the memory.",
                good="SMs above 80 %.",
                act="any kernel at 100 % and SMs low: kernels are too small, use larger batches,"
                " torch.compile or CUDA graphs. Memory bandwidth near its 90 %: it is the limit,"
                " not the tensor cores; fuse pointwise ops.",
                metrics=[_UTILIZATION, _SM, _OCCUPANCY, _DRAM, _ACTIVE_CYCLES, _ELAPSED],
            ),
            unit="percentunit",
            no_value=NO_GPU,
            queries=(
                Query(f"avg({of_gpu(_UTILIZATION)})", "any kernel"),
                Query(f"avg({of_gpu(_SM)})", "SMs busy"),
                Query(cycles, "SM cycles busy"),
                Query(f"avg({of_gpu(_OCCUPANCY)})", "warps resident"),
                Query(f"avg({of_gpu(_DRAM)})", "memory bandwidth"),
            ),
            minimum=0,
            maximum=1,
        ),
    )
