"""Where the time of steps goes, as Run and Ranks ask for it: by the clock of the device where there is one."""

from __future__ import annotations

from dashboards.source.fields import BAD, GOOD, WARN, Step, thresholds
from dashboards.source.queries import having, of, rate

SECONDS = "ampwatch_step_phase_seconds_sum"

ON_DEVICE, ON_HOST = having("clock", "device"), having("clock", "host")

WITH_OTHERS = "reduction|backward_with_reduction|evaluation"
"""Phases in which ranks wait for one another; an evaluation is made by one of them as a rule, while the
others wait for it."""

NO_PHASES = "No step has ended since the daemon was started, or none of its phases was seen"

DATA = thresholds(GOOD, Step(0.25, WARN), Step(0.4, BAD))
"""From a quarter on it is a finding (input_bound), from two fifths on a warning."""

EXCESS = thresholds(GOOD, Step(0.05, WARN), Step(0.15, BAD))
"""A tenth of a step, held for some steps, is a finding (straggler); 0.15, held for long, an alert."""


def seconds(by: str, *matchers: str) -> str:
    """Return PromQL of the time of phases, a second of the clock.

    A host is ahead of its device: what it waits for says nothing of what the device does. So the time of
    the device is taken of each rank that has one.

    Args:
        by: Labels that are kept, with commas between them.
        matchers: Further matchers, as those of the phases.
    """
    timed = of(SECONDS, ON_DEVICE)
    return (
        f"sum by ({by}) ({rate(SECONDS, ON_DEVICE, *matchers)} or {rate(SECONDS, ON_HOST, *matchers)}"
        f" unless on (job, instance, run, rank) {timed})"
    )


def share(by: str, *matchers: str) -> str:
    """Return PromQL of the share of the time that goes to phases, 0 to 1."""
    return f"{seconds(by, *matchers)} / ({seconds(by)} > 0)"


EACH_RANK = "job, instance, run, rank"

WAITS_FOR_DATA = share(EACH_RANK, having("phase", "data"))
"""PromQL of the share of the time in which each rank waits for data."""

OWN_SHARE = share(EACH_RANK, f'phase!~"{WITH_OTHERS}"')
"""PromQL of the share of the time that each rank takes for its own part of a step."""

OWN_EXCESS = f"{OWN_SHARE} - on (job, run) group_left () quantile by (job, run) (0.5, {OWN_SHARE})"
"""PromQL of how much more of a step each rank takes for its own part than the median of its run."""

MEAN_STEP = (
    f"sum by (run) ({rate('ampwatch_step_duration_seconds_sum')})"
    f" / (sum by (run) ({rate('ampwatch_step_duration_seconds_count')}) > 0)"
)
"""PromQL of the mean duration of the steps of each run."""
