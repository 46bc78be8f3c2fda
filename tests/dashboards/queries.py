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

ON_A_CPU = {
    "DCGM_FI_": "there is no dcgm-exporter",
    "ampwatch_kernel_": "no GPU kernel was profiled",
    "ampwatch_peak_flops_per_second": "nobody knows the peak of a CPU",
    "ampwatch_ideal_": "nobody knows the peak of a CPU",
    "ampwatch_mfu_ratio": "nobody knows the peak of a CPU",
    "ampwatch_gpu_xid_": "the GPUs that do not exist have their first XID after ten minutes",
    "ampwatch_buffer_nonfinite_elements": "the model has no buffers",
    "ampwatch_tensor_views_disagree": "there is one view of the tensor cores at most",
    "ampwatch_gpu_process_memory_used_bytes": "no process computes on a GPU that does not exist",
}
"""Series that a training on a CPU, beside GPUs that do not exist, lacks, and why: beginnings of
names. A query that asks for one of them may be empty there; it must be right all the same."""


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
    minutes: float = 60.0,
    scrape_seconds: float = 15.0,
    absent: Mapping[str, str] | None = None,
) -> list[Unanswered]:
    """Ask everything that the dashboards would ask, with all variables at All.

    Args:
        prometheus: Who is asked.
        dashboards: As their files have them.
        minutes: How far back, from now. Unit: min.
        scrape_seconds: What the data source says of the scrape interval. Unit: s.
        absent: Beginnings of names that there are no series of, with the reasons, as ``ON_A_CPU``.

    Returns:
        One for each query that is wrong, answers nothing, or nothing but NaN.
    """
    now = time.time()
    span = TimeSpan(now - 60 * minutes, now, scrape_seconds)
    client = Prometheus(prometheus.url)
    return [
        gap
        for dashboard in dashboards
        for gap in _gaps(dashboard, client, span, frozenset(absent or ()))
    ]


def _gaps(
    dashboard: Mapping[str, Any], client: Prometheus, span: TimeSpan, absent: frozenset[str]
) -> Iterator[Unanswered]:
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
        reason = _gap(question, client, absent)
        if reason:
            yield Unanswered(uid, question.place, question.written, reason)


def _gap(question: Question, client: Prometheus, absent: frozenset[str]) -> str:
    try:
        answer = question.ask(client)
    except PrometheusError as error:
        return str(error)
    if any(name in question.written for name in absent):
        return ""
    if not answer:
        return "no series"
    if all(math.isnan(value) for series in answer for _, value in series.samples):
        return "nothing but NaN"
    return ""
