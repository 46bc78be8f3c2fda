"""The tables of the dashboard GPU: which rank computes where, and how every GPU is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.source.fields import BAD, GOOD, NEUTRAL, WARN, Step, described, thresholds
from dashboards.source.gpus import (
    ANSWERS,
    ANY_PIPE,
    KEYS,
    NO_GPU,
    ON,
    RANK_KEYS,
    SHOWN,
    TENSOR_FULL,
    UP,
    beside,
    by_gpu,
    of_gpu,
)
from dashboards.source.tables import Column, Table

if TYPE_CHECKING:
    from dashboards.source.panels import Panel

_TENSOR = "ampwatch_gpu_tensor_active_ratio"
_UTILIZATION = "ampwatch_gpu_utilization_ratio"
_USED, _CAPACITY = "ampwatch_gpu_memory_used_bytes", "ampwatch_gpu_memory_capacity_bytes"
_OF_RANK = "ampwatch_gpu_process_memory_used_bytes"
_POWER, _LIMIT = "ampwatch_gpu_power_watts", "ampwatch_gpu_power_limit_watts"
_TEMPERATURE = "ampwatch_gpu_temperature_celsius"
_PROCESSES = "ampwatch_gpu_processes"

_SHARE = thresholds(GOOD, Step(0.9, WARN), Step(0.97, BAD))
"""Thresholds of a share of memory: from 0.97 on the next longer batch may not fit."""


def who() -> tuple[Panel, ...]:
    """Return the ranks with their GPUs, and every GPU."""
    by_rank, of_limit = (
        "max by (instance, gpu, run, rank)",
        f"({of_gpu(_POWER)} / {of_gpu(_LIMIT)})",
    )
    share = f"{by_rank} ({beside(of_limit)})"
    # Without a limit a rank is 1 of it: it stays in the table, behind those that wait.
    idle = f"bottomk({SHOWN}, {share} or {by_rank} ({of_gpu(ON)}))"
    chosen = f"and on (instance, gpu, run, rank) {idle}"
    return (
        Table(
            id=107,
            title="Which rank computes on which GPU?",
            description=described(
                shows="Watched ranks, and what the GPU of each does. Of many ranks, the"
                f" {SHOWN} whose GPUs draw least of their limit: those that wait.",
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
                    expr=f"{by_rank} ({beside(of_gpu(_TENSOR, ANY_PIPE))}) {chosen}",
                    unit="percentunit",
                    thresholds=TENSOR_FULL,
                ),
                Column(
                    title="Any kernel",
                    expr=f"{by_rank} ({beside(of_gpu(_UTILIZATION))}) {chosen}",
                    unit="percentunit",
                ),
                Column(
                    title="Memory of the rank",
                    expr=f"{by_rank} ({of_gpu(_OF_RANK)}) {chosen}",
                    unit="bytes",
                ),
                Column(
                    title="Power of its limit",
                    expr=f"{share} {chosen}",
                    unit="percentunit",
                ),
            ),
            sort_by="Power of its limit",
            height=9,
        ),
        Table(
            id=108,
            title="Every GPU",
            description=described(
                shows="All GPUs that were chosen, watched ranks on them or not.",
                good="each answers; power near its limit, and cool, while it trains.",
                act="processes without a watched rank are those of other users, or of an old"
                " run that was not ended: nvidia-smi on the machine names them.",
                metrics=[UP, _PROCESSES, _USED, _CAPACITY, _POWER, _LIMIT, _TEMPERATURE],
            ),
            unit="none",
            no_value=NO_GPU,
            keys=KEYS,
            columns=(
                Column(title="Answers", expr=by_gpu(of_gpu(UP)), mappings=(ANSWERS,), width=110),
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
            sort_by="Temperature",
            descending=True,
            height=9,
        ),
    )
