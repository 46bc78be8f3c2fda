"""The state of a ``GradScaler``, read without a sync and without leaving anything in it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ampwatch.errors import AttachError
from ampwatch.training.devices import HOST, autocast_types, is_readable
from ampwatch.training.private import (
    SCALER_STATE,
    device_of_scaler,
    scale_tensor,
    states_of_optimizers,
)
from ampwatch.training.transfer.readback import host_scalar, is_plain_scalar

if TYPE_CHECKING:
    from torch.optim import Optimizer


def check_scaler(scaler: object) -> torch.amp.GradScaler:
    """Return ``scaler`` if it is a GradScaler whose state is where it is expected.

    Raises:
        AttachError: If it is of an unknown class, or its private state has changed.
    """
    if not isinstance(scaler, torch.amp.GradScaler):
        msg = (
            f"`scaler`: expected a torch.amp.GradScaler or a subclass, got"
            f" {type(scaler).__module__}.{type(scaler).__qualname__}; say how it works with"
            f" ampwatch.LossScaler(...), or pass scaler=None to watch the steps without it"
        )
        raise AttachError(msg)
    device_type = device_of_scaler(scaler) if scaler.is_enabled() else HOST
    if not is_readable(device_type):
        msg = (
            f"`scaler`: expected a GradScaler for one of {', '.join(autocast_types())}, whose values"
            f" can be read without waiting, got one for {device_type!r}; pass scaler=None to watch"
            " the steps without it"
        )
        raise AttachError(msg)
    missing = [name for name in SCALER_STATE if not hasattr(scaler, name)]
    if scaler.is_enabled() and missing:
        msg = (
            f"`scaler`: expected the state of torch.amp.GradScaler as in torch 2.13, but"
            f" {type(scaler).__qualname__} of torch {torch.__version__} has no {', '.join(missing)};"
            f" pass scaler=None to watch the steps without it, or upgrade ampwatch"
        )
        raise AttachError(msg)
    return scaler


READY = "READY"
"""Stage of an optimizer whose gradients were not unscaled since the last update."""

UNSCALED = "UNSCALED"
"""Stage of an optimizer after ``unscale_``. Names of stages are those of PyTorch's ``OptState``."""

STEPPED = "STEPPED"
"""Stage of an optimizer after ``step``."""


def stage_of(scaler: torch.amp.GradScaler, optimizer: Optimizer) -> str:
    """Return the stage of an optimizer."""
    states = states_of_optimizers(scaler)
    # A defaultdict: reading with [] would create the entry of an optimizer that has none yet.
    key = id(optimizer)
    return str(states[key]["stage"].name) if key in states else READY


def stages(scaler: torch.amp.GradScaler) -> list[str]:
    """Return the stages of the optimizers that the scaler has met since its last update."""
    states = states_of_optimizers(scaler)
    return [str(state["stage"].name) for state in states.values()]


def scale_on_host(scaler: torch.amp.GradScaler) -> float:
    """Return the scale if it lies in host memory, NaN if it does not or is not made yet."""
    scale = scale_tensor(scaler)
    if scale is None or not is_plain_scalar(scale) or scale.device.type != "cpu":
        return math.nan
    return host_scalar(scale)
