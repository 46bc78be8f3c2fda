"""The events that open pages are sent: made once, for all of them.

Pages that show the same ranks share their events. One that keeps up is sent each change; one that
comes or has fallen behind is sent everything.
Whatever is made of many ranks is made in pieces, with a chance for what is urgent between them.
"""

from __future__ import annotations

import zlib
from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ampwatch.host.page.as_json import encoded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ampwatch.host.page.lines import Shown
    from ampwatch.host.page.page import Feed
    from ampwatch.host.page.rows import State

MAX_BEHIND = 8
"""Changes that are kept for pages that are slow."""

NOTHING = b":\n\n"
"""A comment (HTML, server-sent events): it says that the connection lives, and nothing else."""

GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""The beginning of a gzipped stream (RFC 1952), before the first packed event of it."""


class Event:
    """An event as it is sent.

    Args:
        plain: Its text.

    Attributes:
        plain: Its text.
    """

    def __init__(self, plain: bytes) -> None:
        self.plain = plain

    @cached_property
    def packed(self) -> bytes:
        """A part of a gzipped stream that leans on nothing before it: one for all pages."""
        # A raw block that ends at a whole byte (RFC 1951). Members of their own would be simpler,
        # but browsers read the first member only.
        packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        return packer.compress(self.plain) + packer.flush(zlib.Z_SYNC_FLUSH)


_NOTHING = Event(NOTHING)


class Broadcast:
    """Events for any number of pages. For one thread.

    Args:
        feed: The state that they are about.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        # Gone with the last page that shows it.
        self._channels: WeakValueDictionary[Shown, PageEvents] = WeakValueDictionary()

    def channel(self, shown: Shown) -> PageEvents:
        """Return the events of pages that show these ranks; to be held while such a page is open."""
        channel = self._channels.get(shown)
        if channel is None:
            channel = self._channels[shown] = PageEvents(self._feed, shown)
        return channel


class PageEvents:
    """Events of pages that show the same ranks.

    Args:
        feed: The state that they are about.
        shown: Those ranks.
    """

    def __init__(self, feed: Feed, shown: Shown) -> None:
        self._feed = feed
        self._shown = shown
        self._number = 0
        self._state: State = {}
        self._changes: deque[tuple[int, Event]] = deque(maxlen=MAX_BEHIND)
        self._full = 0, _NOTHING

    def since(self, seen: int, seconds: float) -> tuple[int, tuple[Event, ...]]:
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
        missed = tuple(event for number, event in self._changes if number > seen)
        if seen and self._number - seen == len(missed):
            return self._number, missed or (_NOTHING,)
        return self._number, (self._everything(),)

    def _take(self, max_age: float) -> None:
        state = self._feed.shown(self._shown, max_age)
        if state is self._state:
            return
        if self._number:
            patch = merge_patch(self._state, state)
            self._changes.append((self._number + 1, self._event(b"delta", patch)))
        self._state = state
        self._number += 1

    def _everything(self) -> Event:
        number, event = self._full
        if number != self._number:
            event = self._event(b"full", self._state)
            self._full = self._number, event
        return event

    def _event(self, name: bytes, value: Any) -> Event:
        # One line of data: JSON of this form has no line break, which would end the event.
        data = b"".join(encoded(value, self._feed.fleet.priority.step_aside))
        return Event(b"event: " + name + b"\ndata: " + data + b"\n\n")


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> State:
    """Return the JSON merge patch (RFC 7396) that turns ``old`` into ``new``."""
    patch: State = dict.fromkeys(old.keys() - new.keys())
    for name, value in new.items():
        before = old.get(name)
        # Rows and tables are the same objects while they hold: comparing them would cost more.
        if before is value:
            continue
        if isinstance(value, dict) and isinstance(before, dict):
            if changed := merge_patch(before, value):
                patch[name] = changed
        elif before != value:
            patch[name] = value
    return patch
