"""Products of matrices that ran in float32 in forward, and that autocast lowers in backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.training.hooks.ownership import MAX_NODES
from ampwatch.training.private import metadata_of_node

if TYPE_CHECKING:
    from collections.abc import Iterable

PRODUCTS = {
    "MmBackward0": 0,
    "BmmBackward0": 0,
    "AddmmBackward0": 1,
    "BaddbmmBackward0": 1,
    "AddbmmBackward0": 1,
}
"""Nodes that compute gradients by ops that autocast lowers on every device, and which of their edges is the
first that leads to an operand of the product. Before it is what is added to it, whose gradient is
no product. The backward of a convolution is an op of its own, which autocast leaves alone."""

MAX_CAST_AWAY = 4
"""Nodes between a product and its weight: a transposition, a view, a cast."""


class LoweredProducts(NamedTuple):
    """Products of a graph that ran in float32 in forward and are on the way to the gradients.

    Attributes:
        number: How many there are.
        weight: A leaf that one of them multiplies with; ``None`` where that is not known.
        leaves: Identities of the leaves of the graph.
    """

    number: int
    weight: object
    leaves: frozenset[int]


def lowered_products(
    outputs: Iterable[object], inputs: Iterable[object], device: str
) -> LoweredProducts | None:
    """Go through the graph between some outputs and inputs.

    What a node has computed in forward has the dtype of the gradient that the node takes. No value is read.

    Args:
        outputs: Tensors or edges at which the graph begins.
        inputs: Those at which it ends.
        device: The type of the device whose autocast is on.

    Returns:
        What was found; ``None`` where a graph is too long to be gone through.

    Cost: 1 us a node.
    """
    asked = set(map(id, inputs))
    ends = [node for one in inputs if (node := _node_of(one)) is not None]
    waiting = [node for one in outputs if (node := _node_of(one)) is not None]
    # The nodes themselves are kept: an identity is given away again once its Python object is freed.
    nodes: dict[int, Any] = {}
    above: dict[int, list[tuple[Any, int]]] = {}
    leaves: list[int] = []
    while waiting:
        node = waiting.pop()
        if id(node) in nodes:
            continue
        if len(nodes) >= MAX_NODES:
            return None
        nodes[id(node)] = node
        following = node.next_functions
        for place, (child, _) in enumerate(following):
            if child is not None:
                above.setdefault(id(child), []).append((node, place))
                waiting.append(child)
        if not following and (leaf := getattr(node, "variable", None)) is not None:
            leaves.append(id(leaf))
            if id(leaf) in asked:
                ends.append(node)
    found = _products_above(ends, above, device)
    weight = next((leaf for node in found if (leaf := _weight_of(node)) is not None), None)
    return LoweredProducts(len(found), weight, frozenset(leaves))


def _node_of(one: Any) -> Any:
    """Return the node of a tensor or of an edge; ``None`` of a leaf."""
    return one.grad_fn if isinstance(one, torch.Tensor) else getattr(one, "node", None)


def _products_above(
    ends: list[Any], above: dict[int, list[tuple[Any, int]]], device: str
) -> list[Any]:
    """Return the nodes of such products whose gradients reach one of the ends."""
    found: dict[int, Any] = {}
    waiting, seen = list(ends), set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        for parent, place in above.get(id(node), ()):
            waiting.append(parent)
            if place >= PRODUCTS.get(parent.name(), place + 1) and _is_wide(parent, device):
                found[id(parent)] = parent
    return list(found.values())


def _is_wide(node: Any, device: str) -> bool:
    taken = metadata_of_node(node)[0]
    return taken.dtype is torch.float32 and taken.device.type == device


def _weight_of(product: Any) -> object:
    """Return the leaf that is a factor of a product as it is, but for views and casts of it."""
    for factor, _ in product.next_functions[PRODUCTS[product.name()] :]:
        node = factor
        for _ in range(MAX_CAST_AWAY):
            if node is None or len(node.next_functions) != 1:
                break
            node = node.next_functions[0][0]
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.nn.Parameter):
            return leaf
    return None
