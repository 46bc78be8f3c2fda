"""The kernels that a GPU spent its time in."""

from __future__ import annotations

from typing import Any

import pytest

from ampwatch.diagnosis.evidence.ops import KernelTime, Window
from ampwatch.numerics.units.ops import Fallback
from ampwatch.wire.records import Severity
from tests.workshop.censuses import HOPPER, Watched, matmul
from tests.workshop.iterations import TAKEN
from tests.workshop.replay import Replay


def kernel(name: str, unit: str, dtype: str, seconds: float, **more: Any) -> KernelTime:
    fields = {"op": "aten::mm", "align": 0, "arch": 90, "lags": False, "gemv": False, **more}
    return KernelTime(name=name, unit=unit, dtype=dtype, seconds=seconds, **fields)


GOOD = kernel("nvjet_tst", "tensor", "bfloat16", 0.1, align=8)
ALIGN1 = kernel("cutlass_75_align1", "tensor", "bfloat16", 0.04, align=1, arch=75, lags=True)
OLD = kernel("sm80_xmma", "tensor", "bfloat16", 0.04, arch=80, lags=True)
SGEMM = kernel("ampere_sgemm_128x64", "cuda", "float32", 0.04)
GEMV = kernel("gemv2T_kernel", "cuda", "bfloat16", 0.04, gemv=True)
UNKNOWN = kernel("Kernel2", "unknown", "", 0.9, align=1, lags=True, gemv=True)


def pass_windows(
    watched: Watched, *kernels: KernelTime, windows: int = 2, wall_s: float = 0.4
) -> Watched:
    """Hand over windows of two iterations in which the GPU was busy for 200 ms."""
    replay = Replay()
    for step in range(windows):
        iteration = replay.take().last
        iteration.window = Window(10 * step, 2, wall_s, 0.2, [GOOD, *kernels])
        watched.performance.detect(iteration, TAKEN)
    return watched


@pytest.mark.parametrize(
    ("slow", "kind", "phase"),
    [
        (ALIGN1, "dims_unaligned", "config"),
        (OLD, "kernels_outdated", "config"),
        (SGEMM, "fp32_matmul", "forward"),
        (GEMV, "matmul_is_gemv", "config"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_slow_kernels_are_named_with_their_time_after_two_windows(
    slow: KernelTime, kind: str, phase: str
) -> None:
    """One sort of kernel is one finding."""
    watched = Watched(HOPPER)
    pass_windows(watched, slow, windows=1)
    before = watched.named
    pass_windows(watched, slow)

    assert before == []
    finding = watched.only(kind)
    assert watched.named == [(kind, "")]
    assert (finding.phase, finding.severity, finding.op) == (phase, Severity.INFO, "aten::mm")
    assert finding.evidence["kernel_seconds"] == pytest.approx(0.02)
    assert finding.evidence["kernel_share"] == pytest.approx(0.2)
    assert finding.evidence["wall_share"] == pytest.approx(0.1)
    assert slow.name in finding.summary
    assert "20 ms a step" in finding.summary


@pytest.mark.parametrize(
    "kernels",
    [
        [UNKNOWN],
        [kernel("sm90", "tensor", "bfloat16", 0.1, align=8)],
        [kernel("tf32", "tensor", "tf32", 0.1, align=4)],
        [kernel("fp8", "tensor", "float8", 0.1, align=16)],
        [ALIGN1._replace(seconds=0.019)],
        [SGEMM._replace(dtype="float64")],
        [kernel("gemv", "cuda", "float32", 0.1, gemv=True)],
        [kernel("softmax", "other", "float32", 0.1)],
    ],
    ids=["unknown", "16 bytes", "tf32", "float8", "little", "float64", "float32 gemv", "other"],
)
def test_what_is_not_known_to_be_slow_causes_no_advice(kernels: list[KernelTime]) -> None:
    """A name that says nothing is never held against a kernel."""
    assert pass_windows(Watched(HOPPER), *kernels, windows=4).named == []


def test_float32_and_vectors_are_the_users_choice_without_autocast() -> None:
    """Misaligned and old kernels are slow either way."""
    watched = pass_windows(Watched(HOPPER, dtypes=()), SGEMM, GEMV, ALIGN1, OLD)

    assert [kind for kind, _ in watched.named] == ["dims_unaligned", "kernels_outdated"]


def test_one_unusual_window_is_not_enough() -> None:
    """Two in a row have to agree."""
    watched = Watched(HOPPER)
    for _ in range(3):
        pass_windows(watched, ALIGN1, windows=1)
        pass_windows(watched, windows=1)

    assert watched.named == []


def test_the_census_says_where_the_kernels_belong() -> None:
    """The finding of the census gets the time; there are not two of them."""
    watched = Watched(HOPPER)
    odd = matmul("attention", 100, unaligned_flops=100, shape=(1, 5185, 5185, 64))
    watched.take(odd)
    pass_windows(watched, ALIGN1)

    assert watched.named == [("dims_unaligned", "attention")]
    assert watched.only("dims_unaligned").evidence["kernel_seconds"] == pytest.approx(0.02)


def test_vectors_are_traced_to_the_module_that_has_most_of_them() -> None:
    """A product with one row or one column."""
    watched = Watched(HOPPER)
    watched.take(
        matmul("small", 1, bytes=10, shape=(1, 1, 8, 8)),
        matmul("value_head", 1, bytes=100, shape=(1, 512, 1, 512)),
        matmul("body", 9, bytes=900, shape=(1, 512, 512, 512)),
    )

    assert pass_windows(watched, GEMV).only("matmul_is_gemv").where == "value_head"


def test_what_can_be_won_back_is_bounded_by_the_roofline_and_large_gains_are_warnings() -> None:
    """5185 padded: 62 FLOP/B at 3 TB/s are a roof of 187 TFLOP/s, far below the peak."""
    shape = (16, 5185, 5185, 64)
    flops = 2 * 16 * 5185 * 5185 * 64
    traffic = 16 * (2 * 5185 * 64 + 5185 * 5185) * 2
    watched = Watched(HOPPER)
    watched.take(matmul("attention", flops, unaligned_flops=flops, shape=shape))
    pass_windows(watched, ALIGN1, wall_s=0.2)
    finding = watched.only("dims_unaligned")

    assert finding.evidence["recoverable_seconds"] == pytest.approx(0.02 - traffic / 3e12)
    assert finding.evidence["gain_ratio"] == pytest.approx((0.02 - traffic / 3e12) * 2 / 0.2)
    assert finding.severity is Severity.INFO
    pass_windows(watched, ALIGN1._replace(seconds=0.09), wall_s=0.2)
    assert finding.severity is Severity.WARNING


def test_without_a_known_roof_there_is_no_gain_but_there_is_a_share() -> None:
    """A third of the wall time in float32 on CUDA cores is a warning by itself."""
    watched = Watched(HOPPER._replace(memory_bandwidth=0.0))
    watched.take(
        matmul("m", 64), matmul("f", 64, "float32", Fallback.DISABLED_REGION, shape=(1, 4, 4, 4))
    )
    pass_windows(watched, SGEMM._replace(seconds=0.06), wall_s=0.2)
    finding = watched.only("fp32_matmul")

    assert "recoverable_seconds" not in finding.evidence
    assert finding.where == "f"
    assert finding.severity is Severity.WARNING
