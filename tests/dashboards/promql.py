"""Expressions of PromQL, as panels, variables and rules write them, taken apart by a real parser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import promql_parser as ast

RATE_INTERVAL = ast.parse_duration("4m59s")
"""Stands for ``$__rate_interval`` while an expression is parsed: no one writes it by hand."""

_DURATIONS = {
    "__rate_interval": "4m59s",
    "__interval": "4m57s",
    "__range": "4m53s",
}
_VARIABLE = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
    r"""|\$(?:\{(?P<braced>\w+)(?::\w+)?\}|(?P<bare>\w+))"""
)


class PromQLError(ValueError):
    """The text is not an expression; says why."""


def expand(expression: str) -> str:
    """Put durations in the place of Grafana's variables, and 1 in that of others; texts stay."""

    def value(match: re.Match[str]) -> str:
        if match["text"]:
            return match["text"]
        return _DURATIONS.get(match["braced"] or match["bare"], "1")

    return _VARIABLE.sub(value, expression)


def parse(expression: str) -> Any:
    """Return the tree of ``expression``.

    Raises:
        PromQLError: It cannot be parsed.
    """
    try:
        return ast.parse(expand(expression))
    except ValueError as error:
        message = f"{error} in: {expression}"
        raise PromQLError(message) from None


def children(node: Any) -> list[Any]:
    """Return the nodes right below ``node``, in the order in which they are written."""
    if isinstance(node, ast.BinaryExpr):
        return [node.lhs, node.rhs]
    if isinstance(node, ast.Call):
        return list(node.args)
    if isinstance(node, ast.MatrixSelector):
        return [node.vector_selector]
    if isinstance(node, ast.AggregateExpr | ast.ParenExpr | ast.SubqueryExpr | ast.UnaryExpr):
        return [node.expr]
    return []


def nodes(node: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield every node with those above it, the nearest last."""
    yield node, above
    for child in children(node):
        yield from nodes(child, (*above, node))


@dataclass(frozen=True)
class Matcher:
    """One condition on a label: ``label operator "value"``."""

    label: str
    operator: str
    value: str


@dataclass(frozen=True)
class Selector:
    """A selector, and the function that is applied to it at once.

    Attributes:
        name: Metric, empty where a matcher of ``__name__`` says it.
        matchers: Conditions on other labels.
        range: Range in brackets, ``None`` without one.
        function: Function that takes the range or the selector; empty without one.
        bare: Whether nothing at all stands around the selector and its range.
    """

    name: str
    matchers: tuple[Matcher, ...]
    range: timedelta | None
    function: str
    bare: bool


_OPERATORS = (
    (ast.MatchOp.Equal, "="),
    (ast.MatchOp.NotEqual, "!="),
    (ast.MatchOp.Re, "=~"),
    (ast.MatchOp.NotRe, "!~"),
)


def _operator(matcher: Any) -> str:
    return next(text for operator, text in _OPERATORS if matcher.op == operator)


def _named(node: Any) -> list[tuple[str, tuple[Matcher, ...]]]:
    """Return the names that a selector stands for: several, where a regular expression lists them."""
    found = tuple(Matcher(m.name, _operator(m), m.value) for m in node.matchers.matchers)
    rest = tuple(m for m in found if m.label != "__name__")
    if node.name:
        return [(node.name, rest)]
    listed = next((m.value for m in found if m.label == "__name__"), "")
    return [(name, rest) for name in listed.split("|")]


def selectors(expression: Any) -> list[Selector]:
    """Return everything that ``expression``, a text or a tree, selects."""
    tree = parse(expression) if isinstance(expression, str) else expression
    found = []
    for node, above in nodes(tree):
        if not isinstance(node, ast.VectorSelector):
            continue
        ranged = bool(above) and isinstance(above[-1], ast.MatrixSelector)
        around = above[:-1] if ranged else above
        call = around[-1] if around and isinstance(around[-1], ast.Call) else None
        found += [
            Selector(
                name,
                matchers,
                above[-1].range if ranged else None,
                call.func.name if call else "",
                not around,
            )
            for name, matchers in _named(node)
        ]
    return found
