"""Calculations of one number from many, for stats, legends and the reduce transformation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NAMES = {"lastNotNull": "Last *", "min": "Min", "max": "Max", "mean": "Mean", "sum": "Total"}
"""Headings that Grafana gives the columns."""


def reduced(values: Sequence[Any], calculation: str) -> Any:
    """Return one value of a column, ``None`` if it has none.

    Args:
        values: Numbers or text; ``None`` where there is nothing.
        calculation: Grafana's name of the reducer.

    Raises:
        ValueError: If no dashboard here has used that calculation so far.
    """
    calculate = _CALCULATIONS.get(calculation)
    if calculate is None:
        msg = f"expected one of the calculations {', '.join(NAMES)}, got {calculation!r}; add it to tools/preview/reducing.py"
        raise ValueError(msg)
    there = [v for v in values if v is not None and not (isinstance(v, float) and math.isnan(v))]
    return calculate(there) if there else None


_CALCULATIONS: dict[str, Callable[[list[Any]], Any]] = {
    "lastNotNull": lambda there: there[-1],
    "min": min,
    "max": max,
    "mean": lambda there: sum(there) / len(there),
    "sum": sum,
}
