"""The verdict as metrics: the same word and the same root as on the page."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ampwatch.host.fleet import Fleet
from ampwatch.host.metrics.prometheus import FleetCollector
from ampwatch.host.metrics.verdict import MAX_ROOTS, OTHER
from ampwatch.host.page.page import Feed
from ampwatch.settings import Settings
from ampwatch.wire.records import FindingRecord, RunState, Severity
from tests.workshop.clocks import START, Clock
from tests.workshop.fleets import put
from tests.workshop.records import end, finding, identity, step

if TYPE_CHECKING:
    from ampwatch.wire.records import Finding


def samples(fleet: Fleet, family: str) -> list[dict[str, str]]:
    """Labels of the samples of a family that are not 0."""
    found = next(f for f in FleetCollector(fleet, {}).collect() if f.name == family)
    return [sample.labels for sample in found.samples if sample.value]


def broken(**changes: object) -> Finding:
    made = finding("forward_overflow", "encoder.0", last_step=9).finding
    said = {
        "summary": "It broke",
        "advice": "Keep torch.exp in float32. Or use bfloat16.",
        "op": "exp",
    }
    return replace(made, **{**said, **changes})


def fleet_of(*records: object) -> tuple[Fleet, Clock]:
    clock = Clock(START + 10)
    fleet = Fleet(Settings(), clock)
    put(fleet, "/a.ring", identity(), [*(step(i) for i in range(10)), *records])
    return fleet, clock


def test_the_root_has_its_place_and_what_to_do_first() -> None:
    """What an alert says about it, it reads here."""
    fleet, _ = fleet_of(FindingRecord(broken()))

    assert samples(fleet, "ampwatch_root") == [
        {
            "run": "gpt",
            "rank": "0",
            "kind": "forward_overflow",
            "severity": "critical",
            "place": "module encoder.0",
            "op": "exp",
            "first_step": "0",
            "remedy": "Keep torch.exp in float32.",
        }
    ]


def test_nothing_alarming_is_no_root() -> None:
    """An information is none, and neither is what is over."""
    fleet, _ = fleet_of(FindingRecord(broken(severity=Severity.INFO)))

    assert samples(fleet, "ampwatch_root") == []
    assert [s["health"] for s in samples(fleet, "ampwatch_run_health")] == ["healthy"]


def test_the_word_and_the_root_are_those_of_the_page() -> None:
    """One verdict is rendered twice."""
    fleet, clock = fleet_of(FindingRecord(broken()), end(time_ns=(START + 10) * 10**9))
    (run,) = Feed(fleet, clock).full()["runs"].values()
    (health,) = samples(fleet, "ampwatch_run_health")
    (root,) = samples(fleet, "ampwatch_root")

    assert health["health"] == run["level"] == "broken"
    assert run["ranks"]["0"]["findings"][run["root"]]["place"] == root["place"]
    assert run["ranks"]["0"]["stories"] == [[run["root"], 0]]


def test_a_training_that_breaks_ever_elsewhere_makes_no_series_without_end() -> None:
    """The place of further ones is left out, the kind and the remedy are not."""
    fleet, clock = fleet_of()
    places = []
    for i in range(MAX_ROOTS + 3):
        clock.now += 1000.0
        steps = [step(10 + 2000 * i + j, time_ns=int(clock.now * 1e9)) for j in range(2)]
        made = broken(where=f"layer.{i}", first_step=steps[0].step, last_step=steps[0].step)
        put(fleet, "/a.ring", identity(), [*steps, FindingRecord(made)])
        places.append(samples(fleet, "ampwatch_root")[0]["place"])

    assert places[:MAX_ROOTS] == [f"module layer.{i}" for i in range(MAX_ROOTS)]
    assert set(places[MAX_ROOTS:]) == {OTHER}


def test_the_rank_whose_failure_ended_the_others_is_marked() -> None:
    """An alert names one rank, and not the first three."""
    clock = Clock(START + 20)
    fleet = Fleet(Settings(), clock)
    for rank, reason in enumerate(["ConnectionResetError: gone", "KeyError: 'x'"]):
        ended = end(RunState.FAILED, reason, time_ns=(START + 11 - rank) * 10**9)
        put(fleet, f"/{rank}.ring", identity(rank=rank, world_size=2), [step(0), ended])

    assert {
        (s["rank"], s["cause"], s["error"]) for s in samples(fleet, "ampwatch_rank_failure")
    } == {("0", "false", "ConnectionResetError"), ("1", "true", "KeyError")}
