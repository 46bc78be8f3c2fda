"""Which queries of a dashboard a Prometheus leaves without an answer."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tools.preview.intervals import TimeSpan
from tools.preview.prometheus import Prometheus, PrometheusError
from tools.preview.questions import annotations_of, choices_of, lookup, panels, questions_of
from tools.preview.variables import variables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tools.preview.questions import Question

ROOT = Path(__file__).parents[2]


class HasUrl(Protocol):
    """A Prometheus that runs."""

    @property
    def url(self) -> str: ...


class Unanswered(NamedTuple):
    """A query without an answer.

    Attributes:
        dashboard: Its uid.
        place: Title of the panel; or which variable or annotation.
        query: As the dashboard has it.
        reason: What came back instead.
    """

    dashboard: str
    place: str
    query: str
    reason: str


def shipped_dashboards() -> list[dict[str, Any]]:
    """Return the dashboards of this repository."""
    files = sorted((ROOT / "dashboards").glob("ampwatch-*.json"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def unanswered(
    prometheus: HasUrl,
    dashboards: Iterable[Mapping[str, Any]],
    *,
    scrape_seconds: float = 15.0,
) -> list[Unanswered]:
    """Ask everything that the dashboards would ask of the last hour, with all variables at All.

    Args:
        prometheus: Who is asked.
        dashboards: As their files have them.
        scrape_seconds: What the data source says of the scrape interval. Unit: s.

    Returns:
        One for each query that is wrong, answers nothing, or nothing but NaN.
    """
    now = time.time()
    span = TimeSpan(now - 3600, now, scrape_seconds)
    client = Prometheus(prometheus.url)
    return [gap for dashboard in dashboards for gap in _gaps(dashboard, client, span)]


def _gaps(dashboard: Mapping[str, Any], client: Prometheus, span: TimeSpan) -> Iterator[Unanswered]:
    uid = dashboard["uid"]
    try:
        choices = choices_of(dashboard, client, span)
        for variable in variables(dashboard):
            if variable.kind == "query" and not lookup(variable, choices, client, span):
                yield Unanswered(uid, f"variable {variable.name}", variable.query, "no values")
    except (PrometheusError, ValueError) as error:
        yield Unanswered(uid, "variables", "", str(error))
        return
    asked = [q for panel in panels(dashboard) for q in questions_of(panel, choices, span)]
    # An alert that has begun to fire a moment ago is seen at the next point, a minute later.
    later = replace(span, end=span.end + 60)
    for question in [*asked, *annotations_of(dashboard, choices, later)]:
        reason = _gap(question, client)
        if reason:
            yield Unanswered(uid, question.place, question.written, reason)


def _gap(question: Question, client: Prometheus) -> str:
    try:
        answer = question.ask(client)
    except PrometheusError as error:
        return str(error)
    if not answer:
        return "no series"
    if all(math.isnan(value) for series in answer for _, value in series.samples):
        return "nothing but NaN"
    return ""
