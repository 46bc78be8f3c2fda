"""Shares that op censuses and profiler windows come to."""

from __future__ import annotations

import math

import pytest

from ampwatch.numerics.units.ops import OpKind
from ampwatch.report.op_shares import (
    Absence,
    Precision,
    Share,
    casts_per_op,
    flops_by_dtype,
    flops_per_iteration,
    low_precision_share,
    nanoseconds_by_unit,
    peaks_of,
    tensor_share,
)
from ampwatch.wire.records import CastTotal, KernelTotal, OpTotal
from tests.workshop.records import H100, census, window

HALF_PEAK = 132 * 4096 * 1.83e9
"""Peak that NVIDIA's datasheet calls 989 TFLOP/s."""


def matmuls(dtype: str, flops: int, calls: int = 1) -> OpTotal:
    return OpTotal(OpKind.MATMUL, dtype, calls, flops, flops, 0)


def of_h100(*ops: OpTotal, iterations: int = 1) -> Precision:
    precision = Precision()
    precision.know_facts(H100.facts)
    precision.put(census(ops=ops, iterations=iterations))
    return precision


def test_flops_of_several_kinds_add_up_by_dtype_the_most_first() -> None:
    """Attention and matmuls are one ceiling; what has no FLOPs is not there."""
    record = census(
        ops=(
            matmuls("float32", 10),
            matmuls("float16", 20),
            OpTotal(OpKind.ATTENTION, "float16", 1, 5, 5, 0),
            OpTotal(OpKind.POINTWISE, "int64", 1, 0, 0, 8),
        ),
        iterations=5,
    )

    assert list(flops_by_dtype(record).items()) == [("float16", 25), ("float32", 10)]
    assert flops_per_iteration(record) == {"float16": 5.0, "float32": 2.0}


def test_low_precision_is_16_bits_and_fewer_and_tf32_is_not() -> None:
    """TF32 is float32 to the user."""
    flops = {"float16": 1, "bfloat16": 2, "float8_e4m3fn": 3, "tf32": 4, "float32": 5, "int8": 5}

    assert low_precision_share(flops) == 6 / 20
    assert low_precision_share({}) is None


def test_casts_are_grouped_by_the_ops_that_multiply() -> None:
    """Pointwise ops are no reason to cast."""
    ops = (matmuls("float16", 1, calls=4), OpTotal(OpKind.POINTWISE, "float16", 99, 0, 0, 0))
    casts = (CastTotal("float32", "float16", 5, 0), CastTotal("float16", "float32", 1, 0))

    assert casts_per_op(census(ops=ops, casts=casts)) == 1.5
    assert casts_per_op(census(casts=casts)) is None


def test_the_share_of_tensor_cores_has_two_bounds() -> None:
    """Kernels that nobody knows may be theirs; one that multiplies nothing is not asked."""
    record = window(
        KernelTotal("tensor", "float16", 50),
        KernelTotal("tensor", "bfloat16", 10),
        KernelTotal("cuda", "float32", 20),
        KernelTotal("unknown", "", 20),
        KernelTotal("other", "", 1000),
    )

    assert tensor_share(record) == Share(0.6, 0.8)
    assert nanoseconds_by_unit(record) == {"tensor": 60, "cuda": 20, "unknown": 20, "other": 1000}
    assert tensor_share(window(KernelTotal("other", "", 1))) is None


@pytest.mark.parametrize(
    ("totals", "absence"),
    [
        ([], Absence.NO_MATMULS),
        ([KernelTotal("other", "", 1)], Absence.NO_MATMULS),
        ([KernelTotal("cpu", "float32", 1)], Absence.NO_GPU),
        ([KernelTotal("cuda", "float32", 1)], Absence.OK),
    ],
)
def test_why_there_is_no_share_is_reported(totals: list[KernelTotal], absence: Absence) -> None:
    """A CPU has no tensor cores; a GPU may have had nothing to multiply."""
    precision = Precision()
    assert precision.kernels_absence is Absence.WAITING
    precision.put(window(*totals))

    assert precision.kernels_absence is absence


def test_a_record_that_only_counts_what_was_skipped_is_no_window() -> None:
    """There is still nothing to tell of kernels."""
    precision = Precision()
    precision.put(window(windows=0, iterations=0, skipped=(1, 0, 0, 0, 0)))

    assert precision.kernels_absence is Absence.WAITING


def test_the_ceiling_is_that_of_each_dtype() -> None:
    """Half of the time at the peak of float16, half at that of TF32, which is half as high."""
    precision = of_h100(
        matmuls("float16", int(HALF_PEAK * 2)), matmuls("tf32", int(HALF_PEAK)), iterations=2
    )

    told = precision.arithmetic(4.0)

    assert told.ideal_seconds == pytest.approx(2.0)
    assert told.utilization == pytest.approx(0.5)
    assert told.mfu == pytest.approx(1.5 / 4)
    assert (told.absence, told.sentence) == (Absence.OK, "")


KNOWN = {**H100.facts, "device": "NVIDIA H100"}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (KNOWN | {"gpu_capability": "nine"}, "set peak_flops"),
        (KNOWN | {"gpu_sms": "9" * 400}, "set peak_flops"),
        (KNOWN | {"gpu_clock_hertz": "1e300"}, "set peak_flops"),
        ({"device": "AMD Instinct MI300X"}, "this is AMD Instinct MI300X"),
        (
            {"device": "NVIDIA H100", "gpu_capability": "9.0", "gpu_sms": "132"},
            "neither PyTorch nor the driver reports the clock",
        ),
        (
            {"device": "cuda", "gpu_unknown": "the driver is too old"},
            "cannot describe the device (the driver is too old)",
        ),
    ],
)
def test_a_gpu_that_is_known_too_little_of_has_no_ceiling(
    facts: dict[str, str], words: str
) -> None:
    """The reason is given in words, with what to do; it is no CPU."""
    precision = Precision()
    precision.put(census(ops=(matmuls("float16", 10),)))
    precision.know_facts(facts)

    told = precision.arithmetic(1.0)

    assert (told.ideal_seconds, told.utilization, told.mfu) == (None, None, None)
    assert told.absence is Absence.UNKNOWN_DEVICE
    assert words in told.sentence


def test_a_cpu_is_no_unknown_gpu() -> None:
    """Nothing is wrong there."""
    precision = Precision()
    precision.put(census(ops=(matmuls("float32", 10),)))
    absences = [precision.arithmetic(1.0).absence]
    precision.know_facts({"device": "cpu"})
    absences.append(precision.arithmetic(1.0).absence)

    assert absences == [Absence.NO_GPU] * 2


def test_the_user_knows_the_peak_best() -> None:
    """Peaks that are set win over those derived, dtype by dtype, also on an unknown device."""
    own = {"peak_flops": "float16=100"}

    assert peaks_of(KNOWN | own).flops["float16"] == 100.0
    assert peaks_of(KNOWN | own).flops["tf32"] > 1e14
    assert dict(peaks_of(own).flops) == {"float16": 100.0}
    assert peaks_of({"peak_flops": "a lot"}).reason


def test_a_dtype_without_a_peak_is_no_free_lunch() -> None:
    """Left out, the ideal would be too short."""
    told = of_h100(matmuls("float16", 10), matmuls("complex128", 10)).arithmetic(1.0)

    assert told.absence is Absence.NO_PEAK
    assert "complex128" in told.sentence


@pytest.mark.parametrize("seconds", [0.0, math.nan])
def test_without_a_step_time_the_ideal_one_is_known_all_the_same(seconds: float) -> None:
    """Nothing is divided by it."""
    told = of_h100(matmuls("float16", int(HALF_PEAK))).arithmetic(seconds)

    assert told.ideal_seconds == pytest.approx(1.0)
    assert told.utilization is None
    assert told.absence is Absence.NO_STEP_TIME


def test_before_the_first_census_nothing_is_claimed() -> None:
    """Not even an ideal of 0."""
    assert Precision().arithmetic(1.0).absence is Absence.WAITING
    assert of_h100(iterations=0).arithmetic(1.0).absence is Absence.WAITING
