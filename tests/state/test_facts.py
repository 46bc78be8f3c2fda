"""Numbers of a rank by their rows, its findings, and limits that its ranges are held against."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from msgspec.structs import replace

from ampwatch.numerics.formats import FORMATS
from ampwatch.state import RankState
from ampwatch.state.facts import LOGGED, WHOLE_RUN, flat, markdown
from ampwatch.state.findings import MAX_FINDINGS, Findings, Sort
from ampwatch.state.limits import finite_amax, headroom, limit_of, lost_share
from ampwatch.wire.records import FactsRecord, Record, Severity, Topic
from tests.report.test_step_times import spent
from tests.workshop.records import IDENTITY, finding, histogram, memory, optimizer, ranges, step

PAGE = Path(__file__).parents[2] / "docs" / "loggers.md"


def numbers(*records: Record) -> dict[str, float]:
    state = RankState(IDENTITY)
    state.apply(*records)
    return flat(state, (*LOGGED, *WHOLE_RUN))


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text().endswith("\n" + markdown()), "run: make docs"


def test_keys_are_unique_and_stand_in_one_group() -> None:
    keys = [row.key for row in (*LOGGED, *WHOLE_RUN)]

    assert len(set(keys)) == len(keys)
    assert all(key.startswith("amp/") and key == key.lower() for key in keys)


def test_before_the_first_step_nothing_is_known_but_that_nothing_has_happened() -> None:
    assert set(numbers().values()) == {0.0}
    assert set(numbers()) == {
        "amp/alarms",
        "amp/backoffs",
        "amp/consecutive_skips",
        "amp/critical_findings",
        "amp/findings",
        "amp/growths",
        "amp/nonfinite_losses",
        "amp/overhead_seconds",
        "amp/skipped_steps",
        "amp/steps",
    }


def test_without_a_scaler_there_is_no_scale() -> None:
    assert "amp/loss_scale" not in numbers(step(3, loss_scale=math.nan))
    assert numbers(step(3, loss_scale=512.0))["amp/loss_scale"] == 512.0


def test_a_loss_is_the_newest_one_even_if_later_steps_had_none() -> None:
    found = numbers(step(3, loss=0.5, num_losses=1), step(4, loss=0.0, num_losses=0))

    assert (found["amp/step"], found["amp/loss"]) == (4.0, 0.5)


def test_memory_is_that_of_the_device_and_without_one_that_of_the_host() -> None:
    both = memory()
    host = replace(both, places=both.places[1:])

    assert numbers(both)["amp/memory_bytes"] == 20 * 2**30
    assert numbers(both)["amp/memory_peak_bytes"] == 30 * 2**30
    assert numbers(host)["amp/memory_bytes"] == 2 * 2**30
    assert "amp/memory_bytes" not in numbers(step(3))


def test_a_loss_that_is_nan_is_said() -> None:
    assert math.isnan(numbers(step(3, loss=math.nan, num_losses=1))["amp/loss"])


def test_skips_of_all_optimizers_are_added_up() -> None:
    one = replace(optimizer(0), total_steps=10, total_skipped=(1, 2, 0, 0))
    other = replace(optimizer(1), total_steps=6, total_skipped=(0, 0, 0, 1))

    found = numbers(step(9, consecutive_skips=2), one, other)

    assert found["amp/skipped_steps"] == 4.0
    assert found["amp/skipped_share"] == 4 / 16
    assert (found["amp/skipped"], found["amp/consecutive_skips"]) == (1.0, 2.0)


def test_norms_are_without_the_loss_scale() -> None:
    found = numbers(step(9), ranges(step=7, loss_scale=1024.0, norm=512.0))

    assert (found["amp/sample_step"], found["amp/grad_norm"]) == (7.0, 0.5)


@pytest.mark.parametrize("norm", [math.nan, math.inf])
@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_a_norm_that_is_not_known_is_absent(norm: float, scale: float) -> None:
    assert "amp/grad_norm" not in numbers(step(9), ranges(loss_scale=scale, norm=norm))


def test_underflow_is_of_the_format_that_gradients_go_through() -> None:
    """Of ten elements four are below 2**-25, which float16 flushes and bfloat16 does not."""
    record = ranges(exponents=histogram(-30, 4, *([0] * 19), 6))

    assert numbers(step(1), FactsRecord({"autocast_dtype": "float16"}), record)[
        "amp/underflow_share"
    ] == pytest.approx(0.4)
    assert (
        numbers(step(1), FactsRecord({"autocast_dtype": "bfloat16"}), record)["amp/underflow_share"]
        == 0.0
    )


def test_findings_are_counted_by_severity() -> None:
    found = numbers(
        finding(where="a", severity=Severity.CRITICAL),
        finding(where="b", severity=Severity.WARNING),
        finding(where="c", severity=Severity.INFO),
    )

    of_each = [found[f"amp/{name}"] for name in ("findings", "alarms", "critical_findings")]
    assert of_each == [3.0, 2.0, 1.0]


def test_phases_that_were_not_seen_in_an_iteration_are_absent() -> None:
    """Backward is one number, whether gradients are summed in it or not."""
    apart = spent(data=0.5, forward=0.25, backward=1.0, backward_with_reduction=2.0, rest=9.0)
    found = numbers(step(9, phases=apart))

    names = ("data_wait", "forward", "backward", "optimizer")
    assert {n: found[f"amp/{n}_seconds"] for n in names if f"amp/{n}_seconds" in found} == {
        "data_wait": 0.5,
        "forward": 0.25,
        "backward": 3.0,
    }


def test_what_the_program_does_not_say_of_its_batches_is_absent() -> None:
    """A total of 0 is one; -1 is none."""
    found = numbers(step(9, total_samples=0, total_tokens=-1))

    assert found["amp/samples_total"] == 0.0
    assert "amp/tokens_total" not in found


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
