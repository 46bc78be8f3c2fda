"""Permission to compute float32 as TF32, whichever of PyTorch's switches was used."""

from __future__ import annotations

from typing import Any

import torch

from ampwatch.numerics.units.ops import OpKind


def allows_tf32(kind: OpKind) -> bool:
    """Whether matmuls, or convolutions, of float32 may use TF32 on a GPU."""
    if kind is OpKind.CONVOLUTION:
        return _allows(torch.backends.cudnn)
    return _allows(torch.backends.cuda.matmul)


def _allows(switches: Any) -> bool:
    # PyTorch 2.9 and newer raises where its older and newer switches were both used. The newer
    # one of cuDNN is split by operation, that of matmul is not.
    try:
        return bool(switches.allow_tf32)
    except RuntimeError:
        switches = getattr(switches, "conv", switches)
        return bool(getattr(switches, "fp32_precision", "") == "tf32")
