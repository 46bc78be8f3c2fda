"""Queries that several dashboards ask, with the values from which on it is bad, and why from there."""

from __future__ import annotations

from dashboards.source.fields import BAD, GOOD, NEUTRAL, NOTE, WARN, Step, thresholds
from dashboards.source.queries import having, increase, of

SKIPPED_TOTAL = "ampwatch_optimizer_steps_skipped_total"
ATTEMPTED_TOTAL = "ampwatch_optimizer_steps_total"

SKIPPED = thresholds(GOOD, Step(0.01, WARN), Step(0.05, BAD))
"""A healthy GradScaler probes once in 2000 steps, 0.05 %: 1 % is twenty times that, 5 % a hundred."""

SCALE = thresholds(NEUTRAL, Step(0, BAD), Step(1, WARN), Step(64, GOOD))
"""Below 1 the loss is made smaller instead of larger; from 64 it is six halvings to there."""

LOSS_REACHES = 0.01
"""Value that the axis of a loss reaches at least: one at zero is drawn as such. A loss may be negative."""

REPORT_AGE = thresholds(GOOD, Step(120, WARN), Step(900, BAD))
"""A rank is stale after 120 s, the setting stale_seconds; a checkpoint seldom takes 900 s."""

SEVERAL_SAMPLES = "5m"
"""Between two samples of a slow run are minutes: over a shorter time the lines have gaps."""

UNDERFLOW = thresholds(GOOD, Step(0.05, WARN), Step(0.2, BAD))
"""A twentieth of a gradient is within its noise; a fifth changes where the training goes."""

HEADROOM = thresholds(NOTE, Step(1, GOOD))
"""Below one doubling the next growth of the scale overflows: how a GradScaler probes, so no alarm."""

NONE_IS_GOOD = thresholds(GOOD, Step(1, BAD))
"""Thresholds of counts of what must not be at all."""

NO_SCALER = "No GradScaler here: bfloat16 and float32 need no loss scale, so this stays empty"
NO_RUN = "No such run is known: choose another run, job or instance above, or a longer time"
NO_RUN_TILE = "No such run is known"
NO_SCALER_TILE = "No GradScaler in use"
"""Words for tiles, which have room for a few in letters that can be read."""

NO_SAMPLE = "No gradient was sampled in this time; the level light takes no samples at all"
NO_NORM = "No finite gradient was sampled in this time; the level light takes no samples at all"
NO_MAGNITUDE = (
    "No gradient other than zero was sampled in this time; the level light takes no samples"
)


def unfinished(metric: str) -> str:
    """Return PromQL of ``metric`` of the ranks that have not come to their proper end.

    How long something is ago says nothing of those, and would be red until they are forgotten.
    """
    finished = f"{of('ampwatch_run_state', having('state', 'finished'))} == 1"
    return f"{of(metric)} unless on (job, instance, run, rank) {finished}"


def skipped_share(over: str, by: str) -> str:
    """Return PromQL of the share of optimizer steps that were skipped, 0 to 1."""
    return (
        f"sum by ({by}) ({increase(SKIPPED_TOTAL, over=over)})"
        f" / (sum by ({by}) ({increase(ATTEMPTED_TOTAL, over=over)}) > 0)"
    )


NO_GRADIENT = 300
"""Doublings that stand for a largest gradient of zero: more than float32 has, 277."""


def headroom(by: str) -> str:
    """Return PromQL of the doublings that are left before gradients overflow, the worst rank.

    Where every gradient is zero it is ``NO_GRADIENT``: nothing overflows, and all is lost.
    """
    return (
        f"clamp_max(log2(min by ({by}) ({of('ampwatch_autocast_dtype_max')})"
        f" / max by ({by}) ({of('ampwatch_scaled_gradient_amax_max')})), {NO_GRADIENT})"
    )


def lost(by: str) -> str:
    """Return PromQL of the share of the sampled gradient elements that are zero only because of the dtype.

    Of the last hour where the newest samples are older than a while: a slow run must not lose its number
    between two of them.
    """
    flushed = "ampwatch_gradient_underflow_elements_total"
    return f"{shares(flushed, by)} or {shares(flushed, by, over='1h')}"


def shares(part: str, by: str, over: str = SEVERAL_SAMPLES) -> str:
    """Return PromQL of a part of the gradient elements that were sampled within a time, 0 to 1."""
    whole = increase("ampwatch_gradient_elements_total", over=over)
    return f"sum by ({by}) ({increase(part, over=over)}) / (sum by ({by}) ({whole}) > 0)"
