"""A state as JSON, made in pieces, with a chance for what is urgent between them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PIECE_DEPTH = 4
"""Depth down to which a state is put into JSON piece by piece: runs, a run, its ranks, a rank."""


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
