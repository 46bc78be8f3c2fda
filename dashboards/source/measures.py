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

LAST_HOUR = 3600
"""Time for which a finding marks a run. Unit: s."""

REPORT_AGE = thresholds(GOOD, Step(120, WARN), Step(900, BAD))
"""A rank is stale after 120 s, the setting stale_seconds; a checkpoint seldom takes 900 s."""

OVERHEAD = thresholds(GOOD, Step(0.01, WARN), Step(0.02, BAD))
"""The budget is 1 % of the step time (the setting overhead_budget); twice that is out of control."""

HEADROOM = thresholds(NOTE, Step(1, GOOD))
"""Below one doubling the next growth of the scale overflows: how a GradScaler probes, so no alarm."""

NONE_IS_GOOD = thresholds(GOOD, Step(1, BAD))
"""Thresholds of counts of what must not be at all."""

NO_SCALER = "No GradScaler here: bfloat16 and float32 need no loss scale, so this stays empty"
NO_RUN = "No such run is known: choose another run, job or instance above, or a longer time"
NO_RUN_TILE = "No such run is known"
NO_SCALER_TILE = "No GradScaler in use"
"""Words for tiles, which have room for a few in letters that can be read."""

NO_SAMPLE = "No gradient was sampled yet; the level light takes no samples at all"


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


def headroom(by: str) -> str:
    """Return PromQL of the doublings that are left before gradients overflow, the worst rank."""
    return (
        f"log2(min by ({by}) ({of('ampwatch_autocast_dtype_max')})"
        f" / max by ({by}) ({of('ampwatch_scaled_gradient_amax_max')} > 0))"
    )
