"""The op that launched a kernel adds its dtypes, and raises what no rule knows."""

from __future__ import annotations

import pytest

from ampwatch.numerics.units.kernels.classifier import Unit, classify
from ampwatch.numerics.units.kernels.kernel_launch import launched_by, multiplied_dtype, with_inputs

TEMPLATE = classify("triton_tem_fused_mm_0")
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
    kernel = with_inputs(TEMPLATE, inputs, tf32_allowed=tf32_allowed)

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
