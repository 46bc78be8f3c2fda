"""Tests of a scrape in protobuf: it says what the text says, and has native histograms besides."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ampwatch.host.fleet import Fleet, Histogram
from ampwatch.host.fleet.native import ZERO_THRESHOLD
from ampwatch.host.metrics.accept import PROTOBUF
from ampwatch.host.metrics.catalog import CATALOG
from ampwatch.host.metrics.messages import MAX_COUNT
from ampwatch.host.metrics.metric import Exemplified, Metric
from ampwatch.host.metrics.prometheus import PrometheusExporter
from ampwatch.host.metrics.scopes import ONCE
from ampwatch.settings import Settings
from tests.host.metrics.client_model import TYPES, families
from tests.host.metrics.test_exposition import (
    PASSES,
    awkward_fleet,
    changing,
    sizes_of_scrapes,
)
from tests.workshop.clocks import START, Clock
from tests.workshop.fleets import fleet_with_gpus, made_up_fleet

Sample = tuple[str, frozenset[tuple[str, str]]]


def scrape(fleet: Fleet, *names: str) -> list[Any]:
    """Return the messages of a scrape in protobuf."""
    body, content_type = PrometheusExporter(fleet, PASSES).render(PROTOBUF, names)
    assert content_type == PROTOBUF
    return families(body)


def labels_of(metric: Any, **more: str) -> frozenset[tuple[str, str]]:
    return frozenset({**{pair.name: pair.value for pair in metric.label}, **more}.items())


def samples_of(messages: list[Any]) -> dict[Sample, str]:
    """Return the values of all classic series, as text has them."""
    found: dict[Sample, float] = {}
    for family in messages:
        for metric in family.metric:
            if TYPES[family.type] == "HISTOGRAM":
                histogram = metric.histogram
                for bucket in histogram.bucket:
                    bound = "+Inf" if math.isinf(bucket.upper_bound) else repr(bucket.upper_bound)
                    key = (f"{family.name}_bucket", labels_of(metric, le=bound))
                    found[key] = bucket.cumulative_count
                if not math.isnan(histogram.sample_sum):
                    found[f"{family.name}_sum", labels_of(metric)] = histogram.sample_sum
                    found[f"{family.name}_count", labels_of(metric)] = histogram.sample_count
            elif TYPES[family.type] == "COUNTER":
                found[family.name, labels_of(metric)] = metric.counter.value
            else:
                found[family.name, labels_of(metric)] = metric.gauge.value
    return {key: repr(float(value)) for key, value in found.items()}


def samples_of_text(fleet: Fleet) -> dict[Sample, str]:
    text = PrometheusExporter(fleet, PASSES).render()[0].decode()
    return {
        (sample.name, frozenset(sample.labels.items())): repr(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def native_counts(histogram: Any) -> dict[int, int]:
    """Return the count of each bucket of a native histogram by its index."""
    index = count = 0
    counts, deltas = {}, iter(histogram.positive_delta)
    for span in histogram.positive_span:
        index += span.offset
        for _ in range(span.length):
            count += next(deltas)
            counts[index] = count
            index += 1
    assert list(deltas) == []
    return counts


def a_message(metric: Metric) -> Any:
    """Return the one message of the one metric that there is."""
    body, _ = PrometheusExporter(Fleet(Settings(), Clock()), {}, [metric]).render(PROTOBUF)
    ((message,),) = [family.metric for family in families(body)]
    return message


def a_histogram(histogram: Histogram) -> Any:
    """Return the message of a histogram."""
    reader = ONCE.one(lambda _: histogram.distribution())
    return a_message(Metric("x", "histogram", "X.", reader)).histogram


@pytest.mark.parametrize(
    "make", [made_up_fleet, awkward_fleet, fleet_with_gpus, lambda: Fleet(Settings(), Clock())]
)
def test_every_series_of_the_text_is_there_and_no_other(make: Callable[[], Fleet]) -> None:
    """With its labels and its value, classic buckets of histograms too."""
    fleet = make()

    assert samples_of(scrape(fleet)) == samples_of_text(fleet)


def test_families_are_those_of_the_catalog_that_have_a_series() -> None:
    """Name, type, help and unit, in its order."""
    found = scrape(made_up_fleet())
    types = {"info": "GAUGE"}
    expected = {m.name: (types.get(m.type, m.type.upper()), m.help, m.unit) for m in CATALOG}

    assert {f.name: (TYPES[f.type], f.help, f.unit) for f in found}.items() <= expected.items()
    names = [metric.name for metric in CATALOG]
    assert [family.name for family in found] == sorted(
        [family.name for family in found], key=names.index
    )
    assert all(family.metric for family in found)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))]
)
def test_whatever_changes_is_written_again(seed: int) -> None:
    """A scrape that goes by the one before says what one says that has none before."""
    changes = changing(seed, "all")
    exporter = PrometheusExporter(next(changes), PASSES)
    for fleet in changes:
        assert exporter.render(PROTOBUF) == PrometheusExporter(fleet, PASSES).render(PROTOBUF)


def test_memory_is_that_of_the_newest_scrape() -> None:
    """Series of runs that are over are forgotten."""

    def size(exporter: PrometheusExporter) -> int:
        families = exporter._messages._families.values()
        return sum(len(block.content) for f in families for block in f._blocks.values())

    sizes = sizes_of_scrapes(PROTOBUF, size)

    assert sizes == [sizes[0]] * 5


@given(st.lists(st.floats(0, 1e9), max_size=200), st.integers(1, 1000))
def test_a_native_histogram_has_the_counts_of_its_buckets(values: list[float], times: int) -> None:
    """Spans and differences say what was counted, and add up to all observations."""
    histogram = Histogram((1.0, 10.0))
    for value in values:
        histogram.observe(value, times)
    native = histogram.distribution().native

    message = a_histogram(histogram)

    assert (message.schema, message.zero_threshold) == (native.schema, ZERO_THRESHOLD)
    assert message.zero_count == native.zero_count
    assert native_counts(message) == native.counts
    assert message.sample_count == len(values) * times
    assert message.sample_sum == histogram.sum


def test_neighbours_are_one_span() -> None:
    """Spans are for gaps: the format is small because counts stand beside one another."""
    histogram = Histogram((1.0,), schema=0)
    for exponent in (-3, -2, -1, 5, 6):
        histogram.observe(2.0**exponent)

    spans = [(span.offset, span.length) for span in a_histogram(histogram).positive_span]

    assert spans == [(-3, 3), (5, 2)]


def test_counts_that_no_field_can_hold_are_no_error() -> None:
    """A ring can say anything: the classic buckets have the largest number, native ones are left out."""
    histogram = Histogram((1.0, 2.0))
    histogram.observe(0.5, 2**70)

    message = a_histogram(histogram)

    assert {bucket.cumulative_count for bucket in message.bucket} == {MAX_COUNT}
    assert message.sample_count == MAX_COUNT
    assert not message.HasField("schema")
    assert not message.positive_span


def test_the_largest_counts_are_exact() -> None:
    """Up to what differences can hold, of either sign."""
    histogram = Histogram((1.0,), summed=False, schema=0)
    histogram.observe(1.0, MAX_COUNT - 1)
    histogram.observe(2.0)

    message = a_histogram(histogram)

    assert native_counts(message) == {0: MAX_COUNT - 1, 1: 1}
    assert message.sample_count == MAX_COUNT


def test_a_sum_that_is_not_known_is_no_zero() -> None:
    """A field that is left out is read as 0."""
    histogram = Histogram((1.0,), summed=False)
    histogram.observe(0.5)

    assert math.isnan(a_histogram(histogram).sample_sum)


@pytest.mark.parametrize("time_s", [START + 0.25, -1.5, 0.0, math.nextafter(1.0, 0.0)])
def test_a_counter_carries_its_exemplar(time_s: float) -> None:
    """As in OpenMetrics; a clock may be wrong, and the nanoseconds of a time are never below 0."""
    value = Exemplified(3.0, {"step": "7"}, time_s)
    message = a_message(Metric("x_total", "counter", "X.", ONCE.one(lambda _: value)))

    exemplar = message.counter.exemplar

    assert message.counter.value == 3.0
    assert [(pair.name, pair.value) for pair in exemplar.label] == [("step", "7")]
    assert exemplar.value == 1.0
    seconds = exemplar.timestamp.seconds + exemplar.timestamp.nanos / 1e9
    assert seconds == pytest.approx(time_s, abs=1e-6)
    assert 0 <= exemplar.timestamp.nanos < 10**9


@pytest.mark.parametrize("suffix", ["", "_bucket", "_count", "_sum"])
def test_a_scrape_can_ask_for_some_names(suffix: str) -> None:
    """A histogram by the name of any of its series; a name that is not known is no error."""
    duration = "ampwatch_step_duration_seconds"
    names = ["ampwatch_loss_scale", f"{duration}{suffix}", "nonsense"]

    found = scrape(made_up_fleet(), *names)

    assert [family.name for family in found] == ["ampwatch_loss_scale", duration]
