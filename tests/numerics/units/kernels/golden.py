"""Names of real kernels, where they were published, and what they are.

Kept apart from the rules, so that a rule that is changed is compared with them. Long template
arguments are cut in the middle; the ends are as published.
"""

from __future__ import annotations

from typing import NamedTuple

from ampwatch.numerics.units.kernels.kernel_name import Unit

TENSOR, CUDA, UNKNOWN, OTHER = Unit.TENSOR, Unit.CUDA, Unit.UNKNOWN, Unit.OTHER

TRACELENS = "https://github.com/AMD-AGI/TraceLens (tests/traces)"
HTA = "https://github.com/facebookresearch/HolisticTraceAnalysis (tests/data)"
KINETO = "https://github.com/pytorch/kineto (tb_plugin/samples, at 94979607^)"
KINETO_1041 = "https://github.com/pytorch/kineto/issues/1041"
NSYS_AI_582 = "https://github.com/GindaChen/nsys-ai/pull/582"
CUTLASS_981 = "https://github.com/NVIDIA/cutlass/issues/981"
CUTLASS_NAMES = "https://github.com/NVIDIA/cutlass (media/docs/cpp/profiler.md)"
CUBLAS = "cuBLAS, as torch.profiler writes it in public traces"
CUDNN = "cuDNN, as torch.profiler writes it in public traces"
TENSORRT_LLM = "https://github.com/NVIDIA/TensorRT-LLM (kernels/trtllmGenKernels)"
FLASH_ATTENTION = "https://github.com/Dao-AILab/flash-attention"
EFFICIENT = "https://github.com/pytorch/pytorch (mem_eff_attention/kernels/cutlassF.h, cutlassB.h)"
ATEN = "https://github.com/pytorch/pytorch (aten/src/ATen/native/cuda)"
INDUCTOR = "https://github.com/pytorch/pytorch (torch/_inductor)"
VLLM = "https://github.com/vllm-project/vllm (csrc)"
DEEP_GEMM = "https://github.com/deepseek-ai/DeepGEMM"
PYPROF = "https://github.com/NVIDIA/PyProf (prof/tc.py)"
ROCM_3230 = "https://github.com/ROCm/rocm-libraries/pull/3230"
TENSILE_1061 = "https://github.com/ROCm/Tensile/pull/1061"
COMPOSABLE_KERNEL = "https://github.com/ROCm/composable_kernel"
AOTRITON = "https://github.com/ROCm/aotriton"


class Golden(NamedTuple):
    """A published name and what it says."""

    name: str
    source: str
    unit: Unit
    dtype: str = ""
    arch: int | None = None
    align: int | None = None
    gemv: bool = False


VOLTA_AND_TURING = [
    Golden("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", PYPROF, TENSOR, "float16", 70, 8),
    Golden("turing_h1688gemm_128x128_ldg8_nn", PYPROF, TENSOR, "float16", 75, 8),
    Golden("volta_sgemm_64x64_nt", KINETO, CUDA, "float32", 70),
    Golden("volta_scudnn_128x128_stridedB_splitK_small_nn_v1", KINETO, CUDA, "float32", 70),
    Golden("volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", KINETO, CUDA, "float32", 70, 1),
    Golden("volta_dgemm_64x64_nn", CUBLAS, CUDA, "float64", 70),
]  # fmt: skip

AMPERE = [
    Golden("ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_32x3_nn", CUBLAS, TENSOR, "bfloat16", 80, 8),
    Golden("ampere_bf16_s1688gemm_128x64_nn", CUBLAS, TENSOR, "bfloat16", 80),
    Golden("cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1", HTA, CUDA, "float32", 80),
    Golden("ampere_gcgemm_64x64_nt", HTA, UNKNOWN, "complex64", 80),
]  # fmt: skip

CUTLASS = [
    Golden(
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8>"
        "(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8::Params)",
        TRACELENS, TENSOR, "bfloat16", 80, 8,
    ),
    Golden(
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>"
        "(cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8::Params)",
        TRACELENS, TENSOR, "bfloat16", 80, 8,
    ),
    Golden("cutlass_80_tensorop_s1688gemm_128x256_16x3_nt_align4", HTA, TENSOR, "tf32", 80, 4),
    Golden(
        "void cutlass_cudnn::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_256x64_16x4_nhwc_align4>"
        "(cutlass_tensorop_s1688wgrad_optimized_tf32_256x64_16x4_nhwc_align4::Params)",
        HTA, TENSOR, "tf32", None, 4,
    ),
    Golden("cutlass_tensorop_f16_s16816gemm_f16_256x128_32x3_nn_align8", CUTLASS_981, TENSOR, "float16", 80, 8),
    Golden("cutlass_tensorop_d884gemm_128x128_16x3_nt_align1", CUTLASS_NAMES, TENSOR, "float64", None, 1),
    Golden("cutlass_tensorop_i16832gemm_s8_256x128_64x3_tn_align16", CUTLASS_NAMES, TENSOR, "int8", 80, 16),
    Golden("cutlass_80_simt_sgemm_128x64_8x5_nt_align1", HTA, CUDA, "float32", 80, 1),
    Golden(
        "cutlass3x_sm90_tensorop_s64x128x32gemm_e4m3_e4m3_f32_bf16_bf16_128x128x128_2x1x1_0_tnt_align16_warpspecialized",
        CUTLASS_NAMES, TENSOR, "float8", 90, 16,
    ),
    Golden(
        "cutlass3x_sm100_tensorop_s256x256x8tf32gemm_f32_f32_f32_f32_f32_256x256x32_2x1x1_0_tnn_align4_2sm",
        CUTLASS_NAMES, TENSOR, "tf32", 100, 4,
    ),
    Golden(
        "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int>, "
        "cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecializedFP8<4, cute::tuple<cute::C<2> > >, cutlass::float_e4m3_t, "
        "cute::TiledMMA<cute::MMA_Atom<cute::SM90_64x128x32_F32E4M3E4M3_SS_TN<(cute::GMMA::ScaleIn)1> > > > > > >(cutlass::gemm::kernel::GemmUniversal::Params)",
        "https://github.com/pytorch/pytorch (aten/src/ATen/native/cuda/RowwiseScaledMM.cu)", TENSOR, "float8", 90,
    ),
    Golden(
        "void cutlass::Kernel<cutlass::gemm::kernel::Gemm<cutlass::gemm::threadblock::MmaPipelined<cutlass::gemm::GemmShape<128, 128, 8>, float, "
        "cutlass::gemm::warp::MmaSimt<cutlass::gemm::GemmShape<32, 64, 8> > > > >(cutlass::gemm::kernel::Gemm::Params)",
        "https://github.com/NVIDIA/cutlass (include/cutlass/gemm/warp/mma_simt.h)", CUDA, "float32",
    ),
    Golden(
        "_ZN19cutlass_cudnn_train6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS1_11threadblock21ImplicitGemmMultistageINS_4gemm9GemmShapeILi128ELi128ELi32EEE",
        HTA, UNKNOWN,
    ),
    Golden("void cutlass::Kernel2", CUTLASS_NAMES, UNKNOWN),
]  # fmt: skip

XMMA = [
    Golden(
        "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64_stage3_warpsize2x2x1_tensor16x8x16_execute_kernel__5x_cublas",
        CUBLAS, TENSOR, "float16", 80,
    ),
    Golden(
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor16x8x8_alignc4_execute_kernel_cudnn",
        HTA, TENSOR, "tf32", 80,
    ),
    Golden(
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        TRACELENS, TENSOR, "bfloat16", 90,
    ),
    Golden(
        "sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x64x64_stage4_warpsize2x2x1_tensor16x8x32_algo2_execute_kernel__5x_cublas",
        CUBLAS, TENSOR, "float8", 89,
    ),
    Golden("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_kernel_cudnn", KINETO_1041, TENSOR, "bfloat16", 90),
    Golden(
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8_stage3_warpsize4x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas",
        CUBLAS, CUDA, "float32", 80, 4,
    ),
    Golden("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8", NSYS_AI_582, CUDA, "float32", 80),
]  # fmt: skip

NVJET = [
    Golden("nvjet_sm90_hss_320x128_64x3_2x1_v_bz_coopB_TNN", NSYS_AI_582, TENSOR, "float16", 90),
    Golden("nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_TNN", CUBLAS, TENSOR, "float16"),
    Golden("nvjet_tst_192x128_64x5_2x1_v_bz_coopB_NNT", CUBLAS, TENSOR, "bfloat16"),
    Golden("nvjet_sm100_tst_64x8_64x16_2x4_h_bz_splitK_TNT", CUBLAS, TENSOR, "bfloat16", 100),
    Golden("nvjet_sm103_tst_256x128_64x5_2x2_2cta_h_bz_TNT", CUBLAS, TENSOR, "bfloat16", 103),
    Golden("nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT", CUBLAS, TENSOR, "float8"),
    Golden("nvjet_qqtst_128x256_128x6_2x2_2cta_h_bz_Avec32UE8M0_Bvec32UE8M0_TNT", CUBLAS, TENSOR, "mx"),
    Golden("nvjet_sss_tf32_128x256_TNT", CUBLAS, TENSOR, "tf32"),
]  # fmt: skip

TENSORRT = [
    Golden(
        "bmm_Bfloat16_E2m1E2m1_Fp32_Ab16_Bb16_t128x128x256u2_s6_et128x128_m256x128x64_c2x1x1_rM_TN_transOut_schPd2x1x2x3_biasFp32M_bN_rgTma_clmp_dynB_sm100f",
        TENSORRT_LLM, TENSOR, "mx", 100,
    ),
    Golden("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s6_et128x16_m128x16x32_cga1x1x1_TN_transOut_sm100f", TRACELENS, TENSOR, "mx", 100),
    Golden("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvSlidingOrChunkedCausalP16VarSeqQ128Kv128PersistentContext", TRACELENS, TENSOR, "float8", 100),
    Golden("void tensorrt_llm::kernels::cuda_core_gemm::cudaCoreGemm<half, half, 1, 2>(tensorrt_llm::kernels::Params)", TENSORRT_LLM, CUDA, "float16", gemv=True),
    Golden("void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 7168u, 2048u, 1u>(float*, int*)", DEEP_GEMM, TENSOR, "float8", 90),
]  # fmt: skip

ATTENTION = [
    Golden(
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t, "
        "pytorch_flash::Flash_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t> >, false, true>(pytorch_flash::Flash_fwd_params)",
        TRACELENS, TENSOR, "bfloat16", 80,
    ),
    Golden(
        "void pytorch_flash::flash_fwd_splitkv_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, cutlass::half_t> >(pytorch_flash::Flash_fwd_params)",
        FLASH_ATTENTION, TENSOR, "float16", 80,
    ),
    Golden(
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, "
        "cute::tuple<cute::C<128>, cute::C<176>, cute::C<128> >, 128, cutlass::bfloat16_t, float> > > >(flash::Params)",
        FLASH_ATTENTION, TENSOR, "bfloat16", 90,
    ),
    Golden(
        "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__tensorptrbf16_gmem",
        FLASH_ATTENTION, TENSOR, "", 100,
    ),
    Golden("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t, cutlass::arch::Sm80>::Params)", EFFICIENT, TENSOR, "bfloat16", 80),
    Golden("fmha_cutlassB_f16_aligned_64x64_k64_sm75(PyTorchMemEffAttention::AttentionBackwardKernel<cutlass::half_t>::Params)", EFFICIENT, TENSOR, "float16", 75),
    Golden("fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm80, true, 64, 64, 64, true, true>::Params)", EFFICIENT, TENSOR, "tf32", 80),
    Golden("fmha_cutlassF_f32_aligned_64x64_rf_sm75", EFFICIENT, CUDA, "float32", 75),
    Golden("fmha_cutlassF_f16_aligned_64x64_rf_sm50", EFFICIENT, CUDA, "float16", 50),
    Golden("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0", CUDNN, TENSOR, "", 90),
    Golden("attn_fwd", AOTRITON, UNKNOWN),
    Golden("void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u, 8u, flashinfer::DecodeParams<__half> >(flashinfer::DecodeParams<__half>)", "https://github.com/flashinfer-ai/flashinfer (include/flashinfer/attention)", UNKNOWN, "float16"),
]  # fmt: skip

HELPERS = [
    Golden("void vllm::merge_attn_states_kernel<c10::BFloat16, 128u>(c10::BFloat16*, float*)", VLLM, OTHER),
    Golden("void pytorch_flash::flash_bwd_dot_do_o_kernel<true, pytorch_flash::Flash_bwd_kernel_traits<64, 64, 128, 8, 4, 4, 4, false, true, cutlass::bfloat16_t> >(pytorch_flash::Flash_bwd_params)", FLASH_ATTENTION, OTHER),
    Golden("void pytorch_flash::flash_bwd_convert_dq_kernel<pytorch_flash::Flash_bwd_kernel_traits<64, 64, 128, 8, 4, 4, 4> >(pytorch_flash::Flash_bwd_params, int)", FLASH_ATTENTION, OTHER),
    Golden("void pytorch_flash::flash_fwd_splitkv_combine_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 64, 128, 4> >(pytorch_flash::Flash_fwd_params)", FLASH_ATTENTION, OTHER),
    Golden("void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<8>, cute::C<128> >, 4, 256, 1, false, cutlass::bfloat16_t> >(flash::Params)", FLASH_ATTENTION, OTHER),
    Golden("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_fp8_e4m3, (vllm::Fp8KVCacheDataType)1>(__nv_bfloat16 const*, float const*)", VLLM, OTHER),
    Golden("void vllm::scaled_fp8_quant_kernel<c10::BFloat16>(flashinfer::paged_kv_t<half, int>, float const*)", VLLM, OTHER),
    Golden("void splitKreduce_kernel<float, float, float, float>(cublasSplitKParams<float>, float const*, float const*, float*)", KINETO, OTHER),
    Golden("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, true, true, false>(cublasLt::cublasSplitKParams<float>)", CUBLAS, OTHER),
    Golden("void epilogue::impl::globalKernel<float, float, float, true, true>(int, int, long, float*, cublasLtEpilogue_t, int)", HTA, OTHER),
    Golden("cask_cudnn::computeOffsetsKernel(cask_cudnn::ComputeOffsetsParams)", KINETO, OTHER),
    Golden("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>(cudnn::ops::nchw2nhwc_params_t<float>, float const*, float*)", HTA, OTHER),
    Golden("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct, float const*)", KINETO, OTHER),
    Golden("void fft2d_r2c_32x32<float, false, 5u, true>(float2*, float const*, int)", HTA, OTHER),
    Golden("triton_poi_fused__unsafe_view_mul_silu_2", TRACELENS, OTHER),
    Golden("triton_poi_fused_addmm_relu_0", INDUCTOR, OTHER),
    Golden("triton_per_fused_addmm_native_layer_norm_3", INDUCTOR, OTHER),
    Golden("triton_red_fused_convolution_native_batch_norm_1", INDUCTOR, OTHER),
    Golden("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", TRACELENS, OTHER),
    Golden("void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float, float, 32u, 8u>(long, long, float const*)", ATEN, OTHER),
    Golden("void at::native::vectorized_elementwise_kernel<4, at::native::lgamma_kernel_cuda(at::TensorIteratorBase&)::{lambda()#1}, std::array<char*, 2ul> >(int)", ATEN, OTHER),
    Golden("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int> >(long, int volatile*, TensorListMetadata<4>)", "https://github.com/NVIDIA/apex (csrc)", OTHER),
]  # fmt: skip

GENERAL_PURPOSE = [
    Golden("void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 4, 4, false, false, cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<__half const> > >(cublasGemvParamsEx<int>)", CUBLAS, CUDA, "float16", gemv=True),
    Golden("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, false, true, true, false, 7, false, cublasGemvParamsEx<int> >(cublasGemvParamsEx<int>)", CUBLAS, CUDA, "bfloat16", gemv=True),
    Golden("void gemvNSP_kernel<float, float, float, float, 1, 32, 4, 1024>(cublasGemvParams)", CUBLAS, CUDA, "float32", gemv=True),
    Golden("void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true, cublasGemvTensorStridedBatched<float const> >(cublasGemmSmallNParams)", CUBLAS, CUDA, "float32", gemv=True),
    Golden("void gemmk1_kernel<int, float, 256, 5, false, false, false, false>(cublasGemmk1Params<float>)", CUBLAS, CUDA, "float32", gemv=True),
    Golden("void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const> > >(cublasDotParams)", CUBLAS, CUDA, "float32", gemv=True),
    Golden("void magma_sgemmEx_kernel<float, __half, __half, true, false, 6, 4, 6, 3, 4>(int, int, int)", CUBLAS, CUDA, "float32"),
    Golden("void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int, int, int, float const*)", KINETO, CUDA, "float32"),
    Golden("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float const*)", KINETO, CUDA, "float32"),
    Golden("void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int, int, int, float const*)", KINETO, CUDA, "float32"),
    Golden("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(cudnn::winograd_nonfused::WinogradDataParams<float, float>)", KINETO, CUDA, "float32"),
    Golden("void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, c10::Half, int>(at::GenericPackedTensorAccessor<c10::Half>)", ATEN, CUDA, "float16"),
    Golden("void cudnn::cnn::conv2d_grouped_direct_kernel<false, true, false, false, 0, 0, int, float, float, float>(cudnnTensorStruct)", CUDNN, CUDA, "float32"),
    Golden("void cudnn::cnn::conv2d_grouped_direct_kernel<false, true, false, false, 0, 0, int, __half, __half, float>(cudnnTensorStruct)", PYPROF, UNKNOWN, "float16"),
    Golden("void at::native::tinygemm_m16n8k16_chunk_kernel<at::native::ALayout_RM<(at::native::KReductionType)0>, 8, 8>(void const*)", ATEN, TENSOR),
]  # fmt: skip

TEMPLATES = [
    Golden("triton_tem_fused_mm_0", INDUCTOR, UNKNOWN),
    Golden("triton_red_fused_mm_0", INDUCTOR, UNKNOWN),
    Golden("fused_moe_kernel", VLLM, UNKNOWN),
    Golden("void marlin::Marlin<half, 256, 1, 8, 8, 4>(int4 const*, int4 const*)", VLLM, UNKNOWN, "float16"),
]  # fmt: skip

AMD = [
    Golden("Cijk_Ailk_Bjlk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1_CMS_SN_LDSB0_ISA950_IU1_K1", ROCM_3230, TENSOR, "bfloat16"),
    Golden("Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT256x128x16_MI32x32x1_SN_LDSB1_ISA942.kd", TRACELENS, TENSOR, "float32"),
    Golden("Cijk_Ailk_Bjlk_DB_MT48x64x4_SE_APM1_AF0EM1_ISA906_IU1_K1_KLA_TT6_4_TLDS0_WG8_16_1_WGM4", TENSILE_1061, UNKNOWN, "float64"),
    Golden("void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm<ck::half_t> >(ck::Argument)", COMPOSABLE_KERNEL, TENSOR, "float16"),
    Golden("void ck::kernel_grouped_conv_fwd_dl_multiple_d<ck::GridwiseGemmDl<float> >(float const*)", COMPOSABLE_KERNEL, UNKNOWN, "float32"),
    Golden("miopenSp3AsmConv_v21_1_2_gfx9_fp32_f2x3_stride1", "https://github.com/ROCm/MIOpen", UNKNOWN, "float32"),
]  # fmt: skip

GOLDEN = (
    VOLTA_AND_TURING
    + AMPERE
    + CUTLASS
    + XMMA
    + NVJET
    + TENSORRT
    + ATTENTION
    + HELPERS
    + GENERAL_PURPOSE
    + TEMPLATES
    + AMD
)
