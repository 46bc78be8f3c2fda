"""PromQL as the dashboards write it: which variables filter which metric."""

from __future__ import annotations

from dataclasses import dataclass

from ampwatch.host.metrics.catalog import CATALOG

_LABELS: dict[str, tuple[str, ...]] = {
    metric.name + suffix: metric.labels
    for metric in CATALOG
    for suffix in (("_bucket", "_sum", "_count") if metric.type == "histogram" else ("",))
} | dict.fromkeys(("up", "ALERTS", "ALERTS_FOR_STATE"), ())

EVERYWHERE = 'job=~"$job", instance=~"$instance"'
"""The matchers that every selector has."""


@dataclass(frozen=True)
class Query:
    """Query of a panel.

    Args:
        expr: PromQL.
        legend: Name of its series, with ``{{label}}`` for the value of a label.
        instant: Whether only the end of the time range is asked for.
    """

    expr: str
    legend: str = ""
    instant: bool = False


def of(metric: str, *matchers: str, every_rank: bool = False) -> str:
    """Return the selector of ``metric`` for what the variables of the dashboard choose.

    Args:
        metric: A name of the catalogue, with the suffix of the series for a histogram; or one
            that Prometheus makes itself: ``up``, ``ALERTS``, ``ALERTS_FOR_STATE``.
        matchers: Further ones, as ``state="stale"``.
        every_rank: Whether to leave ``$rank`` out, where a rank is compared with all others.

    Raises:
        KeyError: If nothing of that name is exported.
    """
    labels = _LABELS[metric]
    chosen = [EVERYWHERE]
    if "run" in labels:
        chosen.append('run=~"$run"')
    if "rank" in labels and not every_rank:
        chosen.append('rank=~"$rank"')
    return f"{metric}{{{', '.join([*chosen, *matchers])}}}"


def having(label: str, value: str) -> str:
    """Return the matcher of one value of a label."""
    return f'{label}="{value}"'


def any_of(label: str, *values: str) -> str:
    """Return the matcher of several values of a label."""
    return f'{label}=~"{"|".join(values)}"'


def rate(metric: str, *matchers: str) -> str:
    """Return the increase per second of a counter."""
    return f"rate({of(metric, *matchers)}[$__rate_interval])"


def increase(metric: str, *matchers: str, over: str = "$__rate_interval") -> str:
    """Return the increase of a counter over a time, by default that between two points."""
    return f"increase({of(metric, *matchers)}[{over}])"


def largest(count: int, expr: str) -> str:
    """Return PromQL of the ``count`` series whose mean over the time range on the screen is largest.

    ``topk`` alone chooses anew at each point: of a thousand ranks it draws some hundred lines.
    """
    return _chosen("topk", count, expr)


def smallest(count: int, expr: str) -> str:
    """Return PromQL of the ``count`` series whose mean over the time range is smallest."""
    return _chosen("bottomk", count, expr)


def _chosen(function: str, count: int, expr: str) -> str:
    mean = f"avg_over_time(({expr})[$__range:$__interval] @ end())"
    return f"({expr}) and {function}({count}, {mean})"


def still_there(expr: str) -> str:
    """Return PromQL of the series of ``expr`` that still have a value at the end of the time range.

    A range query alone goes on to answer with the last value of what is long gone.
    """
    return f"({expr}) and last_over_time(({expr})[1s:1s] @ end())"


def one_of_each(expr: str, by: str, shown: str, count: int) -> str:
    """Return PromQL of one series of each group, with how many series it stands for.

    Ranks that say the same in other words than their number are one row, and a row has a rank and a
    machine that a link can lead to.

    Args:
        expr: PromQL of series whose value is 1.
        by: Labels that tell the groups apart, with commas between them.
        shown: Labels that the answer has beyond these.
        count: Groups that are shown at most: those with the most series.
    """
    labels = ", ".join(label for label in by.split(", ") if label != "job")
    return (
        f"topk({count}, sum by ({labels}, {shown}) (topk by ({by}) (1, {expr})"
        f" * on ({by}) group_left () count by ({by}) ({expr})))"
    )
