"""Memory of a run: the newest records, and those around findings."""

from __future__ import annotations

from ampwatch.host.fleet import RankView
from ampwatch.state import Recorder
from ampwatch.state.findings import MAX_FINDINGS
from ampwatch.state.rank import _PUT, MAX_FACTS, MAX_SENSORS
from ampwatch.state.recorder import MAX_RANGES, recorded
from ampwatch.wire.blackbox import Box
from ampwatch.wire.records import (
    FactsRecord,
    Finding,
    FindingRecord,
    Severity,
    Topic,
)
from tests.workshop.boxes import measured
from tests.workshop.records import IDENTITY, alarm, failure, optimizer, step


def box_of(recorder: Recorder) -> Box:
    return recorder.box("training", 1)


def indices(recorder: Recorder) -> list[int]:
    return [s.step for s in box_of(recorder).steps]


def test_the_newest_steps_are_kept() -> None:
    """No others are kept, as long as nothing is wrong."""
    recorder = recorded(IDENTITY, map(step, range(100)), steps=16)

    assert indices(recorder) == list(range(84, 100))


def test_the_steps_around_a_finding_are_kept_for_good() -> None:
    """Half of the span before it and a quarter after it, however long the run goes on."""
    recorder = recorded(IDENTITY, map(step, range(100)), steps=16)
    recorder.apply(FindingRecord(alarm(first_step=95)))
    for index in range(100, 1000):
        recorder.apply(step(index))

    assert indices(recorder) == [*range(92, 104), *range(984, 1000)]


def test_an_information_keeps_nothing_until_it_becomes_a_warning() -> None:
    """Findings are updated in place."""
    finding = Finding("scheduler_ahead", Severity.INFO, "optimizer:0", "", "")
    recorder = recorded(IDENTITY, map(step, range(100)), steps=16)
    recorder.apply(FindingRecord(finding))
    assert recorder.num_alarms == 0

    finding.severity = Severity.WARNING
    recorder.apply(FindingRecord(finding))
    for index in range(100, 200):
        recorder.apply(step(index))

    assert recorder.num_alarms == 1
    assert indices(recorder)[:2] == [92, 93]


def test_a_finding_that_the_ring_repeats_is_one() -> None:
    """It is read again and again by whoever comes late."""
    recorder = recorded(IDENTITY, [FindingRecord(alarm(count=n)) for n in (1, 2, 3)], steps=16)

    assert recorder.num_alarms == 1
    assert [f.count for f in box_of(recorder).findings] == [3]


def test_a_box_does_not_change_with_the_run() -> None:
    """It is written while the findings go on."""
    finding = alarm(evidence={"loss_scale": 4.0})
    recorder = recorded(IDENTITY, [FindingRecord(finding)], steps=16)
    box = box_of(recorder)
    finding.count = 9
    finding.evidence["loss_scale"] = 2.0

    assert (box.findings[0].count, box.findings[0].evidence) == (1, {"loss_scale": 4.0})


def test_the_culprit_is_kept_as_it_was_before_and_after() -> None:
    """Later measurements of the same module do not push it out."""
    recorder = recorded(IDENTITY, [measured(3, "a.b"), measured(3, "other")], steps=16)
    recorder.apply(FindingRecord(alarm("grad_underflow", "param:a.b.weight", first_step=5)))
    for index in (5, 50, 500):
        recorder.apply(measured(index, "a.b"))

    assert [r.step for r in box_of(recorder).ranges if r.module == "a.b"] == [3, 5, 500]


def test_everything_is_bounded() -> None:
    """Whatever a run does, or a ring says."""
    recorder = Recorder(IDENTITY, steps=16)
    for index in range(3000):
        recorder.apply(step(index))
        recorder.apply(optimizer(index % 9))
        recorder.apply(FindingRecord(alarm("kind", f"module{index}", first_step=index)))
        recorder.apply(measured(index, f"module{index}", Topic.ACTIVATION))
        recorder.apply(FactsRecord({f"fact{index}": "x"}))
        recorder.apply(failure(f"sensor{index}", 1, index, ""))
    box = box_of(recorder)

    assert len(box.findings) == MAX_FINDINGS
    assert len(box.ranges) <= MAX_RANGES
    assert len(box.facts) == MAX_FACTS
    assert len(box.failures) == MAX_SENSORS
    assert len(box.steps) <= 5 * 16
    assert len(box.optimizers) == 9


def test_of_each_sensor_that_failed_the_newest_exception_is_kept() -> None:
    """Records are cumulative; one that the ring repeats changes nothing."""
    first = failure("scale", 1, 3, "ValueError: no")
    newest = failure("scale", 7, 40, "KeyError: 'x'")
    other = failure("ranges", 2, 5, "RuntimeError: gone")
    recorder = recorded(IDENTITY, [first, other, newest, newest], steps=16)

    assert box_of(recorder).failures == [newest, other]


def test_what_takes_in_a_record_is_there_in_either_half() -> None:
    """It is found by its name: one that is misspelt would take in nothing, without a word."""
    assert [
        name for name in _PUT.values() if not (hasattr(Recorder, name) or hasattr(RankView, name))
    ] == []
