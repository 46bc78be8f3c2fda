"""One number from many: the calculations of stats, legends and the reduce transformation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NAMES = {
    "last": "Last",
    "lastNotNull": "Last *",
    "first": "First",
    "firstNotNull": "First *",
    "min": "Min",
    "max": "Max",
    "mean": "Mean",
    "sum": "Total",
    "count": "Count",
    "range": "Range",
    "delta": "Delta",
    "diff": "Difference",
}
"""As Grafana heads the columns."""


def reduced(values: Sequence[Any], calculation: str) -> Any:
    """Return one value of a column, ``None`` if it has none.

    Args:
        values: Numbers or text; ``None`` where there is nothing.
        calculation: Grafana's name of the reducer.

    Raises:
        ValueError: If no dashboard here has used that calculation so far.
    """
    if calculation in ("last", "first"):
        return values[-1 if calculation == "last" else 0] if values else None
    there = [v for v in values if v is not None and not (isinstance(v, float) and math.isnan(v))]
    if calculation == "count":
        return float(len(there))
    calculate = _CALCULATIONS.get(calculation)
    if calculate is None:
        msg = f"expected one of the calculations {', '.join(NAMES)}, got {calculation!r}; add it to dashboards/preview/reducing.py"
        raise ValueError(msg)
    return calculate(there) if there else None


_CALCULATIONS: dict[str, Callable[[list[Any]], Any]] = {
    "lastNotNull": lambda there: there[-1],
    "firstNotNull": lambda there: there[0],
    "min": min,
    "max": max,
    "sum": sum,
    "mean": lambda there: sum(there) / len(there),
    "range": lambda there: max(there) - min(there),
    "diff": lambda there: there[-1] - there[0],
    # As for a counter: a fall is a new beginning.
    "delta": lambda there: sum(
        b - a if b >= a else b for a, b in zip(there, there[1:], strict=False)
    ),
}
