"""The figures of a rank, as text."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import pytest

from ampwatch.host.page.figures import Figure, figures
from ampwatch.wire.records import SkipClass
from tests.workshop.clocks import SECOND
from tests.workshop.fleets import PRECISION, RANGES, fleet_of, made_up_fleet
from tests.workshop.records import FACTS, histogram, optimizer, ranges, step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.wire.records import Record


def figures_of(records: Sequence[Record]) -> dict[str, Figure]:
    return figures(fleet_of(*records).ranks()[0])


def test_before_the_first_step_each_figure_says_what_would_be_there() -> None:
    """An absent number is absent, never zero; and nothing moves when it comes."""
    told = figures_of([])

    assert list(told) == list(figures_of([FACTS, step(0), *RANGES, *PRECISION]))
    for figure in told.values():
        assert not figure.is_known
        assert not re.search(r"\d", figure.value)
        assert len(figure.note) > 20


def test_the_figures_have_values_and_what_to_know_of_them() -> None:
    """Every number of the made-up run is found in its figure."""
    rank = next(r for r in made_up_fleet().ranks() if r.run == "gpt" and r.identity.rank == 0)

    assert all(figure.is_known for figure in figures(rank).values())
    assert {title: figure[:2] for title, figure in figures(rank).items()} == {
        "Step": ("3", "4 s after the start"),
        "Loss scale": ("2¹⁵", "32\u202f768, 1 growth, 2 backoffs, 3 by hand"),
        "Skipped": ("3", "of 15 optimizer steps: 1 probe, 1 unprovoked, 1 storm"),
        "Loss": ("2", "NaN or infinite in 4 steps"),
        "Step time": ("1 s", "1 steps per second"),
        "Headroom": ("24.0 bits", "of the gradients in float16"),
        "Underflow share": ("0 %", "of the gradients in float16"),
        "Low precision": (
            "75 %",
            "of the FLOPs in 16 bits or fewer, 1.4 casts for each matrix product",
        ),
        "Tensor cores": ("between 60 % and 80 %", "of the time of matmul kernels"),
        "Cost of ampwatch": (
            "0.037 %",
            (
                "of the training thread's time in the first steps, ordinary from step 32 on, 26.1 MiB on the host, 28 MiB on"
                " the device, 5 steps not observed, 9 records not written, 8 ring slots not read, 6"
                " sensor errors"
            ),
        ),
    }


def test_a_run_without_scaler_and_losses_says_so_and_leaves_the_loss_out() -> None:
    """bfloat16: no scale, and nothing was handed to scaler.scale()."""
    told = figures_of([step(0, loss_scale=math.nan, num_losses=0), optimizer(0, total_steps=1)])

    assert told["Loss scale"] == Figure("none", "no enabled GradScaler", is_known=False)
    assert not told["Loss"].is_known
    assert told["Skipped"] == Figure("0", "of 1 optimizer step")


def test_the_cost_of_watching_says_its_phases_apart() -> None:
    """A mean over the opening, failures and steady steps describes none of them."""
    spent = 0
    records: list[Record] = []
    for i in range(132):
        # 10 % in the opening, 5 % from the skipped step 60 on and for 32 steps, else 1 %.
        spent += {i < 32: 10, 60 <= i <= 92: 5}.get(True, 1) * SECOND // 100
        skip = SkipClass.UNPROVOKED if i == 60 else SkipClass.NONE
        records.append(step(i, overhead_ns=spent, skip_class=skip))

    assert figures_of(records[:20])["Cost of ampwatch"] == Figure(
        "10 %",
        "of the training thread's time in the first steps, ordinary from step 32 on",
    )
    assert figures_of(records)["Cost of ampwatch"] == Figure(
        "1 %",
        "of the training thread's time in ordinary steps, 10 % in the first steps, 5 % around failures",
    )


def test_gradients_of_nothing_but_zeros_have_no_range_to_show() -> None:
    """Nothing is known of their headroom, and nothing of why they are zero."""
    told = figures_of([FACTS, step(0), ranges(exponents=histogram(0, zeros=9), flushed=-1)])

    assert not told["Headroom"].is_known
    assert told["Underflow share"].value == "not known"


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
    assert not figures_of([FACTS, ranges(), step(9, loss_scale=scale)])["Headroom"].is_known


def test_a_sample_that_overflowed_tells_the_headroom_of_the_rest() -> None:
    """No number says how far the others are beyond."""
    sample = ranges(exponents=histogram(14, 9, positive_infs=1, amax=65504.0 / 8))

    told = figures_of([FACTS, sample, step(0, loss_scale=1.0)])

    assert told["Headroom"] == Figure("3.0 bits", "of the finite gradients in float16")
