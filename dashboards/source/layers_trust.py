"""The row of the dashboard Layers that says how much of the model its numbers are about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.source.fields import BAD, GOOD, NEUTRAL, WARN, Step, described, thresholds
from dashboards.source.queries import increase, of
from dashboards.source.tables import Column, Key, Table

if TYPE_CHECKING:
    from dashboards.source.panels import Panel

_STALE = thresholds(GOOD, Step(600, WARN), Step(3600, BAD))
"""Unit: s. At the default budget a sample comes every few seconds to minutes."""

_NO_SAMPLES = "No run that samples was chosen"


def trust() -> tuple[Panel, ...]:
    """Return what was left out, and how old and how exact the rest is."""
    return (_samples(),)


def _samples() -> Table:
    last = "ampwatch_last_sample_timestamp_seconds"
    error = "ampwatch_sample_standard_error_ratio"
    made = "ampwatch_samples_total"
    return Table(
        id=606,
        title="Samples by what was measured",
        description=described(
            shows="How many samples the time range has, how old the newest is (of the rank that"
            " has not been sampled for longest), and by how much a share may be off where only a"
            " part of the elements was counted.",
            good="minutes old, and an error below 1 %. Largest magnitudes, NaN and infinities are"
            " always those of all elements.",
            act="an old sample describes an old state: look whether the run still steps, and"
            " whether the level is `light`, which samples nothing.",
            metrics=[made, last, error],
        ),
        unit="short",
        no_value=_NO_SAMPLES,
        keys=(Key(label="run", title="Run"), Key(label="topic", title="What")),
        columns=(
            Column(
                title="Samples",
                expr=f"sum by (run, topic) ({increase(made, over='$__range')})",
                unit="short",
                decimals=0,
            ),
            Column(
                title="Age of the newest",
                expr=f"time() - min by (run, topic) ({of(last)})",
                unit="s",
                thresholds=_STALE,
            ),
            Column(
                title="May be off by",
                expr=f"max by (run, topic) ({of(error)})",
                unit="percentunit",
                thresholds=thresholds(GOOD, Step(0.01, NEUTRAL), Step(0.05, WARN)),
            ),
        ),
        sort_by="Age of the newest",
        descending=True,
    )
