"""Moving averages in half precision, of weights and of data, however their update is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ampwatch.diagnosis.evidence.rounding import What
from ampwatch.training.sensors.rounding.averages import Averages
from tests.training.sensors.listening import EVALUATED, OUTSIDE, STEPPED, Listening, inside

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT = 0.999
NEW = 1.0 - KEPT
UPDATES = 40

Update = Any


def multiplied_and_added(mine: Any, new: Any) -> Any:
    return mine.mul_(KEPT).add_(new, alpha=NEW)


def a_share_added_in_place(mine: Any, new: Any) -> Any:
    mine *= KEPT
    mine += NEW * new
    return mine


def interpolated(mine: Any, new: Any) -> Any:
    return mine.lerp_(new, NEW)


def replaced(mine: Any, new: Any) -> Any:
    return KEPT * mine + NEW * new


def replaced_the_other_way_round(mine: Any, new: Any) -> Any:
    return new * NEW + mine * KEPT


def replaced_by_lerp(mine: Any, new: Any) -> Any:
    return torch.lerp(mine, new, NEW)


def copied(mine: Any, new: Any) -> Any:
    return mine.copy_(mine * KEPT + new * NEW)


def lists_multiplied_and_added(mine: Any, new: Any) -> Any:
    torch._foreach_mul_([mine], KEPT)
    torch._foreach_add_([mine], [new], alpha=NEW)
    return mine


def lists_interpolated(mine: Any, new: Any) -> Any:
    torch._foreach_lerp_([mine], [new], NEW)
    return mine


def factors_that_are_tensors(mine: Any, new: Any) -> Any:
    tau = torch.tensor(NEW)
    return mine.mul_(1 - tau).add_(tau * new)


def a_difference_that_is_subtracted(mine: Any, new: Any) -> Any:
    difference = mine - new
    difference.mul_(NEW)
    return mine.sub_(difference)


def a_difference_that_is_added(mine: Any, new: Any) -> Any:
    return mine.add_(new - mine, alpha=NEW)


def copied_from_float32(mine: Any, new: Any) -> Any:
    return mine.copy_(NEW * new.float() + mine.float() * KEPT)


def copied_from_lerp_in_float32(mine: Any, new: Any) -> Any:
    return mine.copy_(torch.lerp(mine.float(), new.float(), NEW))


WAYS = [
    multiplied_and_added,
    a_share_added_in_place,
    interpolated,
    replaced,
    replaced_the_other_way_round,
    replaced_by_lerp,
    copied,
    lists_multiplied_and_added,
    lists_interpolated,
    factors_that_are_tensors,
]
WAYS_OF_WEIGHTS = [
    *WAYS,
    a_difference_that_is_subtracted,
    a_difference_that_is_added,
    copied_from_float32,
    copied_from_lerp_in_float32,
]
"""Ways that a share of a parameter is found in."""

ways = pytest.mark.parametrize("update", WAYS, ids=lambda update: update.__name__)
ways_of_weights = pytest.mark.parametrize(
    "update", WAYS_OF_WEIGHTS, ids=lambda update: update.__name__
)


def _of_weights(
    update: Callable[[Any, Any], Any],
    dtype: torch.dtype,
    *,
    source: torch.dtype = torch.bfloat16,
    change: float = 1.5,
) -> list[Any]:
    """Return what is seen of an average of a weight that has been changed since it began."""
    model = nn.Linear(8, 8, bias=False).to(source)
    mine = model.weight.detach().to(dtype, copy=True)
    listening = Listening(Averages, model)
    listening.place = STEPPED
    with torch.no_grad():
        model.weight.mul_(change)
        for _ in range(6):
            with listening:
                mine = update(mine, model.weight.to(dtype))
    return [s for s in listening.seen if s.what is What.WEIGHT_AVERAGE]


def _of_data(
    update: Callable[[Any, Any], Any], dtype: torch.dtype, data: Callable[[], float]
) -> list[Any]:
    """Return what is seen of an average that begins at 1."""
    listening = Listening(Averages)
    mine = torch.ones(50, dtype=dtype)
    for listening.step in range(UPDATES):
        given = torch.full((50,), data(), dtype=dtype)
        with listening:
            mine = update(mine, given)
    return listening.seen


@pytest.mark.parametrize("source", [torch.bfloat16, torch.float32])
@ways_of_weights
def test_an_average_of_weights_that_does_not_move_is_seen(
    update: Update, source: torch.dtype
) -> None:
    """Every update after the first, of the parameter it follows and with its weight."""
    seen = _of_weights(update, torch.bfloat16, source=source)

    assert [s.additions for s in seen] == [1, 2, 3, 4, 5]
    assert {s.site.where for s in seen} == {"param:weight"}
    assert all(s.weight == pytest.approx(NEW, rel=1e-2) for s in seen)
    assert all((s.lost, s.changing > 0.9) == (1.0, True) for s in seen)


@ways_of_weights
def test_an_average_of_weights_that_moves_or_has_arrived_is_left_alone(update: Update) -> None:
    """The one is the stuck program in the right dtype; the other equals the parameter, and can lose nothing."""
    assert _of_weights(update, torch.float32) == []
    assert _of_weights(update, torch.bfloat16, change=1.0) == []


@ways
def test_an_average_of_data_that_stands_still_is_compared_with_one_in_float32(
    update: Update,
) -> None:
    """Which a scalar loop knows: 1 becomes 1.04 in 39 updates, and nothing in bfloat16."""
    seen = _of_data(update, torch.bfloat16, lambda: 2.0)
    exact = 1.0
    for _ in range(UPDATES - 1):
        exact = KEPT * exact + NEW * 2.0

    last = seen[-1]
    assert (last.what, last.additions, last.lost) == (What.DATA_AVERAGE, UPDATES - 1, 1.0)
    assert last.error == pytest.approx(exact - 1.0, rel=0.02)
    assert last.weight == pytest.approx(NEW, rel=0.01)
    assert (last.dtype, last.site.where) == ("bfloat16", "loss")
    assert seen[0].lost == 0.0


@pytest.mark.rotating
@ways
def test_an_average_that_float32_would_not_move_either_is_not_stuck(update: Update) -> None:
    """It has arrived: the data are around it."""
    values = iter([0.8, 1.2] * UPDATES)

    assert all(s.lost == 0.0 for s in _of_data(update, torch.bfloat16, lambda: next(values)))


@pytest.mark.rotating
@ways
def test_an_average_of_data_that_moves_is_left_alone(update: Update) -> None:
    """In float32 it does, and in half precision where the data are far away."""
    assert _of_data(update, torch.float32, lambda: 2.0) == []
    assert _of_data(update, torch.bfloat16, lambda: 50.0) == []


def test_a_large_share_is_rounded_and_not_lost() -> None:
    """In bfloat16 a tenth moves an average until it is within some spacings of the data."""
    assert _of_weights(lambda mine, new: mine.lerp_(new, 0.2), torch.bfloat16) == []
    assert _of_data(lambda mine, new: mine.lerp_(new, 0.1), torch.bfloat16, lambda: 2.0) == []


def test_weight_decay_is_no_average() -> None:
    """Decaying weights is none, and adding them to gradients is none."""
    model = nn.Linear(8, 8).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, weight_decay=0.01, momentum=0.9)
    listening = Listening(Averages, model)
    listening.place = STEPPED
    for _ in range(8):
        model(torch.ones(4, 8, dtype=torch.bfloat16)).mean().backward()
        with listening:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()

    assert listening.seen == []


def test_what_is_no_average_is_left_alone() -> None:
    """Decay, a residual stream, a mixture of two; what needs a gradient; and memory that is used again."""
    listening = Listening(Averages)
    x = torch.ones(50, dtype=torch.bfloat16)
    y = torch.ones(50, dtype=torch.bfloat16, requires_grad=True)
    for listening.step in range(UPDATES):
        with listening:
            x.mul_(0.9999)
            x.add_(torch.ones_like(x), alpha=0.01).sub_(0.01)
            _ = 0.999 * x + 0.3 * x
            y = (0.999 * y + 0.001 * x).detach().requires_grad_()
    listening.place = OUTSIDE
    for listening.step in range(UPDATES):
        with listening:
            multiplied_and_added(torch.ones(50).bfloat16(), torch.ones(50).bfloat16())

    assert listening.seen == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_statistics_of_a_norm_are_known_by_their_names(dtype: torch.dtype) -> None:
    """The variance starts at 1, and stays there; the mean moves away from 0 in any format."""
    momentum = 1e-3 if dtype is torch.bfloat16 else 1e-4
    model = nn.Sequential(nn.BatchNorm1d(50, momentum=momentum)).to(dtype)
    listening = Listening(Averages, model)
    listening.place = inside("0")
    for listening.step in range(60):
        x = torch.randn(64, 50, generator=torch.Generator().manual_seed(listening.step)) * 1.6
        with listening:
            model(x.to(dtype))

    variances = [s for s in listening.seen if s.site.where == "buffer:0.running_var"]
    assert variances[-1].lost > 0.5
    assert variances[-1].site.op.endswith("batch_norm")
    expected = (1.6**2 - 1.0) * (1.0 - (1.0 - momentum) ** variances[-1].additions)
    assert variances[-1].error == pytest.approx(expected, rel=0.25)
    assert not any(s.lost for s in listening.seen if s.site.where == "buffer:0.running_mean")


def test_a_norm_that_only_reads_its_statistics_updates_none() -> None:
    """In evaluation."""
    model = nn.BatchNorm1d(50, momentum=1e-3).bfloat16().eval()
    listening = Listening(Averages, model)
    listening.place = EVALUATED
    for listening.step in range(UPDATES):
        with listening:
            model(torch.randn(64, 50).bfloat16())

    assert listening.seen == []
