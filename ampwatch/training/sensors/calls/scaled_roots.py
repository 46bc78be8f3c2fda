"""Roots of backward: which of them are losses multiplied by the loss scale."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.training.devices import HOST
from ampwatch.training.model.graph import nodes_behind
from ampwatch.training.model.scaler import scale_on_host
from ampwatch.training.private import scale_tensor, sequence_number
from ampwatch.training.scalers.factors import constant_of, is_likely_scale
from ampwatch.training.transfer.readback import host_scalar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

PLAIN = -1
"""Kind of a loss that was not scaled; kinds of scaled losses are numbers of scales, from 0."""

UNKNOWN = -2
"""Kind of a tensor of which it is not known whether it was scaled."""

OF_OTHER = -4
"""Kind of a loss that another scaler has scaled."""

DIVIDED = -3
"""Kind of a scaled loss whose gradients ``unscale_`` has divided by the scale."""

MAX_NUMBERS = 4096
"""Scaled losses remembered between two updates of the scaler."""

MAX_NODES = 256
"""Nodes that are visited to find the losses that one root is the sum of."""

MAX_TO_LEAVES = 20_000
"""Nodes that are visited to find the parameters that a part of a root leads to."""

MAX_LEAF_WALKS = 8
"""Roots that are sums of scaled and unscaled losses whose graphs are walked through."""

LINEAR = frozenset(
    {
        "Add",
        "Sub",
        "Rsub",
        "Sum",
        "Mean",
        "Div",
        "Mul",
        "Neg",
        "Stack",
        "Cat",
        "View",
        "Reshape",
        "ReshapeAlias",
        "Squeeze",
        "Unsqueeze",
        "Select",
        "Index",
        "ToCopy",
        "Clone",
        "Alias",
        "Expand",
        "Unbind",
        "Slice",
        "UnsafeView",
        "Permute",
        "T",
    }
)
"""Names of nodes that add up, weigh and arrange losses, without ``Backward`` and a number."""


class Branch(NamedTuple):
    """One of the losses that a root is the sum of.

    Attributes:
        kind: Number of the scale it was multiplied by, ``PLAIN``, ``OF_OTHER`` or ``UNKNOWN``.
        node: Node of the loss in the graph.
    """

    kind: int
    node: Any


class ScaledRoots:
    """Remembers the results of ``scaler.scale`` by the numbers of their nodes.

    Autograd numbers the nodes of a thread in the order in which they are made. No tensor and no
    node is held, so no graph lives longer than without ampwatch.

    A user may scale a loss by hand, with ``scaler.get_scale()``. A product counts as ``UNKNOWN``
    where that was called, or where a factor equals the scale or is a likely one.

    Args:
        scaler: An enabled scaler.

    Attributes:
        number: Number of the scale: updates so far.
        asked: Whether ``get_scale`` was called since the last update or backward.
        num_scaled: Losses scaled since the last update.
        any_scaled: Whether a loss was ever scaled.
    """

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self._scaler = scaler
        self._numbers: dict[int, int] = {}
        self._first = 0
        self._walks = 0
        self._leaves: dict[tuple[str, ...], set[int] | None] = {}
        self.number = 0
        self.asked = False
        self.num_scaled = 0
        self.any_scaled = False

    def scaled(self, result: object, *, by_other: bool = False) -> None:
        """Remember the result of ``scaler.scale``, of the scaler or of another one."""
        if isinstance(result, torch.Tensor):
            if not by_other:
                self.num_scaled += 1
                self.any_scaled = True
            if result.grad_fn is not None and len(self._numbers) < MAX_NUMBERS:
                number = sequence_number(result.grad_fn)
                self._first = min(self._first, number) if self._numbers else number
                self._numbers[number] = OF_OTHER if by_other else self.number
        elif isinstance(result, (list, tuple)):
            for one in result:
                self.scaled(one, by_other=by_other)

    def updated(self) -> None:
        """Begin with another scale."""
        self.number += 1
        self.num_scaled = 0
        self.asked = False
        self._numbers.clear()

    def branches(self, tensors: Sequence[Any], gradients: Sequence[Any]) -> list[Branch]:
        """Return the losses that backward begins at.

        Args:
            tensors: Tensors, as handed to ``torch.autograd.backward``.
            gradients: Gradients, as handed to it. One that is given by hand may carry a scale.

        Cost: about 1 us for a scaled loss, up to 0.2 ms for one that is not.
        """
        found: list[Branch] = []
        for tensor, gradient in zip_longest(tensors, gradients):
            node = tensor.grad_fn if isinstance(tensor, torch.Tensor) else None
            if node is None:
                found.append(Branch(UNKNOWN, None))
                continue
            # Nearly always the root is the result of scaler.scale.
            number = self._numbers.get(sequence_number(node))
            if number is not None:
                found.append(Branch(number, node))
                continue
            for branch in self._branches_of(node):
                is_known = branch.kind not in (PLAIN, UNKNOWN) or gradient is None
                found.append(branch if is_known else Branch(UNKNOWN, branch.node))
        return found

    def reach(self, branches: Sequence[Branch]) -> dict[int, frozenset[int]] | frozenset[int]:
        """Return the kinds that backward adds to every parameter, or by identity to each.

        The graph is walked through only where scaled and plain losses are added up in one root.
        """
        kinds = frozenset(branch.kind for branch in branches)
        if PLAIN not in kinds or len(kinds) == 1:
            return kinds or frozenset({UNKNOWN})
        added: dict[int, frozenset[int]] = {}
        for kind in kinds:
            for leaf in self._leaves_of(kind, branches) or ():
                added[leaf] = added.get(leaf, frozenset()) | {kind}
        return added

    def _leaves_of(self, kind: int, branches: Sequence[Branch]) -> set[int] | None:
        """Return the leaves of the losses of a kind; of a sum met before, the leaves of then."""
        shape = (str(min(kind, 0)), *(b.node.name() for b in branches if b.node is not None))
        if self._walks < MAX_LEAF_WALKS:
            self._walks += 1
            self._leaves[shape] = leaves_of(b.node for b in branches if b.kind == kind)
        return self._leaves.get(shape)

    def _branches_of(self, root: Any) -> Iterator[Branch]:
        stack = [root]
        left = MAX_NODES
        while stack:
            node = stack.pop()
            left -= 1
            number = self._number_of(node)
            if number is not None:
                yield Branch(number, node)
                continue
            children = [child for child, _ in node.next_functions if child is not None]
            name = node.name().partition("Backward")[0]
            if left <= 0:
                yield Branch(UNKNOWN, node)
            elif name not in LINEAR or not children:
                yield Branch(UNKNOWN if self._leads_to_scaled(node) else PLAIN, node)
            elif name in ("Mul", "Div") and len(children) > 1:
                # A product of two losses, or of a loss and a weight that is learnt.
                yield Branch(self._kind_of_product(node, children), node)
            elif name == "Mul" and (factor := self._factor(node)) is not None:
                if factor != 0.0:
                    yield Branch(UNKNOWN, node)
            elif name in ("Mul", "Div") and self.asked:
                yield Branch(UNKNOWN, node)
            else:
                stack += children

    def _number_of(self, node: Any) -> int | None:
        if not self._numbers:
            return None
        return self._numbers.get(sequence_number(node))

    def _kind_of_product(self, node: Any, children: Iterable[Any]) -> int:
        kinds = {kind for c in children if (kind := self._number_of(c)) is not None}
        if len(kinds) == 1:
            return kinds.pop()
        return UNKNOWN if kinds or self._leads_to_scaled(node) else PLAIN

    def _leads_to_scaled(self, node: Any) -> bool:
        """Whether a scaled loss is among what ``node`` was computed from, or may be."""
        if not self._numbers:
            return False
        # Numbers ascend, so a node with a smaller number than the first scaled loss was not
        # computed from it, and neither was anything below: most of the graph is never visited.
        behind = nodes_behind([node], lambda below: sequence_number(below) >= self._first)
        for count, (below, _) in enumerate(behind, 1):
            if count >= MAX_NODES or sequence_number(below) in self._numbers:
                return True
        return False

    def _factor(self, node: Any) -> float | None:
        """Return the constant of a product if it is zero, the scale or a likely scale.

        1.0 stands for the scale itself and for a constant that cannot be read; ``None`` for any
        other constant.
        """
        mine = scale_tensor(self._scaler)
        try:
            constant = constant_of(node)
        except (RuntimeError, AttributeError):
            # Freed, or changed in place meanwhile: backward itself will raise.
            return 1.0
        if constant is None:
            return None
        if mine is not None and constant.data_ptr() == mine.data_ptr():
            return 1.0
        if constant.device.type != HOST or not constant.is_floating_point():
            return None
        factor = host_scalar(constant)
        scale = scale_on_host(self._scaler)
        is_scale = factor == scale or is_likely_scale(factor)
        return factor if is_scale or factor == 0.0 else None


def leaves_of(nodes: Iterable[Any]) -> set[int] | None:
    """Return the identities of the leaves that nodes lead to; ``None`` if the graph is too large.

    Cost: about 1 us a node of the graph.
    """
    leaves = set()
    for count, (node, _) in enumerate(nodes_behind(nodes)):
        if count >= MAX_TO_LEAVES:
            return None
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves.add(id(variable))
    return leaves
