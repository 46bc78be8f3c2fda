"""The figures of a rank, as text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from ampwatch.host.fleet import Fleet
from ampwatch.host.page.figures import figures
from ampwatch.settings import Settings
from tests.workshop.clocks import START, Clock
from tests.workshop.fleets import made_up_fleet, put
from tests.workshop.records import FACTS, histogram, identity, optimizer, ranges, step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.host.page.figures import Figure
    from ampwatch.wire.records import Record


def figures_of(records: Sequence[Record]) -> dict[str, Figure]:
    fleet = Fleet(Settings(), Clock(START + 20))
    put(fleet, "/a.ring", identity(), records)
    return figures(fleet.ranks()[0])


def test_before_the_first_step_there_are_no_figures() -> None:
    """An absent number is absent, never zero."""
    assert figures_of([]) == {}


def test_the_figures_have_values_and_what_to_know_of_them() -> None:
    """Every number of the made-up run is found in its figure."""
    rank = next(r for r in made_up_fleet().ranks() if r.run == "gpt" and r.identity.rank == 0)

    assert {title: tuple(figure) for title, figure in figures(rank).items()} == {
        "Step": ("3", "4 s after the start"),
        "Loss scale": ("32\u202f768", "2¹⁵, 1 growth, 2 backoffs, 3 by hand"),
        "Skipped": ("3", "of 15 optimizer steps: 1 probe, 1 unprovoked, 1 storm"),
        "Loss": ("2", "NaN or infinite in 4 steps"),
        "Step time": ("1 s", "1 steps per second"),
        "Headroom": ("24.0 bits", "of the gradients in float16"),
        "Underflow": ("0 %", "of the gradients in float16"),
        "Low precision": ("75 %", "of the FLOPs in 16 bits or fewer, 1.4 casts to a matmul"),
        "Tensor cores": ("between 60 % and 80 %", "of the time of matmul kernels"),
        "Memory of watching": (
            "26.1 MiB",
            "on the host, of at most 64 MiB, 24 MiB of it transfer, 28 MiB on devices",
        ),
        "Cost of watching": (
            "0.037 %",
            (
                "of the training thread's time, 5 steps not observed, 9 records not written,"
                " 8 ring slots not read, 6 sensor errors"
            ),
        ),
    }


def test_a_run_without_scaler_and_losses_says_so_and_leaves_the_loss_out() -> None:
    """bfloat16: no scale, and nothing was handed to scaler.scale()."""
    told = figures_of([step(0, loss_scale=math.nan, num_losses=0), optimizer(0, total_steps=1)])

    assert told["Loss scale"] == ("none", "no enabled GradScaler")
    assert "Loss" not in told
    assert told["Skipped"] == ("0", "of 1 optimizer step")


def test_the_range_of_the_gradients_is_reported_in_bits_and_shares() -> None:
    """How far the largest is from the end, and how many are zero only for the format."""
    gradients = histogram(-24, 600, zeros=400, amax=65504.0 / 8)

    told = figures_of([FACTS, step(0, loss_scale=1.0), ranges(exponents=gradients, flushed=400)])

    assert told["Headroom"] == ("3.0 bits", "of the gradients in float16")
    assert told["Underflow"] == ("40 %", "of the gradients in float16")


def test_gradients_of_nothing_but_zeros_have_no_range_to_show() -> None:
    """Nothing is known of their headroom, and nothing of why they are zero."""
    told = figures_of([FACTS, step(0), ranges(exponents=histogram(0, zeros=9), flushed=-1)])

    assert "Headroom" not in told
    assert told["Underflow"].value == "not known"


def test_gradients_that_were_all_flushed_have_lost_everything() -> None:
    """Their headroom at the scale of now is that of what they were."""
    record = ranges(
        exponents=histogram(0, zeros=9),
        flushed=9,
        before=histogram(-10, 9, amax=65504.0 * 2.0**-20),
        before_step=30,
    )
    told = figures_of([FACTS, step(40, loss_scale=2.0**-40), record])

    assert told["Headroom"] == ("60.0 bits", "of the gradients in float16, as they were in step 30")
    assert told["Underflow"] == ("100 %", "of the gradients in float16")


@pytest.mark.parametrize(
    ("scale", "room"), [(2.0**10, "3.0 bits"), (2.0**9, "4.0 bits"), (2.0**15, "-2.0 bits")]
)
def test_the_headroom_is_that_at_the_scale_of_now(scale: float, room: str) -> None:
    """Between two samples the scale goes on."""
    sample = ranges(exponents=histogram(14, 9, amax=65504.0 / 8), loss_scale=2.0**10)

    assert figures_of([FACTS, sample, step(9, loss_scale=scale)])["Headroom"].value == room


@pytest.mark.parametrize("scale", [0.0, math.inf])
def test_at_a_scale_that_is_none_there_is_no_headroom(scale: float) -> None:
    """The scale of a run that has broken down may be anything."""
    assert "Headroom" not in figures_of([FACTS, ranges(), step(9, loss_scale=scale)])


def test_a_sample_that_overflowed_tells_the_headroom_of_the_rest() -> None:
    """No number says how far the others are beyond."""
    sample = ranges(exponents=histogram(14, 9, positive_infs=1, amax=65504.0 / 8))

    told = figures_of([FACTS, sample, step(0, loss_scale=1.0)])

    assert told["Headroom"] == ("3.0 bits", "of the finite gradients in float16")


def test_a_run_without_autocast_has_no_range_to_show() -> None:
    """float32 is not judged by what float16 would have done."""
    told = figures_of([step(0), ranges(exponents=histogram(-40, 9))])

    assert not {"Headroom", "Underflow"} & told.keys()


def test_a_model_in_float16_is_judged_by_it() -> None:
    """Autocast is not the only way to train in a narrow format."""
    told = figures_of(
        [step(0, loss_scale=math.nan), ranges(exponents=histogram(-25, 1, 3), dtype="float16")]
    )

    assert told["Underflow"] == ("25 %", "of the gradients in float16")
