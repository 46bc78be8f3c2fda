"""Runs that ended, vanished, share a name or use no scaler do not make a dashboard say what is not so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.dashboards import asking

if TYPE_CHECKING:
    from tests.integration.prometheus import Prometheus

    History = tuple[Prometheus, float]

pytestmark = [pytest.mark.nightly, pytest.mark.services]


def shown(history: History, topic: str, number: int, *labels: str) -> dict[tuple[str, ...], float]:
    """The newest values of a panel with one query, by labels."""
    server, now = history
    (target,) = asking.panel(topic, number)["targets"]
    return {
        tuple(s["metric"][name] for name in labels): float(
            (s["values"][-1] if "values" in s else s["value"])[1]
        )
        for s in asking.answer(server, target, now)
    }


@pytest.mark.parametrize("tile", [108, 208], ids=["report", "applied step"])
def test_a_finished_run_has_no_age_that_could_be_an_alarm(odd_runs: History, tile: int) -> None:
    """It has not reported for 1500 s, as it should."""
    found = shown(odd_runs, "run", tile, "run")

    assert found == {("wide",): 0, ("twins",): 0}


@pytest.mark.parametrize(("tile", "runs"), [(103, {("done",)}), (107, set())])
def test_a_run_that_is_gone_has_no_number_as_if_it_were_here(
    odd_runs: History, tile: int, runs: set[tuple[str]]
) -> None:
    """The newest loss scale and pace are ten minutes old, and still within the range."""
    assert shown(odd_runs, "run", tile, "run").keys() == runs


def test_the_share_lost_is_that_of_the_newest_sample_however_old_it_is(odd_runs: History) -> None:
    """It is older than the five minutes that the tile is about otherwise."""
    assert shown(odd_runs, "run", 113, "run") == {("done",): pytest.approx(0.01)}


def test_modules_that_another_rank_speaks_for_are_not_missing(odd_runs: History) -> None:
    """Rank 0 has six of nine modules, and the other seven ranks none."""
    assert shown(odd_runs, "layers", 601) == {(): 3}


def test_the_rank_whose_loss_is_not_a_number_is_named(odd_runs: History) -> None:
    """It is not among those whose losses are compared."""
    assert shown(odd_runs, "ranks", 408, "rank").keys() == {("5",)}
    assert ("5",) not in shown(odd_runs, "ranks", 402, "rank")


def test_the_same_few_ranks_are_drawn_at_every_point(odd_runs: History) -> None:
    """Another rank stands out in each minute: five lines all the same, that of rank 7 among them."""
    apart = shown(odd_runs, "ranks", 402, "rank")

    assert len(apart) == 5
    assert apart[("7",)] == 1


def test_two_trainings_of_one_name_are_too_many_ranks(odd_runs: History) -> None:
    """On two machines nobody can append a number to the name of one of them."""
    assert shown(odd_runs, "ranks", 104) == {(): 1}


def test_a_daemon_that_is_down_is_not_a_prometheus_without_daemons(odd_runs: History) -> None:
    """The only one answers no more: none of one, not nothing at all."""
    assert shown(odd_runs, "overview", 101) == {(): 0}
    assert shown(odd_runs, "overview", 102) == {(): 1}
