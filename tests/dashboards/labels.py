"""Which labels the answer of an expression has, so that groupings and legends can be checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import promql_parser as ast

from tests.dashboards.promql import children, selectors

LabelsOf = Callable[[str], frozenset[str]]

_KEEPING = ("topk", "bottomk", "limitk")
_WITHOUT_SERIES = ("vector", "time", "scalar", "pi")
NOTHING: frozenset[str] = frozenset()


class Labels:
    """The labels of an answer, and what is wrong on the way to it.

    Args:
        labels_of: Labels of a metric by its name, those of the target included.
    """

    def __init__(self, labels_of: LabelsOf) -> None:
        self._labels_of = labels_of
        self.problems: list[str] = []

    def of(self, node: Any) -> frozenset[str]:
        """Return the labels of the series that ``node`` answers with."""
        if isinstance(node, ast.VectorSelector):
            return frozenset().union(*(self._labels_of(s.name) for s in selectors(node)))
        if isinstance(node, ast.AggregateExpr):
            return self._aggregated(node)
        if isinstance(node, ast.BinaryExpr):
            return self._combined(node)
        if isinstance(node, ast.Call):
            return self._called(node)
        below = children(node)
        return self.of(below[0]) if below else NOTHING

    def _known(self, labels: list[str], known: frozenset[str], what: str) -> frozenset[str]:
        missing = sorted(set(labels) - known)
        if missing:
            self.problems.append(f"{what} {', '.join(missing)}: no series there has that label")
        return frozenset(labels)

    def _aggregated(self, node: Any) -> frozenset[str]:
        inner, operator = self.of(node.expr), str(node.op)
        if operator in _KEEPING:
            return inner
        made = {node.param.val} if operator == "count_values" else set()
        if node.modifier is None:
            return frozenset(made)
        named = self._known(node.modifier.labels, inner, f"{operator} by or without")
        if node.modifier.type == ast.AggModifierType.By:
            return named | made
        return (inner - named) | made

    def _combined(self, node: Any) -> frozenset[str]:
        left, right = self.of(node.lhs), self.of(node.rhs)
        operator, modifier = str(node.op), node.modifier
        series = [bool(selectors(side)) for side in (node.lhs, node.rhs)]
        if not all(series):
            return left | right
        matching = modifier.matching if modifier else None
        if matching:
            on = matching.type == ast.LabelModifierType.Include
            for side in (left, right) if on else (left | right,):
                self._known(matching.labels, side, f"{operator} on or ignoring")
        if operator == "or":
            return left | right
        if operator in {"and", "unless"}:
            return left
        return self._matched(left, right, modifier)

    def _matched(
        self, left: frozenset[str], right: frozenset[str], modifier: Any
    ) -> frozenset[str]:
        """Return the labels of an arithmetic or comparing operator between two sets of series."""
        if modifier is None or modifier.matching is None:
            return left
        matching, extra = modifier.matching, sorted(modifier.group_labels or ())
        if modifier.card == ast.VectorMatchCardinality.ManyToOne:
            return left | self._known(extra, right, "group_left")
        if modifier.card == ast.VectorMatchCardinality.OneToMany:
            return right | self._known(extra, left, "group_right")
        named = frozenset(matching.labels)
        return named if matching.type == ast.LabelModifierType.Include else left - named

    def _called(self, node: Any) -> frozenset[str]:
        name = node.func.name
        if name in _WITHOUT_SERIES:
            return NOTHING
        if name in {"label_replace", "label_join"}:
            written = [argument.val for argument in node.args[1:]]
            inner = self.of(node.args[0])
            sources = written[2:3] if name == "label_replace" else written[2:]
            self._known(list(filter(None, sources)), inner, name)
            return inner | {written[0]}
        inner = frozenset().union(*(self.of(argument) for argument in node.args))
        return inner - {"le"} if name == "histogram_quantile" else inner
