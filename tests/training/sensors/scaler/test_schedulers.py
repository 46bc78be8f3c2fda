"""Learning-rate schedulers, read and not patched."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.optim import lr_scheduler as lrs

from ampwatch.guard import Guard
from ampwatch.training.sensors.scaler.schedulers import MAX_SEARCHES, SchedulerSensor

if TYPE_CHECKING:
    from collections.abc import Callable

# The optimizer steps once, at the beginning; torch would like it to step again.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of:UserWarning")

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: lrs.LambdaLR(o, lambda _: 1.0),
    "StepLR": lambda o: lrs.StepLR(o, 5),
    "MultiStepLR": lambda o: lrs.MultiStepLR(o, [5]),
    "ConstantLR": lrs.ConstantLR,
    "LinearLR": lrs.LinearLR,
    "ExponentialLR": lambda o: lrs.ExponentialLR(o, 0.9),
    "PolynomialLR": lrs.PolynomialLR,
    "CosineAnnealingLR": lambda o: lrs.CosineAnnealingLR(o, 9),
    "CosineAnnealingWarmRestarts": lambda o: lrs.CosineAnnealingWarmRestarts(o, 9),
    "CyclicLR": lambda o: lrs.CyclicLR(o, 1e-4, 1e-2),
    "OneCycleLR": lambda o: lrs.OneCycleLR(o, 1e-2, total_steps=50),
    "MultiplicativeLR": lambda o: lrs.MultiplicativeLR(o, lambda _: 0.9),
    "SequentialLR": lambda o: lrs.SequentialLR(o, [lrs.ConstantLR(o), lrs.LinearLR(o)], [3]),
    "ChainedScheduler": lambda o: lrs.ChainedScheduler([lrs.ConstantLR(o), lrs.LinearLR(o)]),
    "ReduceLROnPlateau": lrs.ReduceLROnPlateau,
}


def _optimizer() -> torch.optim.SGD:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1e-2, momentum=0.9)
    optimizer.step()
    return optimizer


def _step(scheduler: Any) -> None:
    if isinstance(scheduler, lrs.ReduceLROnPlateau):
        scheduler.step(1.0)
    else:
        scheduler.step()


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_step_of_any_scheduler_is_seen_once(name: str) -> None:
    """Every scheduler of torch, nested ones included, moved or not moved."""
    optimizer = _optimizer()
    scheduler = SCHEDULERS[name](optimizer)
    sensor = SchedulerSensor(Guard("schedulers"))
    sensor.install()
    seen = [sensor.moved(optimizer)]
    for steps in (0, 1, 0, 1, 2):
        for _ in range(steps):
            _step(scheduler)
        seen.append(sensor.moved(optimizer))

    assert seen == [False, False, True, False, True, True]


def test_the_list_above_is_complete() -> None:
    """A scheduler that torch adds is added here."""
    public = {
        name
        for name, value in vars(lrs).items()
        if isinstance(value, type) and issubclass(value, lrs.LRScheduler) and name[0] != "_"
    }

    assert public - {"LRScheduler", "SWALR"} == set(SCHEDULERS)


def test_a_scheduler_made_later_is_found_by_the_mark_it_leaves() -> None:
    """Made after ``monitor()`` it is found at the next optimizer step."""
    optimizer = _optimizer()
    sensor = SchedulerSensor(Guard("schedulers"))
    sensor.install()
    before = sensor.moved(optimizer)
    scheduler = lrs.LinearLR(optimizer)
    found = sensor.moved(optimizer)
    scheduler.step()

    assert (before, found, sensor.moved(optimizer)) == (False, False, True)


def test_a_scheduler_of_another_optimizer_is_not_ours() -> None:
    """Each optimizer has its own schedule."""
    mine, other = _optimizer(), _optimizer()
    scheduler = lrs.LinearLR(other)
    sensor = SchedulerSensor(Guard("schedulers"))
    sensor.install()
    sensor.moved(mine)
    scheduler.step()

    assert sensor.moved(mine) is False


def test_a_schedule_that_is_loaded_or_restarted_is_no_step() -> None:
    """A count that falls is not a step of the scheduler."""
    optimizer = _optimizer()
    scheduler = lrs.LinearLR(optimizer)
    for _ in range(3):
        scheduler.step()
    sensor = SchedulerSensor(Guard("schedulers"))
    sensor.install()
    sensor.moved(optimizer)
    scheduler.last_epoch = 0

    assert sensor.moved(optimizer) is False


def test_a_scheduler_is_not_kept_alive() -> None:
    """The sensor holds weak references only."""
    optimizer = _optimizer()
    scheduler = lrs.LinearLR(optimizer)
    sensor = SchedulerSensor(Guard("schedulers"))
    sensor.install()
    del scheduler
    gc.collect()

    assert sensor.moved(optimizer) is False
    assert [reference() for reference, _ in sensor._found if reference() is not None] == []


def test_schedulers_that_replace_one_another_are_found_each_time() -> None:
    """A recipe with a new schedule per phase; each new one is found when it moves a rate."""
    optimizer = _optimizer()
    sensor = SchedulerSensor(Guard("schedulers"))
    sensor.install()
    sensor.moved(optimizer)
    seen = []
    for _ in range(3):
        scheduler = lrs.ExponentialLR(optimizer, 0.5)
        for _ in range(2):
            scheduler.step()
            seen.append(sensor.moved(optimizer))
        del scheduler
        gc.collect()

    assert seen == [True] * 6


def test_rates_set_by_hand_are_no_scheduler_and_end_the_searching() -> None:
    """Looking through all objects is not repeated for ever."""
    optimizer = _optimizer()
    sensor = SchedulerSensor(Guard("schedulers"))
    sensor.install()
    seen = []
    for step in range(50):
        optimizer.param_groups[0]["lr"] = 1.0 / (step + 1)
        seen.append(sensor.moved(optimizer))

    assert not any(seen)
    assert sensor._searches == MAX_SEARCHES
