"""Of four ranks that are really watched the slow one is named, with why; others are left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.stories.straggler import RANKS, STEPS, Machine, Trouble, found, run

pytestmark = pytest.mark.usefixtures("one_thread")

MORE = 0.08
"""Time that a slow rank takes longer; a step takes 0.3. Unit: s."""


def of(slow: int) -> Callable[[int, int], float]:
    """Have one rank take longer in each step."""
    return lambda rank, _step: MORE * (rank == slow)


def in_turns(rank: int, step: int) -> float:
    """Have another rank take longer in each step."""
    return MORE * (step % 4 == rank)


def everybody(_rank: int, _step: int) -> float:
    """Have all take longer."""
    return MORE


def first_evaluates(rank: int, step: int) -> float:
    """Have the first rank do something alone, now and then."""
    return 20 * MORE * (rank == 0 and step % 20 == 19)


SLOW = {
    "data": (Trouble(data=of(2)), 2, "it waits for data"),
    "compute": (Trouble(forward=of(1), computes=1.0), 1, "it computes longer in forward"),
    "compute among many": (
        Trouble(forward=of(1), rest=everybody, computes=0.3, has_no_core=0.7),
        1,
        "it computes longer in forward",
    ),
    "lock": (Trouble(forward=of(3)), 3, "it waits in forward, and not for a core"),
    "busy core": (Trouble(rest=of(0), has_no_core=1.0), 0, "its host is busy"),
    "wakes late": (Trouble(wake=of(2), has_no_core=1.0), 2, "its host is busy"),
}
HEALTHY = {
    "all alike": Trouble(),
    "all slow": Trouble(data=everybody),
    "in turns": Trouble(data=in_turns),
    "the first evaluates": Trouble(evaluation=first_evaluates),
    "all wake late": Trouble(wake=everybody, has_no_core=1.0),
    "the first saves": Trouble(rest=first_evaluates),
}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    "story",
    ["data", *(pytest.param(s, marks=pytest.mark.rotating) for s in SLOW if s != "data")],
)
def test_the_slow_rank_is_named_with_what_it_takes_and_what_others_wait(
    story: str, machine: Machine
) -> None:
    """To a millisecond: what it takes longer is what was planted, and the others wait as long."""
    trouble, slow, why = SLOW[story]

    ((rank, finding),) = found(run(machine, trouble))

    assert rank == slow
    assert finding.summary.startswith(f"Rank {slow} makes the {RANKS} ranks of this host wait")
    assert why in finding.summary
    assert finding.evidence["excess_seconds"] == pytest.approx(MORE, abs=0.001)
    assert finding.evidence["others_wait_seconds"] == pytest.approx(MORE, abs=0.001)
    assert finding.first_step <= 1
    assert finding.last_step > STEPS // 2


@pytest.mark.rotating
@pytest.mark.parametrize("story", HEALTHY)
def test_ranks_of_which_none_is_slow_are_left_alone(story: str, machine: Machine) -> None:
    """Nor those that take turns, nor the one that evaluates for all."""
    assert found(run(machine, HEALTHY[story])) == []
