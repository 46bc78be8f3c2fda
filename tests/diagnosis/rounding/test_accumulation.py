"""Findings about sums and averages that have stopped."""

from __future__ import annotations

import pytest

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.detector import Shared
from ampwatch.diagnosis.evidence.rounding import (
    GradientSum,
    LoopSum,
    OpSite,
    StillAverage,
    StuckAverage,
    StuckSum,
)
from ampwatch.diagnosis.rounding.accumulation import Accumulation
from ampwatch.wire.records import Severity


@pytest.fixture
def book() -> FindingBook:
    return FindingBook(lambda _news: None)


def _site(step: int = 3, where: str = "loss", op: str = "add_", phase: str = "forward") -> OpSite:
    return OpSite(step, where, op, phase, "train.py:12")


def _average(
    weight: float, updates: int, *, differing: int = 90, distance: float = 0.3
) -> StuckAverage:
    site = _site(where="param:0.weight", op="lerp_", phase="optimizer")
    return StuckAverage(site, "bfloat16", weight, updates, 100, differing, differing, distance)


@pytest.mark.parametrize(
    ("additions", "grown", "is_told"), [(7, 9, False), (8, 2, True), (15, 1, False), (16, 0, True)]
)
def test_a_sum_has_stopped_after_a_row_of_additions(
    book: FindingBook, additions: int, grown: int, *, is_told: bool
) -> None:
    """Sooner if it was seen to grow."""
    Accumulation(Shared(book)).observe_sum(
        StuckSum(_site(), "bfloat16", additions, grown, 256.0, 0.4)
    )

    assert [(f.kind, f.where, f.severity, f.source) for f in book.findings] == [
        ("metric_accum_rounding", "loss", Severity.WARNING, "train.py:12")
    ] * is_told


@pytest.mark.parametrize(
    ("average", "is_told"),
    [
        (_average(1e-4, 4), False),
        (_average(1e-4, 5), True),
        (_average(1e-4, 5, differing=4), False),
        (_average(0.005, 5), True),
        (_average(0.05, 5), False),
        (_average(0.05, 24), False),
        (_average(0.05, 25), True),
        (_average(0.05, 25, distance=0.02), False),
    ],
)
def test_an_average_that_cannot_move_is_reported_after_five_updates_others_later(
    book: FindingBook, average: StuckAverage, *, is_told: bool
) -> None:
    """One that could move is given as many as it needs to follow, and must be far behind."""
    Accumulation(Shared(book)).observe_average(average)

    assert [(f.kind, f.where, f.op, f.phase) for f in book.findings] == [
        ("ema_rounding", "param:0.weight", "lerp_", "optimizer")
    ] * is_told


@pytest.mark.parametrize(
    ("additions", "error", "is_told"), [(31, 0.5, False), (32, 0.05, True), (500, 0.04, False)]
)
def test_a_sum_of_a_module_is_reported_by_its_error(
    book: FindingBook, additions: int, error: float, *, is_told: bool
) -> None:
    """A few large terms, or many roundings that cancel, are as good as it gets."""
    site = _site(where="pool", op="add")
    Accumulation(Shared(book)).observe_loop(
        LoopSum(site, "bfloat16", additions, error, 1.0 - error)
    )

    assert [(f.kind, f.where, f.op) for f in book.findings] == [
        ("metric_accum_rounding", "pool", "add")
    ] * is_told


@pytest.mark.parametrize(("stuck", "is_told"), [(0, False), (24, False), (25, True)])
def test_an_average_of_data_is_reported_when_a_quarter_of_it_stands_where_it_should_not(
    book: FindingBook, stuck: int, *, is_told: bool
) -> None:
    """Elements of it may have arrived."""
    site = _site(where="buffer:1.running_var", op="native_batch_norm")
    still = StillAverage(site, "bfloat16", 0.001, 20, 100, stuck, 0.04)
    Accumulation(Shared(book)).observe_still(still)

    assert [(f.kind, f.where, f.severity) for f in book.findings] == [
        ("ema_rounding", "buffer:1.running_var", Severity.WARNING)
    ] * is_told
    assert all("4.00%" in f.summary and "20 updates" in f.summary for f in book.findings)


@pytest.mark.parametrize(
    ("additions", "error", "lost", "is_told"),
    [
        (8, 0.06, 0.0, True),
        (8, 0.04, 0.2, False),
        (8, 0.02, 0.6, True),
        (8, 0.005, 1.0, False),
        (7, 0.5, 1.0, False),
    ],
)
def test_a_sum_of_gradients_may_be_off_by_a_little(
    book: FindingBook, additions: int, error: float, lost: float, *, is_told: bool
) -> None:
    """Less is enough where most of a gradient is lost."""
    site = _site(where="param:weight", phase="backward")
    summed = GradientSum(site, "bfloat16", additions, error, lost)
    Accumulation(Shared(book)).observe_gradients(summed)

    assert [(f.kind, f.where, f.phase) for f in book.findings] == [
        ("grad_accum_rounding", "param:weight", "backward")
    ] * is_told


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("param:weight", "parameter weight is added up in bfloat16: after 99 backward passes"),
        ("ode", "custom backward of module ode is added up in bfloat16: after 99 additions"),
    ],
)
def test_a_sum_of_gradients_is_of_many_backward_passes_or_within_one(
    book: FindingBook, where: str, says: str
) -> None:
    """As its place tells."""
    site = _site(where=where, phase="backward")
    Accumulation(Shared(book)).observe_gradients(GradientSum(site, "bfloat16", 99, 0.2, 0.4))

    assert [says in f.summary for f in book.findings] == [True]


def test_what_lasts_is_counted_once_a_step(book: FindingBook) -> None:
    """Wherever it is: one incident."""
    accumulation = Accumulation(Shared(book))
    for step in (3, 3, 4):
        for where in ("loss", "head"):
            site = _site(step, where)
            accumulation.observe_sum(StuckSum(site, "float16", 40, 5, 2048.0, 1.0))

    assert [(f.where, f.count, f.first_step, f.last_step) for f in book.findings] == [
        ("loss", 2, 3, 4)
    ]
