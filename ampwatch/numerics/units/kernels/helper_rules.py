"""Rules for kernels that are called like a matmul, or launched beside one, and multiply nothing."""

from __future__ import annotations

from ampwatch.numerics.units.kernels.kernel_name import Unit
from ampwatch.numerics.units.kernels.kernel_rule import Rule, like

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
