"""Which rank do the others wait for, and why? What each does by itself, held against the others."""

from __future__ import annotations

from dashboards.source.fields import described
from dashboards.source.panels import TimeSeries
from dashboards.source.phases import (
    DATA,
    EXCESS,
    NO_PHASES,
    OWN_EXCESS,
    WAITS_FOR_DATA,
)
from dashboards.source.ranks_apart import THIS_RANK, TOP, outliers

_PHASES = ["ampwatch_step_phase_seconds"]


def waiting() -> tuple[TimeSeries, ...]:
    """Return the panels of the row."""
    return (
        TimeSeries(
            id=502,
            title=f"Ranks that the others wait for ({TOP})",
            description=described(
                shows="How much more of each step a rank takes for its own part than the median rank of its"
                " run: that much the others wait. Steps of ranks that reduce gradients end together, so the"
                " time of a step does not show it.",
                good="below 5 %.",
                act="a rank that stays above costs all of them that share of the time. Its finding straggler"
                " says in which phase and why; a click leads to its own steps, and to its GPU.",
                metrics=_PHASES,
            ),
            unit="percentunit",
            no_value=NO_PHASES,
            queries=outliers(OWN_EXCESS),
            reaches_from=0,
            reaches_to=0.15,
            thresholds=EXCESS,
            area=True,
            links=THIS_RANK,
        ),
        TimeSeries(
            id=503,
            title=f"Ranks that wait for data ({TOP})",
            description=described(
                shows="Share of the time in which a rank waits for its next batch, of those that wait most.",
                good="below 10 %, and all alike.",
                act="one alone: its shard, its disk, the workers on its host. All: see Does it wait for data?"
                " in Run.",
                metrics=_PHASES,
            ),
            unit="percentunit",
            no_value="No wait for a batch was seen: no DataLoader, or no step yet",
            queries=outliers(WAITS_FOR_DATA),
            minimum=0,
            reaches_to=0.5,
            thresholds=DATA,
            area=True,
            links=THIS_RANK,
        ),
    )
