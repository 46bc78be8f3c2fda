"""Tests of what the scrape says about sampled ranges."""

from typing import Any

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families as parse_text

from ampwatch.host.fleet import Fleet
from ampwatch.host.metrics.catalog import TOPICS
from ampwatch.host.metrics.prometheus import PrometheusExporter
from ampwatch.numerics.formats import FORMATS
from ampwatch.settings import Settings
from ampwatch.wire.records import ALL_MODULES, FactsRecord, Record, Topic
from tests.host.metrics.test_prometheus import fleet_of, names_of_rank_0, samples, scrape
from tests.numerics.block_oracle import counted, quantised, sqnr_db
from tests.numerics.oracle import histogram_of
from tests.workshop.clocks import START, Clock
from tests.workshop.fleets import put
from tests.workshop.records import histogram, identity, ranges, sampling, step

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


@pytest.mark.parametrize(
    ("field", "name", "labels"),
    [
        ("samples_dropped", "samples_dropped_total", {}),
        ("tensors_refused", "tensors_refused", {}),
        ("modules_left_out", "modules_left_out", {}),
        ("interval", "sampling_interval_steps", {}),
        ("gradient_elements", "gradient_elements_total", {}),
        ("gradient_zeros", "gradient_zero_elements_total", {}),
        ("gradient_underflow", "gradient_underflow_elements_total", {}),
        ("gradient_subnormal", "gradient_subnormal_elements_total", {}),
        ("gradient_nans", "gradient_nonfinite_elements_total", {"kind": "nan"}),
        ("gradient_infs", "gradient_nonfinite_elements_total", {"kind": "inf"}),
        ("parameter_nonfinite", "parameter_nonfinite_elements", {}),
        ("buffer_nonfinite", "buffer_nonfinite_elements", {}),
    ],
)
def test_totals_are_exported_one_by_one(field: str, name: str, labels: dict[str, str]) -> None:
    """Each number of the newest record, under its own name."""
    changes: dict[str, Any] = {field: 12345}

    assert value(f"ampwatch_{name}", sampling(**changes), **labels) == 12345


def test_samples_are_counted_by_topic() -> None:
    """Every topic has its series."""
    record = sampling(samples=(1, 2, 3, 4, 5, 6))

    found = [value("ampwatch_samples_total", record, topic=topic.label) for topic in Topic]

    assert found == [1, 2, 3, 4, 5, 6]


def test_device_time_is_in_seconds() -> None:
    """A quarter of a second in nanoseconds."""
    record = sampling(device_ns=250_000_000)

    assert value("ampwatch_device_overhead_seconds_total", record) == 0.25


def test_the_window_is_in_scales_not_in_exponents() -> None:
    """It can be drawn into the same panel as the loss scale."""
    record = ranges(exponents=histogram(-14, *[1] * 11), loss_scale=65536.0)

    assert value("ampwatch_loss_scale_window_low", FLOAT16, record) == 2.0**6
    assert value("ampwatch_loss_scale_window_high", FLOAT16, record) == 2.0**35


def test_the_largest_scaled_gradient_and_its_limit_can_be_compared() -> None:
    """Both are of the dtype of autocast, with the smaller range of two."""
    record = ranges(exponents=histogram(3, 1), loss_scale=1024.0)

    assert value("ampwatch_scaled_gradient_amax", FLOAT16, record) == 8.0
    assert value("ampwatch_scaled_gradient_amax_max", FLOAT16, record) == 8.0
    assert value("ampwatch_autocast_dtype_max", FLOAT16, record) == 65504.0
    assert value("ampwatch_autocast_dtype_max", record) is None


def test_each_format_fits_in_exactly_one_way() -> None:
    """From 2**-40 to 1 is too wide for float16, and bfloat16 takes it as it is."""
    record = ranges(exponents=histogram(-40, *[1] * 41))
    fits = {
        (sample.labels["format"], sample.labels["fit"])
        for family in parse_text(scrape(fleet_of(record)))
        for sample in family.samples
        if sample.name == "ampwatch_gradient_format_fit" and sample.value == 1
    }

    assert fits == {
        ("float16", "too_wide"),
        ("bfloat16", "fits"),
        ("float8_e4m3fn", "too_wide"),
        ("float8_e5m2", "too_wide"),
    }


def test_losses_in_blocks_are_those_of_real_casts_of_the_first_rank() -> None:
    """Of each block-scaled format, beside a slow quantiser; other ranks of the host are alike."""
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(4096, generator=generator, dtype=torch.float64)
    values *= torch.exp2(torch.randn(4096, generator=generator))
    blocks = tuple(
        counted(values.view(-1, n).tolist(), n, float(values.abs().amax())) for n in (16, 32)
    )
    record = ranges(exponents=histogram_of(values.tolist()), blocks=blocks, loss_scale=1024.0)

    for fmt in (fmt for fmt in FORMATS.values() if fmt.block is not None):
        cast = quantised(values, fmt.name)
        flushed = value("ampwatch_gradient_block_underflow_ratio", record, format=fmt.name)
        noise = value("ampwatch_gradient_block_sqnr_decibels", record, format=fmt.name)
        assert flushed == pytest.approx(float((cast == 0).double().mean()), abs=0.01)
        assert noise == pytest.approx(sqnr_db(values, cast), abs=1.25)
    second = Fleet(Settings(), Clock(START + 20))
    put(second, "/b.ring", identity(rank=1, local_rank=1, world_size=2), [FLOAT16, record])
    assert "ampwatch_gradient_format_fit{" in scrape(second)
    assert "ampwatch_gradient_block_underflow_ratio{" not in scrape(second)


def test_magnitudes_have_buckets_and_no_sum() -> None:
    """Only the bins of the elements are known, so a sum would be made up."""
    name = "ampwatch_gradient_magnitude"
    record = ranges(exponents=histogram(0, 2, 3), loss_scale=2.0**20)

    assert value(f"{name}_bucket", record, le=repr(2.0**-24)) == 0
    assert value(f"{name}_bucket", record, le=repr(2.0**-20)) == 2
    assert value(f"{name}_bucket", record, le="+Inf") == 5
    assert value(f"{name}_sum", record) is None


def test_modules_are_exported_by_name() -> None:
    """The row of each has what is known, and nothing of what is not."""
    records: list[Record] = [
        FLOAT16,
        ranges("", exponents=histogram(-25, 1, 3)),
        ranges("fc", exponents=histogram(0, 1, zeros=3)),
        ranges("fc", Topic.ACTIVATION, histogram(4, 1), dtype="bfloat16"),
        ranges("fc", Topic.ACTIVATION_GRADIENT, histogram(5, 1), dtype="float16"),
        ranges("fc", Topic.UPDATE, histogram(-9, 1, zeros=1)),
        ranges("mixed", Topic.ACTIVATION, histogram(6, 1), dtype="mixed"),
    ]

    def of(name: str) -> dict[str, float]:
        return of_modules(f"ampwatch_module_{name}", *records)

    assert of("gradient_amax") == {"(root)": 2.0**-24, "fc": 1.0}
    assert of("gradient_zero_ratio") == {"(root)": 0.0, "fc": 0.75}
    assert of("gradient_underflow_ratio") == {"(root)": 0.25, "fc": 0.0}
    assert of("activation_amax") == {"fc": 16.0, "mixed": 64.0}
    assert of("activation_dtype_max") == {"fc": float.fromhex("0x1.fep127")}
    assert of("activation_gradient_amax") == {"fc": 32.0}
    assert of("update_unchanged_ratio") == {"fc": 0.5}
    assert of("activation_outlier_ratio") == {"fc": pytest.approx(1.0), "mixed": pytest.approx(1.0)}
    assert of("update_ratio") == {"fc": 0.0}


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
    """Zeros alone do not say why they are zero, and NaN have neither a share nor a largest."""
    zeros = ranges("fc", exponents=histogram(0, zeros=4), flushed=-1)
    nothing = ranges("nothing", exponents=histogram(0, nans=4))
    records = (FLOAT16, zeros, nothing)

    assert of_modules("ampwatch_module_gradient_underflow_ratio", *records) == {}
    assert of_modules("ampwatch_module_gradient_zero_ratio", *records) == {"fc": 1.0}
    assert of_modules("ampwatch_module_gradient_amax", *records) == {"fc": 0.0}


def test_a_module_that_was_flushed_whole_has_lost_everything() -> None:
    """Zeros that were values count, beside those that a cast would flush."""
    zeros = ranges("fc", exponents=histogram(0, zeros=4), flushed=4)
    part = ranges("part", exponents=histogram(-26, 1, 0, 4, zeros=5), flushed=5)
    dead = ranges("dead", exponents=histogram(0, zeros=4))
    name = "ampwatch_module_gradient_underflow_ratio"

    assert of_modules(name, FLOAT16, zeros, part, dead) == {"fc": 1.0, "part": 0.6, "dead": 0.0}


def test_a_run_without_autocast_is_not_judged_by_float16() -> None:
    """2**-40 is an ordinary number of float32; what float16 would do is told as a fit."""
    tiny = histogram(-40, 4)
    records = [ranges(exponents=tiny), ranges("fc", exponents=tiny)]

    assert of_modules("ampwatch_module_gradient_underflow_ratio", *records) == {"fc": 0.0}
    for absent in ("autocast_dtype_max", "loss_scale_window_low", "loss_scale_window_high"):
        assert value(f"ampwatch_{absent}", *records) is None
    fits = {"format": "float16", "fit": "fits_scaled"}
    assert value("ampwatch_gradient_format_fit", *records, **fits) == 1


def test_a_skipped_step_asks_for_a_smaller_scale_than_its_own() -> None:
    """Gradients as they were scaled, infinities and all."""
    overflowed = histogram(-3, 8, positive_infs=2, nans=1)
    records = [
        ranges(module, exponents=overflowed, loss_scale=2.0**16, total_infs=2, total_nans=1)
        for module in (ALL_MODULES, "fc")
    ]
    nonfinite = "ampwatch_module_gradient_nonfinite_elements_total"

    assert value("ampwatch_loss_scale_window_high", FLOAT16, *records) == 2.0**15
    assert value("ampwatch_gradient_format_fit", FLOAT16, *records) is None
    assert "ampwatch_gradient_format_fit" not in names_of_rank_0(fleet_of(FLOAT16, *records))
    assert value("ampwatch_scaled_gradient_amax", FLOAT16, *records) == 0.125
    assert value(nonfinite, FLOAT16, *records, sampling(), module="fc", kind="inf") == 2


def test_a_sample_of_nothing_finite_has_no_largest_magnitude() -> None:
    """0 would look like a gradient that has vanished."""
    record = ranges(exponents=histogram(0, nans=4))

    assert value("ampwatch_scaled_gradient_amax", record) is None
    assert value("ampwatch_scaled_gradient_amax_max", record) is None


def test_the_age_of_a_sample_can_be_reported() -> None:
    """By topic, and by the steps since."""
    records: list[Record] = [
        sampling(step=3, interval=2),
        ranges(step=3),
        ranges("fc", Topic.WEIGHT, step=1),
    ]
    name = "ampwatch_last_sample_timestamp_seconds"

    assert value(name, *records, topic="gradient") == START + 4
    assert value(name, *records, topic="weight") == START + 2
    assert value(name, *records, topic="buffer") is None
    assert value("ampwatch_sampling_interval_steps", *records, step(90)) == 87


def test_what_is_not_finite_is_counted_per_module() -> None:
    """NaN and infinities apart: they have different causes."""
    record = ranges("fc", total_nans=3, total_infs=4)
    name = "ampwatch_module_gradient_nonfinite_elements_total"

    assert value(name, record, sampling(), module="fc", kind="nan") == 3
    assert value(name, record, sampling(), module="fc", kind="inf") == 4


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


def test_modules_without_series_are_counted() -> None:
    """32 of 40 could have some; half of these wait for trouble."""
    records = [ranges(f"layer{i}", exponents=histogram(0, 1)) for i in range(40)]

    assert len(of_modules("ampwatch_module_gradient_amax", *records)) == 16
    assert value("ampwatch_modules_untracked", *records, sampling()) == 24


def test_a_window_beyond_every_scale_does_not_break_the_scrape() -> None:
    """Gradients of 1e-307 in float64: the scale would be more than a number can say."""
    record = ranges(exponents=histogram(-191, 1, amax=1e-307, amin=1e-307))

    assert PrometheusExporter(fleet_of(FLOAT16, record), {}).render()[0]
    assert value("ampwatch_loss_scale_window_high", FLOAT16, record) is None
