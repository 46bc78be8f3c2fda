"""Classification of a GPU kernel by its name: the unit that it multiplies on, with the rule."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ampwatch.numerics.units.kernels import name_fields, symbols
from ampwatch.numerics.units.kernels.kernel_name import KernelName, Unit
from ampwatch.numerics.units.kernels.kernel_rules import RULES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.numerics.units.kernels.kernel_patterns import KernelPattern

__all__ = ["UNLISTED", "KernelName", "NameClassifier", "Unit", "classify"]

UNLISTED = "unlisted"
"""The rule of kernels of which no rule knows anything."""

_REMEMBERED = 4096  # names; a training has a few hundred
_MAX_LENGTH = 4096  # characters; PyTorch's longest are near 5000, of which the end is arguments


class NameClassifier:
    """Classifies names and remembers them.

    Args:
        patterns: A user's own, asked before any rule.

    Cost:
        A dictionary look-up for a name seen before; less than 0.1 ms for a new one.
    """

    def __init__(self, patterns: Sequence[KernelPattern] = ()) -> None:
        self._patterns = tuple(patterns)
        self.classify = lru_cache(_REMEMBERED)(self._classify)

    def _classify(self, name: str) -> KernelName:
        """Return the class of a kernel; any text has one."""
        name = name[:_MAX_LENGTH]
        symbol = symbols.parse(name)
        kernel = self._of_the_user(name) or _by_rules(symbol)
        if kernel.unit is Unit.OTHER:
            return kernel
        return kernel._replace(
            arch=name_fields.read_arch(symbol) or kernel.arch,
            align=name_fields.read_align(symbol),
        )

    def _of_the_user(self, name: str) -> KernelName | None:
        for number, (pattern, unit, dtype) in enumerate(self._patterns, start=1):
            if pattern.search(name):
                return KernelName(unit, "user", f"user-{number}", dtype)
        return None


def _by_rules(symbol: symbols.Symbol) -> KernelName:
    for rule in RULES:
        if rule.matches(symbol):
            dtype = rule.read_dtype(symbol)
            return KernelName(rule.unit, rule.family, rule.id, dtype, rule.arch, gemv=rule.gemv)
    return KernelName(Unit.OTHER, UNLISTED, UNLISTED)


_DEFAULT = NameClassifier()


def classify(name: str) -> KernelName:
    """Return the class of a kernel by its name, by the built-in rules alone."""
    return _DEFAULT.classify(name)
