"""Names and values of labels that more than one metric has."""

from __future__ import annotations

from ampwatch.numerics.formats import FORMATS, PLAIN

RANK = ("run", "rank")
"""Labels of everything a training process reports."""

RUN_FACTS = (
    "device",
    "autocast_dtype",
    "scaler",
    "init_scale",
    "growth_factor",
    "backoff_factor",
    "growth_interval",
    "torch",
    "python",
    "allow_tf32",
    "cudnn_allow_tf32",
    "float32_matmul_precision",
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
    "cudnn_benchmark",
)
"""Facts of a run that are labels of ``ampwatch_run_info``; a fact by another name is not exported."""

GPU = ("gpu", "uuid")
"""Labels of everything a GPU reports."""

GPU_FACTS = (
    "name",
    "pci_bus_id",
    "compute_capability",
    "driver_version",
    "cuda_version",
    "synthetic",
)
"""Facts of a GPU that are labels of ``ampwatch_gpu_info``."""

MIG = (*GPU, "gpu_instance")
"""Labels of everything a GPU instance reports."""

ROOT_MODULE = "(root)"
"""What the label ``module`` says for the model itself, whose qualified name is empty: to
Prometheus an empty label is no label. No attribute name made by ordinary code looks like it."""

_OF_OPS = [fmt.name for fmt in PLAIN]
_OF_KERNELS = [fmt.kernel_label for fmt in FORMATS.values()]

DTYPES = (*dict.fromkeys([*_OF_OPS, *_OF_KERNELS]), "int8")
"""What the label ``dtype`` says; ``OTHER_DTYPE`` for every other one, so that it stays bounded."""

OTHER_DTYPE = "other"

NO_DTYPE = "unknown"
"""What it says of a kernel whose name tells no dtype: to Prometheus an empty label is no label."""

PROFILER_PARTS = ("load", "start", "run", "stop", "walk")
"""What the time of profiler windows goes into: the first start, the others, the iterations, the
ends, and reading the events."""

FINDING = (*RANK, "kind", "severity", "root")
MODULE = (*RANK, "module")
