"""Calls of clipping functions, remembered as long as their gradients are there."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING

import torch
from msgspec import Struct, field

from ampwatch.training.private import version_of
from ampwatch.training.transfer.readback import host_scalar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

MAX_WITNESSES = 64
"""Gradients of a call that are remembered, to see later whether they are still there; of a longer
list every k-th is."""

BY_NORM = "clip_grad_norm_"
BY_VALUE = "clip_grad_value_"


class ClipCall(Struct, eq=False):
    """One call of a clipping function.

    Attributes:
        function: Name of the function.
        limit: ``max_norm`` or ``clip_value``; NaN where that is a tensor.
        gradients: Gradients by identity, with their versions before the call.
        changes: Number of operations in place that the call may take.
        scale: The scale, NaN unless it lies in host memory.
        source: ``file:line`` of the call.
        norm: The norm, NaN where it cannot be read, ``None`` while it is on its way.
        broken: Name of the parameter whose gradient was not finite, and the number of non-finite
            elements.
        scaled_for: Numbers of optimizers whose gradients were unscaled after the call, and the
            iterations in which they were.
        stepped_by: Numbers of the optimizers that stepped with the gradients, and the iterations.
    """

    function: str
    limit: float
    gradients: dict[int, tuple[weakref.ref[Tensor], int]]
    changes: int
    scale: float
    source: str
    norm: float | None = math.nan
    broken: tuple[str, int] = ("", 0)
    scaled_for: list[tuple[int, int]] = field(default_factory=list)
    stepped_by: list[tuple[int, int]] = field(default_factory=list)

    def is_there(self) -> bool:
        """Whether clipped gradients are still there, and nobody has changed them since."""
        return any(map(self._is_unchanged, self.gradients))

    def is_stepped_with(self, mine: set[int]) -> bool:
        """Whether some of ``mine``, by identity, are clipped gradients, unchanged since."""
        return any(self._is_unchanged(key) for key in mine & self.gradients.keys())

    def is_unscaled_with(self, mine: set[int]) -> bool:
        """Whether some of ``mine``, by identity, were clipped; losses may have been added since."""
        return any(self.gradients[key][0]() is not None for key in mine & self.gradients.keys())

    def _is_unchanged(self, key: int) -> bool:
        # An identity is given away again once its owner is freed; the reference proves whose it is.
        # Every operation in place raises the version, and those of the call itself are allowed.
        reference, version = self.gradients[key]
        gradient = reference()
        if gradient is None:
            return False
        return version <= version_of(gradient) <= version + self.changes

    def is_repaired(self) -> bool:
        """Whether gradients in host memory are finite again, although their norm was not."""
        if self.norm is None or math.isfinite(self.norm):
            return False
        gradients = [reference() for reference, _ in self.gradients.values()]
        here = [g for g in gradients if g is not None and g.device.type == "cpu"]
        return bool(here) and not any(num_nonfinite(g) for g in here)


def witnesses(gradients: Sequence[Tensor]) -> dict[int, tuple[weakref.ref[Tensor], int]]:
    """Return gradients, or some of them, by identity, with their versions."""
    # Rounded up, so that no more than MAX_WITNESSES are left; 1 for an empty list.
    some = gradients[:: -(-len(gradients) // MAX_WITNESSES) or 1]
    return {id(g): (weakref.ref(g), version_of(g)) for g in some}


def num_nonfinite(gradient: Tensor) -> int:
    """Return how many elements of a gradient in host memory are not finite. No sync."""
    if gradient.device.type != "cpu":
        return 0
    with torch.no_grad():
        values = gradient.coalesce().values() if gradient.is_sparse else gradient.detach()
        return int(host_scalar((~torch.isfinite(values)).sum()))
