"""The rules of Grafana's dashboard-linter, written anew: that one is a Go program.

Each rule yields problems; a dashboard without any is what the linter calls clean. Where the
original looks at less than its rule says (counters with matchers, overrides of a unit), this
one looks at all of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.dashboards import documents
from tests.dashboards.lint_targets import (
    WARNING,
    Found,
    asks_prometheus,
    matched,
    sources,
    target_counter_agg,
    target_promql,
    target_rate_interval,
)
from tests.dashboards.promql import PromQLError, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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

_LINTED = frozenset({"stat", "singlestat", "graph", "table", "timeseries", "gauge"})
_BOUND = frozenset({"singlestat", "graph", "table", "timeseries"})
_QUESTION = re.compile(r"([a-z_]+)\((.+)\)")


@dataclass(frozen=True)
class Problem:
    """A finding of a rule: which rule, how bad, where, and what."""

    rule: str
    severity: str
    dashboard: str
    panel: str
    message: str


def template_datasource(dashboard: dict[str, Any]) -> Iterator[Found]:
    found = sources(dashboard)
    if not found:
        yield Found("expected a variable of type datasource, got none")
    for source in found:
        kind = str(source.get("query", ""))
        names, labels = {f"{kind.lower()}_datasource"}, {f"{kind.title()} data source"}
        if len(found) == 1:
            names.add("datasource")
            labels.add("Data source")
        if source.get("name") not in names:
            yield Found(f"expected its name in {sorted(names)}, got {source.get('name')!r}")
        elif source.get("label") not in labels:
            message = f"expected its label in {sorted(labels)}, got {source.get('label')!r}"
            yield Found(message, severity=WARNING)


def _template_of_target(name: str) -> Callable[[dict[str, Any]], Iterator[Found]]:
    bound = {"$datasource", "${datasource}", "$prometheus_datasource", "${prometheus_datasource}"}

    def rule(dashboard: dict[str, Any]) -> Iterator[Found]:
        if not asks_prometheus(dashboard):
            return
        variable = next((v for v in documents.variables(dashboard) if v.get("name") == name), None)
        if variable is None:
            yield Found(f"expected a variable {name}, got none")
            return
        source = (variable.get("datasource") or {}).get("uid")
        if source not in bound:
            yield Found(f"{name}: expected the datasource variable, got {source!r}")
        wanted = {"type": "query", "multi": True, "allValue": ".+"}
        for key, value in wanted.items():
            if variable.get(key) != value:
                yield Found(f"{name}: expected {key} {value!r}, got {variable.get(key)!r}")
        if variable.get("label") != name.title():
            message = f"{name}: expected label {name.title()!r}, got {variable.get('label')!r}"
            yield Found(message, severity=WARNING)

    return rule


def template_label_promql(dashboard: dict[str, Any]) -> Iterator[Found]:
    if not asks_prometheus(dashboard):
        return
    for variable in documents.variables(dashboard, "query"):
        asked = documents.question(variable)
        match = _QUESTION.fullmatch(asked)
        if match is None:
            yield Found(f"{variable['name']}: expected function(argument), got {asked!r}")
        elif match[1] not in {"label_names", "label_values", "metrics", "query_result"}:
            yield Found(f"{variable['name']}: Grafana has no function {match[1]}")
        else:
            argument = match[2]
            if match[1] == "label_values":
                argument = argument.rpartition(",")[0] or argument
            try:
                parse(argument)
            except PromQLError as error:
                yield Found(f"{variable['name']}: {error}")


def template_on_time_change_reload(dashboard: dict[str, Any]) -> Iterator[Found]:
    for variable in documents.variables(dashboard, "query"):
        if variable.get("refresh") != 2:
            yield Found(f"{variable['name']}: expected refresh 2, got {variable.get('refresh')!r}")


def panel_datasource(dashboard: dict[str, Any]) -> Iterator[Found]:
    names = [source["name"] for source in sources(dashboard)]
    bound = {text for name in names for text in (f"${name}", f"${{{name}}}")}
    for panel in documents.drawn(dashboard):
        source = (panel.get("datasource") or {}).get("uid")
        if panel["type"] in _BOUND and source not in bound:
            yield Found(f"expected a datasource variable, got {source!r}", panel.get("title", ""))


def _linted(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (panel for panel in documents.drawn(dashboard) if panel["type"] in _LINTED)


def panel_title_description(dashboard: dict[str, Any]) -> Iterator[Found]:
    for panel in _linted(dashboard):
        for key in ("title", "description"):
            if not panel.get(key):
                yield Found(f"expected a {key}, got none", panel.get("title", ""))


def panel_units(dashboard: dict[str, Any]) -> Iterator[Found]:
    for panel in _linted(dashboard):
        config = panel.get("fieldConfig", {})
        properties = [
            entry
            for override in config.get("overrides", ())
            for entry in override.get("properties", ())
        ]
        mapped = config.get("defaults", {}).get("mappings") is not None
        if mapped or any(entry["id"] == "mappings" for entry in properties):
            continue
        reduce = panel.get("options", {}).get("reduceOptions", {})
        if panel["type"] == "stat" and reduce.get("fields"):
            continue
        units = [entry["value"] for entry in properties if entry["id"] == "unit"]
        units += [config.get("defaults", {}).get("unit", "")] if not units else []
        for unit in units:
            if unit not in UNITS:
                yield Found(f"expected a unit of the list, got {unit!r}", panel.get("title", ""))


def panel_no_targets(dashboard: dict[str, Any]) -> Iterator[Found]:
    for panel in _linted(dashboard):
        if not panel.get("targets"):
            yield Found("expected targets, got none", panel.get("title", ""))


RULES: dict[str, Callable[[dict[str, Any]], Iterator[Found]]] = {
    "template-datasource-rule": template_datasource,
    "template-job-rule": _template_of_target("job"),
    "template-instance-rule": _template_of_target("instance"),
    "template-label-promql-rule": template_label_promql,
    "template-on-time-change-reload-rule": template_on_time_change_reload,
    "panel-datasource-rule": panel_datasource,
    "panel-title-description-rule": panel_title_description,
    "panel-units-rule": panel_units,
    "panel-no-targets-rule": panel_no_targets,
    "target-promql-rule": target_promql,
    "target-rate-interval-rule": target_rate_interval,
    "target-job-rule": matched("job"),
    "target-instance-rule": matched("instance"),
    "target-counter-agg-rule": target_counter_agg,
}
"""The rules by the names that the linter gives them."""

IMPLIED = frozenset({"target-logql-rule", "target-logql-auto-rule", "uneditable-dashboard"})
"""The other rules of the linter: the conventions keep them, for no target may ask a Loki and no
dashboard may be edited."""


def lint(dashboard: dict[str, Any]) -> list[Problem]:
    """Return everything that the rules find in ``dashboard``."""
    return [
        Problem(name, found.severity, dashboard.get("title", ""), found.panel, found.message)
        for name, rule in RULES.items()
        for found in rule(dashboard)
    ]
