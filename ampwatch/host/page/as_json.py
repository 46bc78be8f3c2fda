"""A state as JSON: its numbers, and its text in pieces, with a chance for what is urgent between them."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PIECE_DEPTH = 4
"""Depth down to which a state is put into JSON piece by piece: runs, a run, its ranks, a rank."""


def digits(value: float, number: int = 6) -> float | str:
    """Return ``value`` for JSON, which has no NaN and no infinities: those become strings.

    Args:
        value: The value.
        number: Its significant digits that are kept; six are more than a screen shows.
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float(f"{value:.{number}g}")


def encoded(
    value: Any, step_aside: Callable[[], None] = lambda: None, depth: int = PIECE_DEPTH
) -> Iterator[bytes]:
    """Yield ``value`` as JSON in pieces; ``step_aside`` is called between those of depth 0.

    In one piece no other thread runs meanwhile, which are seconds for the state of many ranks.
    """
    if depth == 0 or not isinstance(value, dict):
        yield _json(value)
        return
    opening = b"{"
    for name, member in value.items():
        yield opening + _json(name) + b":"
        yield from encoded(member, step_aside, depth - 1)
        opening = b","
        if depth == 1:
            step_aside()
    yield b"{}" if opening == b"{" else b"}"


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (ValueError, OverflowError):
        # A path that is no UTF-8, or a number beyond 64 bits: the slow way knows them.
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
