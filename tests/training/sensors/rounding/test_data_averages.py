"""Moving averages of data in half precision, however their update is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ampwatch.training.sensors.rounding.data_averages import DataAverages
from tests.training.sensors.listening import EVALUATED, OUTSIDE, Listening, inside

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT = 0.999
NEW = 1.0 - KEPT
UPDATES = 40

Update = Any


def added_in_place(mine: Any, data: Any) -> Any:
    return mine.mul_(KEPT).add_(data, alpha=NEW)


def a_share_added_in_place(mine: Any, data: Any) -> Any:
    mine *= KEPT
    mine += NEW * data
    return mine


def interpolated(mine: Any, data: Any) -> Any:
    return mine.lerp_(data, NEW)


def replaced(mine: Any, data: Any) -> Any:
    return KEPT * mine + NEW * data


def replaced_the_other_way_round(mine: Any, data: Any) -> Any:
    return data * NEW + mine * KEPT


def replaced_by_lerp(mine: Any, data: Any) -> Any:
    return torch.lerp(mine, data, NEW)


def copied(mine: Any, data: Any) -> Any:
    return mine.copy_(mine * KEPT + data * NEW)


def a_list(mine: Any, data: Any) -> Any:
    torch._foreach_lerp_([mine], [data], NEW)
    return mine


WAYS = [
    added_in_place,
    a_share_added_in_place,
    interpolated,
    replaced,
    replaced_the_other_way_round,
    replaced_by_lerp,
    copied,
    a_list,
]
ways = pytest.mark.parametrize("update", WAYS, ids=lambda update: update.__name__)


def _averaged(
    update: Callable[[Any, Any], Any], dtype: torch.dtype, data: Callable[[], float]
) -> list[Any]:
    """Return what is seen of an average that begins at 1."""
    listening = Listening(DataAverages)
    mine = torch.ones(50, dtype=dtype)
    for listening.step in range(UPDATES):
        given = torch.full((50,), data(), dtype=dtype)
        with listening:
            mine = update(mine, given)
    return listening.seen


@ways
def test_an_average_that_stands_still_is_compared_with_one_in_float32(update: Update) -> None:
    """Which a scalar loop knows: 1 becomes 1.04 in 39 updates, and nothing in bfloat16."""
    seen = _averaged(update, torch.bfloat16, lambda: 2.0)
    exact = 1.0
    for _ in range(UPDATES - 1):
        exact = KEPT * exact + NEW * 2.0

    last = seen[-1]
    assert (last.updates, last.compared, last.stuck) == (UPDATES - 1, 50, 50)
    assert last.distance == pytest.approx(exact - 1.0, rel=0.02)
    assert last.weight == pytest.approx(NEW, rel=0.01)
    assert (last.dtype, last.site.where) == ("bfloat16", "loss")
    assert seen[0].stuck == 0


@pytest.mark.rotating
@ways
def test_an_average_that_float32_would_not_move_either_is_not_stuck(update: Update) -> None:
    """It has arrived: the data are around it."""
    values = iter([0.8, 1.2] * UPDATES)

    assert all(s.stuck == 0 for s in _averaged(update, torch.bfloat16, lambda: next(values)))


@pytest.mark.rotating
@ways
def test_an_average_that_moves_is_left_alone(update: Update) -> None:
    """In float32 it does, and in half precision where the data are far away."""
    assert _averaged(update, torch.float32, lambda: 2.0) == []
    assert _averaged(update, torch.bfloat16, lambda: 50.0) == []


def test_a_large_share_is_rounded_and_not_lost() -> None:
    """In bfloat16 a tenth moves an average until it is within some spacings of the data."""
    assert _averaged(lambda mine, data: mine.lerp_(data, 0.1), torch.bfloat16, lambda: 2.0) == []


def test_what_is_no_average_is_left_alone() -> None:
    """Weight decay, a residual stream, a mixture of two; and what needs a gradient."""
    listening = Listening(DataAverages)
    x = torch.ones(50, dtype=torch.bfloat16)
    y = torch.ones(50, dtype=torch.bfloat16, requires_grad=True)
    for listening.step in range(UPDATES):
        with listening:
            x.mul_(0.9999)
            x.add_(torch.ones_like(x), alpha=0.01).sub_(0.01)
            _ = 0.999 * x + 0.3 * x
            y = (0.999 * y + 0.001 * x).detach().requires_grad_()

    assert listening.seen == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_statistics_of_a_norm_are_known_by_their_names(dtype: torch.dtype) -> None:
    """The variance starts at 1, and stays there; the mean moves away from 0 in any format."""
    momentum = 1e-3 if dtype is torch.bfloat16 else 1e-4
    model = nn.Sequential(nn.BatchNorm1d(50, momentum=momentum)).to(dtype)
    listening = Listening(DataAverages, model)
    listening.place = inside("0")
    for listening.step in range(60):
        x = torch.randn(64, 50, generator=torch.Generator().manual_seed(listening.step)) * 1.6
        with listening:
            model(x.to(dtype))

    variances = [s for s in listening.seen if s.site.where == "buffer:0.running_var"]
    assert variances[-1].stuck > 25
    assert variances[-1].site.op.endswith("batch_norm")
    expected = (1.6**2 - 1.0) * (1.0 - (1.0 - momentum) ** variances[-1].updates)
    assert variances[-1].distance == pytest.approx(expected, rel=0.25)
    assert not any(s.stuck for s in listening.seen if s.site.where == "buffer:0.running_mean")


def test_a_norm_that_only_reads_its_statistics_updates_none() -> None:
    """In evaluation."""
    model = nn.BatchNorm1d(50, momentum=1e-3).bfloat16().eval()
    listening = Listening(DataAverages, model)
    listening.place = EVALUATED
    for listening.step in range(UPDATES):
        with listening:
            model(torch.randn(64, 50).bfloat16())

    assert listening.seen == []


def test_memory_that_is_used_again_has_no_history() -> None:
    """New averages every time, of which none is updated twice."""
    listening = Listening(DataAverages)
    listening.place = OUTSIDE
    for listening.step in range(UPDATES):
        with listening:
            torch.ones(50, dtype=torch.bfloat16).mul_(KEPT).add_(
                torch.ones(50).bfloat16(), alpha=NEW
            )

    assert listening.seen == []
