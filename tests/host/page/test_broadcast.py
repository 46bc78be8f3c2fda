"""The events of open pages: made once for all, and together what a new page gets."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ampwatch.host.fleet import Fleet
from ampwatch.host.page.broadcast import MAX_BEHIND, NOTHING, Broadcast, encoded
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

    def take(self, told: tuple[int, bytes]) -> None:
        self.seen, events = told
        for event in events.decode().split("\n\n"):
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
    pages = {1: Page(), 3: Page(), MAX_BEHIND + 4: Page()}
    for tick in range(2 * (MAX_BEHIND + 4) + 1):
        clock.now += 1.0
        put(fleet, "/gpt-0.ring", identity(), [step(4 + tick, loss_scale=2.0**tick)])
        for every, page in pages.items():
            if tick % every == 0:
                page.take(broadcast.since(page.seen, 1.0))
    late = Page()
    late.take(broadcast.since(0, 1.0))

    expected = json.loads(json.dumps(Feed(fleet, clock).full()))
    assert [page.state == expected for page in (pages[1], pages[MAX_BEHIND + 4], late)] == [
        True
    ] * 3
    assert pages[1].names[:3] == ["full", "delta", "delta"]
    assert pages[3].names.count("full") == 1
    assert set(pages[MAX_BEHIND + 4].names) == {"full"}


def test_what_is_sent_is_made_once_for_all_pages() -> None:
    """The same bytes, not equal ones: 64 pages of 256 ranks would be some hundred MB."""
    clock = Clock(START + 20)
    broadcast = Broadcast(Feed(made_up_fleet(), clock))
    seen, first = broadcast.since(0, 1.0)
    assert broadcast.since(0, 1.0)[1] is first

    clock.now += 1.0
    _, change = broadcast.since(seen, 1.0)
    assert change.startswith(b"event: delta\n")
    assert broadcast.since(seen, 1.0)[1] == change


def test_a_page_that_asks_too_early_is_sent_a_comment() -> None:
    """Whether it has left is found out by sending, and proxies close what is silent."""
    broadcast = Broadcast(Feed(made_up_fleet(), Clock(START + 20)))
    seen, _ = broadcast.since(0, 1.0)

    assert broadcast.since(seen, 1.0) == (seen, NOTHING)


def test_between_the_ranks_urgent_work_has_its_chance_and_the_lock() -> None:
    """A state of many ranks is made in pieces: a scrape waits for one of them, not for all."""
    fleet = Fleet(Settings(), Clock(START + 20))
    for rank in range(20):
        put(fleet, f"/{rank}.ring", identity(rank=rank, world_size=20), [step(0)])
    free: list[bool] = []

    def aside(seconds: float) -> float:
        # An RLock that this thread holds could be taken again: its state says who holds it.
        free.append(not fleet.lock._is_owned())
        return seconds

    feed = Feed(fleet, Clock(START + 20), aside)
    state = feed.full()
    made = len(free)
    list(encoded(state, feed.step_aside))

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
