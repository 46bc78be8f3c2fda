"""What a ``GradScaler`` knows, read without a sync and without leaving anything in it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.training.transfer.readback import host_scalar, is_plain_scalar

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

READY, UNSCALED, STEPPED = "READY", "UNSCALED", "STEPPED"
"""The stages of an optimizer between two updates, as PyTorch calls them."""


def stage_of(scaler: torch.amp.GradScaler, optimizer: Optimizer) -> str:
    """Return the stage of an optimizer."""
    states = scaler._per_optimizer_states  # noqa: SLF001 - no public name for it
    # Looking must not create the entry of an optimizer that has none yet.
    key = id(optimizer)
    return str(states[key]["stage"].name) if key in states else READY


def stages(scaler: torch.amp.GradScaler) -> list[str]:
    """Return the stages of the optimizers that the scaler has met since its last update."""
    states = scaler._per_optimizer_states  # noqa: SLF001 - no public name for it
    return [str(state["stage"].name) for state in states.values()]


def scale_on_host(scaler: torch.amp.GradScaler) -> float:
    """Return the scale if it lies in host memory, NaN if it does not or is not made yet."""
    scale = scaler._scale  # noqa: SLF001 - no public name for it
    if scale is None or not is_plain_scalar(scale) or scale.device.type != "cpu":
        return math.nan
    return host_scalar(scale)
