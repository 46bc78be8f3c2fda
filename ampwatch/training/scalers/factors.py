"""Constant factors of losses: what autograd has written down of how a loss was scaled."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.training.private import saved_other, saved_self
from ampwatch.training.transfer.readback import host_scalar, is_plain_scalar

if TYPE_CHECKING:
    from collections.abc import Sequence

LIKELY_SCALE = 128.0
"""Smallest power of two that is taken for a scale where a loss is multiplied by it."""

SURE_SCALE = 1024.0
"""Smallest power of two that is the loss scale for sure: no weight of a loss is that large."""

MAX_MOVE = 16
"""Largest power of two by which a scale moves at a time: by 2^16 where a user sets it."""

MAX_DEPTH = 6
"""Nodes between the root of backward and the product with the scale: a division by the number of
micro-batches, a conversion of the dtype."""

_THROUGH = ("Mul", "Div", "Neg", "ToCopy", "Clone", "Alias", "View", "Reshape", "Squeeze")
"""Names of nodes with one child that leave a loss what it is, times a constant."""

_SUMS = ("Add", "Sub")
"""Names of nodes behind which each of several losses may be scaled."""


def constant_of(node: Any) -> torch.Tensor | None:
    """Return the constant that a product was made with, a one-element tensor; ``None`` without one.

    The derivative by one factor is the other: a factor is saved if the other one has a gradient, so
    of a loss and a constant only the constant is.

    Raises:
        RuntimeError: If the graph was freed, or the constant was changed in place meanwhile.
        AttributeError: If the node saves no factor.
    """
    constant = saved_other(node)
    constant = saved_self(node) if constant is None else constant
    return constant if is_plain_scalar(constant) else None


def known_constant(node: Any) -> torch.Tensor | None:
    """Return ``constant_of`` a node, ``None`` as well where the graph does not tell any more."""
    try:
        return constant_of(node)
    except (RuntimeError, AttributeError):
        return None  # freed, or changed in place meanwhile: backward itself will raise


def is_power_of_two(value: float) -> bool:
    """Whether a number is a whole power of two."""
    return value >= 1.0 and math.frexp(value)[0] == 0.5


def is_likely_scale(value: float) -> bool:
    """Whether a number looks like a loss scale."""
    return LIKELY_SCALE <= value < math.inf and is_power_of_two(value)


def _may_follow(value: float, scale: float | None) -> bool:
    """Whether a number may be what has become of a scale."""
    if scale is None or not 0.0 < value < math.inf:
        return False
    mantissa, exponent = math.frexp(value / scale)
    return mantissa == 0.5 and abs(exponent - 1) <= MAX_MOVE


def factor_at_root(
    tensors: Sequence[Any], gradients: Sequence[Any], scale: float | None = None
) -> float | None:
    """Return the likely loss scale that backward begins with; ``None`` if there is none in sight.

    Args:
        tensors: Tensors, as handed to ``torch.autograd.backward``.
        gradients: Gradients, as handed to it: some scale there.
        scale: The scale before, if one is known: it may have become any.

    Cost: about 2 us. Reads host memory only.
    """
    for gradient in gradients:
        given = _on_host(gradient)
        if given is not None and (is_likely_scale(given) or _may_follow(given, scale)):
            return given
    for tensor in tensors:
        node = tensor.grad_fn if isinstance(tensor, torch.Tensor) else None
        for _ in range(MAX_DEPTH):
            if node is None:
                break
            name = node.name().partition("Backward")[0]
            children = [child for child, _ in node.next_functions if child is not None]
            if name not in _THROUGH or len(children) != 1:
                break
            factor = _on_host(known_constant(node)) if name == "Mul" else None
            if factor is not None and (is_likely_scale(factor) or _may_follow(factor, scale)):
                return factor
            node = children[0]
    return None


def may_be_scaled(tensors: Sequence[Any], gradients: Sequence[Any]) -> bool:
    """Whether a loss may be scaled: by a constant that is large, or that host memory does not tell.

    Args:
        tensors: Tensors, as handed to ``torch.autograd.backward``.
        gradients: Gradients, as handed to it: some scale there.

    Cost: about 2 us, and more for a sum of several losses. Reads host memory only.
    """
    if any(given is not None and _may_scale(given) for given in gradients):
        return True
    nodes = [tensor.grad_fn for tensor in tensors if isinstance(tensor, torch.Tensor)]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for node in filter(None, nodes):
            name = node.name().partition("Backward")[0]
            if name == "Mul" and _may_scale(known_constant(node)):
                return True
            if name in _THROUGH or name in _SUMS:
                below += [child for child, _ in node.next_functions]
        nodes = below
    return False


def _may_scale(constant: object) -> bool:
    if constant is None:
        return False
    value = _on_host(constant)
    return value is None or not abs(value) < LIKELY_SCALE


def _on_host(value: object) -> float | None:
    if not is_plain_scalar(value) or value.device.type != "cpu" or not value.is_floating_point():
        return None
    return host_scalar(value)
