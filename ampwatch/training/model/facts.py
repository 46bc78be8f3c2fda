"""Facts that do not change from step to step: versions, device, scaler, flags, shapes of layers."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from ampwatch.diagnosis.evidence.ops import LayerShape
from ampwatch.numerics.units.ops import OpKind
from ampwatch.training.kernels.dtypes import name_of
from ampwatch.training.model.machine import gpu_facts
from ampwatch.training.model.names import own_parameters
from ampwatch.training.private import ConvNd, initial_scale

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ampwatch.training.model.names import Names

UNKNOWN = "unknown"
"""Value of a fact that this version of torch does not give."""

_RANK_VARIABLES = {
    "rank": ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    "local_rank": ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
    "world_size": ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
}


def ranks(environ: Mapping[str, str] | None = None) -> tuple[int, int, int]:
    """Return rank, local rank and world size of this process.

    From ``torch.distributed`` if it is initialised, else from the variables of
    torchrun, Slurm or MPI, else ``(0, 0, 1)``.
    """
    environ = os.environ if environ is None else environ
    rank = _first(environ, "rank", 0)
    world_size = _first(environ, "world_size", 1)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank = torch.distributed.get_rank()
        world_size = torch.distributed.get_world_size()
    return rank, _first(environ, "local_rank", 0), world_size


def is_first(rank: int, world_size: int) -> bool:
    """Return whether a rank is the first of its machine; rank 0 where no launcher says which is."""
    local_rank = _first(os.environ, "local_rank", rank)
    return world_size == 1 or local_rank == 0


def _first(environ: Mapping[str, str], number: str, default: int) -> int:
    values = (environ.get(name, "") for name in _RANK_VARIABLES[number])
    return next((int(value) for value in values if value.isdigit()), default)


def run_facts(
    scaler: torch.amp.GradScaler | None,
    autocast_dtypes: Sequence[str],
    device: torch.device | None,
    loss_scaler: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the facts of this process as short strings.

    Args:
        scaler: The watched scaler or ``None``.
        autocast_dtypes: Names of the autocast dtypes seen so far.
        device: Device of the model's parameters, ``None`` if unknown.
        loss_scaler: Facts of a scaler that is not torch's; ``None`` without one.

    Cost:
        About 50 us; no device work. At set-up and when something new was seen.
    """
    facts = {
        "autocast_dtype": ",".join(sorted(autocast_dtypes)),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": "" if device is None else device.type,
        **gpu_facts(device),  # with the name of the product as ``device``
        **(_scaler_facts(scaler) if loss_scaler is None else loss_scaler),
    }
    facts.update({name: _ask(read) for name, read in _FLAGS.items()})
    return facts


def _scaler_facts(scaler: torch.amp.GradScaler | None) -> dict[str, str]:
    if scaler is None:
        return {"scaler": "none"}
    if not scaler.is_enabled():
        return {"scaler": "disabled"}
    return {
        "scaler": type(scaler).__name__,
        "init_scale": repr(float(initial_scale(scaler))),
        "growth_factor": repr(float(scaler.get_growth_factor())),
        "backoff_factor": repr(float(scaler.get_backoff_factor())),
        "growth_interval": str(int(scaler.get_growth_interval())),
    }


_FLAGS: dict[str, Callable[[], object]] = {
    "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
    "allow_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
    "cudnn_allow_tf32": lambda: torch.backends.cudnn.allow_tf32,
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "allow_fp16_reduced_precision_reduction": lambda: (
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    ),
    "allow_bf16_reduced_precision_reduction": lambda: (
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    ),
}


def _ask(read: Callable[[], object]) -> str:
    # torch raises RuntimeError where its old and new TF32 switches were mixed, and
    # AttributeError where a version does not have a flag.
    try:
        answer = read()
    except (RuntimeError, AttributeError):
        return UNKNOWN
    return str(answer).lower() if isinstance(answer, bool) else str(answer)


def layer_shapes(names: Names) -> list[LayerShape]:
    """Return the shape of each linear and convolutional layer; lazy layers have none yet."""
    shapes = (names.read(name, _shape, module, name) for name, module in names.modules())
    return [shape for shape in shapes if shape is not None]


def _shape(module: nn.Module, name: str) -> LayerShape | None:
    if isinstance(module, nn.Linear):
        kind = OpKind.MATMUL
        dims = (module.in_features, module.out_features)
    elif isinstance(module, ConvNd):
        groups = module.groups
        kind = OpKind.CONVOLUTION
        dims = (module.in_channels // groups, module.out_channels // groups)
    else:
        return None
    weight = _stored_weight(module)
    if weight is None or nn.parameter.is_lazy(weight):
        return None
    return LayerShape(name, kind, dims, weight.numel(), name_of(weight.dtype), weight.device.type)


def _stored_weight(module: nn.Module) -> nn.Parameter | None:
    """Return the parameter that a layer's weight is, or is computed from.

    ``module.weight`` would compute it: a spectral norm moves its buffers each time. In quantized
    layers it is a method that unpacks the weight.
    """
    weight = own_parameters(module).get("weight")
    if weight is None and is_parametrized(module, "weight"):
        parametrized: Any = module.parametrizations
        weight = own_parameters(parametrized["weight"]).get("original")
    return weight
