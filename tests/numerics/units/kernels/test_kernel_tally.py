"""The sums over kernels are exact, and bounded in size."""

from __future__ import annotations

from ampwatch.numerics.units.kernels.classifier import Unit
from ampwatch.numerics.units.kernels.kernel_tally import KernelTally

BF16 = ("c10::BFloat16", "c10::BFloat16")
NVJET = "nvjet_sm90_tst_384x80_64x3_4x1_v_bz_coopA_TNT"
ALIGN1 = "cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1"
ALIGN8 = "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8"
TF32_ALIGN4 = "cutlass_80_tensorop_s1688gemm_128x256_16x3_nt_align4"
SGEMM = "ampere_sgemm_32x32_sliced1x4_tn"
GEMV = "void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128>(x)"
GEMV_FLOAT = "void gemv2T_kernel_val<int, int, float, float, float, float, 128>(x)"
TEMPLATE = "triton_tem_fused_mm_0"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float> >(int)"

RUNS = [
    (NVJET, 1000, BF16, "aten::mm"),
    (ALIGN1, 300, BF16, "aten::bmm"),
    (ALIGN8, 200, BF16, "aten::addmm"),
    (TF32_ALIGN4, 50, ("float",), "aten::mm"),
    (SGEMM, 400, ("float",), "aten::mm"),
    (GEMV, 30, ("c10::Half",), "aten::mv"),
    (GEMV_FLOAT, 7, ("float",), "aten::mv"),
    (TEMPLATE, 500, BF16, ""),
    ("zorp", 13, ("float",), "aten::mm"),
    (ADD, 2500, (), "aten::add"),
]


def tallied(runs: list[tuple[str, int, tuple[str, ...], str]]) -> KernelTally:
    tally = KernelTally(capability=(9, 0))
    for run in runs:
        tally.add(*run)
    return tally


def test_each_run_is_counted_once_by_unit_and_dtype() -> None:
    """In whole nanoseconds."""
    tally = tallied(RUNS)

    assert dict(tally.by_unit) == {
        (Unit.TENSOR, "bfloat16"): 1500,
        (Unit.TENSOR, "tf32"): 50,
        (Unit.CUDA, "float32"): 407,
        (Unit.CUDA, "float16"): 30,
        (Unit.UNKNOWN, "bfloat16"): 500,
        (Unit.UNKNOWN, "float32"): 13,
        (Unit.OTHER, ""): 2500,
    }
    assert tally.total_ns == sum(run[1] for run in RUNS)


def test_alignment_and_lag_of_tensor_core_kernels_are_reported() -> None:
    """Four elements of four bytes are full; what says no alignment is no misalignment."""
    tally = tallied(RUNS)

    assert dict(tally.by_alignment) == {"unsaid": 1000, "align1": 300, "full": 250}
    assert tally.lagging_ns == 300 + 200 + 50


def test_vectors_in_low_precision_are_kept_apart() -> None:
    """Autocast did its part there, and the shape prevents tensor cores."""
    assert tallied(RUNS).low_precision_gemv_ns == 30


def test_unknown_kernels_are_named_and_judged() -> None:
    """With what their inputs say of them."""
    tally = tallied(RUNS)

    assert tally.unknown_names.most_common() == [(TEMPLATE, 500), ("zorp", 13)]
    assert dict(tally.by_likelihood) == {"probable": 500, "possible": 13}
    assert tally.by_name.most_common(2) == [(ADD, 2500), (NVJET, 1000)]


def test_names_are_forgotten_from_the_shortest_but_no_time_is() -> None:
    """A program that names kernels by number does not fill the memory."""
    tally = KernelTally()

    tally.add("gemm_main", 10**9)
    for number in range(5000):
        tally.add(f"gemm_{number}", 1)
    assert len(tally.by_name) <= 1024
    assert tally.by_name.most_common(1) == [("gemm_main", 10**9)]
    assert tally.total_ns == 10**9 + 5000
