"""The rules by which a kernel's name tells the unit it multiplies on.

NVIDIA publishes no list of names, and every list others keep is stale or wrong in places, so
these rules go by what the names are made of: the MMA instruction, the dtypes, the library's own
grammar. A name like a matmul's that shows neither is ``unknown``, which is an answer.

The order matters: first kernels that are called like a matmul and are none, then names that tell
the general-purpose cores, then names that tell tensor cores, then all other matmuls.
"""

from __future__ import annotations

from ampwatch.numerics.units.kernels import name_fields as fields
from ampwatch.numerics.units.kernels.kernel_name import Rule, Unit, like
from ampwatch.numerics.units.kernels.nvidia_rules import BY_DTYPE, GENERAL_PURPOSE, TENSOR

HELPERS = (
    Rule(
        "generated-pointwise",
        "triton",
        Unit.OTHER,
        "TorchInductor calls its kernels after their kind; poi, red and per are no templates. A "
        "matmul in the name is the one whose bias they add, unless nothing else is fused.",
        like(
            r"^triton_(?:poi|for|spl|mix)_|^triton_(?:red|per)_fused_(?!(?:_to_copy_)?(?:badd|add)?b?mm_\d+$)"
        ),
    ),
    Rule(
        "attention-helper",
        "flash-attention",
        Unit.OTHER,
        "FlashAttention's preparation and clean-up: sums, casts and combinations.",
        like(
            r"reshape_and_cache|merge_attn|merge_states?|dot_do_o|convert_d[qkv]|clear_d[qkv]|splitkv_combine|fwdcombine"
            r"|bwd(?:pre|post)process|backward(?:pre|post)process|forwardcombine|prepare_varlen"
            r"|convert_dq_to"
        ),
    ),
    Rule(
        "split-k-reduction",
        "reduction",
        Unit.OTHER,
        "Adds up the parts of a split inner dimension, and multiplies nothing.",
        like(r"splitk_?reduce|reducesplitk|reduction::kernel|reduce_1block"),
    ),
    Rule(
        "matmul-helper",
        "layout",
        Unit.OTHER,
        "What cuBLASLt and cuDNN launch around a matmul: layouts, offsets, epilogues.",
        like(
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
        like(r"(?:^|::|_)fft\w*_\d|fft[123]d_|(?:regular|vector)_fft|fft_kernel"),
    ),
    Rule(
        "collective",
        "communication",
        Unit.OTHER,
        "Collective operations.",
        like(r"^n?r?ccl(?:dev)?(?:kernel)?|^nvshmem"),
    ),
    Rule(
        "framework",
        "pytorch",
        Unit.OTHER,
        "PyTorch's own kernels, CUB's and Thrust's: elementwise, reductions, copies, but for "
        "the few that multiply matrices.",
        like(
            r"^(?:at_cuda_detail::)?(?:cub|thrust)::"
            r"|^at::(?:native|cuda)::(?!.*(?:gemm|gemv|conv(?!er)|attention|(?<![a-z])mma|_mm_|fmha|flash))"
        ),
    ),
)
"""Kernels that are called like a matmul, or launched beside one, and multiply nothing."""


_MM = r"(?:^|[^a-z])(?:badd|add)?b?mm(?:[^a-z]|$)"

# AMD publishes no list either; in its names only a matrix instruction is evidence.
_AMD = (
    Rule(
        "tensile-matrix-instruction",
        "tensile",
        Unit.TENSOR,
        "Tensile (rocBLAS, hipBLASLt) writes the matrix instruction as MI16x16x1; kernels "
        "for the vector units have none. Matrix cores multiply float32 and float64 too.",
        r"Cijk_A\w+_MI\d+x\d+x\d+",
        dtype=fields.tensile_dtype,
    ),
    Rule(
        "tensile",
        "tensile",
        Unit.UNKNOWN,
        "Without the instruction: short names of hand-written kernels leave it out as well.",
        r"Cijk_A\w",
        dtype=fields.tensile_dtype,
    ),
    Rule(
        "composable-kernel",
        "composable-kernel",
        Unit.TENSOR,
        "Composable Kernel and MIOpen name AMD's matrix instructions: XDL, MFMA, WMMA.",
        like(r"^(?:ck|ck_tile)::.*(?:xdl|mfma|wmma)|^igemm_\w*gtcx"),
        dtype=fields.words_dtype,
    ),
    Rule(
        "composable-kernel-template",
        "composable-kernel",
        Unit.TENSOR,
        "Composable Kernel's names of matrix instructions, among the template arguments.",
        like(r"^(?:ck|ck_tile)::(?!.*(?:elementwise|reduce|norm|softmax))"),
        like(r"xdl|mfma|wmma"),
        dtype=fields.types_dtype,
    ),
    Rule(
        "amd",
        "amd",
        Unit.UNKNOWN,
        "The rest of AMD's matmul libraries says nothing on the unit.",
        like(
            r"^(?:ck|ck_tile)::.*(?:gemm|conv(?!er)|fmha|mha)|^miopen\w*conv|^igemm_"
            r"|^rocblas_\w*gemm|^aiter::.*(?:gemm|fmha)|(?:^|_)mlir\w*(?:gemm|conv|dot)"
        ),
        dtype=fields.words_dtype,
    ),
)

_MATMULS = (
    Rule(
        "triton-template",
        "triton",
        Unit.UNKNOWN,
        "tl.dot compiles to either unit, by the dtype of what it is given.",
        like(
            rf"^triton_|{_MM}.*(?:triton|fused)|^_?attn_(?:fwd|bwd)|^_(?:fwd|bwd)_kernel|fused_moe"
        ),
        dtype=fields.words_dtype,
    ),
    Rule(
        "not-a-matmul",
        "helper",
        Unit.OTHER,
        "Named after a matmul or an attention that it serves.",
        like(
            rf"^(?!.*(?:gemm|matmul|fmha|mha|{_MM})).*(?:softmax|norm|rotary|rope|transpose|permute"
            r"|copy|(?<!kv)cache|quant|cast|convert|optimizer|adam)"
        ),
    ),
    Rule(
        "some-matmul",
        "unlisted",
        Unit.UNKNOWN,
        "Called a matmul, a convolution or an attention, and nothing more is known.",
        like(
            rf"^cutlass\w*::|gemm|conv(?!er)|matmul|attn|attention|fmha|(?<![a-z])mha|sdpa|[fb]prop|[dw]grad"
            rf"|xmma|(?<![a-z])mma(?![a-z])|marlin|batch(?:prefill|decode)|persist\w*_[fb]p_|(?:^|_)dot(?:_|$)|syrk|herk|symm_|trmm|{_MM}"
        ),
        dtype=fields.words_dtype,
    ),
)

RULES = (*HELPERS, *GENERAL_PURPOSE, *TENSOR, *_AMD, *BY_DTYPE, *_MATMULS)
"""All rules; the first that matches decides. None matching means: no matmul that is known."""
