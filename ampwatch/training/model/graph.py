"""The graph that autograd has recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

CAST = "ToCopyBackward"
"""Part of the name of the node that a cast makes."""


def nodes_of(tensors: Iterable[object]) -> list[Any]:
    """Return the nodes that have made tensors; ``None`` for one that has no graph."""
    return [tensor.grad_fn for tensor in tensors if isinstance(tensor, torch.Tensor)]


def nodes_behind(
    nodes: Iterable[Any], follows: Callable[[Any], bool] = lambda _node: True
) -> Iterator[tuple[Any, tuple[tuple[Any, int], ...]]]:
    """Yield nodes, and all that these lead to, each once and with its ``next_functions``.

    Args:
        nodes: Where it begins; ``None`` is none.
        follows: Whether a node is yielded, and what it leads to is gone through.

    Cost: 0.5 us a node.
    """
    waiting = list(nodes)
    # The nodes themselves: an identity is given away again once its Python object is freed.
    seen: dict[int, Any] = {}
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen:
            continue
        seen[id(node)] = node
        if follows(node):
            following = node.next_functions
            waiting += [below for below, _ in following]
            yield node, following
