"""The verdict as metrics: the same word and the same root as on the page."""

from __future__ import annotations

from dataclasses import replace

from ampwatch.diagnosis.kinds.registry import ROWS
from ampwatch.host.fleet import Fleet
from ampwatch.host.metrics.prometheus import PrometheusExporter
from ampwatch.host.metrics.verdict import MAX_REMEDY, MAX_ROOTS, OTHER
from ampwatch.report.accounts import first_sentence
from ampwatch.report.headline import first_remedy
from ampwatch.settings import Settings
from ampwatch.wire.records import Finding, FindingRecord, Record, Severity
from tests.workshop.clocks import START, Clock
from tests.workshop.fleets import fleet_of, put
from tests.workshop.records import finding, identity, step


def samples(fleet: Fleet, family: str) -> list[dict[str, str]]:
    """Labels of the samples of a family that are not 0."""
    found = next(f for f in PrometheusExporter(fleet).collect() if f.name == family)
    return [sample.labels for sample in found.samples if sample.value]


def broken(**changes: object) -> Finding:
    made = finding("forward_overflow", "encoder.0", last_step=9).finding
    said = {
        "summary": "It broke",
        "kind_advice": "Keep torch.exp in float32. Or use bfloat16.",
        "op": "exp",
    }
    return replace(made, **{**said, **changes})


def after_ten_steps(*records: Record) -> Fleet:
    return fleet_of(*map(step, range(10)), *records, seconds=10)


def test_the_root_has_its_place_and_what_to_do_first() -> None:
    """What an alert says about it, it reads here."""
    fleet = after_ten_steps(FindingRecord(broken()))

    assert samples(fleet, "ampwatch_root") == [
        {
            "run": "gpt",
            "rank": "0",
            "kind": "forward_overflow",
            "severity": "critical",
            "place": "module encoder.0",
            "op": "exp",
            "first_step": "0",
            "remedy": "Keep torch.exp in float32. Or use bfloat16.",
        }
    ]


def test_what_to_do_first_is_whole_sentences() -> None:
    """It is all that an alert says of it, on a telephone: the advice, without the last that have no room."""
    for row in ROWS:
        said = first_remedy(broken(kind_advice=row.advice), MAX_REMEDY)
        assert said.startswith(first_sentence(row.advice))
        assert len(said) <= MAX_REMEDY
        assert row.advice[len(said) :] == "" or (
            said.endswith(".") and row.advice[len(said)] == " "
        )
        assert len(row.advice) > MAX_REMEDY or said == row.advice


def test_nothing_alarming_is_no_root() -> None:
    """An information is none, and neither is what is over."""
    fleet = after_ten_steps(FindingRecord(broken(severity=Severity.INFO)))

    assert samples(fleet, "ampwatch_root") == []
    assert [s["health"] for s in samples(fleet, "ampwatch_run_health")] == ["healthy"]


def test_a_training_that_breaks_ever_elsewhere_makes_no_series_without_end() -> None:
    """The place of further ones is left out, the kind and the remedy are not."""
    clock = Clock(START + 10)
    fleet = Fleet(Settings(), clock)
    put(fleet, "/a.ring", identity(), map(step, range(10)))
    places = []
    for i in range(MAX_ROOTS + 3):
        clock.now += 1000.0
        steps = [step(10 + 2000 * i + j, time_ns=int(clock.now * 1e9)) for j in range(2)]
        made = broken(where=f"layer.{i}", first_step=steps[0].step, last_step=steps[0].step)
        put(fleet, "/a.ring", identity(), [*steps, FindingRecord(made)])
        places.append(samples(fleet, "ampwatch_root")[0]["place"])

    assert places[:MAX_ROOTS] == [f"module layer.{i}" for i in range(MAX_ROOTS)]
    assert set(places[MAX_ROOTS:]) == {OTHER}
