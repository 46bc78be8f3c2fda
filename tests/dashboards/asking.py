"""The queries of a dashboard as Grafana sends them: variables filled in."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import Any
from urllib.parse import urlencode

from tests.dashboards import documents
from tests.integration.prometheus import Prometheus

BUILT_IN = {"__rate_interval": "5m", "__range": "10m", "__interval": "1m"}

_REFERENCE = re.compile(r"\$([a-z_]\w*)")
_VALUES = re.compile(r"label_values\((.*), (\w+)\)")


def filled(expr: str, **chosen: str) -> str:
    """Fill in the variables: what is not chosen is All, and a rate looks back five minutes."""
    known = BUILT_IN | chosen
    return _REFERENCE.sub(lambda reference: known.get(reference[1], ".+"), expr)


def panel(topic: str, number: int) -> dict[str, Any]:
    """Return the panel of a committed dashboard, by its id."""
    document = documents.load(documents.ROOT / "dashboards" / f"ampwatch-{topic}.json")
    return next(panel for panel in documents.drawn(document) if panel["id"] == number)


def get(server: Prometheus, path: str, **parameters: Any) -> Any:
    """Ask the HTTP API."""
    address = f"{server.url}/api/v1/{path}?{urlencode(parameters)}"
    with urllib.request.urlopen(address, timeout=10) as answer:
        return json.load(answer)["data"]


def answer(
    server: Prometheus, target: dict[str, Any], now: float, **chosen: str
) -> list[dict[str, Any]]:
    """Ask one query of a panel: at the end, or over the last ten minutes."""
    expr = filled(target["expr"], **chosen)
    if target["instant"]:
        found = get(server, "query", query=expr, time=now)["result"]
    else:
        found = get(server, "query_range", query=expr, start=now - 600, end=now, step=60)["result"]
    series: list[dict[str, Any]] = found
    return series


def newest(series: dict[str, Any]) -> float:
    """Return the newest value of a series of an answer, at an end or over a time."""
    pair = series["values"][-1] if "values" in series else series["value"]
    return float(pair[1])


def values_of(server: Prometheus, variable: dict[str, Any], now: float) -> set[str]:
    """Return the values that a query variable offers."""
    match = _VALUES.fullmatch(variable["definition"])
    assert match is not None, variable["definition"]
    series = get(server, "series", **{"match[]": filled(match[1]), "start": now - 3600, "end": now})
    return {labels[match[2]] for labels in series if match[2] in labels}
