"""Tests of the numbers that are handed to loggers, against what a daemon exports of the same records."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from msgspec.structs import replace

from ampwatch.state import RankState
from ampwatch.state.facts import LOGGED, WHOLE_RUN, flat, markdown
from ampwatch.wire.records import FactsRecord, Record, Severity
from tests.report.test_step_times import spent
from tests.workshop.records import IDENTITY, finding, histogram, memory, optimizer, ranges, step

PAGE = Path(__file__).parents[2] / "docs" / "logged-metrics.md"


def numbers(*records: Record) -> dict[str, float]:
    state = RankState(IDENTITY)
    state.apply(*records)
    return flat(state, (*LOGGED, *WHOLE_RUN))


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == markdown(), (
        "regenerate it: python -m ampwatch.state.facts > docs/logged-metrics.md"
    )


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
