"""Queries that docs/lab.md gives people, asked of a Prometheus."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from ampwatch.host.fleet import RankView
from ampwatch.host.metrics.prometheus import PrometheusExporter
from ampwatch.report.op_shares import (
    casts_per_op,
    flops_per_iteration,
    low_precision_share,
    tensor_share,
)
from tests.integration.prometheus import prometheus
from tests.workshop.fleets import made_up_fleet

pytestmark = [pytest.mark.nightly, pytest.mark.services]

DOCS = Path(__file__).parents[2] / "docs" / "lab.md"
QUERIES = re.findall(
    r"^```promql\n(.*?)^```$", DOCS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)

MINUTES = 60


def history(text: str, now: float) -> str:
    """Return OpenMetrics of an hour that ends with ``text``: every counter rises from 0 to it."""
    series = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    lines = []
    for minute in range(MINUTES + 1):
        at = now - 60 * (MINUTES - minute)
        for name, value in series:
            rises = name.partition("{")[0].endswith(("_total", "_sum", "_count", "_bucket"))
            part = minute / MINUTES if rises else 1.0
            lines.append(f"{name} {float(value) * part!r} {at:.3f}")
    return "\n".join([*lines, "# EOF\n"])


def expected(rank: RankView) -> list[float]:
    """Return what the page says to the same questions, in the order of the document."""
    known = rank.precision
    census, window = known.census, known.window
    assert census is not None
    assert window is not None
    share = tensor_share(window)
    casts = casts_per_op(census)
    low = low_precision_share(flops_per_iteration(rank.precision.census))
    ideal, used = rank.arithmetic.ideal_seconds, rank.arithmetic.utilization
    assert None not in (share, casts, low, ideal, used)
    steps = rank.durations
    mean = steps.sum / steps.distribution().buckets[-1][1]
    busy = window.busy_ns / window.wall_ns
    return [*share, used, ideal / mean, low, casts, busy]  # type: ignore[misc, operator, list-item]


def test_every_question_of_the_docs_has_the_answer_of_the_page(tmp_path: Path) -> None:
    """Parsed by a real Prometheus, over an hour of a made-up fleet."""
    fleet = made_up_fleet()
    rank = next(r for r in fleet.ranks() if (r.run, r.identity.rank) == ("gpt", 0))
    body, _ = PrometheusExporter(fleet).render()

    with prometheus(tmp_path, "", history(body.decode(), time.time())) as server:
        answers = [
            {(s["metric"]["run"], s["metric"]["rank"]): float(s["value"][1]) for s in series}
            for series in map(server.query, QUERIES)
        ]

    assert [answer.get(("gpt", "0")) for answer in answers] == pytest.approx(expected(rank))
