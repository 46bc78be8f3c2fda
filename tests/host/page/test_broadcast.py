"""The events of open pages: made once for all, and together what a new page gets."""

from __future__ import annotations

import gc
import json
import zlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ampwatch.host.fleet import Fleet
from ampwatch.host.page.as_json import encoded
from ampwatch.host.page.broadcast import GZIP_HEAD, MAX_BEHIND, NOTHING, Broadcast, Event
from ampwatch.host.page.lines import Shown
from ampwatch.host.page.page import Feed
from ampwatch.settings import Settings
from tests.host.page.test_page import merged
from tests.workshop.clocks import START, Clock
from tests.workshop.fleets import made_up_fleet, put
from tests.workshop.records import identity, step


class Page:
    """What a browser knows that follows the events."""

    def __init__(self) -> None:
        self.seen = 0
        self.state: Any = None
        self.names: list[str] = []

    def take(self, told: tuple[int, tuple[Event, ...]]) -> None:
        self.seen, events = told
        for event in b"".join(event.plain for event in events).decode().split("\n\n"):
            if event and not event.startswith(":"):
                name, data = event.split("\n")
                self.names.append(name.removeprefix("event: "))
                base = None if self.names[-1] == "full" else self.state
                self.state = merged(base, json.loads(data.removeprefix("data: ")))


def test_pages_that_come_at_different_times_all_know_what_a_new_one_gets() -> None:
    """One that keeps up, one that misses some, one that falls far behind and one that comes late."""
    clock = Clock(START + 20)
    fleet = made_up_fleet()
    broadcast = Broadcast(Feed(fleet, clock))
    channel = broadcast.channel(Shown("gpt", "0"))
    pages = {1: Page(), 3: Page(), MAX_BEHIND + 4: Page()}
    for tick in range(2 * (MAX_BEHIND + 4) + 1):
        clock.now += 1.0
        put(fleet, "/gpt-0.ring", identity(), [step(4 + tick, loss_scale=2.0**tick)])
        for every, page in pages.items():
            if tick % every == 0:
                page.take(channel.since(page.seen, 1.0))
    late = Page()
    late.take(broadcast.channel(Shown("gpt", "0")).since(0, 1.0))

    expected = json.loads(json.dumps(Feed(fleet, clock).shown(Shown("gpt", "0"))))
    assert [page.state == expected for page in (pages[1], pages[MAX_BEHIND + 4], late)] == [
        True
    ] * 3
    assert pages[1].names[:3] == ["full", "delta", "delta"]
    assert pages[3].names.count("full") == 1
    assert set(pages[MAX_BEHIND + 4].names) == {"full"}


def test_pages_of_the_same_ranks_share_their_events_for_as_long_as_one_is_open() -> None:
    """A page that has gone leaves nothing behind."""
    broadcast = Broadcast(Feed(made_up_fleet(), Clock(START + 20)))
    channel = broadcast.channel(Shown("gpt", "0"))
    assert broadcast.channel(Shown("gpt", "0")) is channel
    assert broadcast.channel(Shown("gpt", "1")) is not channel

    del channel
    gc.collect()
    assert not broadcast._channels


def test_packed_events_are_one_gzipped_stream_wherever_it_begins() -> None:
    """A page that comes late begins with any of them: none leans on what another page was sent before."""
    events = [Event(f"event: delta\ndata: {{'step': {i}}}\n\n".encode() * 50) for i in range(5)]
    for begin in range(5):
        sent = GZIP_HEAD + b"".join(event.packed for event in events[begin:])
        plain = b"".join(event.plain for event in events[begin:])
        assert zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(sent) == plain
        assert len(sent) < len(plain) / 4


def test_a_page_that_asks_too_early_is_sent_a_comment() -> None:
    """Whether it has left is found out by sending, and proxies close what is silent."""
    channel = Broadcast(Feed(made_up_fleet(), Clock(START + 20))).channel(Shown())
    seen, _ = channel.since(0, 1.0)

    seen_then, (event,) = channel.since(seen, 1.0)
    assert (seen_then, event.plain) == (seen, NOTHING)


def test_between_the_ranks_urgent_work_has_its_chance_and_the_lock() -> None:
    """A state of many ranks is made in pieces: a scrape waits for one of them, not for all."""
    fleet = Fleet(Settings(), Clock(START + 20))
    for rank in range(20):
        put(fleet, f"/{rank}.ring", identity(rank=rank, world_size=20), [step(0)])
    free: list[bool] = []

    def aside() -> None:
        # An RLock that this thread holds could be taken again: its state says who holds it.
        free.append(not fleet.lock._is_owned())

    fleet.priority.step_aside = aside
    state = Feed(fleet, Clock(START + 20)).full()
    made = len(free)
    list(encoded(state, aside))

    assert made >= 20
    assert len(free) - made >= 20
    assert all(free)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@settings(max_examples=50)
@given(VALUES, st.integers(0, 5))
def test_pieces_are_together_the_json_of_the_whole(value: Any, depth: int) -> None:
    """Whatever is in it: other alphabets, numbers beyond 64 bits, nothing."""
    text = b"".join(encoded(value, depth=depth))

    assert json.loads(text) == value
    assert b"\n" not in text


def test_a_path_that_is_no_utf_8_does_not_end_the_page() -> None:
    """Another user may name files as he likes."""
    assert json.loads(b"".join(encoded({"problems": {"/a\udcff.ring": "layout 0"}}))) == {
        "problems": {"/a\udcff.ring": "layout 0"}
    }
