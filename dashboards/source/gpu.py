"""Dashboard GPU: what they do, and whether one is about to break; NVML and GPM beside the runs."""

from __future__ import annotations

from dashboards.source.fields import BAD, GOOD, NEUTRAL, WARN, Step, described, thresholds
from dashboards.source.gpu_health import errors, known
from dashboards.source.gpu_limits import clocks, memory
from dashboards.source.gpu_who import who
from dashboards.source.gpu_work import work
from dashboards.source.gpus import GPU, NO_GPU, TENSOR_FULL, UP, of_gpu, tensor_active
from dashboards.source.page import Page, Row
from dashboards.source.panels import Panel, Stat
from dashboards.source.queries import Query

_CYCLES = "ampwatch_gpu_tensor_active_cycles_total"
_ELAPSED = "ampwatch_gpu_sm_cycles_total"
_TENSOR = "ampwatch_gpu_tensor_active_ratio"
_THROTTLED = "ampwatch_gpu_throttle_seconds_total"
_LAST_XID = "ampwatch_gpu_xid_last_timestamp_seconds"

HARDWARE_XIDS = 'xid=~"48|62|64|74|79|95|119|120"'
"""Codes that mean the GPU or its driver, and not the program that ran."""

TOO_HOT = 'reason=~"sw_thermal|hw_thermal|thermal|hw_power_brake"'
"""Reasons that ought not to hold clocks down; a power cap alone is how these GPUs work."""


def page() -> Page:
    """Return the dashboard."""
    return Page(
        uid="ampwatch-gpu",
        title="ampwatch / GPU",
        description="What do the GPUs do, what holds them back, and is one about to break? From"
        " NVML and GPM, beside the runs on them.",
        rows=(
            Row(100, "Are the GPUs well, and who computes on them?", (*_tiles(), *who())),
            Row(
                200,
                "Are the tensor cores at work, and what holds the clocks down?",
                (*work(), *clocks()),
            ),
            Row(400, "Is there memory left, and is the hardware failing?", (*memory(), *errors())),
            Row(800, "What is not known of a GPU, and why?", known()),
        ),
        choices=(GPU,),
    )


def _tiles() -> tuple[Panel, ...]:
    up = of_gpu(UP)
    none_bad = thresholds(GOOD, Step(1, BAD))
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
            thresholds=thresholds(NEUTRAL, Step(0, BAD), Step(1, GOOD)),
            width=6,
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
            width=6,
        ),
        Stat(
            id=104,
            title="Clocks held down by heat",
            description=described(
                shows="Share of the time for which heat or a power brake held the clocks of the"
                " worst GPU down: of several such reasons at once the longest. A power cap is not in it: that is how these GPUs work.",
                good="0 %.",
                act="above 10 %: look at fans, inlets and neighbours, see the row on clocks. All"
                " ranks of a job wait for the slowest GPU.",
                metrics=[_THROTTLED],
            ),
            unit="percentunit",
            no_value="No reasons are read: see below why",
            queries=(Query(f"max(rate({of_gpu(_THROTTLED, TOO_HOT)}[$__rate_interval]))"),),
            thresholds=thresholds(GOOD, Step(0.01, WARN), Step(0.1, BAD)),
            width=6,
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
            thresholds=TENSOR_FULL,
            width=6,
        ),
    )
