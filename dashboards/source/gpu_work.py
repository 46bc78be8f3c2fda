"""The row of the dashboard GPU about the tensor cores, and what else is busy."""

from __future__ import annotations

from dashboards.source.fields import described
from dashboards.source.gpus import (
    ANY_PIPE,
    NAME,
    NO_GPU,
    ON,
    SHOWN,
    TENSOR_FULL,
    beside,
    most,
    of_gpu,
    tensor_active,
)
from dashboards.source.panels import Panel, TimeSeries
from dashboards.source.queries import Query

_CYCLES = "ampwatch_gpu_tensor_active_cycles_total"
_ELAPSED = "ampwatch_gpu_sm_cycles_total"
_ACTIVE_CYCLES = "ampwatch_gpu_sm_active_cycles_total"
_TENSOR = "ampwatch_gpu_tensor_active_ratio"
_SM = "ampwatch_gpu_sm_active_ratio"
_OCCUPANCY = "ampwatch_gpu_sm_occupancy_ratio"
_DRAM = "ampwatch_gpu_dram_active_ratio"
_UTILIZATION = "ampwatch_gpu_utilization_ratio"

SINGLE_PIPES = 'pipe=~"hmma|imma|dmma|dfma"'


def work() -> tuple[Panel, ...]:
    """Return how busy the tensor cores are, and what else is."""
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
            thresholds=TENSOR_FULL,
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
