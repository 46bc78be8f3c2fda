"""A rule on kernel names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.numerics.units.kernels.kernel_name import Unit
    from ampwatch.numerics.units.kernels.symbols import Symbol


class Rule(Struct, frozen=True):
    """Patterns of a name, and the class of kernels that match.

    Patterns are compiled when the first kernel is seen, which most trainings have none of.

    Attributes:
        id: Name of the rule.
        family: Which library's kernels, or which kind of helper.
        unit: The unit on which a kernel of that name multiplies.
        why: The evidence for the rule.
        function: Pattern of the function's name, in any case.
        inside: Pattern of its template arguments, where they decide too.
        dtype: The dtype, or what reads it from the name.
        arch: Architecture, where the name does not say it and the family has only one.
        gemv: Whether one matrix is a vector, or nearly so.
    """

    id: str
    family: str
    unit: Unit
    why: str
    function: str
    inside: str = ""
    dtype: str | Callable[[Symbol], str] = ""
    arch: int | None = None
    gemv: bool = False

    def matches(self, symbol: Symbol) -> bool:
        """Return whether the rule applies."""
        return bool(
            re.search(self.function, symbol.function) and re.search(self.inside, symbol.template)
        )

    def read_dtype(self, symbol: Symbol) -> str:
        """Return the dtype of what is multiplied."""
        return self.dtype if isinstance(self.dtype, str) else self.dtype(symbol)


def like(pattern: str) -> str:
    """Return a pattern that takes ASCII letters in either case."""
    # Without ASCII, a k in the pattern would match the sign of Kelvin as well.
    return f"(?ia){pattern}"
