"""The rules of Grafana's dashboard-linter, written anew as far as the conventions do not say the same.

That one is a Go program. Each rule yields problems, a panel or variable and what is wrong with it; a
dashboard without any is what the linter calls clean. Where the original looks at less than its rule
says (counters with matchers, overrides of a unit), this one looks at all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.dashboards import documents
from tests.dashboards.promql import RATE_INTERVAL, Selector, selectors

UNITS = frozenset(
    [
        "none",
        "short",
        "percentunit",
        "sci",
        "dB",
        "s",
        "ops",
        "cps",
        "flops",
        "bytes",
        "Bps",
        "hertz",
        "watt",
        "celsius",
        "dateTimeAsIso",
    ]
)
"""Units in use, of the many that the linter knows."""

_LINTED = frozenset({"stat", "table", "timeseries"})


def template_on_time_change_reload(dashboard: dict[str, Any]) -> Iterator[str]:
    for variable in documents.variables(dashboard, "query"):
        if variable.get("refresh") != 2:
            yield f"{variable['name']}: expected refresh 2, got {variable.get('refresh')!r}"


def _linted(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (panel for panel in documents.drawn(dashboard) if panel["type"] in _LINTED)


def panel_title_description(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in _linted(dashboard):
        for key in ("title", "description"):
            if not panel.get(key):
                yield f"{panel.get('title')}: expected a {key}, got none"


def panel_units(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in _linted(dashboard):
        config = panel["fieldConfig"]
        properties = [
            entry
            for override in config.get("overrides", ())
            for entry in override.get("properties", ())
        ]
        mapped = config["defaults"].get("mappings") is not None
        if mapped or any(entry["id"] == "mappings" for entry in properties):
            continue
        units = [entry["value"] for entry in properties if entry["id"] == "unit"]
        for unit in units or [config["defaults"].get("unit", "")]:
            if unit not in UNITS:
                yield f"{panel['title']}: expected a unit of the list, got {unit!r}"


def _selected(dashboard: dict[str, Any]) -> Iterator[tuple[str, Selector]]:
    for panel in documents.drawn(dashboard):
        for target in panel.get("targets") or ():
            for selector in selectors(target["expr"]):
                yield panel["title"], selector


def target_rate_interval(dashboard: dict[str, Any]) -> Iterator[str]:
    for title, selector in _selected(dashboard):
        if selector.range in {None, RATE_INTERVAL} or selector.bare:
            continue
        if selector.function in {"", "rate", "irate"}:
            yield f"{title}: expected {selector.name}[$__rate_interval], got another range"


def _matched(label: str) -> Callable[[dict[str, Any]], Iterator[str]]:
    def rule(dashboard: dict[str, Any]) -> Iterator[str]:
        for title, selector in _selected(dashboard):
            wanted = (label, "=~", f"${label}")
            if wanted not in {(m.label, m.operator, m.value) for m in selector.matchers}:
                yield f'{title}: {selector.name}: expected {label}=~"${label}"'

    return rule


def target_counter_agg(dashboard: dict[str, Any]) -> Iterator[str]:
    for title, selector in _selected(dashboard):
        counted = selector.range and selector.function in {"rate", "irate", "increase"}
        if selector.name.endswith("_total") and not counted:
            yield f"{title}: {selector.name}: expected rate, irate or increase of it"


RULES: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
    "template-on-time-change-reload-rule": template_on_time_change_reload,
    "panel-title-description-rule": panel_title_description,
    "panel-units-rule": panel_units,
    "target-rate-interval-rule": target_rate_interval,
    "target-job-rule": _matched("job"),
    "target-instance-rule": _matched("instance"),
    "target-counter-agg-rule": target_counter_agg,
}
"""The rules by the names that the linter gives them.

The one builder of all dashboards keeps the ten others: variables and data sources are the same everywhere, no
target may ask a Loki, and no dashboard may be edited; that queries can be read and are there, ``test_names.py`` says.
"""


def lint(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    """Return everything that the rules find in ``dashboard``: the rule, and what is wrong."""
    return [(name, found) for name, rule in RULES.items() for found in rule(dashboard)]
