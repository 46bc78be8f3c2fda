"""The catalog as OpenTelemetry has metrics, and findings as it has events, for OTLP over HTTP.

The mapping is the one of OpenTelemetry's specification, "Prometheus and OpenMetrics
Compatibility": names are not altered, units become UCUM, a counter a monotonic cumulative sum, an
info a sum that is not monotonic. So a Prometheus behind a collector has the names of
``docs/metrics.md``, and one query serves both ways.

This module imports the packages of the extra ``otlp``: import it where they are wanted only.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics import Exemplar, export
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from ampwatch import __version__
from ampwatch.host.metrics.catalog import CATALOG
from ampwatch.host.metrics.metric import UNITS, Exemplified, ScrapeState
from ampwatch.state.text import encodable
from ampwatch.wire.records import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ampwatch.host.fleet import Fleet
    from ampwatch.host.fleet.histogram import Distribution
    from ampwatch.host.metrics.metric import Metric
    from ampwatch.wire.records import Finding

    Labels = tuple[str, ...]
    Series = tuple[str, Labels]

CUMULATIVE = export.AggregationTemporality.CUMULATIVE

_RANK = ("run", "rank")

EVENT = "ampwatch.finding"
"""Name of the events."""

_LEVELS = {
    Severity.INFO: SeverityNumber.INFO,
    Severity.WARNING: SeverityNumber.WARN,
    Severity.CRITICAL: SeverityNumber.ERROR,
}


class _SeriesHistory(NamedTuple):
    """What is remembered of a series that only grows.

    Attributes:
        start_ns: Unix time since which it has grown from zero. Unit: ns.
        value: Its newest value: the number of a counter, the observations of a histogram.
        seen_ns: Unix time of that value. Unit: ns.
    """

    start_ns: int
    value: float
    seen_ns: int


class Snapshots:
    """Makes what is sent, as the fleet is right now.

    Args:
        resource: Says which daemon sends.
        clock_ns: Unix time. Unit: ns.

    Cost: Holds ``fleet.lock`` while the samples are made, as a scrape does: 0.15 ms per 100 series.
    """

    def __init__(self, fleet: Fleet, resource: Resource, clock_ns: Callable[[], int]) -> None:
        self._fleet = fleet
        self._resource = resource
        self._clock_ns = clock_ns
        self._scope = InstrumentationScope("ampwatch", __version__)
        self._histories: dict[Series, _SeriesHistory] = {}

    def take(self) -> export.MetricsData:
        """Return all metrics that have samples, all of one instant."""
        with self._fleet.lock:
            state = ScrapeState(self._fleet)
            now_ns = self._clock_ns()
            began = {values: rank.identity.started_ns for values, rank in state.ranks}
            found = [(metric, list(metric.reader.samples(state))) for metric in CATALOG]
        # Points are made without the lock: they take ten times as long as the samples.
        histories: dict[Series, _SeriesHistory] = {}
        metrics = [
            self._converted(metric, samples, now_ns, began, histories)
            for metric, samples in found
            if samples
        ]
        # Series that are gone are forgotten: one of that name that comes later begins anew.
        self._histories = histories
        scope = export.ScopeMetrics(self._scope, metrics, "")
        return export.MetricsData([export.ResourceMetrics(self._resource, [scope], "")])

    def _converted(
        self,
        metric: Metric,
        samples: list[tuple[Labels, Any]],
        now_ns: int,
        began: Mapping[Labels, int],
        histories: dict[Series, _SeriesHistory],
    ) -> export.Metric:
        make: Callable[..., Any] = _distribution if metric.type == "histogram" else _number
        points = []
        for labels, value in samples:
            start_ns = self._start(metric, labels, value, now_ns, began, histories)
            points.append(make(metric, labels, value, start_ns, now_ns))
        data: export.Gauge | export.Sum | export.Histogram
        if metric.type == "gauge":
            data = export.Gauge(points)
        elif metric.type == "histogram":
            data = export.Histogram(points, CUMULATIVE)
        else:
            data = export.Sum(points, CUMULATIVE, is_monotonic=metric.type == "counter")
        return export.Metric(metric.name, metric.help, UNITS.get(metric.unit, ""), data)

    def _start(
        self,
        metric: Metric,
        labels: Labels,
        value: Any,
        now_ns: int,
        began: Mapping[Labels, int],
        histories: dict[Series, _SeriesHistory],
    ) -> int:
        """Return the time since which a series has grown from zero, and remember it; 0 if it does not only grow.

        Where that is not known the first point says so, by a start that is its own time, as the data
        model has it.
        """
        if metric.type not in {"counter", "histogram"}:
            return 0
        number = value.value if isinstance(value, Exemplified) else value
        begin_ns = None
        # Totals of a rank are kept by the training process, since it began; a histogram by this
        # daemon, since it has known the rank.
        if metric.type == "histogram":
            number = value.buckets[-1][1]
        elif metric.labels[:2] == _RANK:
            begin_ns = began.get(labels[:2])
        series = metric.name, labels
        before = self._histories.get(series)
        if before is None:
            start_ns = now_ns if begin_ns is None else begin_ns
        elif number < before.value:
            # It began anew since the push before: a rank that was restarted says when itself.
            start_ns = max(before.seen_ns, begin_ns or 0)
        else:
            start_ns = before.start_ns
        # A start in the future is refused: the clock of the training may have been set back.
        start_ns = min(start_ns, now_ns)
        histories[series] = _SeriesHistory(start_ns, number, now_ns)
        return start_ns


class FindingEvents:
    """Makes an event of each finding that is new or has another severity, on each rank.

    What has been made counts as sent once ``keep`` is called; until then it is made again.

    Args:
        resource: Says which daemon sends.
        clock_ns: Unix time. Unit: ns.
    """

    def __init__(self, fleet: Fleet, resource: Resource, clock_ns: Callable[[], int]) -> None:
        self._fleet = fleet
        self._resource = resource
        self._clock_ns = clock_ns
        self._scope = InstrumentationScope("ampwatch", __version__)
        self._sent: dict[tuple[Labels, int, str], Severity] = {}
        self._taken = self._sent

    def take(self) -> list[ReadableLogRecord]:
        """Return the events there are. Cost: holds ``fleet.lock`` for 1 us a finding."""
        found = []
        with self._fleet.lock:
            now_ns = self._clock_ns()
            for rank in self._fleet.exported():
                who = (rank.run, str(rank.identity.rank))
                for key, finding in rank.findings.items():
                    seen_ns = rank.finding_totals.last_seen_ns(key)
                    found.append((who, rank.identity.started_ns, finding, seen_ns))
        self._taken = {(who, began, f.key): f.severity for who, began, f, _ in found}
        return [
            ReadableLogRecord(_event(who, finding, seen_ns, now_ns), self._resource, self._scope)
            for who, began, finding, seen_ns in found
            if self._sent.get((who, began, finding.key)) is not finding.severity
        ]

    def keep(self) -> None:
        """Note that what was taken has arrived; of ranks that are gone nothing is kept."""
        self._sent = self._taken


def _event(who: Labels, finding: Finding, seen_ns: int, now_ns: int) -> LogRecord:
    attributes = {name: getattr(finding, name) for name in ("kind", "where", "op", "phase", "dtype", "source", "caused_by")}  # fmt: skip
    words = {**dict(zip(_RANK, who, strict=True)), **attributes, "advice": finding.advice}
    return LogRecord(
        timestamp=seen_ns,
        observed_timestamp=now_ns,
        severity_text=finding.severity.value,
        severity_number=_LEVELS[finding.severity],
        body=encodable(finding.summary),
        attributes={name: encodable(text) for name, text in words.items() if text}
        | {"first_step": finding.first_step, "last_step": finding.last_step},
        event_name=EVENT,
    )


def resource(instance: str, host: str) -> Resource:
    """Return what says which daemon sends, by its ``host:port``, as no other has it, and its machine.

    What ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` say goes over everything else.
    """
    own = {
        "service.name": "ampwatch",
        "service.version": __version__,
        "service.instance.id": instance,
        "host.name": host,
    }
    return Resource(own).merge(OTELResourceDetector().detect())


def _attributes(metric: Metric, labels: Labels) -> dict[str, str]:
    # As in Prometheus, where a label that is empty is none.
    return {name: value for name, value in zip(metric.labels, labels, strict=True) if value}


def _number(
    metric: Metric, labels: Labels, value: Any, start_ns: int, now_ns: int
) -> export.NumberDataPoint:
    exemplars: list[Exemplar] = []
    if isinstance(value, Exemplified):
        exemplars = [Exemplar(value.labels, 1.0, int(value.time_s * 1e9))]
        value = value.value
    # Always a double, as Prometheus has it: a series that is at times an integer is two to a backend.
    return export.NumberDataPoint(
        _attributes(metric, labels), start_ns, now_ns, float(value), exemplars
    )


def _distribution(
    metric: Metric, labels: Labels, value: Distribution, start_ns: int, now_ns: int
) -> export.HistogramDataPoint:
    upto = [count for _, count in value.buckets]
    counts = [count - below for count, below in zip(upto, [0, *upto[:-1]], strict=True)]
    bounds = [bound for bound, _ in value.buckets if math.isfinite(bound)]
    # What is not known is unset. The classes are typed for what the SDK itself measures.
    total: Any = value.sum
    unknown: Any = None
    return export.HistogramDataPoint(
        _attributes(metric, labels),
        start_ns,
        now_ns,
        upto[-1],
        total,
        counts,
        bounds,
        unknown,
        unknown,
    )
