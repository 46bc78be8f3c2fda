"""Reasons why an op ran in float32 although the training uses autocast."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ampwatch.numerics.units.ops import Fallback
from ampwatch.training.hooks.regions import region_for
from ampwatch.training.private import graph_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from ampwatch.training.hooks.regions import AutocastRegion, Regions
    from ampwatch.training.ops.info import OpInfo


class Fallbacks:
    """Compares ops with the autocast regions that they run in.

    Args:
        regions: The regions that every thread is in.

    Attributes:
        autocast_dtypes: Names of the dtypes of the enabled regions that ops ran in so far.
    """

    def __init__(self, regions: Regions) -> None:
        self.autocast_dtypes: list[str] = []
        self._regions = regions
        # The regions around the newest call of each module outside of backward.
        self._called_in: dict[str, tuple[AutocastRegion, ...]] = {}

    def called(self, name: str) -> None:
        """Note the regions that a module is called in outside of backward. Cost: 0.2 us."""
        self._called_in[name] = tuple(self._regions.here())

    def see(self, device_type: str) -> None:
        """Note the region of an op of the forward pass that has run on a type of device."""
        region = region_for(device_type, self._regions.here())
        if region is not None and region.enabled and region.dtype not in self.autocast_dtypes:
            self.autocast_dtypes.append(region.dtype)

    def why(self, info: OpInfo, inputs: Sequence[str], device_type: str) -> Fallback:
        """Return the reason why an op of the forward pass ran in float32.

        Args:
            info: Info of the op.
            inputs: Names of the dtypes of its floating-point inputs.
            device_type: Type of the device it ran on.
        """
        here = self._regions.here()
        region = region_for(device_type, here)
        if region is None:
            if any(r.enabled for r in here):
                return Fallback.DEVICE_TYPE
            elsewhere = self._regions.elsewhere(device_type)
            return Fallback.OUTSIDE_REGION if elsewhere is None else Fallback.OTHER_THREAD
        if not region.enabled:
            return Fallback.CUSTOM_FUNCTION if region.by_function else Fallback.DISABLED_REGION
        return _inside(info, inputs, device_type)

    def why_lone(self, module: nn.Module, name: str) -> tuple[Fallback, AutocastRegion] | None:
        """Return the reason why a module is called without the expected autocast, and that region.

        ``None`` if nothing is amiss: the module is called inside a region for its device, enabled
        or not, or to evaluate, or nobody uses autocast.
        """
        parameter = next(module.parameters(), None)
        if parameter is None or not parameter.is_floating_point() or not torch.is_grad_enabled():
            return None
        device_type = parameter.device.type
        here = self._regions.here()
        if any(region.device_type == device_type for region in here):
            return None
        if graph_task() != -1:
            # Backward runs outside of the user's regions; what computes a part of the forward pass again has
            # to enter the region of then.
            then = region_for(device_type, self._called_in.get(name, ()))
            return None if then is None or not then.enabled else (Fallback.OUTSIDE_REGION, then)
        if here:
            # A region for CUDA that is off was switched off by PyTorch if this machine has no
            # CUDA, and by the user otherwise.
            is_meant = here[-1].enabled or not torch.cuda.is_available()
            return (Fallback.DEVICE_TYPE, here[-1]) if is_meant else None
        elsewhere = self._regions.elsewhere(device_type)
        return None if elsewhere is None else (Fallback.OTHER_THREAD, elsewhere)


def _inside(info: OpInfo, inputs: Sequence[str], device_type: str) -> Fallback:
    """Return the reason why an op ran in float32 inside an enabled region."""
    if not info.is_own:
        return Fallback.CUSTOM_FUNCTION
    if len(inputs) > 1:
        return Fallback.PROMOTED
    is_listed = not info.kind.has_flops and info.has_fp32_policy(device_type)
    return Fallback.FP32_LIST if is_listed else Fallback.NOT_LISTED
