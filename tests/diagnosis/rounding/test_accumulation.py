"""Findings about sums and averages that have stopped, and about casts to float8."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.detector import Shared
from ampwatch.diagnosis.evidence.rounding import Fp8Cast, OpSite, Stuck, What
from ampwatch.diagnosis.rounding.accumulation import Accumulation
from ampwatch.diagnosis.rounding.fp8 import Fp8
from ampwatch.diagnosis.rounding.kinds import EMA_ROUNDING
from ampwatch.wire.records import Severity


@pytest.fixture
def book() -> FindingBook:
    return FindingBook(lambda _news: None)


def _stuck(
    what: What, additions: int, *, where: str = "loss", step: int = 3, **numbers: Any
) -> Stuck:
    site = OpSite(step, where, "add_", "forward", "train.py:12")
    return Stuck(site, what, "bfloat16", additions, **numbers)


def running(additions: int, grown: int) -> Stuck:
    return _stuck(What.RUNNING_SUM, additions, grown=grown, total=256.0, addend=0.4)


def loop(additions: int, error: float) -> Stuck:
    return _stuck(What.LOOP_SUM, additions, error=error, total=1.0 - error)


def gradient(additions: int, error: float, lost: float) -> Stuck:
    return _stuck(What.GRADIENT_SUM, additions, where="param:weight", error=error, lost=lost)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_average_that_is_advised_moves_in_float32(dtype: torch.dtype) -> None:
    """The model stays in half precision; an average of another dtype than what it takes in raises."""
    made, update = "AveragedModel(copy.deepcopy(model).float()", "copy.deepcopy(model).float())"
    assert f"{made}, ...). Give it average.update_parameters({update}" in EMA_ROUNDING.advice
    model = nn.Linear(2, 2).to(dtype)
    average = AveragedModel(copy.deepcopy(model).float(), multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(2):
        average.update_parameters(copy.deepcopy(model).float())

    assert (model.weight.dtype, average.module.weight.dtype) == (dtype, torch.float32)


def of_weights(
    weight: float, updates: int, *, changing: float = 0.9, distance: float = 0.3
) -> Stuck:
    numbers = {"changing": changing, "error": distance, "weight": weight}
    return _stuck(What.WEIGHT_AVERAGE, updates, where="param:0.weight", **numbers)


def of_data(lost: float) -> Stuck:
    numbers = {"lost": lost, "error": 0.04, "weight": 0.001}
    return _stuck(What.DATA_AVERAGE, 20, where="buffer:1.running_var", **numbers)


@pytest.mark.parametrize(
    ("kind", "stuck", "is_outcome_known"),
    [
        # A sum has stopped after a row of additions, sooner if it was seen to grow.
        ("metric_accum_rounding", running(7, 9), False),
        ("metric_accum_rounding", running(8, 2), True),
        ("metric_accum_rounding", running(15, 1), False),
        ("metric_accum_rounding", running(16, 0), True),
        # A few large terms, or many roundings that cancel, are as good as it gets.
        ("metric_accum_rounding", loop(31, 0.5), False),
        ("metric_accum_rounding", loop(32, 0.05), True),
        ("metric_accum_rounding", loop(500, 0.04), False),
        # A sum of gradients may be off by a little; less is enough where most of a gradient is lost.
        ("grad_accum_rounding", gradient(8, 0.06, 0.0), True),
        ("grad_accum_rounding", gradient(8, 0.04, 0.2), False),
        ("grad_accum_rounding", gradient(8, 0.02, 0.6), True),
        ("grad_accum_rounding", gradient(8, 0.005, 1.0), False),
        ("grad_accum_rounding", gradient(7, 0.5, 1.0), False),
        # An average that cannot move is reported after five updates. One that could is given as many as it needs to
        # follow, and must be far behind.
        ("ema_rounding", of_weights(1e-4, 4), False),
        ("ema_rounding", of_weights(1e-4, 5), True),
        ("ema_rounding", of_weights(1e-4, 5, changing=0.04), False),
        ("ema_rounding", of_weights(0.005, 5), True),
        ("ema_rounding", of_weights(0.05, 5), False),
        ("ema_rounding", of_weights(0.05, 24), False),
        ("ema_rounding", of_weights(0.05, 25), True),
        ("ema_rounding", of_weights(0.05, 25, distance=0.02), False),
        # Elements of an average of data may have arrived: a quarter of it stands where it should not.
        ("ema_rounding", of_data(0.0), False),
        ("ema_rounding", of_data(0.24), False),
        ("ema_rounding", of_data(0.25), True),
    ],
)
def test_what_is_lost_is_told_once_it_is_enough(
    book: FindingBook, kind: str, stuck: Stuck, *, is_outcome_known: bool
) -> None:
    """By the kind of what was added up, at the place and by the op that added last."""
    Accumulation(Shared(book)).observe(stuck)

    site = stuck.site
    assert [(f.kind, f.where, f.op, f.phase, f.dtype, f.source) for f in book.findings] == [
        (kind, site.where, site.op, site.phase, "bfloat16", "train.py:12")
    ] * is_outcome_known
    assert all(f.severity is Severity.WARNING for f in book.findings)


@pytest.mark.parametrize(
    ("stuck", "says"),
    [
        (running(16, 0), "in bfloat16 outside of the model has stopped growing: at 256"),
        (loop(32, 0.5), "is off by 50.0% of its norm after 32 additions"),
        (loop(32, 0.5), "of the same, 0.5 times as much, since"),
        (
            gradient(99, 0.2, 0.4),
            "parameter weight is added up in bfloat16: after 99 backward passes",
        ),
        (of_weights(1e-4, 5), "in each of the last 5 updates up to step 3 100.0% of the elements"),
        (of_data(0.25), "moves in part only: 25.0% of its elements"),
        (of_data(0.5), "does not move: 50.0% of its elements"),
        (of_data(0.5), "for up to 20 updates until step 3, in which float32 would have taken them"),
    ],
)
def test_it_says_what_is_lost_and_where(book: FindingBook, stuck: Stuck, says: str) -> None:
    """And how much of it, after how many additions."""
    Accumulation(Shared(book)).observe(stuck)

    assert [says in f.summary for f in book.findings] == [True]


def test_what_lasts_is_counted_once_a_step(book: FindingBook) -> None:
    """Wherever it is: one incident."""
    accumulation = Accumulation(Shared(book))
    for step in (3, 3, 4):
        for where in ("loss", "head"):
            accumulation.observe(_stuck(What.RUNNING_SUM, 40, where=where, step=step, grown=5))

    assert [(f.where, f.count, f.first_step, f.last_step) for f in book.findings] == [
        ("loss", 2, 3, 4)
    ]


@pytest.fixture
def fp8(book: FindingBook) -> Fp8:
    return Fp8(Shared(book))


def _cast(
    clipped: int = 0, flushed: int = 0, *, step: int = 3, numbers: int = 1000, first: bool = False
) -> Fp8Cast:
    site = OpSite(step, "1.fc", "_to_copy", "forward", "model.py:7")
    return Fp8Cast(site, "float8_e4m3fn", numbers, clipped, flushed, 8960.0, first)


@pytest.mark.parametrize(
    ("cast", "kinds"),
    [
        (_cast(clipped=19), []),
        (_cast(clipped=20), ["fp8_saturation"]),
        (_cast(clipped=7, numbers=100), []),
        (_cast(clipped=40, numbers=60), []),
        (_cast(flushed=99), []),
        (_cast(flushed=100), ["fp8_underflow"]),
        (_cast(clipped=100, flushed=600), ["fp8_saturation", "fp8_underflow"]),
    ],
)
def test_a_share_is_needed_and_enough_numbers(
    fp8: Fp8, book: FindingBook, cast: Fp8Cast, kinds: list[str]
) -> None:
    """Two of a hundred are clipped, a tenth is flushed; of a few numbers nothing is said."""
    fp8.observe(cast)

    assert [f.kind for f in book.findings] == kinds
    assert all(
        (f.where, f.op, f.severity) == ("1.fc", "_to_copy", "warning") for f in book.findings
    )


def test_the_numbers_say_how_far_the_scale_is_off(fp8: Fp8, book: FindingBook) -> None:
    """The largest against the end of the format."""
    fp8.observe(_cast(clipped=300))
    (finding,) = book.findings

    assert finding.evidence["clipped_share"] == 0.3
    assert finding.evidence["largest"] / finding.evidence["largest_of_format"] == 20.0
    assert "too large for them by a factor of 20" in finding.summary


def test_what_a_first_cast_clips_is_an_info_until_a_second_does(
    fp8: Fp8, book: FindingBook
) -> None:
    """A delayed scale has seen nothing before it."""
    fp8.observe(_cast(clipped=300, step=0, first=True))
    (finding,) = book.findings
    at_first = finding.severity
    fp8.observe(_cast(clipped=300, step=1))

    assert (at_first, finding.severity, finding.count) == (Severity.INFO, Severity.WARNING, 2)
