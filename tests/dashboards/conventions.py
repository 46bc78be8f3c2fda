"""Conventions of all dashboards of ampwatch, beyond the rules of Grafana's linter.

What one builder writes for all of them in one place (times, variables, data sources, formats of queries)
is not checked again: these are what each panel, row and link says for itself.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.dashboards import documents
from tests.dashboards.names import EXPORTED, vocabulary
from tests.dashboards.promql import PromQLError, selectors

PROPERTIES = frozenset(
    [
        "unit",
        "noValue",
        "decimals",
        "displayName",
        "min",
        "max",
        "color",
        "thresholds",
        "mappings",
        "links",
        "custom.width",
        "custom.cellOptions",
        "custom.lineStyle",
        "custom.lineWidth",
        "custom.fillOpacity",
        "custom.fillBelowTo",
        "custom.hideFrom",
        "custom.axisPlacement",
        "custom.stacking",
    ]
)
"""Properties that an override may change: Grafana ignores others in silence, and no type knows them."""

_ALARMING = frozenset({"red", "orange"})

_COUNTS = re.compile(r"increase\([^\[]*\[\$__rate_interval\]")
_WORDS = re.compile(r"[A-Z]\w*( \S+)+")


def links(dashboard: dict[str, Any]) -> Iterator[str]:
    """Check that links to other dashboards take time range and choices along."""
    for url in _urls(dashboard):
        if not url.startswith("/d/"):
            continue
        if not re.match(r"/d/ampwatch-(gpu|layers|overview|precision|ranks|run)[/?]", url):
            yield f"link to no dashboard of ours: {url}"
        for kept in ("${__url_time_range}", "${datasource:queryparam}"):
            if kept not in url:
                yield f"link without {kept}: {url}"


def _urls(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("url"), str):
            yield value["url"]
        for inner in value.values():
            yield from _urls(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _urls(inner)


def _found(value: Any, key: str, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        if key in value:
            yield f"{path}.{key}", value[key]
        for name, inner in value.items():
            yield from _found(inner, key, f"{path}.{name}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _found(inner, key, f"{path}[{index}]")


def rows(dashboard: dict[str, Any]) -> Iterator[str]:
    """Check that every panel stands below a question."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row" and not panel["title"].endswith("?"):
            yield f"row {panel['title']!r}: expected a question"


def places(dashboard: dict[str, Any]) -> Iterator[str]:
    """Check that panels have ids and places of their own."""
    every = list(documents.panels(dashboard))
    ids = [panel.get("id") for panel in every]
    if not all(isinstance(number, int) and number > 0 for number in ids):
        yield f"ids: expected a number for each panel, got {ids}"
    if len(set(ids)) < len(ids):
        yield f"ids: expected no number twice, got {ids}"
    for panel in every:
        place = panel["gridPos"]
        if place["x"] < 0 or place["w"] < 1 or place["h"] < 1 or place["x"] + place["w"] > 24:
            yield f"{panel['title']}: outside of the 24 columns: {place}"
    # What is folded up in a row takes no place until it is opened, and Grafana makes room then.
    folds = [panel["panels"] for panel in every if panel.get("panels")]
    for together in (dashboard.get("panels", []), *folds):
        for one, other in itertools.combinations(together, 2):
            if _overlap(one["gridPos"], other["gridPos"]):
                yield f"{one['title']} lies over {other['title']}"


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return (
        one["x"] < other["x"] + other["w"]
        and other["x"] < one["x"] + one["w"]
        and one["y"] < other["y"] + other["h"]
        and other["y"] < one["y"] + one["h"]
    )


def panels(dashboard: dict[str, Any]) -> Iterator[str]:
    """Check what every panel says, whom it asks, and what it shows without an answer."""
    for panel in documents.drawn(dashboard):
        yield from (f"{panel['title']}: {problem}" for problem in _panel(panel))


def _panel(panel: dict[str, Any]) -> Iterator[str]:
    if panel["type"] == "text":
        return
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    if not _WORDS.match(defaults.get("noValue", "")):
        yield f"expected words in place of no value, got {defaults.get('noValue')!r}"
    yield from _colours(panel)
    yield from _reach(panel)
    yield from _overrides(panel)
    for target in panel["targets"]:
        yield from _target(panel, target)


def _colours(panel: dict[str, Any]) -> Iterator[str]:
    for _, steps in _found(panel["fieldConfig"], "steps"):
        values = [step.get("value") for step in steps]
        if not values or values[0] is not None or values[1:] != sorted(v or 0 for v in values[1:]):
            yield f"expected thresholds that begin with null and rise, got {values}"
        if steps[:1] and steps[0].get("color") in _ALARMING:
            yield "expected no alarming colour first: Grafana gives it to what has no value"


def _reach(panel: dict[str, Any]) -> Iterator[str]:
    defaults = panel["fieldConfig"]["defaults"]
    custom = defaults.get("custom", {})
    if panel["type"] == "stat":
        drawn = panel.get("options", {}).get("graphMode") == "area"
        if drawn != any(not target.get("instant") for target in panel["targets"]):
            yield "expected the course of a stat to be drawn where it is asked for"
    if panel["type"] != "timeseries" or custom.get("scaleDistribution", {}).get("type") == "log":
        return
    if {"min"} & defaults.keys() or {"axisSoftMin", "axisSoftMax"} & custom.keys():
        return
    yield "expected a minimum or a soft limit: an axis without makes -1 to 1 of nothing but zeros"


def _series(target: dict[str, Any]) -> list[str]:
    """Return the names that the series of a target can have, a label without a list as it stands."""
    names = [target.get("legendFormat") or ""]
    try:
        metrics = [selector.name for selector in selectors(target.get("expr", ""))]
    except PromQLError:
        return names
    for label in re.findall(r"\{\{(\w+)\}\}", names[0]):
        values = {value for metric in metrics for value in vocabulary(metric, label) or ()}
        if values:
            field = f"{{{{{label}}}}}"
            names = [name.replace(field, value) for name in names for value in sorted(values)]
    return names


def _overrides(panel: dict[str, Any]) -> Iterator[str]:
    fields = {name for target in panel["targets"] for name in _series(target)}
    for change in panel.get("transformations") or ():
        fields |= set(change.get("options", {}).get("renameByName", {}).values())
    for override in panel["fieldConfig"].get("overrides", ()):
        matcher, name = override["matcher"]["id"], override["matcher"]["options"]
        if matcher == "byRegexp":
            matched = any(re.search(name.strip("/"), field) for field in fields)
        else:
            matched = matcher == "byName" and name in fields
        if not matched:
            yield f"override for {name!r}: expected one of {sorted(fields)}"
        for change in override["properties"]:
            if change["id"] not in PROPERTIES:
                yield f"override for {name!r}: Grafana has no property {change['id']!r}"
            if change["id"] == "custom.fillBelowTo" and change["value"] not in fields:
                yield f"override for {name!r}: no series {change['value']!r} to fill to"


def _target(panel: dict[str, Any], target: dict[str, Any]) -> Iterator[str]:
    yield from _asked_as(panel["type"], target)
    if _COUNTS.search(target.get("expr", "")) and not panel.get("interval"):
        yield "expected an interval: $__rate_interval is four scrapes, each event counts four times"
    try:
        found = selectors(target.get("expr", ""))
    except PromQLError:
        return  # the business of the linter
    for selector in found:
        chosen = {matcher.label for matcher in selector.matchers if matcher.value == "$run"}
        if "run" in EXPORTED.get(selector.name, ()) and "run" not in chosen:
            yield f'{selector.name}: expected run=~"$run"'


def _asked_as(kind: str, target: dict[str, Any]) -> Iterator[str]:
    legend = target.get("legendFormat", "")
    if kind == "timeseries" and re.match(r"(top|bottom)k\(", target.get("expr", "")):
        yield "expected the same series at every point: topk alone chooses anew at each"
    gone = not target.get("instant") and "@ end()" not in target.get("expr", "")
    if kind == "stat" and gone:
        yield "expected an instant query, or @ end(): the newest value of a history may be long gone"
    if kind == "timeseries" and not legend.strip():
        yield "expected a legend"
    if legend == "__auto":
        yield "expected a legend in words, got __auto"


RULES: tuple[Callable[[dict[str, Any]], Iterator[str]], ...] = (
    links,
    rows,
    places,
    panels,
)


def problems(dashboard: dict[str, Any]) -> list[str]:
    """Return all ways in which ``dashboard`` differs from the others."""
    return [problem for rule in RULES for problem in rule(dashboard)]
