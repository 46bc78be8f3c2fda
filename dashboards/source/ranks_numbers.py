"""Ranks whose loss, gradients or findings differ from those of the others of their run."""

from __future__ import annotations

from dashboards.source.fields import described
from dashboards.source.links import field, to_dashboard
from dashboards.source.panels import TimeSeries
from dashboards.source.queries import rate
from dashboards.source.ranks_apart import THIS_RANK, TOP, outliers
from dashboards.source.states import ADVICE_KEY, FINDING_KEYS, finding_columns
from dashboards.source.tables import Key, Table


def numbers() -> tuple[TimeSeries | Table, ...]:
    """Return the panels of the row."""
    nonfinite = (
        "sum by (job, instance, run, rank)"
        f" ({rate('ampwatch_gradient_nonfinite_elements_total')}) > 0"
    )
    return (
        TimeSeries(
            id=403,
            title=f"Ranks with NaN or infinite gradients ({TOP})",
            description=described(
                shows="Non-finite gradient elements per second, of the ranks that have most.",
                good="nothing, or all ranks alike after a gradient was reduced.",
                act="one rank alone: it is where the overflow appears, before the reduction spreads"
                " it. Open it: its findings name the op.",
                metrics=["ampwatch_gradient_nonfinite_elements_total"],
            ),
            unit="cps",
            no_value="All measured gradients are finite, or none was measured",
            queries=outliers(nonfinite),
            minimum=0,
            links=THIS_RANK,
        ),
        Table(
            id=407,
            title="Findings of the ranks",
            description=described(
                shows="What was found, newest first, and on how many ranks. Choose one rank above to"
                " see those of it alone.",
                good="empty.",
                act="compare Ranks with the number of ranks: few of many means data or machines.",
                metrics=["ampwatch_finding_last_seen_timestamp_seconds", "ampwatch_findings"],
            ),
            unit="none",
            no_value="Nothing was found on the chosen ranks",
            keys=(
                Key(
                    label="run",
                    title="Run",
                    links=(to_dashboard("Open this run", "ampwatch-run", run=field("Run")),),
                    width=160,
                ),
                *FINDING_KEYS,
                ADVICE_KEY,
            ),
            sort_by="Last seen",
            columns=finding_columns("run"),
            width=24,
        ),
    )
