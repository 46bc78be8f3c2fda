"""The state for a line a rank."""

from __future__ import annotations

import json

from ampwatch.host.page.page import MAX_ROWS, Feed, brief
from tests.workshop.clocks import START, Clock
from tests.workshop.fleets import fleet_of, made_up_fleet
from tests.workshop.records import step

NOW = Clock(START + 20)


def test_what_it_has_is_the_pages_own() -> None:
    """Words, numbers and findings, as they are; the page's state itself is not touched."""
    state = Feed(made_up_fleet(), NOW).full()
    before = json.dumps(state)

    short = brief(state)

    assert json.dumps(state) == before
    assert short["columns"] == state["columns"]
    assert short["gpus"] == state["gpus"]
    whole = state["runs"]["gpt"]
    assert short["runs"]["gpt"]["headline"] == whole["headline"]
    for name in ("headline", "level", "findings", "stories", "figures", "series", "step"):
        assert short["runs"]["gpt"]["ranks"]["0"][name] == whole["ranks"]["0"][name]


def test_what_takes_room_is_not_there() -> None:
    """Neither ranges and ops, nor what old rows say."""
    whole = Feed(fleet_of(*map(step, range(200))), NOW).full()

    rank = brief(whole)["runs"]["gpt"]["ranks"]["0"]

    assert not {"ranges", "precision"} & rank.keys()
    assert list(rank["series"]) == [str(i) for i in range(200 - MAX_ROWS, 200)]
