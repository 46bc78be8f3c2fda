"""Findings of one rank, and limits that its ranges are held against."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from ampwatch.numerics.formats import FORMATS
from ampwatch.state.findings import MAX_FINDINGS, Findings, Sort
from ampwatch.state.limits import finite_amax, headroom, limit_of, lost_share
from ampwatch.wire.records import Severity, Topic
from tests.workshop.records import finding, histogram, ranges


def test_findings_are_counted_by_sort_and_by_kind() -> None:
    """Places, the newest report and the steps come from the newest state of each finding."""
    findings = Findings()
    findings.put(finding("headroom_low", "a", severity=Severity.WARNING, count=1).finding, 10)
    findings.put(finding("headroom_low", "b", severity=Severity.WARNING, count=5).finding, 30)
    findings.put(finding("headroom_low", "a", severity=Severity.WARNING, count=2).finding, 40)
    findings.put(finding("headroom_low", "c", root=False, count=1).finding, 5)

    by_sort = {s: (t.num_places, t.last_seen_ns) for s, t in findings.by_sort().items()}

    assert {
        Sort("headroom_low", Severity.WARNING, root=True): (2, 40),
        Sort("headroom_low", Severity.CRITICAL, root=False): (1, 5),
    } == by_sort
    assert findings.steps_by_kind() == {"headroom_low": 8}


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

    assert [sort.severity for sort in findings.by_sort()] == [Severity.CRITICAL]
    assert findings.steps_by_kind() == {"scale_collapse": 3}


def test_too_many_findings_are_counted_but_not_kept() -> None:
    """The first ones stay, and go on being updated."""
    findings = Findings()
    for place in range(MAX_FINDINGS + 3):
        findings.put(finding(where=f"layer.{place}").finding, 1)
    findings.put(finding(where="layer.0", count=9).finding, 2)

    assert len(findings.by_key) == MAX_FINDINGS
    assert findings.left_out == 3
    assert findings.by_key["scale_collapse@layer.0"].count == 9


FLOAT16, BFLOAT16, FLOAT32 = FORMATS["float16"], FORMATS["bfloat16"], FORMATS["float32"]
ZEROS = ranges("fc", Topic.GRADIENT, histogram(0, zeros=9))


def test_gradients_are_held_against_autocast_and_outputs_against_their_own_dtype() -> None:
    """A gradient in float32 says nothing about float32: it came through float16."""
    gradient = ranges("fc", Topic.GRADIENT, dtype="float32")
    activation = ranges("fc", Topic.ACTIVATION, dtype="bfloat16")
    strange = ranges("fc", Topic.ACTIVATION, dtype="mixed")

    assert limit_of(gradient, FLOAT16) is FLOAT16
    assert limit_of(activation, FLOAT16) is BFLOAT16
    assert limit_of(strange, FLOAT16) is None


@pytest.mark.parametrize(
    ("dtype", "limit"), [("float32", FLOAT32), ("float16", FLOAT16), ("mixed", None)]
)
def test_without_autocast_gradients_are_held_against_their_own_dtype(
    dtype: str, limit: object
) -> None:
    """A model of float32 loses nothing to float16, one of float16 does."""
    assert limit_of(ranges("fc", Topic.GRADIENT, dtype=dtype), None) is limit


def test_headroom_is_the_factor_up_to_the_largest_number() -> None:
    """Half of the largest number leaves room for twice the value."""
    half = histogram(15, 1, amax=32752.0)

    assert headroom(ranges("fc", Topic.ACTIVATION, half, dtype="float16"), FLOAT16) == 2.0
    assert headroom(ranges("fc", Topic.ACTIVATION, half, dtype="mixed"), FLOAT16) is None
    assert headroom(ranges("fc", Topic.ACTIVATION, histogram(0, zeros=3)), FLOAT16) is None


def test_the_largest_of_nothing_finite_is_not_known() -> None:
    """Zeros have a largest magnitude, NaN and infinities have none."""
    assert finite_amax(ranges(exponents=histogram(3, 2, nans=1))) == 8.0
    assert finite_amax(ZEROS) == 0.0
    assert finite_amax(ranges(exponents=histogram(0, nans=2, positive_infs=2))) is None


def test_the_lost_share_is_of_all_elements_the_zeros_among_them() -> None:
    """400 flushed before, 100 by the cast, of 1000; bfloat16 would have kept those."""
    record = ranges("fc", Topic.GRADIENT, histogram(-26, 0, 100, 500, zeros=400), flushed=400)

    assert lost_share(record, FLOAT16) == 0.5
    assert lost_share(record, BFLOAT16) == 0.4


def test_zeros_are_lost_as_far_as_the_record_says() -> None:
    """Only the training process knows what they were before."""
    gradient = ranges("fc", Topic.GRADIENT, histogram(-5, 100, zeros=400))

    assert lost_share(gradient, FLOAT16) == 0.0
    assert lost_share(replace(gradient, flushed=100), FLOAT16) == 0.2
    assert lost_share(replace(gradient, flushed=-1), FLOAT16) is None


def test_nothing_is_known_of_nothing() -> None:
    """Neither of a format that is not known, nor of NaN alone."""
    assert lost_share(ranges("fc"), None) is None
    assert lost_share(ranges("fc", exponents=histogram(0, nans=3)), FLOAT16) is None
