"""Parts that the panels of the dashboard Layers share: queries of a module, and their drawing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.source.fields import BAD, GOOD, NEUTRAL, WARN, Step, thresholds
from dashboards.source.links import field, to_dashboard
from dashboards.source.panels import TimeSeries
from dashboards.source.queries import Query, largest, of, smallest
from dashboards.source.tables import Key

if TYPE_CHECKING:
    from grafana_foundation_sdk.models.dashboard import ThresholdsConfig

SHOWN = 10
"""Lines in a panel over time: more cannot be told apart. The tables have every module."""

SPEAKS = (
    "By default one rank of a machine represents a module, and another while it alone has trouble."
)
NOT_HERE = "no sample yet, or another rank represents the chosen one: set Rank to All"
"""Words for a module without series: one of a rank others speak for cannot be distinguished from none."""

HEADROOM = thresholds(NEUTRAL, Step(0, BAD), Step(1, WARN), Step(3, GOOD))
"""Headroom of outputs, which no loss scale can make smaller. Unit: bits. Below 1 the next doubling overflows.

Gradients have ``measures.HEADROOM``: a GradScaler looks for their limit, so that there 0 is no alarm.
"""

SHARE_LOST = thresholds(GOOD, Step(0.05, WARN), Step(0.2, BAD))
"""A twentieth of a gradient is no longer noise; a fifth is what the alert on underflow asks for."""

KEYS = (
    Key(
        label="run",
        title="Run",
        links=(to_dashboard("Open this run", "ampwatch-run", run=field("Run")),),
        width=160,
    ),
    Key(label="module", title="Module"),
)


def of_module(metric: str, *matchers: str) -> str:
    """Return the selector of ``metric`` for the modules that were chosen."""
    return of(metric, 'module=~"$module"', *matchers)


def worst(function: str, metric: str) -> str:
    """Return PromQL of one value for each module: the worst of its ranks."""
    return f"{function} by (run, module) ({of_module(metric)})"


def lines(
    *,
    number: int,
    title: str,
    about: str,
    no_value: str,
    expr: str,
    bits: bool,
    limits: ThresholdsConfig = HEADROOM,
    width: int = 12,
) -> TimeSeries:
    """Return the worst modules over time.

    Args:
        number: Id of the panel.
        title: Its title.
        about: Its description.
        no_value: Its words for no answer.
        expr: PromQL of one value for each module.
        bits: Whether it is a headroom, of which the smallest is worst, or a share.
        limits: Colours of a headroom.
        width: Of 24 columns.
    """
    worst_of = smallest if bits else largest
    return TimeSeries(
        id=number,
        title=title,
        description=about,
        unit="none" if bits else "percentunit",
        no_value=no_value,
        queries=(Query(worst_of(SHOWN, expr), "{{run}} {{module}}"),),
        minimum=None if bits else 0,
        reaches_from=0 if bits else None,
        reaches_to=8 if bits else None,
        decimals=1 if bits else None,
        thresholds=limits if bits else SHARE_LOST,
        area=bits,
        width=width,
    )
