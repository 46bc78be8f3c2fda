"""The row of the dashboard GPU about the tensor cores, and what else is busy."""

from __future__ import annotations

from dashboards.source.fields import described
from dashboards.source.gpus import (
    NAME,
    SHOWN,
    TENSOR_FULL,
    most,
    tensor_active,
)
from dashboards.source.panels import Panel, TimeSeries
from dashboards.source.queries import Query

_CYCLES = "ampwatch_gpu_tensor_active_cycles_total"
_ELAPSED = "ampwatch_gpu_sm_cycles_total"
_TENSOR = "ampwatch_gpu_tensor_active_ratio"


def work() -> tuple[Panel, ...]:
    """Return how busy the tensor cores are, and what else is."""
    hopper = "Not measured: it takes GPM, of Hopper and newer; see below"
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
            thresholds=TENSOR_FULL,
        ),
    )
