"""Tests of how many ranks are exported, and which of them speaks for a module."""

import pytest

from ampwatch.host.fleet import Fleet, RankView
from ampwatch.host.fleet import fleet as fleets
from ampwatch.host.fleet.modules import MAX_MODULES
from ampwatch.settings import Settings
from ampwatch.wire.records import Record, Topic
from tests.workshop.clocks import Clock
from tests.workshop.fleets import put
from tests.workshop.records import histogram, identity, ranges, sampling

FINE = histogram(-20, 1, 2, 4)
BROKEN = histogram(-20, 1, 2, 4, nans=1)


def sample(*fine: str, broken: tuple[str, ...] = ()) -> list[Record]:
    """Return what a rank writes that has measured these modules."""
    measured = [*((name, FINE) for name in fine), *((name, BROKEN) for name in broken)]
    return [*(ranges(name, exponents=found) for name, found in measured), sampling()]


def modules(fleet: Fleet) -> dict[tuple[str, int], list[str]]:
    """Return the modules that each rank exports series of."""
    return {
        (rank.run, rank.identity.rank): list(rank.ranges.modules.exported)
        for rank in fleet.exported()
    }


def fleet_of(which: str, *ranks: list[Record], first: int = 0, **settings: int) -> Fleet:
    """Return a fleet of one run on one machine, its ranks numbered from ``first`` on."""
    fleet = Fleet(Settings(module_series_ranks=which, **settings), Clock())  # type: ignore[arg-type]
    for number, records in enumerate(ranks, start=first):
        put(fleet, str(number), identity(rank=number, world_size=64), records)
    return fleet


def test_every_stage_of_a_pipeline_has_somebody_who_speaks_for_its_modules() -> None:
    """Ranks 0 and 1 have the first half of the model, ranks 2 and 3 the second."""
    head, tail = sample("a", "shared"), sample("shared", "z")

    assert modules(fleet_of("host", head, head, tail, tail)) == {
        ("gpt", 0): ["a", "shared"],
        ("gpt", 1): [],
        ("gpt", 2): ["z"],
        ("gpt", 3): [],
    }


def test_a_rank_that_is_alone_in_trouble_speaks_for_itself() -> None:
    """Trouble of one rank alone, as a broken GPU or a bad batch, nobody else would report."""
    fleet = fleet_of("host", sample("a", "b"), sample("a", broken=("b",)), sample("a", "b"))

    assert modules(fleet) == {("gpt", 0): ["a", "b"], ("gpt", 1): ["b"], ("gpt", 2): []}


def test_a_rank_that_was_in_trouble_goes_on_speaking() -> None:
    """A series that came and went with every sample could not be read."""
    fleet = fleet_of("host", sample("b"), sample("b"))
    put(fleet, "1", identity(rank=1, world_size=64), sample(broken=("b",)))
    put(fleet, "1", identity(rank=1, world_size=64), sample("b"))

    assert modules(fleet)["gpt", 1] == ["b"]


def test_trouble_of_another_kind_is_reported_as_well() -> None:
    """All gradients overflow while the scale is sought; outputs that do on one rank are its own."""
    overflow = sample(broken=("b",))
    output = [ranges("b", Topic.ACTIVATION, BROKEN), sampling()]
    fleet = fleet_of("host", overflow, [*overflow, *output], overflow)

    assert modules(fleet) == {("gpt", 0): ["b"], ("gpt", 1): ["b"], ("gpt", 2): []}


def test_a_module_that_was_let_go_of_does_not_move_to_another_rank() -> None:
    """A model may have more modules than are kept; the next sample may bring it back."""
    many = [f"h.{i}" for i in range(MAX_MODULES + 1)]
    fleet = fleet_of("host", sample("a", "b"), sample("b"), module_series=1)
    put(fleet, "0", identity(rank=0, world_size=64), sample(*many))
    ranks = fleet.exported()

    assert "b" not in ranks[0].ranges.modules.by_name
    assert modules(fleet) == {("gpt", 0): ["a"], ("gpt", 1): []}


def test_runs_on_one_machine_do_not_speak_for_one_another() -> None:
    """They may have modules of the same names."""
    fleet = fleet_of("host", sample("a"))
    put(fleet, "other", identity(run="bert", world_size=1), sample("a"))

    assert modules(fleet) == {("bert", 0): ["a"], ("gpt", 0): ["a"]}


@pytest.mark.parametrize(
    ("which", "first", "expected"),
    [
        ("all", 0, [["a"], ["a"], ["a"]]),
        ("run", 0, [["a"], [], []]),
        ("run", 8, [[], [], []]),
        ("host", 8, [["a"], [], []]),
    ],
)
def test_the_setting_says_which_ranks_speak(
    which: str, first: int, expected: list[list[str]]
) -> None:
    """With ``run`` a machine without rank 0 is silent about modules."""
    fleet = fleet_of(which, *[sample("a")] * 3, first=first)

    assert list(modules(fleet).values()) == expected


def test_modules_that_another_rank_speaks_for_are_counted_as_untracked() -> None:
    """So that nobody takes them for modules that were never measured."""
    fleet = fleet_of("host", sample("a", "b"), sample("a", "b"))

    assert [rank.ranges.modules.num_untracked for rank in fleet.exported()] == [0, 2]


def test_the_next_rank_takes_over_when_the_one_that_spoke_is_gone() -> None:
    """After ``grace_seconds``, as its last values are exported until then."""
    clock = Clock()
    fleet = Fleet(Settings(grace_seconds=10.0), clock)
    for number in (0, 1):
        put(fleet, str(number), identity(rank=number), sample("a"))
    put(fleet, "0", identity(rank=0), [], alive=False)
    assert modules(fleet) == {("gpt", 0): ["a"], ("gpt", 1): []}

    clock.now += 11

    assert modules(fleet) == {("gpt", 1): ["a"]}


def numbers(ranks: list[RankView]) -> list[tuple[str, int]]:
    return [(rank.run, rank.identity.rank) for rank in ranks]


def test_of_too_many_ranks_those_stay_that_started_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred small runs beside a large one take nothing from it, and are counted."""
    monkeypatch.setattr(fleets, "MAX_RANKS", 4)
    fleet = fleet_of("host", *[[]] * 3)
    for number in range(5):
        who = identity(
            run=f"a{number}", world_size=1, started_ns=identity().started_ns + 1 + number
        )
        put(fleet, f"a{number}", who, [])

    assert numbers(fleet.exported()) == [("a0", 0), ("gpt", 0), ("gpt", 1), ("gpt", 2)]
    assert fleet.num_left_out == 4
    assert len(fleet.ranks()) == 8


def test_ranks_that_have_ended_make_room_for_those_that_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their last values were exported when they were news."""
    monkeypatch.setattr(fleets, "MAX_RANKS", 2)
    fleet = fleet_of("host", [], [])
    put(fleet, "0", identity(rank=0, world_size=64), [], alive=False)
    late = identity(run="late", world_size=1, started_ns=identity().started_ns + 1)
    put(fleet, "late", late, [])

    assert numbers(fleet.exported()) == [("gpt", 1), ("late", 0)]


def test_no_user_takes_the_places_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rings that say that they began an hour before, or that end and begin."""
    monkeypatch.setattr(fleets, "MAX_RANKS", 6)
    fleet = fleet_of("host", *[[]] * 3)
    hour_ns = 3600 * 10**9
    for number in range(8):
        who = identity(
            run=f"b{number}", world_size=1, started_ns=identity().started_ns - hour_ns + number
        )
        put(fleet, f"b{number}", who, [], uid=1001)
    ended = identity(rank=2, world_size=64)
    before = numbers(fleet.exported())
    put(fleet, "2", ended, [], alive=False)

    assert before == [("b0", 0), ("b1", 0), ("b2", 0), ("gpt", 0), ("gpt", 1), ("gpt", 2)]
    assert numbers(fleet.exported()) == before
    assert fleet.num_left_out == 5


def test_places_that_a_user_does_not_need_are_there_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A share is what others cannot take, and no limit."""
    monkeypatch.setattr(fleets, "MAX_RANKS", 4)
    fleet = fleet_of("host", *[[]] * 4)
    put(fleet, "b", identity(run="b", world_size=1), [], uid=1001)

    assert numbers(fleet.exported()) == [("b", 0), ("gpt", 0), ("gpt", 1), ("gpt", 2)]
