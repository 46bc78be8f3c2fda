"""Sums of many terms that one op makes in half precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from ampwatch.training.sensors.rounding.scattered_sums import ScatteredSums
from ampwatch.training.sensors.rounding.shadow import RARELY
from tests.training.sensors.listening import Listening, inside

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = torch.cat([torch.zeros(6000, dtype=torch.long), torch.arange(1, 1001)])
"""A hub of 6000 neighbours, and a thousand nodes of one."""


@pytest.fixture
def listening() -> Listening:
    listening = Listening(ScatteredSums)
    listening.place = inside("conv")
    return listening


def terms(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.rand(7000, 8, generator=generator) + 0.5).to(dtype)


def _wide(rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return rows[:, None].expand_as(like)


WAYS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index_put": lambda into, t: into.index_put((ROWS,), t, accumulate=True),
    "index_put_": lambda into, t: into.index_put_((ROWS,), t, accumulate=True),
    "index_add": lambda into, t: into.index_add(0, ROWS, t),
    "index_add_": lambda into, t: into.index_add_(0, ROWS, t),
    "scatter_add": lambda into, t: into.scatter_add(0, _wide(ROWS, t), t),
    "scatter_add_": lambda into, t: into.scatter_add_(0, _wide(ROWS, t), t),
    "scatter_reduce": lambda into, t: into.scatter_reduce(0, _wide(ROWS, t), t, "sum"),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("way", WAYS)
def test_a_sum_that_stands_still_is_compared_with_that_in_float64(
    listening: Listening, way: str, dtype: torch.dtype
) -> None:
    """The row of most terms, by its norm; on a CPU each term is rounded."""
    added = terms(dtype)
    with listening:
        out = WAYS[way](torch.zeros(1001, 8, dtype=dtype), added)
    exact = added[:6000].double().sum(0)
    found = out[0].double()
    error = float((found - exact).norm() / exact.norm())
    if error < 0.02:  # this way adds in float32
        assert listening.seen == []
        return
    (stuck,) = listening.seen

    assert (stuck.additions, stuck.dtype) == (6000, str(dtype)[6:])
    assert stuck.error == pytest.approx(error, rel=1e-3)
    assert stuck.total == pytest.approx(float(found.norm() / exact.norm()), rel=1e-3)
    assert (stuck.site.where, stuck.site.phase) == ("conv", "forward")
    assert stuck.site.op.rstrip("_") == way.rstrip("_")


def test_one_of_them_at_least_rounds_each_term(listening: Listening) -> None:
    """Else the test above would pass with a sensor that says nothing."""
    with listening:
        WAYS["index_put"](torch.zeros(1001, 8, dtype=torch.float16), terms(torch.float16))

    assert [stuck.additions for stuck in listening.seen] == [6000]
    assert listening.seen[0].error > 0.3


@pytest.mark.parametrize("num_rows", [1001, 1])
def test_what_was_there_before_is_part_of_the_sum(listening: Listening, num_rows: int) -> None:
    """Where an op writes in place it is not known, and shows in rows of few terms, if there are any."""
    added, rows = terms(torch.float16), ROWS if num_rows > 1 else torch.zeros_like(ROWS)
    before = torch.full((num_rows, 8), 3.0, dtype=torch.float16)
    with listening:
        before.index_put((rows,), added, accumulate=True)
        before.clone().index_put_((rows,), added, accumulate=True)

    assert [stuck.site.op for stuck in listening.seen] == ["index_put"]


def test_rows_may_be_counted_from_the_end(listening: Listening) -> None:
    with listening:
        torch.zeros(1001, 8, dtype=torch.float16).index_put(
            (ROWS - 1001,), terms(torch.float16), accumulate=True
        )

    assert [stuck.additions for stuck in listening.seen] == [6000]


@pytest.mark.parametrize(
    "healthy",
    [
        lambda t: torch.zeros(1001, 8).index_put((ROWS,), t.float(), accumulate=True),
        lambda t: torch.zeros(7000, 8, dtype=t.dtype).index_put((ROWS,), t),  # no sum
        # Few terms in a row, and terms that grow with the distance between numbers.
        lambda t: torch.zeros(7000, 8, dtype=t.dtype).index_add(0, torch.arange(7000), t),
        lambda t: torch.zeros(8, 1001, dtype=t.dtype).index_add(1, ROWS, t.T),
        lambda t: torch.zeros(9, 8, dtype=t.dtype).index_add(0, torch.arange(9), t[:9]),
        # What cancels out, what is broadcast, masks, no index at all, and what is left out of the sum.
        lambda t: torch.zeros(2, 8, dtype=t.dtype).index_put(
            (ROWS[:100],), t[:100] - t[:100].mean(0), accumulate=True
        ),
        lambda t: torch.zeros(2, 8, 4, dtype=t.dtype).index_put(
            (ROWS[:6000],), t[:6000, :, None] * 1e-3, accumulate=True
        ),
        lambda t: torch.zeros(1001, 8, dtype=t.dtype).scatter_add(0, ROWS[:, None], t),
        lambda t: t.index_put((t[:, 0] > 1.0,), t[0], accumulate=True),
        lambda t: t.index_add(0, torch.tensor(1), t[:1]),
        lambda t: t[:1001].scatter_reduce(0, _wide(ROWS, t)[:9], t[:9], "sum", include_self=False),
        lambda t: torch.zeros(80000, 8, dtype=t.dtype).index_add(0, ROWS, t),  # too large
    ],
)
def test_what_loses_nothing_or_is_no_such_sum_is_left_alone(
    listening: Listening, healthy: Callable[[torch.Tensor], Any]
) -> None:
    with listening:
        healthy(terms(torch.float16))

    assert listening.seen == []


def test_ops_that_lose_nothing_are_checked_ever_more_rarely(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = []
    judge = ScatteredSums._judge
    monkeypatch.setattr(
        ScatteredSums, "_judge", lambda self, *given: (checked.append(given), judge(self, *given))
    )
    for step in range(1, 2 * RARELY + 1):
        listening.step = step
        with listening:
            torch.zeros(7000, 8, dtype=torch.float16).index_add(
                0, torch.arange(7000), terms(torch.float16)
            )

    assert len(checked) == 3 + 2
