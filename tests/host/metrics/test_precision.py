"""Tests of what the scrape says about dtypes, casts, kernels and the ceiling."""

from __future__ import annotations

import pytest

from ampwatch.host.metrics.catalog import TOPICS
from ampwatch.host.metrics.labels import LABELS
from ampwatch.host.metrics.scopes import DTYPES, NO_DTYPE, OTHER_DTYPE, dtype_label
from ampwatch.numerics.units.ops import OpKind
from ampwatch.report.op_shares import Absence
from ampwatch.wire.records import (
    CastTotal,
    CensusSource,
    FactsRecord,
    KernelTotal,
    OpTotal,
)
from tests.host.metrics.test_prometheus import names_of_rank_0, samples
from tests.host.metrics.test_ranges import of_modules, value
from tests.workshop.fleets import fleet_of
from tests.workshop.records import H100, census, histogram, op_row, ranges, window

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
