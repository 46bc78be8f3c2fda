"""The events that open pages are sent: made once, for all of them.

A page that keeps up is sent each change; one that comes or has fallen behind is sent everything.
Whatever is made of many ranks is made in pieces, with a chance for what is urgent between them.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from ampwatch.host.page.page import merge_patch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ampwatch.host.page.page import Feed, State

MAX_BEHIND = 8
"""Changes that are kept for pages that are slow."""

PIECE_DEPTH = 4
"""Depth down to which a state is put into JSON piece by piece: runs, a run, its ranks, a rank."""

NOTHING = b":\n\n"
"""A comment (HTML, server-sent events): it says that the connection lives, and nothing else."""


class Broadcast:
    """Events for any number of pages. For one thread.

    Args:
        feed: The state that they are about.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._number = 0
        self._state: State = {}
        self._changes: deque[tuple[int, bytes]] = deque(maxlen=MAX_BEHIND)
        self._full: tuple[int, bytes] = (0, b"")

    def since(self, seen: int, seconds: float) -> tuple[int, bytes]:
        """Return the events after number ``seen``, 0 for a page that has seen none.

        Args:
            seen: Number of the newest event that the page has got.
            seconds: Time from event to event.

        Returns:
            The number of the newest event as well. There is always something to send: whether
            the page is still there is known only then.
        """
        # A little earlier than a page comes back, or each second time would bring nothing.
        self._take(max(0.9 * seconds, self._feed.usual_age))
        missed = [events for number, events in self._changes if number > seen]
        if seen and self._number - seen == len(missed):
            return self._number, b"".join(missed) or NOTHING
        return self._number, self._everything()

    def _take(self, max_age: float) -> None:
        state = self._feed.full(max_age)
        if state is self._state:
            return
        if self._number:
            patch = merge_patch(self._state, state)
            self._changes.append((self._number + 1, self._event(b"delta", patch)))
        self._state = state
        self._number += 1

    def _everything(self) -> bytes:
        number, event = self._full
        if number != self._number:
            event = self._event(b"full", self._state)
            self._full = self._number, event
        return event

    def _event(self, name: bytes, value: Any) -> bytes:
        # One line of data: JSON of this form has no line break, which would end the event.
        data = b"".join(encoded(value, self._feed.step_aside))
        return b"event: " + name + b"\ndata: " + data + b"\n\n"


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
