"""Rules of the linter about the queries of a dashboard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.dashboards import documents
from tests.dashboards.promql import RATE_INTERVAL, PromQLError, parse, selectors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.dashboards.promql import Selector

ERROR, WARNING = "error", "warning"

_QUERYING = frozenset({"singlestat", "gauge", "table", "stat", "state-timeline", "timeseries"})


@dataclass(frozen=True)
class Found:
    """A problem before the linter adds which rule and dashboard it belongs to."""

    message: str
    panel: str = ""
    severity: str = ERROR


def sources(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the variables that choose a datasource."""
    return documents.variables(dashboard, "datasource")


def asks_prometheus(dashboard: dict[str, Any]) -> bool:
    """Say whether the first of them is a Prometheus; without, the linter looks at no PromQL."""
    found = sources(dashboard)
    return bool(found) and found[0].get("query") == "prometheus"


def _targets(
    dashboard: dict[str, Any], types: frozenset[str] | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the targets of panels of some types, ``None`` for all, if they ask Prometheus."""
    if not asks_prometheus(dashboard):
        return
    for panel in documents.drawn(dashboard):
        if types is None or panel["type"] in types:
            for target in panel.get("targets") or ():
                yield panel.get("title", ""), target


def _selected(
    dashboard: dict[str, Any], types: frozenset[str] | None
) -> Iterator[tuple[str, Selector]]:
    for title, target in _targets(dashboard, types):
        try:
            found = selectors(target.get("expr", ""))
        except PromQLError:
            continue  # the business of target-promql-rule
        for selector in found:
            yield title, selector


def target_promql(dashboard: dict[str, Any]) -> Iterator[Found]:
    ids = {panel.get("id") for panel in documents.panels(dashboard)}
    for title, target in _targets(dashboard, _QUERYING):
        if not target.get("expr") and target.get("panelId"):
            if target["panelId"] not in ids:
                yield Found(f"there is no panel {target['panelId']}", title)
            continue
        try:
            parse(target.get("expr", ""))
        except PromQLError as error:
            yield Found(str(error), title)


def target_rate_interval(dashboard: dict[str, Any]) -> Iterator[Found]:
    for title, selector in _selected(dashboard, _QUERYING):
        if selector.range in {None, RATE_INTERVAL} or selector.bare:
            continue
        if selector.function in {"", "rate", "irate"}:
            yield Found(f"expected {selector.name}[$__rate_interval], got another range", title)


def matched(label: str) -> Callable[[dict[str, Any]], Iterator[Found]]:
    def rule(dashboard: dict[str, Any]) -> Iterator[Found]:
        for title, selector in _selected(dashboard, None):
            wanted = (label, "=~", f"${label}")
            if wanted not in {(m.label, m.operator, m.value) for m in selector.matchers}:
                yield Found(f'{selector.name}: expected {label}=~"${label}"', title)

    return rule


def target_counter_agg(dashboard: dict[str, Any]) -> Iterator[Found]:
    for title, selector in _selected(dashboard, None):
        counted = selector.range and selector.function in {"rate", "irate", "increase"}
        if selector.name.endswith("_total") and not counted:
            yield Found(f"{selector.name}: expected rate, irate or increase of it", title)
