"""Questions that a dashboard asks Prometheus: of its variables, panels and annotations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tools.preview.intervals import Interval, TimeSpan, interval, seconds
from tools.preview.variables import Choices, variables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tools.preview.prometheus import Prometheus, Series
    from tools.preview.variables import Variable

SHEET_PIXELS = 1600
"""Width of the drawn dashboards, and so of the points that a panel asks for. Unit: pixels."""

COLUMNS = 24

_VALUES = re.compile(r"\s*label_values\((?:(?P<match>.+),)?\s*(?P<label>\w+)\s*\)\s*", re.DOTALL)
_RESULT = re.compile(r"\s*query_result\((?P<expression>.+)\)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Question:
    """Query of a panel or of an annotation.

    Attributes:
        place: Title of the panel, or of the annotation.
        ref_id: Its letter in the panel.
        expression: As Prometheus gets it.
        written: As the dashboard has it.
        instant: Whether only the newest values are asked for.
        interval: How finely it asks.
        model: The target as the dashboard has it.
    """

    place: str
    ref_id: str
    expression: str
    written: str
    instant: bool
    interval: Interval
    model: Mapping[str, Any]

    def ask(self, prometheus: Prometheus) -> list[Series]:
        """Return what Prometheus answers.

        Raises:
            PrometheusError: If it does not answer, or the expression is wrong.
        """
        if self.instant:
            return prometheus.instant(self.expression, self.interval.span.end)
        return prometheus.ranged(self.expression, self.interval)


def panels(dashboard: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the panels that are not rows, those in collapsed rows as well."""
    for panel in dashboard.get("panels", []):
        if panel["type"] == "row":
            yield from panel.get("panels", [])
        else:
            yield panel


def lookup(
    variable: Variable, choices: Choices, prometheus: Prometheus, span: TimeSpan
) -> list[str]:
    """Return what can be chosen for a variable with a query.

    Args:
        variable: Of kind ``query``.
        choices: Those made so far; queries refer to variables further up.
        prometheus: Who is asked.
        span: Time that is drawn.

    Raises:
        PrometheusError: If Prometheus does not answer, or the query is wrong.
        ValueError: If the query is not ``label_values`` or ``query_result``.
    """
    query = choices.in_query(variable.query, interval(span, SHEET_PIXELS).values())
    if match := _VALUES.fullmatch(query):
        found = prometheus.label_values(match["label"], (match["match"] or "").strip(), span)
    elif match := _RESULT.fullmatch(query):
        found = [_line(series) for series in prometheus.instant(match["expression"], span.end)]
    else:
        msg = f"expected label_values(...) or query_result(...) for ${variable.name}, got {query!r}"
        raise ValueError(msg)
    return variable.values(found)


def _line(series: Series) -> str:
    """Return a series as the regular expression of a variable sees it."""
    labels = ",".join(f'{k}="{v}"' for k, v in series.labels.items() if k != "__name__")
    at, value = series.samples[0]
    return f"{series.labels.get('__name__', '')}{{{labels}}} {value:g} {at * 1e3:.0f}"


def choices_of(
    dashboard: Mapping[str, Any],
    prometheus: Prometheus,
    span: TimeSpan,
    chosen: Mapping[str, list[str]] | None = None,
) -> Choices:
    """Return the variables of ``dashboard`` with their values.

    Args:
        dashboard: As the file has it.
        prometheus: Who is asked.
        span: Time that is drawn.
        chosen: What is picked, by name of the variable; all where there is nothing.

    Raises:
        PrometheusError: If Prometheus does not answer, or a query is wrong.
        ValueError: If a query is not ``label_values`` or ``query_result``.
    """
    all_of_them = variables(dashboard)
    choices = Choices({v.name: v for v in all_of_them}, chosen=dict(chosen or {}))
    for variable in all_of_them:
        if variable.kind == "query":
            choices.values[variable.name] = lookup(variable, choices, prometheus, span)
            if not variable.multi and choices.values[variable.name]:
                choices.chosen.setdefault(variable.name, choices.values[variable.name][:1])
        elif variable.kind in ("custom", "constant", "textbox"):
            choices.chosen.setdefault(variable.name, variable.query.split(",")[:1])
    return choices


def questions_of(panel: Mapping[str, Any], choices: Choices, span: TimeSpan) -> list[Question]:
    """Return what a panel asks."""
    pixels = SHEET_PIXELS * panel["gridPos"]["w"] // COLUMNS
    points = panel.get("maxDataPoints") or pixels
    found = []
    for target in panel.get("targets", []):
        own = panel.get("interval")
        of_query = target.get("interval")
        fine = interval(
            span,
            points,
            of_panel=seconds(own) if own else None,
            of_query=seconds(of_query) if of_query else None,
        )
        found.append(
            Question(
                place=panel.get("title", ""),
                ref_id=target.get("refId", "A"),
                expression=choices.in_query(target["expr"], fine.values()),
                written=target["expr"],
                instant=bool(target.get("instant")),
                interval=fine,
                model=target,
            )
        )
    return found


def annotations_of(
    dashboard: Mapping[str, Any], choices: Choices, span: TimeSpan
) -> list[Question]:
    """Return what the annotations ask, the ones that are switched off as well."""
    found = []
    for model in dashboard.get("annotations", {}).get("list", []):
        expression = model.get("expr") or (model.get("target") or {}).get("expr")
        if not expression or model.get("builtIn"):
            continue
        step = model.get("step")
        fine = interval(span, SHEET_PIXELS, of_query=seconds(step) if step else None)
        found.append(
            Question(
                place=f"annotation {model['name']}",
                ref_id="A",
                expression=choices.in_query(expression, fine.values()),
                written=expression,
                instant=False,
                interval=fine,
                model=model,
            )
        )
    return found
