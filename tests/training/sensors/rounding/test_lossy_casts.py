"""Integers cast to formats in which several of them are equal."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ampwatch.numerics.units.ops import Phase
from ampwatch.training.sensors.rounding.lossy_casts import MAX_FOLLOWED, LossyCasts
from tests.training.sensors.listening import OUTSIDE, STEPPED, Listening, inside

HALF = (torch.bfloat16, torch.float16)


@pytest.fixture
def listening() -> Listening:
    listening = Listening(LossyCasts)
    listening.place = inside("rope")
    return listening


@pytest.mark.parametrize("source", [torch.int64, torch.int32, torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", HALF)
def test_positions_that_become_equal_are_counted_as_unique_counts_them(
    listening: Listening, source: torch.dtype, dtype: torch.dtype
) -> None:
    """Distinct ones before and after, the largest, the place; they run up."""
    positions = torch.arange(6000, dtype=source)
    with listening:
        positions.to(dtype)
    (cast,) = listening.seen

    assert (cast.num_values, cast.distinct) == (6000, 6000)
    assert cast.kept == positions.to(dtype).unique().numel()
    assert cast.rounded == int((positions.to(dtype).double() != positions.double()).sum())
    assert (cast.largest, cast.is_ordered) == (5999.0, True)
    assert (cast.site.where, cast.site.op, cast.site.phase) == ("rope", "_to_copy", "forward")


def test_large_integers_become_equal_in_float32_as_well(listening: Listening) -> None:
    """Beyond 2**24."""
    with listening:
        (torch.arange(1000) + 2**30).float()

    assert [(c.dtype, c.kept < 100) for c in listening.seen] == [("float32", True)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(1000, dtype=torch.bfloat16),
        lambda: torch.arange(0, 3000, 2, dtype=torch.bfloat16),
        lambda: torch.arange(1000) * torch.tensor(0.5, dtype=torch.bfloat16)[None],
        lambda: torch.empty(1000, dtype=torch.bfloat16).copy_(torch.arange(1000)),
        lambda: torch.arange(1000)[None].expand(64, -1).to(torch.bfloat16),
        lambda: torch.ones(3, 1000, 2, dtype=torch.bfloat16).cumsum(1),
    ],
)
def test_positions_may_be_made_without_a_cast_that_is_written(
    listening: Listening, make: Any
) -> None:
    """``arange`` in bfloat16, promotion, a buffer, a batch of the same, sums of a mask."""
    with listening:
        make()

    assert [c.is_ordered for c in listening.seen] == [True]


@pytest.mark.rotating
@pytest.mark.parametrize(
    "values",
    [
        torch.randint(0, 256, (8, 3, 16, 16)).float(),
        torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8),
        torch.zeros(1000),
        torch.full((1000,), 1e4),
        torch.full((1000,), 65504),
        torch.eye(300),
        torch.ones(1000, dtype=torch.bool),
        torch.randn(1000) * 1e4,
        torch.randn(1000) * 3e8,
        (torch.randn(1000) * 3e8).relu(),
        torch.cat((torch.arange(100.0), torch.randn(2000) * 1e3)),
        torch.arange(257),
        torch.arange(0, 16384, 64),
    ],
)
def test_what_loses_nothing_or_is_no_integer_is_left_alone(
    listening: Listening, values: torch.Tensor
) -> None:
    """Pictures, masks, constants, one-hot, large numbers that are integers by their size."""
    with listening:
        values.to(torch.bfloat16)

    assert listening.seen == []


@pytest.mark.parametrize(
    "values", [torch.ones(250), torch.linspace(0, 2, 1000), torch.zeros(1000), torch.ones(0)]
)
def test_sums_that_are_exact_or_of_no_integers_are_left_alone(
    listening: Listening, values: torch.Tensor
) -> None:
    """Positions that fit, and probabilities."""
    with listening:
        values.to(torch.bfloat16).cumsum(0)

    assert listening.seen == []


def test_ids_without_an_order_are_reported_without_one(listening: Listening) -> None:
    """Ids without an order may be measurements as well."""
    with listening:
        torch.randint(0, 50000, (256,)).to(torch.float16)

    assert [c.is_ordered for c in listening.seen] == [False]


def test_the_few_integers_of_small_batches_are_evidence_together(listening: Listening) -> None:
    """Time steps: six in a batch, other ones in the next; what was rounded is counted."""
    batches = [[901, 37, 515, 640, 777, 12], [303, 998, 5, 613, 450, 901]]
    for batch in batches:
        with listening:
            torch.tensor(batch).to(torch.bfloat16)
    (cast,) = listening.seen
    distinct = torch.tensor(batches).unique()

    assert (cast.num_values, cast.largest, cast.is_ordered) == (11, 998.0, False)
    assert cast.rounded == int((distinct.to(torch.bfloat16).long() != distinct).sum())
    assert (cast.site.where, cast.site.op) == ("rope", "_to_copy")


@pytest.mark.rotating
@pytest.mark.parametrize(
    "batch",
    [
        lambda _: [480, 853],  # the size of a picture
        lambda i: [i % 256, 255 - i % 256, 3],  # labels, colours
        lambda i: [512 * i, 512 * i + 512],  # all of them are numbers of bfloat16
        lambda i: [401 + 7 * i],  # how many tokens there are
    ],
)
def test_few_integers_that_lose_nothing_or_stay_the_same_are_left_alone(
    listening: Listening, batch: Any
) -> None:
    """However often they are cast."""
    for number in range(20):
        with listening:
            torch.tensor(batch(number)).to(torch.bfloat16)
            torch.tensor(401 + 7 * number).to(torch.bfloat16)

    assert listening.seen == []


def test_optimizers_and_backward_cast_what_they_like(listening: Listening) -> None:
    """Only the forward pass has positions."""
    for listening.place in (STEPPED, inside("rope", Phase.BACKWARD)):
        with listening:
            torch.arange(1000).to(torch.bfloat16)

    assert listening.seen == []


def test_what_is_cast_outside_counts_once_the_model_reads_it(listening: Listening) -> None:
    """Through views and what is computed of it."""
    listening.place = OUTSIDE
    with listening:
        positions = torch.arange(1000).to(torch.bfloat16)
        angles = positions[:, None] * 0.1
        before = list(listening.seen)
        listening.place = inside("rope")
        angles.reshape(-1).cos()

    assert before == []
    assert [c.site.where for c in listening.seen] == ["loss"]


def test_what_is_cast_outside_and_dropped_is_nobodys_business(listening: Listening) -> None:
    """Memory of the dropped result is used again by an input of the model."""
    listening.place = OUTSIDE
    with listening:
        torch.arange(1000).to(torch.bfloat16).unique().numel()
        listening.place = inside("rope")
        for _ in range(20):
            torch.randn(1000, dtype=torch.bfloat16).cos()

    assert listening.seen == []


def _embedded(times: torch.Tensor, *, wide: bool = False) -> torch.Tensor:
    rates = torch.exp(-torch.arange(0, 16) / 16 * 9.0)
    angles = times[..., None].to(torch.float64 if wide else times.dtype) * rates.to(times.dtype)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


@pytest.mark.parametrize("shape", [(32,), (4, 8)])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", HALF)
def test_times_that_were_rounded_count_where_sines_are_taken_of_them(
    listening: Listening,
    dtype: torch.dtype,
    wide: bool,  # noqa: FBT001
    shape: tuple[int, ...],
) -> None:
    """Once, by how wrong the angle is, which is what the rounding has changed at a rate of one.

    Numbers of a batch, of points, or of positions by their rates.
    """
    times = torch.linspace(1.3, 7919.7, 32).reshape(shape)
    listening.place = OUTSIDE
    with listening:
        rounded = times.to(dtype)
        listening.place = inside("time")
        _embedded(rounded, wide=wide)
    (cast,) = listening.seen

    wrong = float((times.double() - rounded.double()).abs().max())
    assert cast.angle == pytest.approx(wrong, rel=0.01)
    assert cast.largest == pytest.approx(7919.7)
    assert (cast.site.where, cast.site.op, cast.dtype) == ("loss", "_to_copy", str(dtype)[6:])


@pytest.mark.parametrize("between", [MAX_FOLLOWED - 1, MAX_FOLLOWED])
def test_a_sine_is_looked_for_right_after_the_cast(listening: Listening, between: int) -> None:
    """The memory of an input lives through forward: it is not looked for in each op of that."""
    other = torch.ones(2)
    with listening:
        rounded = torch.linspace(1.3, 7919.7, 32).to(torch.bfloat16)
        for _ in range(between):
            other.neg()
        rounded.sin()

    assert len(listening.seen) == (between < MAX_FOLLOWED)


@pytest.mark.parametrize(
    "times",
    [
        torch.linspace(0.0, 1.0, 32),  # not magnified
        torch.linspace(0.0, 1000.0, 32, dtype=torch.float64).to(torch.bfloat16).float(),
        torch.full((32,), float("inf")),
    ],
)
def test_angles_that_lose_little_or_nothing_are_left_alone(
    listening: Listening, times: torch.Tensor
) -> None:
    """Nor is a product of matrices followed, of which each element is a sum of many."""
    with listening:
        rounded = times.to(torch.bfloat16)
        (rounded * 2.0).sin()
        # Another number: what is added to it, its logarithm, a tensor of its shape.
        (rounded * 1e-3 + 1000.0).sin()
        (rounded.abs() + 1.0).log().mul(100.0).cos()
        torch.full_like(rounded, 1e3).sin()
        torch.empty(4, 32, dtype=torch.bfloat16).copy_(times.reshape(-1)[:32])
        (torch.ones(8, 32, dtype=torch.bfloat16) @ rounded.reshape(-1)[:32]).mul(50.0).sin()

    assert listening.seen == []


def test_times_are_followed_a_few_ops_and_no_longer_than_an_iteration(listening: Listening) -> None:
    """What was never an angle is not followed for ever: each op of the model would be looked at."""
    times = torch.linspace(1.3, 7919.7, 32)
    with listening:
        far = rounded = times.to(torch.bfloat16)
        for _ in range(8):
            far = far * 1.01
        far.sin()
    with listening:
        rounded.sin()

    assert listening.seen == []


def test_tensors_whose_casts_are_followed_can_be_swapped(listening: Listening) -> None:
    """PyTorch refuses to swap a tensor that is weakly referred to."""
    with listening:
        rounded = torch.linspace(1.3, 7919.7, 32).to(torch.bfloat16)
        counted = torch.arange(1000).to(torch.bfloat16)
        torch.utils.swap_tensors(rounded, torch.ones(32))
        torch.utils.swap_tensors(counted, torch.ones(1000))

    assert (rounded.dtype, counted.dtype) == (torch.float32, torch.float32)
