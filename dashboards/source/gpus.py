"""Parts that the panels of the dashboard GPU share: queries of a GPU, and of its runs."""

from __future__ import annotations

from dashboards.source.fields import (
    BAD,
    GOOD,
    NEUTRAL,
    NOTE,
    Step,
    thresholds,
    words,
)
from dashboards.source.links import field, to_dashboard
from dashboards.source.queries import largest, of
from dashboards.source.tables import Key
from dashboards.source.variables import choice

SHOWN = 20
"""Lines in a panel over time; of more GPUs than that, those with the largest values are drawn."""

GPU = choice(
    "gpu",
    "GPU",
    "Numbers of the GPUs on their machines, as nvidia-smi counts them.",
    'ampwatch_gpu_info{job=~"$job", instance=~"$instance"}',
)

ON = "ampwatch_gpu_process_info"
UP = "ampwatch_gpu_up"
ANY_PIPE = 'pipe="any"'
NO_GPU = "No GPU is read: see below why"

NAME = "{{instance}} GPU {{gpu}}"
"""Legend of a GPU: its number says little without the machine."""

ANSWERS = words({1: ("answers", GOOD), 0: ("lost", BAD)})

TENSOR_FULL = thresholds(NEUTRAL, Step(0.3, NOTE), Step(0.6, GOOD))
"""A load that fills the tensor cores shows about 0.75, so 0.6 is four fifths of full."""

KEYS = (
    Key(label="instance", title="Machine", width=170),
    Key(label="gpu", title="GPU", width=70),
)
RANK_KEYS = (
    *KEYS,
    Key(
        label="run",
        title="Run",
        links=(to_dashboard("Open this run", "ampwatch-run", run=field("Run")),),
    ),
    Key(label="rank", title="Rank", width=70),
)


def of_gpu(metric: str, *matchers: str) -> str:
    """Return the selector of ``metric`` for the GPUs that were chosen."""
    return of(metric, 'gpu=~"$gpu"', *matchers)


def by_gpu(expr: str) -> str:
    """Return PromQL of the largest value of each GPU."""
    return f"max by (instance, gpu) ({expr})"


def most(expr: str) -> str:
    """Return PromQL of as many GPUs as can be told apart, those with the largest means."""
    return largest(SHOWN, by_gpu(expr))


def beside(expr: str) -> str:
    """Return PromQL of what the GPU of each watched rank says, with the rank's labels."""
    return f"{of_gpu(ON)} * on (job, instance, uuid) group_left () {expr}"


def tensor_active(pipe: str = "any") -> str:
    """Return PromQL of the activity of a tensor pipe.

    Exact over the interval where the driver has counters of cycles; else the newest look.
    """
    matcher = f'pipe="{pipe}"'
    cycles = of_gpu("ampwatch_gpu_tensor_active_cycles_total", matcher)
    elapsed = of_gpu("ampwatch_gpu_sm_cycles_total")
    looked = of_gpu("ampwatch_gpu_tensor_active_ratio", matcher)
    exact = (
        f"rate({cycles}[$__rate_interval]) / on (job, instance, gpu, uuid) group_left ()"
        f" (rate({elapsed}[$__rate_interval]) > 0)"
    )
    return f"({exact} or {looked})"
