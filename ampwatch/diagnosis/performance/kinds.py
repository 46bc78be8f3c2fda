"""Kinds of findings about mixed precision that gains less than it could."""

from __future__ import annotations

from ampwatch.diagnosis.kinds.kind import Kind, KindFamily, certain, very_likely
from ampwatch.wire.records import Severity

CAST_OVERHEAD = Kind(
    slug="cast_overhead",
    number=33,
    family=KindFamily.PERFORMANCE,
    meaning="casts between dtypes cost what low precision gains",
    severities=(Severity.INFO,),
    certainty=certain("casts and their bytes were counted as they ran"),
    advice=(
        "Remove manual .float(), .half() and .to(dtype), and let autocast cast; merge float32"
        " islands into one; keep torch.autocast(cache_enabled=True), the default, so that a weight"
        " that is used twice is cast once. A larger batch makes the casts of weights count less, and"
        " torch.compile fuses casts with what is around them."
    ),
)

NO_MEMORY_GAIN = Kind(
    slug="no_memory_gain",
    number=34,
    family=KindFamily.PERFORMANCE,
    meaning="autocast does not save memory",
    severities=(Severity.INFO,),
    certainty=very_likely(
        "bytes of weights, of their copies and of activations were counted in one step"
    ),
    advice=(
        "Autocast halves activations, not weights, gradients or the state of the optimizer. A larger"
        " batch increases the saving; to save memory on weights use bfloat16 weights with stochastic"
        " rounding or an 8-bit optimizer (torchao), shard them (fully_shard), or train adapters."
    ),
)


_AUTOCAST = (
    "Let autocast cast the matmuls: remove the torch.autocast(device_type, enabled=False), or"
    " put it around only the ops that need float32, and cast their results back."
)

FP32_MATMUL = Kind(
    slug="fp32_matmul",
    number=30,
    family=KindFamily.PERFORMANCE,
    meaning="most FLOPs run in float32, although autocast is used",
    severities=(Severity.INFO, Severity.WARNING),
    certainty=certain("the dtypes of the matrix products were read as they ran"),
    advice=(
        f"{_AUTOCAST} What has to"
        " stay in float32 runs on the tensor cores of GPUs of compute capability 8.0 and newer as"
        " TF32: torch.set_float32_matmul_precision('high')."
    ),
)


MATMUL_IS_GEMV = Kind(
    slug="matmul_is_gemv",
    number=37,
    family=KindFamily.PERFORMANCE,
    meaning="matrix-vector products, which tensor cores do not speed up",
    severities=(Severity.INFO, Severity.WARNING),
    certainty=certain("the shapes of the ops were read as they ran"),
    advice=(
        "Make them matrix products: process several samples or positions at once instead of one at"
        " a time, and compute a head with a single output beside others or outside autocast."
    ),
)

KERNELS_OUTDATED = Kind(
    slug="kernels_outdated",
    number=38,
    family=KindFamily.PERFORMANCE,
    meaning="kernels written for an older generation of GPUs",
    severities=(Severity.INFO, Severity.WARNING),
    certainty=very_likely(
        "the names of the kernels contain the architecture they were written for"
    ),
    advice=(
        "Take a PyTorch built for a newer CUDA, whose cuBLAS and cuDNN have kernels for this GPU. Else"
        " look at shapes and layouts (multiples of 64, channels_last), and at attention: use"
        " torch.nn.functional.scaled_dot_product_attention."
    ),
)


CPU_ISA_MISSING = Kind(
    slug="cpu_isa_missing",
    number=35,
    family=KindFamily.PERFORMANCE,
    meaning="the machine has no instructions for the dtype of autocast",
    severities=(Severity.INFO, Severity.WARNING),
    certainty=certain("the machine reports its instructions"),
    advice=(
        "Use a dtype that the machine has instructions for. On a CPU without them train in float32,"
        " or use one with AMX or AVX512-BF16 for bfloat16. On a GPU bfloat16 needs compute"
        " capability 8.0: before that use float16 autocast with a GradScaler."
    ),
)

BACKEND_FLAGS = Kind(
    slug="backend_flags",
    number=36,
    family=KindFamily.PERFORMANCE,
    meaning="settings of PyTorch that would speed up this training are off",
    severities=(Severity.INFO,),
    certainty=certain("the settings of the backends were read"),
    advice=(
        "Turn on what this training can use: torch.set_float32_matmul_precision('high') lets"
        " float32 matmuls run as TF32 (10 bits of mantissa: keep positions, angles and sums of many"
        " terms out of matmuls then). Where sizes stay the same, torch.backends.cudnn.benchmark = True"
        " finds the fastest convolution of each."
    ),
)


DIMS_UNALIGNED = Kind(
    slug="dims_unaligned",
    number=31,
    family=KindFamily.PERFORMANCE,
    meaning="dimensions that tensor cores cannot use well",
    severities=(Severity.INFO, Severity.WARNING),
    certainty=certain("the shapes of the ops were read as they ran"),
    advice=(
        "Pad the dimension to a multiple of 8 (of 16 for float8, of 64 on an A100 or newer): a"
        " vocabulary of 50257 to 50304, hidden sizes, channels, sequence lengths, the batch"
        " (DataLoader(drop_last=True)). Linear and Conv take the padded size; the loss"
        " ignores classes that never occur."
    ),
)

LAYOUT_NCHW = Kind(
    slug="layout_nchw",
    number=32,
    family=KindFamily.PERFORMANCE,
    meaning="low-precision convolutions on channels-first tensors",
    severities=(Severity.INFO,),
    certainty=certain("the memory format of the convolutions' inputs was read"),
    advice=(
        "Use channels_last for the model and for its inputs:"
        " model.to(memory_format=torch.channels_last) and"
        " images.to(memory_format=torch.channels_last)."
    ),
)


SYNC_IN_STEP = Kind(
    slug="sync_in_step",
    number=60,
    family=KindFamily.TIME,
    meaning="the host waits for the device in each step",
    severities=(Severity.INFO, Severity.WARNING),
    certainty=certain("the calls that wait were recorded with their source lines"),
    advice=(
        "Read values rarely: log every 100 steps, and add up loss.detach() on the device until then."
        " Replace what depends on values: torch.where for nonzero and for masks. Copy with"
        " non_blocking=True, from pinned memory (DataLoader(pin_memory=True)), and read what comes"
        " to the host in a later step."
    ),
)


TENSOR_VIEWS_DISAGREE = Kind(
    slug="tensor_views_disagree",
    number=39,
    family=KindFamily.PERFORMANCE,
    meaning="the views of the tensor cores contradict one another",
    severities=(Severity.INFO,),
    certainty=very_likely("hardware counters, kernel names and counted FLOPs were compared"),
    advice=(
        "Trust none of the shares of tensor cores until this is settled. Look at"
        " /debug/kernels.json of the daemon for kernels of unknown names and teach them with the"
        " setting kernel_patterns, check peak_flops, and see that no other process uses this GPU."
    ),
)
