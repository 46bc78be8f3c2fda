"""What the scrape says about sampled ranges, dtypes, casts, kernels and the ceiling."""

from __future__ import annotations

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families as parse_text

from ampwatch.host.metrics.catalog import TOPICS
from ampwatch.host.metrics.labels import LABELS
from ampwatch.host.metrics.prometheus import PrometheusExporter
from ampwatch.host.metrics.scopes import DTYPES, NO_DTYPE, OTHER_DTYPE, dtype_label
from ampwatch.numerics.units.ops import OpKind
from ampwatch.report.op_shares import Absence
from ampwatch.wire.records import (
    CastTotal,
    CensusSource,
    FactsRecord,
    KernelTotal,
    OpTotal,
    Record,
    Topic,
)
from tests.host.metrics.test_prometheus import names_of_rank_0, samples, scrape
from tests.numerics.oracle import histogram_of
from tests.workshop.fleets import RANGES, fleet_of
from tests.workshop.records import H100, census, histogram, op_row, ranges, sampling, window

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

    assert PrometheusExporter(fleet_of(FLOAT16, record)).render()[0]
    assert value("ampwatch_loss_scale_window_high", FLOAT16, record) is None


OF_PRECISION = {metric.name for topic in ("Precision mix", "Kernels") for metric in TOPICS[topic]}
BORN_AT_0 = {
    "ampwatch_census_iterations_total",
    "ampwatch_flops_total",
    "ampwatch_tensor_core_flops_total",
    "ampwatch_autocast_fallback_ops_total",
    "ampwatch_autocast_fallback_flops_total",
    "ampwatch_kernel_misaligned_seconds_total",
    "ampwatch_kernel_lagging_seconds_total",
    "ampwatch_kernel_gemv_seconds_total",
    "ampwatch_kernel_busy_seconds_total",
    "ampwatch_profiled_seconds_total",
    "ampwatch_profiler_iterations_total",
    "ampwatch_profiler_windows_total",
    "ampwatch_profiler_windows_invalid_total",
    "ampwatch_profiler_windows_skipped_total",
    "ampwatch_profiler_seconds_total",
}


def test_before_the_first_census_there_are_counters_at_0_and_reasons_and_nothing_else() -> None:
    """The first fallback is an increase that an alert can see."""
    of_precision = names_of_rank_0(fleet_of()) & OF_PRECISION
    born = {v for k, v in samples(fleet_of()).items() if k[0] in BORN_AT_0}

    assert of_precision == BORN_AT_0 | {"ampwatch_precision_capability"}
    assert born == {0.0}


@pytest.mark.parametrize("facts", [H100, FactsRecord({"device": "AMD Instinct MI300X"})])
def test_on_a_gpu_the_usual_pairs_of_unit_and_dtype_are_0_before_the_first_window(
    facts: FactsRecord,
) -> None:
    """The first kernels are an increase; on a CPU there is nothing that could."""
    name = "ampwatch_kernel_seconds_total"
    on_gpu = {key: v for key, v in samples(fleet_of(facts)).items() if key[0] == name}
    on_cpu = samples(fleet_of(FactsRecord({"device": "cpu"})))

    assert len(on_gpu) == 3 * 5  # which they are, the golden scrape shows
    assert set(on_gpu.values()) == {0.0}
    assert not any(key[0] == name for key in on_cpu)


def test_where_only_a_cpu_was_profiled_there_is_no_time_of_kernels() -> None:
    """A zero beside the profiled time would say that a GPU was idle."""
    of_cpu = window(KernelTotal("cpu", "float32", 1), wall_ns=10**9)
    of_gpu = window(KernelTotal("cpu", "float32", 1), KernelTotal("other", "", 1))

    for name in ("busy", "misaligned", "lagging", "gemv"):
        assert value(f"ampwatch_kernel_{name}_seconds_total", of_cpu) is None
        assert value(f"ampwatch_kernel_{name}_seconds_total", of_gpu) == 0
    assert value("ampwatch_profiled_seconds_total", of_cpu) == 1


def test_the_growth_of_memory_is_absent_before_a_window_was_opened() -> None:
    """One that was only skipped has measured nothing."""
    name = "ampwatch_profiler_memory_growth_bytes"

    assert value(name, window(windows=0, iterations=0)) is None
    assert value(name, window(memory_bytes=4096)) == 4096
    assert value("ampwatch_profiler_drag_ratio", window()) is None


def test_the_label_of_a_dtype_is_one_of_few_words() -> None:
    """Several that share one are added up: a scrape with the same series twice is refused."""
    assert [dtype_label(dtype) for dtype in ("tf32", "int64", "", "uint8")] == [
        "tf32",
        OTHER_DTYPE,
        NO_DTYPE,
        OTHER_DTYPE,
    ]
    assert len({dtype_label(f"made_up_{i}") for i in range(100)} | set(DTYPES)) < 20
    record = census(
        ops=(
            OpTotal(OpKind.POINTWISE, "int64", 1, 0, 0, 0),
            OpTotal(OpKind.POINTWISE, "bool", 2, 0, 0, 0),
        ),
        casts=(CastTotal("int64", "bool", 3, 30), CastTotal("bool", "uint8", 4, 40)),
    )
    other = {"from_dtype": "other", "to_dtype": "other"}

    assert value("ampwatch_op_calls_total", record, op_kind="pointwise", dtype="other") == 3
    assert value("ampwatch_casts_total", record, **other) == 7
    assert value("ampwatch_cast_bytes_total", record, **other) == 70


def test_only_modules_with_series_of_their_own_have_a_share() -> None:
    """The rest is on the page."""
    rows = [
        op_row("", "float16", module="fc", flops=3),
        op_row("", "float32", module="fc", flops=1),
        op_row("", "float32", OpKind.OTHER, module="norm"),
        op_row("", "float16", module="untracked"),
        op_row("", "float32", module="", flops=5),
    ]
    known = [ranges(module, exponents=histogram(0, 1)) for module in ("fc", "norm", "")]

    shares = of_modules("ampwatch_module_low_precision_flops_ratio", *known, census(*rows))

    assert shares == {"fc": 0.75, "(root)": 0.0}


def test_every_reason_for_absence_is_explained() -> None:
    """A dashboard can show it; the golden scrape has some of them."""
    assert all(f"`{absence.value}`" in LABELS["reason"] for absence in Absence)
    assert all(f"`{source.label}`" in LABELS["reason"] for source in CensusSource)
