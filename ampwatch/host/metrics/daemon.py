"""Metrics of the daemon itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch import __version__
from ampwatch.host.metrics.metric import Metric
from ampwatch.host.metrics.scopes import ONCE, Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ampwatch.host.fleet.passes import CollectorPass
    from ampwatch.host.metrics.metric import ScrapeState


def _passes(state: ScrapeState) -> Iterator[tuple[tuple[str, ...], CollectorPass]]:
    for name, done in state.passes.items():
        yield (name,), done


_PER_COLLECTOR: Scope[CollectorPass] = Scope(("collector",), _passes)


DAEMON: tuple[Metric, ...] = (
    Metric(
        "ampwatch_build_info",
        "info",
        "Version of the ampwatch daemon (value is always 1).",
        ONCE.by("version", read=lambda _state: [((__version__,), 1)]),
    ),
    Metric(
        "ampwatch_collector_success",
        "gauge",
        "Whether the newest pass of the collector succeeded (1) or not (0).",
        _PER_COLLECTOR.one(lambda done: int(done.success)),
    ),
    Metric(
        "ampwatch_collector_duration_seconds",
        "gauge",
        "Time the newest pass of the collector took.",
        _PER_COLLECTOR.one(lambda done: done.duration_seconds),
        unit="seconds",
    ),
    Metric(
        "ampwatch_rings_unreadable",
        "gauge",
        "Ring files found that this daemon cannot read: written by another version, or damaged.",
        ONCE.one(lambda state: len(state.fleet.problems)),
    ),
    Metric(
        "ampwatch_ranks_left_out",
        "gauge",
        "Ranks that this daemon knows and does not export, because there are more than 256.",
        ONCE.one(lambda state: state.fleet.num_left_out),
    ),
)
