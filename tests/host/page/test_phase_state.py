"""Where the time of a step goes, as the page is sent it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ampwatch.host.fleet import Fleet
from ampwatch.host.page.page import Feed
from ampwatch.host.page.rows import COLUMNS, WHOLE
from ampwatch.settings import Settings
from tests.report.test_step_times import spent
from tests.workshop.clocks import START, Clock
from tests.workshop.fleets import put
from tests.workshop.records import device_phases, identity, step

if TYPE_CHECKING:
    from ampwatch.wire.records import Record

NOW = Clock(START + 20)


class Shown:
    """A rank on a page."""

    def __init__(self) -> None:
        self._fleet = Fleet(Settings(), NOW)
        self._feed = Feed(self._fleet, NOW)

    def put(self, *records: Record) -> None:
        put(self._fleet, "/a.ring", identity(), records)

    @property
    def state(self) -> dict[str, Any]:
        return self._feed.full()

    @property
    def rank(self) -> dict[str, Any]:
        rank: dict[str, Any] = self.state["runs"]["gpt"]["ranks"]["0"]
        return rank

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [dict(zip(COLUMNS, row, strict=True)) for row in self.rank["series"].values()]


def test_a_row_has_its_phases_in_thousandths_of_its_step() -> None:
    """In the order that the state names; a step of which nothing is known has none."""
    shown = Shown()
    shown.put(step(0), step(1, phases=spent(data=0.5, forward=0.3, optimizer=0.2)))

    first, second = shown.rows
    assert (first["phased"], first["phases"]) == (None, None)
    assert (second["phased"], sum(second["phases"])) == (1.0, WHOLE)
    named = dict(zip([label for label, _ in shown.state["phases"]], second["phases"], strict=False))
    assert {label: part for label, part in named.items() if part} == {
        "data": 500,
        "forward": 300,
        "optimizer": 200,
    }


def test_the_key_has_times_and_shares_of_the_newest_steps() -> None:
    """With the words by which a strip is read, and by whose clock it is."""
    shown = Shown()
    shown.put(*[step(i, phases=spent(data=0.75, forward=0.25)) for i in range(20, 24)])

    assert shown.rank["phases"] == {
        "sentence": "1 s a step, by the host's clock, mean of the newest 4 steps",
        "line": "1 s: 75 % waiting for data, 25 % forward",
        "key": [
            ["data", "waiting for data", "750 ms", "75 %"],
            ["forward", "forward", "250 ms", "25 %"],
        ],
        "notes": [],
    }


def test_where_nothing_is_known_there_is_no_key() -> None:
    """The page then says what would be there."""
    shown = Shown()
    shown.put(step(0))

    assert shown.rank["phases"] == {"sentence": "", "line": "", "key": [], "notes": []}


def test_all_rows_are_of_the_device_once_it_has_spoken() -> None:
    """Also those that were sent before: a strip is of one clock."""
    shown = Shown()
    shown.put(*[step(i, phases=spent(data=0.9, forward=0.1)) for i in range(3)])
    assert [row["phases"] for row in shown.rows] == [(900, 100)] * 3

    shown.put(device_phases(1, 1, spent(data=0.5, forward=1.5)), step(3))

    assert [row["phases"] for row in shown.rows] == [None, None, (250, 750), None]
    assert shown.rows[2]["phased"] == 2.0
    assert shown.rank["phases"]["sentence"].startswith("2 s a step, by the device's clock")


@pytest.mark.parametrize("told", [("total_samples", "128 samples"), ("total_tokens", "128 tokens")])
def test_the_step_time_has_what_is_trained_on_in_a_second(told: tuple[str, str]) -> None:
    """Where the program says so; only then."""
    name, words = told
    silent, shown = Shown(), Shown()
    silent.put(step(0), step(1), step(2))
    shown.put(*[step(i, **{name: 128 * i}) for i in range(3)])

    assert silent.rank["figures"]["Step time"][1] == "1 steps per second"
    assert shown.rank["figures"]["Step time"][1] == f"1 steps, {words} per second"
