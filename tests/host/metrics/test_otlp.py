"""Tests of what is pushed: the numbers of a scrape, with the types and units of OpenTelemetry."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1 import metrics_pb2

from ampwatch import __version__
from ampwatch.host.fleet import Fleet
from ampwatch.host.fleet.fleet import CollectorPass
from ampwatch.host.metrics.catalog import CATALOG
from ampwatch.host.metrics.otlp import FindingEvents, Snapshots, resource
from ampwatch.host.metrics.prometheus import PrometheusExporter
from ampwatch.settings import Settings
from ampwatch.wire.records import Severity
from tests.host.daemon.collector import (
    Request,
    labels_of,
    metrics_of,
    received_values,
    scraped_values,
)
from tests.workshop.clocks import START, Clock
from tests.workshop.fleets import fleet_of, fleet_with_gpus, made_up_fleet, put
from tests.workshop.records import finding, identity, step

CUMULATIVE = metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
RINGS = CollectorPass(success=True, duration_seconds=0.002)


class Time:
    """Unix time in ns, which stands still until it is told."""

    def __init__(self) -> None:
        self.now_ns = int((START + 60) * 1e9)

    def __call__(self) -> int:
        return self.now_ns


def snapshots(fleet: Fleet, time: Time | None = None) -> Snapshots:
    fleet.passes["rings"] = RINGS
    return Snapshots(fleet, resource("node1:10917", "node1"), time or Time())


def encoded(taken: Snapshots) -> ExportMetricsServiceRequest:
    """Return what stands on the wire, read again."""
    content = encode_metrics(taken.take())
    return type(content).FromString(content.SerializeToString())


def metric_of(content: ExportMetricsServiceRequest, name: str) -> Any:
    (found,) = (metric for metric in metrics_of(content) if metric.name == name)
    return found


def point_of(content: ExportMetricsServiceRequest, name: str, **labels: str) -> Any:
    metric = metric_of(content, name)
    data = getattr(metric, metric.WhichOneof("data"))
    (found,) = (p for p in data.data_points if set(labels.items()) <= labels_of(p))
    return found


@pytest.mark.parametrize("make", [made_up_fleet, fleet_with_gpus])
def test_what_is_pushed_are_the_series_and_numbers_of_a_scrape(make: Any) -> None:
    """Every family, label and value, and nothing besides."""
    fleet = make()
    fleet.passes["rings"] = RINGS
    text, _ = PrometheusExporter(fleet).render()
    scraped = scraped_values(text.decode())

    pushed = received_values([Request("", {}, encoded(snapshots(fleet)))])

    assert len(pushed) > 300
    assert pushed.keys() == scraped.keys()
    for key, value in pushed.items():
        assert value == scraped[key] or (math.isnan(value) and math.isnan(scraped[key])), key


def test_types_and_units_are_those_of_the_specification() -> None:
    """Counter, gauge, info and histogram."""
    content = encoded(snapshots(made_up_fleet()))

    counter = metric_of(content, "ampwatch_overhead_seconds_total")
    assert counter.sum.is_monotonic
    assert counter.sum.aggregation_temporality == CUMULATIVE
    assert counter.unit == "s"
    info = metric_of(content, "ampwatch_run_info")
    assert info.HasField("sum")
    assert not info.sum.is_monotonic
    assert {point.as_double for point in info.sum.data_points} == {1.0}
    gauge = metric_of(content, "ampwatch_memory_limit_bytes")
    assert gauge.HasField("gauge")
    assert gauge.unit == "By"
    assert metric_of(content, "ampwatch_module_gradient_zero_ratio").unit == "1"
    histogram = metric_of(content, "ampwatch_step_duration_seconds")
    assert histogram.histogram.aggregation_temporality == CUMULATIVE
    assert histogram.description
    helps = {metric.name: metric.help for metric in CATALOG}
    assert all(metric.description == helps[metric.name] for metric in metrics_of(content))


def test_a_sum_that_is_not_known_is_unset() -> None:
    """That of the magnitudes of gradients: they are counted by exponent."""
    point = point_of(
        encoded(snapshots(made_up_fleet())), "ampwatch_gradient_magnitude", run="gpt", rank="0"
    )

    assert not point.HasField("sum")
    assert point.count == sum(point.bucket_counts) > 0


def test_the_sender_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the standard variables have the last word."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab,host.name=n2")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "training-health")

    content = encoded(snapshots(made_up_fleet()))

    (sent,) = content.resource_metrics
    assert {a.key: a.value.string_value for a in sent.resource.attributes} == {
        "service.name": "training-health",
        "service.version": __version__,
        "service.instance.id": "node1:10917",
        "host.name": "n2",
        "deployment.environment.name": "lab",
    }
    assert sent.scope_metrics[0].scope.name == "ampwatch"


def test_a_finding_is_an_event_when_it_is_made_and_when_its_severity_changes() -> None:
    """At the time at which it was last seen; not when it is merely counted further."""
    fleet = fleet_of()
    events = FindingEvents(fleet, resource("node1:10917", "node1"), Time())
    told = []
    for count, severity in enumerate([Severity.WARNING, Severity.WARNING, Severity.CRITICAL]):
        news = finding(severity=severity, count=count, last_step=count)
        put(fleet, "/a.ring", identity(), [step(count), news])
        told.append([event.log_record for event in events.take()])
        assert len(events.take()) == len(told[-1]), "as long as it has not arrived"
        events.keep()

    assert [[e.severity_text for e in each] for each in told] == [["warning"], [], ["critical"]]
    made = told[0][0]
    assert made.timestamp == step(0).time_ns
    assert made.attributes["kind"] == "scale_collapse"
    assert (made.attributes["run"], made.attributes["rank"]) == ("gpt", "0")


def test_an_example_travels_with_its_counter() -> None:
    """As in OpenMetrics."""
    content = encoded(snapshots(made_up_fleet()))
    examples = [
        exemplar
        for metric in metrics_of(content)
        if metric.HasField("sum")
        for point in metric.sum.data_points
        for exemplar in point.exemplars
    ]

    assert examples
    assert all(exemplar.time_unix_nano for exemplar in examples)
    assert all(exemplar.filtered_attributes for exemplar in examples)


class TestStartTimes:
    """Since when a sum has grown, without which no backend can tell a restart from an error."""

    def fleet(self) -> Fleet:
        return Fleet(Settings(), Clock(START + 60))

    def test_totals_of_a_rank_grow_since_the_run_began(self) -> None:
        """The training process keeps them, not the daemon."""
        fleet = self.fleet()
        put(fleet, "a", identity(), [step(7)])

        point = point_of(encoded(snapshots(fleet)), "ampwatch_steps_total")

        assert point.start_time_unix_nano == identity().started_ns
        assert point.time_unix_nano == Time().now_ns

    def test_a_histogram_grows_since_the_daemon_has_known_the_rank(self) -> None:
        """And keeps that start."""
        fleet, time = self.fleet(), Time()
        taken = snapshots(fleet, time)
        put(fleet, "a", identity(), [step(7), step(8)])
        first = point_of(encoded(taken), "ampwatch_step_duration_seconds")
        began_ns, time.now_ns = time.now_ns, time.now_ns + 60 * 10**9

        second = point_of(encoded(taken), "ampwatch_step_duration_seconds")

        assert first.start_time_unix_nano == first.time_unix_nano == began_ns
        assert second.start_time_unix_nano == began_ns
        assert second.time_unix_nano == began_ns + 60 * 10**9

    def test_a_run_that_is_restarted_begins_anew(self) -> None:
        """Under the same name and rank: its totals have fallen."""
        fleet, time = self.fleet(), Time()
        taken = snapshots(fleet, time)
        put(fleet, "a", identity(), [step(700)])
        encoded(taken)
        fleet.forget("a")
        restarted_ns = time.now_ns + 30 * 10**9
        time.now_ns += 60 * 10**9
        put(fleet, "b", identity(started_ns=restarted_ns), [step(3)])

        point = point_of(encoded(taken), "ampwatch_steps_total")

        assert point.as_double < 700
        assert point.start_time_unix_nano == restarted_ns

    def test_no_start_is_in_the_future(self) -> None:
        """A clock may have been set back since the training began."""
        fleet = self.fleet()
        put(fleet, "a", identity(started_ns=Time().now_ns + 10**12), [step(1)])

        point = point_of(encoded(snapshots(fleet)), "ampwatch_steps_total")

        assert point.start_time_unix_nano == point.time_unix_nano

    def test_a_series_that_was_gone_begins_anew(self) -> None:
        """Nothing is remembered of it, so that names of runs do not pile up."""
        fleet, time = self.fleet(), Time()
        taken = snapshots(fleet, time)
        put(fleet, "a", identity(), [step(7), step(8)])
        encoded(taken)
        fleet.forget("a")
        encoded(taken)
        time.now_ns += 60 * 10**9
        put(fleet, "b", replace(identity(), run="gpt"), [step(1), step(2)])

        point = point_of(encoded(taken), "ampwatch_step_duration_seconds")

        assert point.start_time_unix_nano == time.now_ns


def test_names_of_users_stay_data() -> None:
    """Any text is an attribute's value, and comes as it is in the scrape."""
    fleet = fleet_of(step(1), finding(), run='a"b\n<i>\\')

    point = point_of(encoded(snapshots(fleet)), "ampwatch_steps_total")

    assert ("run", 'a"b\n<i>\\') in labels_of(point)
