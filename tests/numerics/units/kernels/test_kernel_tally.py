"""Kernels by the op that launched them, and their time by unit and dtype."""

from __future__ import annotations

import pytest

from ampwatch.numerics.units.kernels.classifier import Unit, classify
from ampwatch.numerics.units.kernels.kernel_launch import launched_by, multiplied_dtype, with_inputs
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
    assert sum(tally.by_unit.values()) == sum(run[1] for run in RUNS)


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
    assert sum(tally.by_unit.values()) == 10**9 + 5000


FUSED = classify("triton_tem_fused_mm_0")
HALF = ["c10::Half", "c10::Half"]
FLOAT = ["float", "float", "Scalar"]


@pytest.mark.parametrize(
    ("inputs", "dtype"),
    [
        (["c10::BFloat16", "c10::BFloat16", "Scalar"], "bfloat16"),
        (["float", "c10::Half", "c10::Half"], "float16"),
        (["c10::Float8_e4m3fn", "c10::Float8_e4m3fn", "float", "float"], "float8"),
        (["float", "long int", ""], "float32"),
        (["double"], "float64"),
        (["c10::complex<float>"], "complex64"),
        (["bfloat16"], "bfloat16"),
        (["long int", "bool"], ""),
        ([], ""),
        # PyTorch hands a number of Python on as a tensor of float64.
        (["float", "double"], "float32"),
        (["float64", "float32"], "float32"),
        (["c10::Half", "float", "double"], "float16"),
    ],
)
def test_the_narrowest_input_is_what_is_multiplied(inputs: list[str], dtype: str) -> None:
    """Biases and scales are wider, and are added."""
    assert multiplied_dtype(inputs) == dtype


@pytest.mark.parametrize(
    ("inputs", "tf32_allowed", "unit", "likely"),
    [
        (HALF, True, Unit.UNKNOWN, "probable"),
        (HALF, False, Unit.UNKNOWN, "probable"),
        (["c10::Float8_e5m2"], False, Unit.UNKNOWN, "probable"),
        (FLOAT, True, Unit.UNKNOWN, "possible"),
        (FLOAT, False, Unit.CUDA, ""),
        (["double"], False, Unit.UNKNOWN, "possible"),
        ([], False, Unit.UNKNOWN, ""),
    ],
)
def test_an_unknown_kernel_is_judged_by_its_inputs(
    inputs: list[str], *, tf32_allowed: bool, unit: Unit, likely: str
) -> None:
    """An unknown kernel stays unknown, but for float32 without TF32: no tensor core multiplies that."""
    kernel = with_inputs(FUSED, inputs, tf32_allowed=tf32_allowed)

    assert (kernel.unit, kernel.likely) == (unit, likely)


def test_amd_multiplies_float32_on_matrix_cores() -> None:
    """Float32 inputs decide nothing there, and are no TF32."""
    unknown = classify("Cijk_Ailk_Bljk_SB_MT64x64x8_SE_K1_TT4_4")
    tensor = classify("Cijk_Ailk_Bljk_SB_MT64x64x8_MI16x16x1_SN")

    assert with_inputs(unknown, FLOAT, tf32_allowed=False).unit is Unit.UNKNOWN
    assert with_inputs(tensor._replace(dtype=""), FLOAT).dtype == "float32"


def test_a_dtype_the_name_does_not_say_comes_from_the_inputs() -> None:
    """The f16 of cuDNN stands for bfloat16 too; float32 on tensor cores is TF32."""
    attention = classify(
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128"
    )
    tiny = classify("tinygemm_m16n8k16_kernel")
    gemv = classify("gemvNSP_kernel")

    assert with_inputs(attention, ["c10::BFloat16"]).dtype == "bfloat16"
    assert with_inputs(tiny, FLOAT).dtype == "tf32"
    assert with_inputs(gemv, FLOAT).dtype == "float32"


def test_a_dtype_the_name_says_stays() -> None:
    """A convolution in TF32 has float32 inputs."""
    kernel = classify("sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_warpgroupsize2x1x1")

    assert with_inputs(kernel, FLOAT, tf32_allowed=False) == kernel


@pytest.mark.parametrize(
    "op",
    ["aten::mm", "aten::addmm", "aten::baddbmm", "aten::_scaled_mm", "aten::cudnn_convolution", "aten::convolution_backward", "aten::_flash_attention_forward", "aten::_addmm_activation"],
)  # fmt: skip
def test_a_kernel_nobody_knows_is_unknown_if_a_matmul_launched_it(op: str) -> None:
    """The next family with an unheard-of name raises the upper bound and not nothing."""
    assert launched_by(classify("zorp_128x64_v3"), op).unit is Unit.UNKNOWN


@pytest.mark.parametrize(
    "op", ["", "aten::add_", "aten::native_layer_norm", "aten::_foreach_addcmul_", "aten::comm"]
)
def test_a_kernel_nobody_knows_is_no_matmul_otherwise(op: str) -> None:
    """A kernel that a rule knows stays what it is, whatever launched it."""
    assert launched_by(classify("zorp_128x64_v3"), op).unit is Unit.OTHER
    assert launched_by(classify("splitKreduce_kernel"), "aten::mm").unit is Unit.OTHER
