"""Tests of what the scrape says about sampled ranges."""

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families as parse_text

from ampwatch.host.metrics.catalog import TOPICS
from ampwatch.host.metrics.prometheus import PrometheusExporter
from ampwatch.wire.records import FactsRecord, Record, Topic
from tests.host.metrics.test_prometheus import names_of_rank_0, samples, scrape
from tests.numerics.oracle import histogram_of
from tests.workshop.fleets import RANGES, fleet_of
from tests.workshop.records import histogram, ranges, sampling

FLOAT16 = FactsRecord({"autocast_dtype": "bfloat16,float16"})
OF_RANGES = {
    metric.name
    for topic in ("Sampling", "Gradients", "Parameters and buffers", "Modules")
    for metric in TOPICS[topic]
}
OF_SAMPLING = {
    "ampwatch_samples_total",
    "ampwatch_samples_dropped_total",
    "ampwatch_device_overhead_seconds_total",
    "ampwatch_modules_untracked",
    "ampwatch_gradient_elements_total",
    "ampwatch_gradient_zero_elements_total",
    "ampwatch_gradient_underflow_elements_total",
    "ampwatch_gradient_subnormal_elements_total",
    "ampwatch_gradient_nonfinite_elements_total",
    "ampwatch_gradient_magnitude_bucket",
}


def value(name: str, *records: Record, **labels: str) -> float | None:
    """Return the value of one series of rank 0, ``None`` if it is absent."""
    for family in parse_text(scrape(fleet_of(*records))):
        for sample in family.samples:
            if sample.name == name and {"rank": "0", "run": "gpt", **labels} == sample.labels:
                return sample.value
    return None


def of_modules(name: str, *records: Record) -> dict[str, float]:
    """Return the values of a family by module."""
    families = {
        family.name: family for family in parse_text(scrape(fleet_of(*records, sampling())))
    }
    return {sample.labels["module"]: sample.value for sample in families[name].samples}


def test_before_the_first_sample_there_are_counters_at_0_and_nothing_else() -> None:
    """The first element that underflows is an increase that an alert can see."""
    born = names_of_rank_0(fleet_of())
    of_ranges = {name for name in born if name.removesuffix("_bucket") in OF_RANGES}

    assert of_ranges == OF_SAMPLING
    assert {v for k, v in samples(fleet_of()).items() if k[0] in OF_SAMPLING} == {0.0}


def test_losses_in_blocks_are_those_of_the_first_rank() -> None:
    """Other ranks of the host are alike."""
    second = fleet_of(FLOAT16, RANGES[0], rank=1, local_rank=1, world_size=2)

    assert "ampwatch_gradient_format_fit{" in scrape(second)
    assert "ampwatch_gradient_block_underflow_ratio{" not in scrape(second)


def test_outliers_and_updates_are_those_of_the_elements() -> None:
    """The largest over the root mean square, and the median share, as the elements themselves have them."""
    torch.manual_seed(0)
    output = torch.randn(64, 64).double()
    output[:, 3] *= 40
    shares = torch.randn(4096).exp().double() * 1e-3
    records = (
        FLOAT16,
        ranges("fc", Topic.ACTIVATION, histogram_of(output.flatten().tolist()), dtype="float16"),
        ranges("fc", Topic.UPDATE, histogram_of(shares.tolist())),
        ranges("dead", Topic.ACTIVATION, histogram(0, zeros=9), dtype="float16"),
    )

    found = of_modules("ampwatch_module_activation_outlier_ratio", *records)
    expected = float(output.abs().max() / output.square().mean().sqrt())
    assert found == {"fc": pytest.approx(expected, rel=0.1)}
    (median,) = of_modules("ampwatch_module_update_ratio", *records).values()
    assert 0.7 < median / float(shares.median()) < 1.4143


def test_a_ratio_of_nothing_is_absent() -> None:
    """Zeros alone do not say why they are zero, NaN have no largest, several dtypes have no one limit."""
    zeros = ranges("fc", exponents=histogram(0, zeros=4), flushed=-1)
    nothing = ranges("nothing", exponents=histogram(0, nans=4))
    mixed = ranges("mixed", Topic.ACTIVATION, histogram(6, 1), dtype="mixed")
    records = (FLOAT16, zeros, nothing, mixed)

    assert of_modules("ampwatch_module_gradient_underflow_ratio", *records) == {}
    assert of_modules("ampwatch_module_gradient_zero_ratio", *records) == {"fc": 1.0}
    assert of_modules("ampwatch_module_gradient_amax", *records) == {"fc": 0.0}
    assert of_modules("ampwatch_module_activation_amax", *records) == {"mixed": 64.0}
    assert of_modules("ampwatch_module_activation_dtype_max", *records) == {}


def test_the_error_of_a_subsample_is_that_of_the_module_with_the_fewest_elements() -> None:
    """0 where all were counted, absent where nothing was measured."""
    name = "ampwatch_sample_standard_error_ratio"
    records = [
        ranges("a", Topic.GRADIENT, histogram(0, 100)),
        ranges("a", Topic.ACTIVATION, histogram(0, 2500, numel=10_000)),
        ranges("b", Topic.ACTIVATION, histogram(0, 10_000, numel=90_000)),
        ranges("a", Topic.UPDATE, histogram(0, 400)),
    ]

    assert value(name, *records, topic="gradient") == 0.0
    assert value(name, *records, topic="activation") == 0.01
    assert value(name, *records, topic="update") == 0.025
    assert value(name, *records, topic="weight") is None


def test_a_window_beyond_every_scale_does_not_break_the_scrape() -> None:
    """Gradients of 1e-307 in float64: the scale would be more than a number can say."""
    record = ranges(exponents=histogram(-191, 1, amax=1e-307, amin=1e-307))

    assert PrometheusExporter(fleet_of(FLOAT16, record), {}).render()[0]
    assert value("ampwatch_loss_scale_window_high", FLOAT16, record) is None
