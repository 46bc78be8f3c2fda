"""Tests of the findings of one rank."""

import math

from ampwatch.state.findings import MAX_FINDINGS, Findings, Sort
from ampwatch.wire.records import Severity
from tests.workshop.records import finding


def test_findings_are_counted_by_sort_and_by_kind() -> None:
    """Places, the newest report and the steps come from the newest state of each finding."""
    findings = Findings()
    findings.put(finding("headroom_low", "a", severity=Severity.WARNING, count=1).finding, 10)
    findings.put(finding("headroom_low", "b", severity=Severity.WARNING, count=5).finding, 30)
    findings.put(finding("headroom_low", "a", severity=Severity.WARNING, count=2).finding, 40)
    findings.put(finding("headroom_low", "c", root=False, count=1).finding, 5)

    by_sort = {s: (t.num_places, t.last_seen_ns) for s, t in findings.sums.by_sort.items()}

    assert {
        Sort("headroom_low", Severity.WARNING, root=True): (2, 40),
        Sort("headroom_low", Severity.CRITICAL, root=False): (1, 5),
    } == by_sort
    assert findings.sums.steps_by_kind == {"headroom_low": 8}


def test_a_finding_that_is_reported_again_as_it_was_changes_nothing() -> None:
    """The ring repeats findings for late readers; NaN among the evidence makes no news of it."""
    findings = Findings()
    for time_ns in (10, 20):
        evidence = {"loss_scale": float("nan"), "amax": math.inf}
        findings.put(finding(count=2, evidence=evidence).finding, time_ns)

    assert findings.last_seen_ns("scale_collapse@optimizer:0") == 10

    findings.put(finding(count=3).finding, 30)
    assert findings.last_seen_ns("scale_collapse@optimizer:0") == 30


def test_a_finding_that_gets_worse_is_counted_once() -> None:
    """The severity changes; the steps of its kind go on from where they were."""
    findings = Findings()
    findings.put(finding(severity=Severity.WARNING, count=2).finding, 1)
    findings.put(finding(severity=Severity.CRITICAL, count=3).finding, 2)

    assert [sort.severity for sort in findings.sums.by_sort] == [Severity.CRITICAL]
    assert findings.sums.steps_by_kind == {"scale_collapse": 3}


def test_too_many_findings_are_counted_but_not_kept() -> None:
    """The first ones stay, and go on being updated."""
    findings = Findings()
    for place in range(MAX_FINDINGS + 3):
        findings.put(finding(where=f"layer.{place}").finding, 1)
    findings.put(finding(where="layer.0", count=9).finding, 2)

    assert len(findings.by_key) == MAX_FINDINGS
    assert findings.left_out == 3
    assert findings.by_key["scale_collapse@layer.0"].count == 9
