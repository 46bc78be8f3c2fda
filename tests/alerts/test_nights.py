"""A few simulated nights: one page for a trouble that wakes somebody, none without. ``benchmarks/nights.py`` has 200."""

from __future__ import annotations

import random

import pytest

from benchmarks import nights
from benchmarks.pager import messages
from tests.services import require

pytestmark = pytest.mark.services

BAD = ("pages without a trouble", "notes without a trouble", "no page", "pages too many", "no note")


@pytest.mark.nightly
def test_troubles_page_once_and_health_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind once, in one fleet."""
    require("promtool")
    # As in `promtool`: its heap is small, and its collector runs all the time.
    monkeypatch.setenv("GOGC", "400")
    kinds = [*nights.HEALTHY, *nights.BROKEN]
    runs = [nights.lived(f"run-{n}", kind, random.Random(n)) for n, kind in enumerate(kinds)]

    result = nights.score(runs, messages(nights.fired(runs)))

    assert {name: result.counts[name] for name in BAD} == dict.fromkeys(BAD, 0), result.wrong
    assert result.counts["troubles that page"] >= 8


def alert(name: str, severity: str, **labels: str) -> frozenset[tuple[str, str]]:
    labels = {"instance": "a:10917", "run": "gpt", "rank": "0", **labels}
    return frozenset({"alertname": name, "severity": severity, "job": "ampwatch", **labels}.items())


COLLAPSED = alert("AmpwatchLossScaleCollapsed", "critical")
LEFT = alert("AmpwatchLossScaleLeftLow", "critical")
STORM = alert("AmpwatchLossScaleUnhealthy", "warning")


def told(
    *firing: tuple[float, set[frozenset[tuple[str, str]]]],
) -> list[tuple[float, str, int, bool]]:
    """Return moment, receiver, alerts that go on, and whether somebody is woken, of each message."""
    found = messages([(at, frozenset(alerts)) for at, alerts in firing])
    return [(one.at, one.receiver, len(one.firing), one.new) for one in found]


def test_what_joins_a_page_wakes_nobody_anew_and_what_follows_is_held_back() -> None:
    said = told(
        (0, {COLLAPSED, STORM}), (240, {COLLAPSED, LEFT, STORM}), (300, {LEFT}), (900, set())
    )

    page = "ampwatch-critical"
    assert said == [
        (15, page, 1, True),
        (255, page, 2, False),
        (315, page, 1, False),
        (915, page, 0, False),
    ]


def test_another_trouble_of_a_run_wakes_anew_when_the_first_is_over() -> None:
    said = told((0, {COLLAPSED}), (60, set()), (600, {COLLAPSED}), (660, {COLLAPSED}))

    assert [new for *_, new in said] == [True, False, True]


def test_one_fault_is_one_alert_when_more_is_known_of_it() -> None:
    """A GPU to suspect, with the fault of another one beside it; ranks whose scales differed before their steps did."""
    with_gpu = alert("AmpwatchLossScaleCollapsed", "critical", uuid="GPU-0")
    faults = [alert("AmpwatchGpuFault", "critical", run="", uuid=f"GPU-{n}") for n in (0, 1)]
    scales = alert("AmpwatchRanksApart", "warning", apart="loss_scales")
    models = alert("AmpwatchRanksApart", "critical", apart="models")
    said = messages([(0, frozenset({COLLAPSED, with_gpu, scales, models, *faults}))])

    assert {found for one in said for found in one.firing} == {with_gpu, faults[1], models}


def test_a_host_that_is_lost_is_one_message_also_with_others() -> None:
    down = {alert("AmpwatchTargetDown", "warning", instance=host, run="") for host in "ab"}

    assert [n for *_, n, _ in told((0, down))] == [2]
