"""Courses in a line of text: sparklines in blocks of Unicode."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
"""Marks from the lowest to the highest value."""

NOT_FINITE = "!"
"""Mark of a value that is NaN or infinite."""


def spark(values: Sequence[float | None], width: int, *, is_log: bool = False) -> str:
    """Draw ``values`` in at most ``width`` characters, the newest last.

    Where there are more values than characters each stands for some of them: their mean, or that
    one of them was not finite, which no mean may hide.

    Args:
        values: In order; ``None`` where there is none, which leaves a gap.
        width: Characters.
        is_log: Whether doubling is a step, as for loss scales; what is not positive is a gap then.
    """
    groups = [_joined(group) for group in _groups(values, width)]
    heights = [_log(value) for value in groups] if is_log else groups
    finite = [height for height in heights if height is not None and math.isfinite(height)]
    low, span = (min(finite), max(finite) - min(finite)) if finite else (0.0, 0.0)

    def mark(height: float | None) -> str:
        if height is None:
            return " "
        if not math.isfinite(height):
            return NOT_FINITE
        # What never moved stands in the middle: it is neither high nor low.
        share = (height - low) / span if span > 0 else 0.5
        return BLOCKS[min(int(share * len(BLOCKS)), len(BLOCKS) - 1)]

    return "".join(map(mark, heights))


def _groups(values: Sequence[float | None], width: int) -> list[Sequence[float | None]]:
    """Cut ``values`` into at most ``width`` runs of equal length; the first may be shorter."""
    size = max(1, math.ceil(len(values) / max(width, 1)))
    first = len(values) % size
    cuts = [0] * bool(first) + list(range(first, len(values) + 1, size))
    return [values[a:b] for a, b in pairwise(cuts)]


def _joined(group: Sequence[float | None]) -> float | None:
    """Return the mean of what is known, or the first value that is not finite."""
    known = [value for value in group if value is not None]
    bad = next((value for value in known if not math.isfinite(value)), None)
    if bad is not None or not known:
        return bad
    return math.fsum(known) / len(known)


def _log(value: float | None) -> float | None:
    if value is None or math.isnan(value) or math.isinf(value):
        return value
    return math.log2(value) if value > 0 else None
