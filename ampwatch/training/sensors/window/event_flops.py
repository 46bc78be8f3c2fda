"""The FLOPs of ops whose events tell shapes, and that PyTorch's profiler does not count."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ampwatch.numerics.units.ops import OpKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    Shape = Sequence[int]


def flops_of_shapes(name: str, kind: OpKind, shapes: Sequence[Shape]) -> int:
    """Return the floating-point operations of attention, and of the backward of convolutions.

    Args:
        name: Base name of the op.
        kind: What it does.
        shapes: The shapes of its inputs, in their order; of what is no tensor they are empty.

    Returns:
        As of ``opflops``; 0 for other ops, and where the shapes are not those of the op.
    """
    is_backward = name.endswith("backward")
    tensors = [shape for shape in shapes if shape]
    if kind is OpKind.ATTENTION and len(tensors) > 2 + is_backward:
        return _attention(name, tensors[is_backward:], is_backward=is_backward)
    if kind is OpKind.CONVOLUTION and is_backward and len(tensors) > 2:
        gradient, _, weight = tensors[:3]
        # One product for the gradient of the image, one for that of the weight.
        return 2 * 2 * prod(gradient) * prod(weight[1:])
    return 0


def _attention(name: str, tensors: Sequence[Shape], *, is_backward: bool) -> int:
    query, key, value = tensors[:3]
    if min(map(len, (query, key, value))) < 3:
        return 0
    # (B, H, T, D), or (B, T, H, D) in the ops below.
    time = -2 if name.startswith("_scaled_dot_product") else -3
    pairs = prod(query[:-1]) * key[time]
    features, outputs = query[-1], value[-1]
    return 2 * pairs * (3 * features + 2 * outputs if is_backward else features + outputs)
