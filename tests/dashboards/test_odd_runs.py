"""Runs that ended, vanished, share a name or use no scaler do not make a dashboard say what is not so."""

from __future__ import annotations

import pytest

from tests.dashboards import asking
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


def test_a_finished_run_has_no_age_that_could_be_an_alarm(odd_runs: History) -> None:
    """It has not reported for 1500 s, as it should."""
    assert shown(odd_runs, "run", 108, "run") == {("wide",): 0, ("twins",): 0}


def test_a_daemon_that_is_down_is_counted(odd_runs: History) -> None:
    assert shown(odd_runs, "overview", 102) == {(): 1}


@pytest.mark.parametrize(("tile", "runs"), [(103, {("done",)}), (107, set())])
def test_a_run_that_is_gone_has_no_number_as_if_it_were_here(
    odd_runs: History, tile: int, runs: set[tuple[str]]
) -> None:
    """The newest loss scale and pace are ten minutes old, and still within the range."""
    assert shown(odd_runs, "run", tile, "run").keys() == runs


def test_the_share_lost_is_that_of_the_newest_sample_however_old_it_is(odd_runs: History) -> None:
    """It is older than the five minutes that the tile is about otherwise."""
    assert shown(odd_runs, "run", 113, "run") == {("done",): pytest.approx(0.01)}
