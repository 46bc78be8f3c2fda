"""The rules by which a kernel's name tells the unit it multiplies on.

NVIDIA publishes no list of names, and every list others keep is stale or wrong in places, so
these rules go by what the names are made of: the MMA instruction, the dtypes, the library's own
grammar. What looks like a matmul and says neither is ``unknown``, which is an answer.

The order matters: first what is no matmul although it is called like one, then what says it
runs on the general-purpose cores, then what says it runs on tensor cores, then what is a matmul.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampwatch.precision import name_fields as fields
from ampwatch.precision.verdict import Unit

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.precision.symbols import Symbol


@dataclass(frozen=True, slots=True)
class Rule:
    """What a name has to be like, and what then follows.

    Attributes:
        id: Name of the rule.
        family: Which library's kernels, or which kind of helper.
        unit: Where such a kernel multiplies.
        why: What the rule rests on.
        function: Pattern of the function's name, in any case.
        inside: Pattern of its template arguments, where they decide too.
        dtype: The dtype, or what reads it from the name.
        arch: Architecture, where the name does not say it and the family has only one.
        gemv: Whether one matrix is a vector, or nearly so.
    """

    id: str
    family: str
    unit: Unit
    why: str
    function: re.Pattern[str]
    inside: re.Pattern[str] | None = None
    dtype: str | Callable[[Symbol], str] = ""
    arch: int | None = None
    gemv: bool = False

    def matches(self, symbol: Symbol) -> bool:
        """Return whether the rule applies."""
        return self.function.search(symbol.function) is not None and (
            self.inside is None or self.inside.search(symbol.template) is not None
        )

    def read_dtype(self, symbol: Symbol) -> str:
        """Return the dtype of what is multiplied."""
        return self.dtype if isinstance(self.dtype, str) else self.dtype(symbol)


def _like(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.ASCII)  # K is no Kelvin sign


_MM = r"(?:^|[^a-z])(?:badd|add)?b?mm(?:[^a-z]|$)"

_HELPERS = (
    Rule(
        "generated-pointwise",
        "triton",
        Unit.OTHER,
        "TorchInductor calls its kernels after their kind; poi, red and per are no templates. A "
        "matmul in the name is the one whose bias they add, unless nothing else is fused.",
        _like(
            r"^triton_(?:poi|for|spl|mix)_|^triton_(?:red|per)_fused_(?!(?:_to_copy_)?(?:badd|add)?b?mm_\d+$)"
        ),
    ),
    Rule(
        "attention-helper",
        "flash-attention",
        Unit.OTHER,
        "FlashAttention's preparation and clean-up: sums, casts and combinations.",
        _like(
            r"reshape_and_cache|dot_do_o|convert_d[qkv]|clear_d[qkv]|splitkv_combine|fwdcombine"
            r"|bwd(?:pre|post)process|backward(?:pre|post)process|forwardcombine|prepare_varlen"
            r"|convert_dq_to"
        ),
    ),
    Rule(
        "split-k-reduction",
        "reduction",
        Unit.OTHER,
        "Adds up the parts of a split inner dimension, and multiplies nothing.",
        _like(r"splitk_?reduce|reducesplitk|reduction::kernel|reduce_1block"),
    ),
    Rule(
        "matmul-helper",
        "layout",
        Unit.OTHER,
        "What cuBLASLt and cuDNN launch around a matmul: layouts, offsets, epilogues.",
        _like(
            r"epilogue::impl::|(?:nchw|nhwc|kcrs|krsc|ncdhw|ndhwc)to\w*(?:nchw|nhwc|kcrs|krsc|ncdhw"
            r"|ndhwc)|computeb?\w*offsets|scalepackedtensor|im2col|col2im|tensortransform"
            r"|op_tensor|add_tensor|cudnn::ops::|cudnn::bn_|(?:^|::)bn_(?:fw|bw)"
        ),
    ),
    Rule(
        "fourier-transform",
        "fft",
        Unit.OTHER,
        "The transforms of a convolution by FFT; its products are a complex matmul.",
        _like(r"(?:^|::|_)fft\w*_\d|fft[123]d_|(?:regular|vector)_fft|fft_kernel"),
    ),
    Rule(
        "collective",
        "communication",
        Unit.OTHER,
        "Collective operations.",
        _like(r"^n?r?ccl(?:dev)?(?:kernel)?|^nvshmem"),
    ),
    Rule(
        "framework",
        "pytorch",
        Unit.OTHER,
        "PyTorch's own kernels, CUB's and Thrust's: elementwise, reductions, copies, but for "
        "the few that multiply matrices.",
        _like(
            r"^(?:at_cuda_detail::)?(?:cub|thrust)::"
            r"|^at::(?:native|cuda)::(?!.*(?:gemm|gemv|conv(?!er)|attention|(?<![a-z])mma|_mm_|fmha|flash))"
        ),
    ),
)

_GENERAL_PURPOSE = (
    Rule(
        "gemv",
        "gemv",
        Unit.CUDA,
        "cuBLAS multiplies a matrix by a vector on the general-purpose cores, in 16 bits too: "
        "gemv2T_kernel_val, gemvx::kernel, gemvNSP_kernel.",
        _like(r"gemv"),
        dtype=fields.words_dtype,
        gemv=True,
    ),
    Rule(
        "nearly-a-vector",
        "gemv",
        Unit.CUDA,
        "cuBLAS' dot product, its outer product and its matmuls with a small dimension; "
        "TensorRT-LLM's cudaCoreGemm.",
        _like(r"(?:^|::)(?:dot_kernel|gemmk1_kernel|gemmsn_[nt]{2}_kernel|cuda_?core_?gemm)"),
        dtype=fields.words_dtype,
        gemv=True,
    ),
    Rule(
        "simt",
        "cutlass",
        Unit.CUDA,
        "CUTLASS' word for the general-purpose cores.",
        _like(r"(?:^|_)simt(?:_|$)"),
        dtype=fields.blas_dtype,
    ),
    Rule(
        "ffma",
        "xmma",
        Unit.CUDA,
        "FFMA is the instruction of the general-purpose cores, whatever xmma stands for.",
        _like(r"(?:^|_)[fhd]fma2?(?:_|$)"),
        dtype=fields.segments_dtype,
    ),
)

_TENSOR = (
    Rule(
        "nvjet",
        "nvjet",
        Unit.TENSOR,
        "cuBLASLt's kernels from Hopper on; 77 % of the dense peak of an H100 were measured, "
        "which only tensor cores reach. With float32 matrices only if TF32 is said.",
        _like(r"^nvjet_(?:sm\d+_)?(?:[^sdcz\W_]\w*_|\w*_tf32_)"),
        dtype=fields.nvjet_dtype,
    ),
    Rule(
        "nvjet-float32",
        "nvjet",
        Unit.UNKNOWN,
        "Float32 or wider, and nothing says how it is multiplied.",
        _like(r"^nvjet_"),
        dtype=fields.nvjet_dtype,
    ),
    Rule(
        "batched-gemm",
        "tensorrt-llm",
        Unit.TENSOR,
        "TensorRT-LLM's batched matmuls; their formats exist as tensor-core instructions only.",
        _like(r"^(?:bmm|gemm)_(?:mx)?(?:bfloat16|fp16|fp32|e\dm\d)_\w*_fp32_\w*t\d+x"),
        dtype=fields.batched_dtype,
    ),
    Rule(
        "xmma-tile",
        "xmma",
        Unit.TENSOR,
        "xmma names the tile of its MMA instruction, and from Hopper on its warp groups.",
        _like(r"xmma.*_(?:tensor\d+x\d+x\d+|warpgroupsize)"),
        dtype=fields.segments_dtype,
    ),
    Rule(
        "tensorop",
        "cutlass",
        Unit.TENSOR,
        "CUTLASS' word for tensor cores.",
        _like(r"(?:^|_)tensorop(?:_|$)"),
        dtype=fields.mma_dtype,
    ),
    Rule(
        "cudnn-attention",
        "cudnn-attention",
        Unit.TENSOR,
        "cuDNN's fused attention, written for WMMA, WGMMA or later instructions.",
        _like(r"cudnn_generated\w*_sdpa\w*_[fb]prop"),
        dtype=fields.mixed_sdpa_dtype,
    ),
    Rule(
        "mma-shape",
        "cublas",
        Unit.TENSOR,
        "The shape of an MMA instruction in front of the operation: s884gemm, h1688cudnn, "
        "s16816fprop.",
        _like(fields.MMA_SHAPE),
        dtype=fields.mma_dtype,
    ),
    Rule(
        "ptx-shape",
        "mma",
        Unit.TENSOR,
        "The shape of an MMA instruction as PTX writes it: m16n8k16.",
        _like(r"(?<![a-z0-9])m(?:8|16|32|64|128)n\d+k\d+(?![0-9])"),
        dtype=fields.words_dtype,
    ),
    Rule(
        "mma-instruction",
        "mma",
        Unit.TENSOR,
        "The name of the instruction or of its programming interface.",
        _like(r"(?<![a-z0-9])(?:wmma|wgmma|tcgen05|umma|[hqid]gmma|[hid]mma|mma_sync)(?![a-z0-9])"),
        dtype=fields.words_dtype,
    ),
    Rule(
        "flash-attention-3",
        "flash-attention",
        Unit.TENSOR,
        "FlashAttention 3 and 4: float16, bfloat16 and FP8, on tensor cores only.",
        _like(r"flashattn(?:fwd|bwd)sm\d+|flashattention(?:forward|backward)sm\d+"),
        dtype=fields.words_dtype,
    ),
    Rule(
        "flash-attention-2",
        "flash-attention-2",
        Unit.TENSOR,
        "FlashAttention 2: float16 and bfloat16, by the MMA instructions of sm80 only.",
        _like(r"(?:^|::)flash_(?:fwd|bwd)_(?:\w+_)?kernel(?: |$)"),
        dtype=fields.words_dtype,
        arch=80,
    ),
    Rule(
        "fused-attention-sm",
        "tensorrt-llm",
        Unit.TENSOR,
        "TensorRT-LLM's attention, written per architecture for its MMA instructions.",
        _like(r"^fmhasm\d+|(?:^|::)fmha_v2_\w*_sm\d+"),
        dtype=fields.fmha_dtype,
    ),
    Rule(
        "efficient-attention-float32",
        "efficient-attention",
        Unit.TENSOR,
        "PyTorch's memory-efficient attention takes float32 to tensor cores from sm80 on, in "
        "parts that are TF32 (OpMultiplyAddFastF32 in gemm_kernel_utils.h).",
        _like(r"^fmha_cutlass[fb]_f32_\w*_sm80"),
        dtype="tf32",
    ),
    Rule(
        "efficient-attention-half",
        "efficient-attention",
        Unit.TENSOR,
        "The same with 16 bits: OpClassTensorOp; bfloat16 has MMA instructions from sm80 on.",
        _like(r"^fmha_cutlass[fb]_(?:f16_\w*_sm(?:70|75|80)|bf16_\w*_sm80)"),
        dtype=fields.words_dtype,
    ),
    Rule(
        "efficient-attention-simt",
        "efficient-attention",
        Unit.CUDA,
        "What is neither of the two is OpClassSimt there.",
        _like(r"^fmha_cutlass[fb]_(?:f32_\w*_sm(?:50|60|70|75)|f16_\w*_sm(?:50|60))"),
        dtype=fields.words_dtype,
    ),
    Rule(
        "deep-gemm",
        "deep-gemm",
        Unit.TENSOR,
        "DeepGEMM: FP8 and bfloat16, by the instructions of Hopper and Blackwell only.",
        _like(r"^deep_gemm::\w*gemm"),
        dtype=fields.words_dtype,
    ),
    Rule(
        "mma-atom",
        "cutlass",
        Unit.TENSOR,
        "Templates of CUTLASS and CuTe that name the class of operation or the instruction.",
        _like(r"gemm|conv|kernel|attn|attention|fmha"),
        _like(
            r"mmatensorop|opclass(?:wmma)?tensorop|(?:^|\W)sm\d+_(?:mma_)?\d+x\d+x\d+|sm\d+_mma_"
        ),
        dtype=fields.types_dtype,
    ),
    Rule(
        "simt-template",
        "cutlass",
        Unit.CUDA,
        "The same, naming the general-purpose cores.",
        _like(r"gemm|conv|kernel|attn|attention|fmha"),
        _like(r"mmasimt|opclasssimt|universalfma"),
        dtype=fields.types_dtype,
    ),
)

_AMD = (
    Rule(
        "tensile-matrix-instruction",
        "tensile",
        Unit.TENSOR,
        "Tensile (rocBLAS, hipBLASLt) writes the matrix instruction as MI16x16x1; kernels "
        "for the vector units have none. Matrix cores multiply float32 and float64 too.",
        re.compile(r"Cijk_A\w+_MI\d+x\d+x\d+"),
        dtype=fields.tensile_dtype,
    ),
    Rule(
        "tensile",
        "tensile",
        Unit.UNKNOWN,
        "Without the instruction: short names of hand-written kernels leave it out as well.",
        re.compile(r"Cijk_A\w"),
        dtype=fields.tensile_dtype,
    ),
    Rule(
        "composable-kernel",
        "composable-kernel",
        Unit.TENSOR,
        "Composable Kernel and MIOpen name AMD's matrix instructions: XDL, MFMA, WMMA.",
        _like(r"^(?:ck|ck_tile)::.*(?:xdl|mfma|wmma)|^igemm_\w*gtcx"),
        dtype=fields.words_dtype,
    ),
    Rule(
        "composable-kernel-template",
        "composable-kernel",
        Unit.TENSOR,
        "The same among the template arguments.",
        _like(r"^(?:ck|ck_tile)::(?!.*(?:elementwise|reduce|norm|softmax))"),
        _like(r"xdl|mfma|wmma"),
        dtype=fields.types_dtype,
    ),
    Rule(
        "amd",
        "amd",
        Unit.UNKNOWN,
        "The rest of AMD's matmul libraries says nothing on the unit.",
        _like(
            r"^(?:ck|ck_tile)::.*(?:gemm|conv(?!er)|fmha|mha)|^miopen\w*conv|^igemm_"
            r"|^rocblas_\w*gemm|^aiter::.*(?:gemm|fmha)|(?:^|_)mlir\w*(?:gemm|conv|dot)"
        ),
        dtype=fields.words_dtype,
    ),
)

_BY_DTYPE = (
    Rule(
        "xmma-low-precision",
        "xmma",
        Unit.TENSOR,
        "A dtype that only tensor cores multiply in xmma kernels; FFMA would be said.",
        _like(r"xmma.*?_(?:f32)?(?:tf32|bf16|f16|e4m3|e5m2|i8|u8)"),
        dtype=fields.segments_dtype,
    ),
    Rule(
        "xmma-float32",
        "xmma",
        Unit.CUDA,
        "All dtypes are float32: no TF32, so no tensor cores.",
        _like(r"xmma.*_f32f32_f32f32_f32"),
        dtype=fields.segments_dtype,
    ),
    Rule(
        "depthwise",
        "direct-convolution",
        Unit.CUDA,
        "PyTorch's depthwise convolutions are loops of multiply-adds.",
        _like(r"^at::native::.*conv_depthwise"),
        dtype=fields.types_dtype,
    ),
    Rule(
        "direct-convolution-float32",
        "direct-convolution",
        Unit.CUDA,
        "cuDNN's direct convolutions in float32; what they use in 16 bits is not said.",
        _like(r"(?:conv|dgrad|wgrad)2d_(?:grouped_direct|c1_k1)"),
        _like(r"^(?:(?!half|bfloat16).)*(?<![a-z])float(?![a-z0-9_])(?:(?!half|bfloat16).)*$"),
        dtype="float32",
    ),
    Rule(
        "winograd",
        "winograd",
        Unit.CUDA,
        "cuDNN's Winograd convolutions, with their transforms, where no MMA shape is named.",
        _like(r"^(?!mio).*winograd"),
        dtype=fields.blas_dtype,
    ),
    Rule(
        "convolution-engine",
        "cudnn",
        Unit.CUDA,
        "cuDNN's oldest convolutions: loops of multiply-adds.",
        _like(r"(?:im|ex)plicit_convolve_[sdh]gemm|[dw]grad(?:_alg\d)?_engine"),
        dtype=fields.types_dtype,
    ),
    Rule(
        "blas-letter",
        "cublas",
        Unit.CUDA,
        "sgemm, dgemm, hgemm, scudnn: the letter of BLAS without the shape of an MMA instruction.",
        _like(r"(?:^|_|::)[sdh](?:gemm|cudnn)(?!v)"),
        dtype=fields.blas_dtype,
    ),
    Rule(
        "blas-complex",
        "cublas",
        Unit.UNKNOWN,
        "Complex matmuls run on either unit, and only some of their names say on which.",
        _like(r"(?:^|_|::)g?[cz]gemm"),
        dtype=fields.blas_dtype,
    ),
)

_MATMULS = (
    Rule(
        "triton-template",
        "triton",
        Unit.UNKNOWN,
        "tl.dot compiles to either unit, by the dtype of what it is given.",
        _like(
            rf"^triton_|{_MM}.*(?:triton|fused)|^_?attn_(?:fwd|bwd)|^_(?:fwd|bwd)_kernel|fused_moe"
        ),
        dtype=fields.words_dtype,
    ),
    Rule(
        "not-a-matmul",
        "helper",
        Unit.OTHER,
        "Named after a matmul or an attention that it serves.",
        _like(
            r"^(?!.*(?:gemm|matmul|fmha|mha)).*(?:softmax|norm|rotary|rope|transpose|permute"
            r"|copy|cache|quant|cast|convert|optimizer|adam)"
        ),
    ),
    Rule(
        "some-matmul",
        "unlisted",
        Unit.UNKNOWN,
        "Called a matmul, a convolution or an attention, and nothing more is known.",
        _like(
            rf"^cutlass\w*::|gemm|conv(?!er)|matmul|attn|attention|fmha|(?<![a-z])mha|sdpa|[fb]prop|[dw]grad"
            rf"|xmma|(?<![a-z])mma(?![a-z])|marlin|(?:^|_)dot(?:_|$)|syrk|herk|symm_|trmm|{_MM}"
        ),
        dtype=fields.words_dtype,
    ),
)

RULES = (*_HELPERS, *_GENERAL_PURPOSE, *_TENSOR, *_AMD, *_BY_DTYPE, *_MATMULS)
"""All rules; the first that matches decides. None matching means: no matmul that is known."""
