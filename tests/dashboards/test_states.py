"""Whatever state a run is in, its dashboards say so, and no number beside refutes it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.dashboards import asking
from tests.dashboards.asking import newest, panel
from tests.dashboards.documents import FILES, drawn, load
from tests.dashboards.states_of_runs import ALERTS, CAUSE, FLUSHED, MACHINE, OVERFLOW, STORIES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.prometheus import Prometheus

    History = tuple[Prometheus, float]

pytestmark = [pytest.mark.nightly, pytest.mark.services]

RUNS = [story.run for story in STORIES]
BROKEN = {"b-collapsed", "d-flushed", "e-diverged"}
"""Runs of which something critical goes on, or did at the end."""

CLAIMS: dict[str, str] = {
    r"No such run is known": "ampwatch_run_info",
    r"(No|This) run (is|was) (not )?watched": "ampwatch_run_info",
    r"No GradScaler|No run here has a GradScaler": "ampwatch_loss_scale",
    r"No watched rank is": "ampwatch_gpu_process_info",
    r"No GPU is read": "ampwatch_gpu_up",
    r"No sample within an hour": "increase(ampwatch_gradient_elements_total[1h]) > 0",
    r"No gradient was sampled": "increase(ampwatch_gradient_elements_total[10m]) > 0",
    r"No gradient other than zero": "max_over_time(ampwatch_scaled_gradient_amax_max[10m]) > 0",
    r"No step has ended|No rank has ended|No iteration was": "ampwatch_steps_total > 0",
    r"No step in this time": "rate(ampwatch_step_duration_seconds_count[5m]) > 0",
    r"No finite loss was seen": "ampwatch_loss < Inf > -Inf",
    r"No optimizer (has|step)|No step in 10": "increase(ampwatch_optimizer_steps_total[10m]) > 0",
    r"No loss was seen": "ampwatch_loss",
    r"No ampwatch target": "ampwatch_build_info",
    r"Nothing was sampled|Nothing is sampled": "ampwatch_samples_total > 0",
    r"The parameters were not looked at": "ampwatch_parameter_nonfinite_elements",
    r"Not looked at": "ampwatch_parameter_nonfinite_elements",
    r"No rank has failed": 'ampwatch_run_state{state="failed"} == 1',
    r"Nothing was found": "ampwatch_finding_last_seen_timestamp_seconds",
    r"Nothing is wrong now": "ampwatch_root_info",
}
"""Words of panels without an answer, and a query without an answer where they are true."""


def column(history: History, topic: str, number: int, title: str) -> dict[str, float]:
    """One column of a table, by run."""
    server, now = history
    table = panel(topic, number)
    titles = table["transformations"][1]["options"]["renameByName"]
    value = next(name for name, shown in titles.items() if shown == title)
    target = next(t for t in table["targets"] if value in ("Value", f"Value #{t['refId']}"))
    return {s["metric"]["run"]: newest(s) for s in asking.answer(server, target, now)}


def tile(history: History, topic: str, number: int, **chosen: str) -> float | None:
    """The number of a tile of one value, as the user reads it; none if it has none."""
    server, now = history
    (target,) = panel(topic, number)["targets"]
    found = asking.answer(server, target, now, **chosen)
    return newest(found[0]) if found else None


def words_of(shown: dict[str, Any], value: float) -> str:
    """The word that a panel or a column has for a number."""
    for mapping in shown["mappings"]:
        options = mapping["options"]
        if f"{value:g}" in options:
            return str(options[f"{value:g}"]["text"])
        if "from" in options and options["from"] <= value:
            return str(options["result"]["text"])
    return f"{value:g}"


def test_runs_that_ended_badly_stand_above_healthy_ones(states: History) -> None:
    """The table is sorted by this number, the largest first."""
    told = column(states, "overview", 107, "State")
    order = sorted(told, key=lambda run: -told[run])

    assert {order[0], order[1], order[2]} == BROKEN
    assert order.index("g-killed") < order.index("c-recovered") < order.index("a-healthy")
    assert order[-1] == "f-finished"


def test_critical_runs_are_counted_by_the_verdict(states: History) -> None:
    """One that ended broken counts, one that has recovered does not; no alert fires beside a 0."""
    assert tile(states, "overview", 104) == len(BROKEN)
    assert {run for run in RUNS if tile(states, "overview", 104, run=run)} == BROKEN
    assert {run for _, severity, run, _ in ALERTS if severity == "critical"} <= BROKEN
    worst = column(states, "overview", 107, "Worst finding")
    assert {run for run, value in worst.items() if value == 3} == BROKEN


@pytest.mark.parametrize(("topic", "number"), [("overview", 108), ("run", 111)])
def test_what_broke_says_where_and_since_when_and_what_to_do(
    states: History, topic: str, number: int
) -> None:
    """A row for each run of which something is wrong, with the daemon that has its page."""
    server, now = states
    shown = panel(topic, number)
    (target,) = shown["targets"]

    rows = {s["metric"]["run"]: s["metric"] for s in asking.answer(server, target, now)}

    assert rows.keys() == BROKEN
    assert rows["b-collapsed"] == {
        "run": "b-collapsed",
        "rank": "0",
        "instance": MACHINE,
        "kind": OVERFLOW.kind,
        "severity": "critical",
        "place": OVERFLOW.place,
        "op": OVERFLOW.op,
        "first_step": str(OVERFLOW.first_step),
        "remedy": OVERFLOW.remedy,
    }
    assert rows["d-flushed"]["place"] == FLUSHED.place
    urls = {
        link["url"]
        for override in shown["fieldConfig"]["overrides"]
        for change in override["properties"]
        if change["id"] == "links"
        for link in change["value"]
    }
    at = 'http://${__data.fields["Machine"]}'
    run, rank = (f'${{__data.fields["{name}"]:percentencode}}' for name in ("Run", "Rank"))
    assert f"{at}/#run={run}&rank={rank}" in urls
    assert at + '/explain/${__data.fields["Finding"]:percentencode}' in urls


@pytest.mark.parametrize(("topic", "number"), [("ranks", 110), ("run", 112)])
def test_the_rank_that_made_the_others_end_is_named(
    states: History, topic: str, number: int
) -> None:
    """Apart from the seven that lost their connection, which are one row."""
    server, now = states
    (target,) = panel(topic, number)["targets"]

    rows = {s["metric"]["cause"]: s for s in asking.answer(server, target, now)}

    assert {cause: newest(series) for cause, series in rows.items()} == {"true": 1, "false": 7}
    assert rows["true"]["metric"]["rank"] == str(CAUSE)
    assert rows["true"]["metric"]["error"] == "ZeroDivisionError"


def test_ranks_in_trouble_are_those_of_the_worst_states(states: History) -> None:
    """Not one that has recovered, nor one that has come to its end."""
    server, now = states
    (target,) = panel("ranks", 108)["targets"]
    found = {s["metric"]["run"] for s in asking.answer(server, target, now)}

    assert found == BROKEN | {"g-killed", "h-stale"}


def test_only_a_scale_that_still_falls_has_a_forecast(states: History) -> None:
    """At four halvings a minute; the burst of seven minutes ago is over."""
    seconds = tile(states, "run", 207, run="b-collapsed")

    assert seconds == pytest.approx((16 - 4 * 25 + 128) / 4 * 60, rel=0.05)
    assert {run for run in RUNS if tile(states, "run", 207, run=run) is not None} == {"b-collapsed"}


def test_the_loss_scale_is_the_same_wherever_it_stands(states: History) -> None:
    """In the table of runs and on the tile of the run: the present one, not the smallest of a while."""
    server, now = states
    (target,) = panel("run", 103)["targets"]
    tiles = {s["metric"]["run"]: newest(s) for s in asking.answer(server, target, now)}

    assert column(states, "overview", 107, "Loss scale") == tiles
    assert tiles["c-recovered"] == 2.0 ** (16 - 24 + 7)


def test_gradients_that_are_all_zero_are_all_lost(states: History) -> None:
    """No tile is gone, none is green: 100 % are lost, and no headroom is told of nothing."""
    headroom = tile(states, "run", 105, run="d-flushed")
    of_headroom = panel("run", 105)["fieldConfig"]["defaults"]

    assert tile(states, "run", 113, run="d-flushed") == pytest.approx(1)
    assert headroom is not None
    assert words_of(of_headroom, headroom) == "all zero"
    assert tile(states, "run", 105, run="a-healthy") == pytest.approx(24, abs=0.01)
    assert tile(states, "run", 113, run="a-healthy") == pytest.approx(0.01)


def test_the_share_lost_is_told_between_two_samples_that_are_far_apart(states: History) -> None:
    """A run whose newest sample is older than the five minutes that the tile is about otherwise."""
    assert tile(states, "run", 113, run="f-finished") == pytest.approx(0.01)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_kinds_that_were_never_seen_are_not_among_the_findings(states: History, file: Path) -> None:
    """Counters of all kinds are born at 0, which is no finding."""
    server, now = states
    found = {kind for story in STORIES for kind in story.found}

    for shown in drawn(load(file)):
        for target in shown["targets"]:
            if "ampwatch_finding" in target["expr"]:
                answer = asking.answer(server, target, now)
                kinds = {s["metric"]["kind"] for s in answer if "kind" in s["metric"]}
                assert kinds <= found, (shown["title"], target["refId"])


def test_reasons_that_no_op_had_are_not_listed(states: History) -> None:
    """Their counters are born at 0 as well; here one of them is not 0."""
    server, now = states

    for target in panel("precision", 201)["targets"]:
        answer = asking.answer(server, target, now)
        assert {s["metric"]["reason"] for s in answer} == {"disabled_region"}
        assert {s["metric"]["run"] for s in answer} == set(RUNS)


@pytest.mark.parametrize("run", ["", *RUNS])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_a_panel_without_an_answer_says_is_true(states: History, file: Path, run: str) -> None:
    """What its words say is not there is not there."""
    server, now = states
    chosen = {"run": run} if run else {}

    for shown in drawn(load(file)):
        said = shown["fieldConfig"]["defaults"]["noValue"]
        claim = next((query for words, query in CLAIMS.items() if re.match(words, said)), None)
        if claim is None or ", or " in said:
            continue
        if any(asking.answer(server, target, now, **chosen) for target in shown["targets"]):
            continue
        refuting = [
            s["metric"]
            for s in asking.get(server, "query", query=claim, time=now)["result"]
            if run in ("", s["metric"].get("run", run))
        ]
        assert refuting == [], (shown["title"], said)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_bands_of_annotations_do_not_lie_over_each_other(states: History, file: Path) -> None:
    """Of a run that is chosen there is one at a time from the start, whatever fires, and none of others."""
    server, now = states
    asked = [a for a in load(file)["annotations"]["list"] if a.get("expr") and a["enable"]]

    for run in RUNS:
        bands = [
            series["metric"]
            for annotation in asked
            for series in asking.answer(
                server, {"expr": annotation["expr"], "instant": True}, now, run=run
            )
        ]
        assert len(bands) <= 1
        assert all(band["run"] == run for band in bands)
