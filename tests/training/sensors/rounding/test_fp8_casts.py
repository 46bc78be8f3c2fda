"""Casts to FP8: what is clipped, what is flushed, and which division made an infinite scale."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ampwatch.diagnosis.evidence.rounding import BrokenScale, Fp8Cast
from ampwatch.numerics.formats import FORMATS
from ampwatch.training.sensors.rounding.fp8_casts import FP8, Fp8Casts
from tests.training.sensors.listening import Listening, inside

E4M3 = torch.float8_e4m3fn


@pytest.fixture
def listening() -> Listening:
    listening = Listening(Fp8Casts)
    listening.place = inside("0.attention")
    return listening


def _casts(listening: Listening) -> list[Any]:
    return [s for s in listening.seen if isinstance(s, Fp8Cast)]


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", list(FP8), ids=str)
def test_what_a_cast_loses_is_what_a_scalar_loop_counts(
    listening: Listening, dtype: torch.dtype, source: torch.dtype
) -> None:
    """Zeros, NaN and infinities apart."""
    fmt = FORMATS[str(dtype).removeprefix("torch.")]
    values = (torch.randn(500) * 10.0 ** (torch.rand(500) * 16 - 8)).to(source)
    values[:6] = torch.tensor([0.0, -0.0, torch.nan, torch.inf, fmt.max, fmt.min_subnormal])
    with listening:
        values.to(dtype)
    finite = [abs(x) for x in values.double().tolist() if x and abs(x) < torch.inf]
    (cast,) = _casts(listening)

    assert cast.num_values == len(finite)
    assert cast.clipped == sum(x >= fmt.overflow_from for x in finite) > 0
    assert cast.flushed == sum(x <= fmt.flush_at for x in finite) > 0
    assert cast.largest == max(finite)
    assert (cast.site.where, cast.site.op, cast.dtype) == ("0.attention", "_to_copy", fmt.name)


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", list(FP8), ids=str)
def test_a_tie_at_the_limit_is_clipped_if_the_cast_rounds_it_away(
    listening: Listening, dtype: torch.dtype, source: torch.dtype
) -> None:
    """A tie rounds to the even bit pattern, which is the largest number or the one beyond it."""
    fmt = FORMATS[str(dtype).removeprefix("torch.")]
    below = torch.tensor(fmt.max_pattern - 1, dtype=torch.uint8).view(dtype).item()
    tie = fmt.max + (fmt.max - below) / 2
    with listening:
        torch.tensor([tie, -tie, 1.0], dtype=source).to(dtype)
    (cast,) = _casts(listening)

    assert cast.clipped == (0 if fmt.max_pattern % 2 == 0 else 2)


def test_what_is_clamped_before_the_cast_counts_as_clipped(listening: Listening) -> None:
    """Another format may be between the two."""
    values = torch.linspace(-1000, 1000, 101)
    with listening:
        values.clamp(-448.0, 448.0).to(E4M3)
        values.clamp(min=-448, max=448).bfloat16().to(E4M3)
        values.clamp(-1.0, 1.0).to(E4M3)
    beyond = int((values.abs() > 464).sum())

    assert [c.clipped for c in _casts(listening)] == [beyond, beyond, 0]
    # After a clamp the largest is the end of the format, which says nothing of the scale.
    assert _casts(listening)[0].largest == 1000.0


def test_only_the_first_cast_of_a_training_at_a_place_is_first(listening: Listening) -> None:
    """Two lines are two places."""
    for _ in range(2):
        with listening:
            torch.ones(64).to(E4M3)

    assert [c.is_first for c in _casts(listening)] == [True, False]


ZEROS = torch.zeros(8, 16)


@pytest.mark.parametrize(
    ("op", "quantize"),
    [
        ("reciprocal", lambda x: x * (448.0 / x.abs().max())),
        ("div", lambda x: x * (torch.tensor(448.0) / x.abs().max())),
        ("div", lambda x: x / (x.abs().max() / 448.0)),
        ("div", lambda x: x / (x.abs().amax(1, keepdim=True) / 448.0)),
        ("reciprocal", lambda x: x * x.abs().max().reciprocal().mul(448.0)),
    ],
)
def test_the_division_by_zero_that_made_the_scale_is_named(
    listening: Listening, op: str, quantize: Any
) -> None:
    """The product that became NaN, and the cast, are not named."""
    with listening:
        quantize(ZEROS).to(E4M3)

    assert [(s.site.op, s.site.where, s.num_values) for s in listening.seen] == [
        (op, "0.attention", ZEROS.numel())
    ]


def test_a_scale_from_the_iteration_before_is_remembered(listening: Listening) -> None:
    """Delayed scaling uses it an iteration later."""
    with listening:
        scale = 448.0 / ZEROS.abs().max()
    with listening:
        (torch.ones(8) * scale).to(E4M3)
    (broken,) = [s for s in listening.seen if isinstance(s, BrokenScale)]

    assert (broken.site.op, broken.site.step) == ("reciprocal", 1)


@pytest.mark.rotating
@pytest.mark.parametrize(
    "quantize",
    [
        lambda x: x * (448.0 / x.abs().max().clamp(min=1e-12)),
        lambda x: x * torch.where(x.abs().max() > 0, 448.0 / x.abs().max(), 1.0),
        lambda x: x + torch.nan,
    ],
)
def test_a_bound_or_a_nan_from_elsewhere_is_no_broken_scale(
    listening: Listening, quantize: Any
) -> None:
    """An infinite number that is not used does no harm; an earlier NaN has another cause."""
    with listening:
        quantize(ZEROS).to(E4M3)

    assert [s for s in listening.seen if isinstance(s, BrokenScale)] == []


def test_other_casts_are_nobodys_business(listening: Listening) -> None:
    """Scales of blocks, and casts back, are left alone as well."""
    with listening:
        torch.randn(64).to(torch.bfloat16)
        torch.ones(64).to(E4M3).to(torch.float32)
        torch.ones(64).to(torch.float8_e8m0fnu)

    assert len(listening.seen) == 1


@pytest.mark.parametrize("amax", [0.0, torch.inf, torch.nan])
def test_a_scale_is_at_fault_unless_the_numbers_were_not_finite_before(
    listening: Listening, amax: float
) -> None:
    """Of an infinite magnitude the scale is zero, and the quotient that takes it off infinite."""
    values = torch.full((64,), amax)
    with listening:
        torch.ones(64).to(E4M3)
        for _ in range(2):  # forward, and again for another product
            scale = 448.0 / values.abs().max()
            scaled = (values * scale).to(E4M3)
            scaled.float() / scale
    broken = [s for s in listening.seen if isinstance(s, BrokenScale)]

    assert bool(broken) == (amax == 0.0)


@pytest.mark.parametrize(("amax", "is_blamed"), [(0.0, True), (torch.inf, False)])
def test_more_divisions_than_are_remembered_are_judged_by_the_newest(
    listening: Listening, *, amax: float, is_blamed: bool
) -> None:
    """A model in which everything has become infinite, or zero."""
    values = torch.full((64,), amax)
    with listening:
        torch.ones(64).to(E4M3)
        for _ in range(40):
            scale = 448.0 / values.abs().max()
        (values * scale).to(E4M3)
    broken = [s for s in listening.seen if isinstance(s, BrokenScale)]

    assert bool(broken) is is_blamed
