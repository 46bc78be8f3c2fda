"""A kernel of an older generation than its device is told, where there is a newer one."""

from __future__ import annotations

import pytest

from ampwatch.numerics.units.kernels.classifier import classify
from ampwatch.numerics.units.kernels.generations import lags

SM75 = "cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1"
SM80 = "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8"
SM89_FP8 = "sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x64x64_stage4_warpsize2x2x1_tensor16x8x32_algo2"
SM90 = "nvjet_sm90_tst_384x80_64x3_4x1_v_bz_coopA_TNT"
CUDNN_SM80 = "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_3_64x64x128"
FLASH_2 = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Traits<64, cutlass::half_t> >(x)"
EFFICIENT = "fmha_cutlassF_f16_aligned_64x64_rf_sm80"


@pytest.mark.parametrize(
    ("name", "capability", "lagging"),
    [
        (SM75, (7, 5), False),
        (SM75, (8, 0), True),
        (SM75, (9, 0), True),
        (SM75, (12, 0), True),
        (SM80, (8, 0), False),
        (SM80, (8, 6), False),
        (SM80, (8, 9), False),
        (SM80, (9, 0), True),
        (SM80, (10, 0), True),
        (SM80, (12, 0), False),
        (SM89_FP8, (8, 9), False),
        (SM89_FP8, (10, 0), True),
        (SM90, (9, 0), False),
        (CUDNN_SM80, (10, 0), True),
        (FLASH_2, (9, 0), False),
        (EFFICIENT, (9, 0), False),
        (EFFICIENT.replace("80", "75"), (9, 0), True),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_TNT", (10, 0), False),
        ("ampere_sgemm_32x32_tn", (9, 0), False),
        ("Cijk_Alik_Bljk_B_BS_BH_MT16x16x128_MI16x16x1_SN_ISA942", (9, 4), False),
    ],
)
def test_lag(name: str, capability: tuple[int, int], *, lagging: bool) -> None:
    """Not for what says no architecture, has nothing newer, or is not on tensor cores."""
    assert lags(classify(name), capability) is lagging
