"""Learning-rate schedulers, read and not patched."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.optim import lr_scheduler as lrs

from ampwatch.training.hooks.events import SchedulerStepped, StepBegan
from ampwatch.training.sensors.scaler.schedulers import MAX_SEARCHES, SchedulerSensor
from tests.training.bench import Bench, Heard

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


class Watched:
    """The sensor, and whether it reports a scheduler when an optimizer is about to step."""

    def __init__(self) -> None:
        self._scaler = torch.amp.GradScaler("cpu")
        self.bench = Bench(scaler=self._scaler)
        self.sensor = SchedulerSensor(self.bench.context)
        self._heard = Heard(SchedulerStepped)
        self.bench.install(self.sensor, self._heard)

    def moved(self, optimizer: torch.optim.Optimizer) -> bool:
        self._heard.events.clear()
        self.bench.bus.emit(StepBegan(self._scaler, optimizer))
        assert self._heard.events in ([], [SchedulerStepped(optimizer)])
        return bool(self._heard.events)


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
    watched = Watched()
    seen = [watched.moved(optimizer)]
    for steps in (0, 1, 0, 1, 2):
        for _ in range(steps):
            _step(scheduler)
        seen.append(watched.moved(optimizer))

    assert seen == [False, False, True, False, True, True]


def test_the_list_above_is_complete() -> None:
    """A scheduler that torch adds is added here."""
    public = {
        name
        for name, value in vars(lrs).items()
        if isinstance(value, type) and issubclass(value, lrs.LRScheduler) and name[0] != "_"
    }

    assert public - {"LRScheduler", "SWALR"} == set(SCHEDULERS)


def test_a_scheduler_of_another_optimizer_is_not_ours() -> None:
    """Each optimizer has its own schedule."""
    mine = _optimizer()
    other = _optimizer()
    scheduler = lrs.LinearLR(other)
    watched = Watched()
    watched.moved(mine)
    scheduler.step()

    assert watched.moved(mine) is False


def test_an_optimizer_without_a_rate_hides_no_scheduler_of_others() -> None:
    """Its groups have no ``lr``; the sensor goes on."""
    mine, without = _optimizer(), _optimizer()
    for group in without.param_groups:
        del group["lr"]
    scheduler = lrs.LinearLR(mine)
    watched = Watched()
    seen = [watched.moved(without), watched.moved(mine)]
    scheduler.step()

    assert [*seen, watched.moved(without), watched.moved(mine)] == [False, False, False, True]


def test_a_schedule_that_is_loaded_or_restarted_is_no_step() -> None:
    """A count that falls is not a step of the scheduler."""
    optimizer = _optimizer()
    scheduler = lrs.LinearLR(optimizer)
    for _ in range(3):
        scheduler.step()
    watched = Watched()
    watched.moved(optimizer)
    scheduler.last_epoch = 0

    assert watched.moved(optimizer) is False


def test_a_scheduler_is_not_kept_alive() -> None:
    """The sensor holds weak references only."""
    optimizer = _optimizer()
    scheduler = lrs.LinearLR(optimizer)
    watched = Watched()
    watched.moved(optimizer)
    found = weakref.ref(scheduler)
    assert found in [reference for reference, _ in watched.sensor._found]
    del scheduler
    gc.collect()

    assert watched.moved(optimizer) is False
    assert found() is None


def test_schedulers_that_replace_one_another_are_found_each_time() -> None:
    """A recipe with a new schedule per phase; each new one is found when it moves a rate."""
    optimizer = _optimizer()
    watched = Watched()
    watched.moved(optimizer)
    seen = []
    for _ in range(3):
        scheduler = lrs.ExponentialLR(optimizer, 0.5)
        for _ in range(2):
            scheduler.step()
            seen.append(watched.moved(optimizer))
        del scheduler
        gc.collect()

    assert seen == [True] * 6


def test_a_scheduler_made_between_set_up_and_the_first_step_is_seen() -> None:
    """Although it has moved no rate yet."""
    watched = Watched()
    optimizer = _optimizer()
    scheduler = lrs.StepLR(optimizer, 5)
    seen = [watched.moved(optimizer)]
    scheduler.step()

    assert [*seen, watched.moved(optimizer)] == [False, True]


def test_rates_set_by_hand_are_no_schedule_and_end_the_searching() -> None:
    """Looking through all objects is not repeated for ever."""
    optimizer = _optimizer()
    watched = Watched()
    seen = []
    for step in range(50):
        optimizer.param_groups[0]["lr"] = 1.0 / (step // 2 + 1)
        seen.append(watched.moved(optimizer))

    assert not any(seen)
    assert watched.sensor._searches == MAX_SEARCHES


def test_a_scheduler_is_found_wherever_its_attributes_lie() -> None:
    """In the object itself, or in a dict that somebody has asked for; under another name as well."""

    class Renamed(lrs.LambdaLR):
        @property
        def optimizer(self) -> Any:
            return self.of

        @optimizer.setter
        def optimizer(self, optimizer: Any) -> None:
            self.of = optimizer

    watched = Watched()
    optimizer, other = _optimizer(), _optimizer()
    schedulers = [lrs.StepLR(optimizer, 5), Renamed(optimizer, float)]
    not_mine = lrs.StepLR(other, 5)
    assert vars(schedulers[0])["optimizer"] is optimizer
    watched.moved(optimizer)
    found = [reference() for reference, _ in watched.sensor._found]
    watched.moved(other)

    assert sorted(map(id, found)) == sorted(map(id, schedulers))
    assert [r() for r, owner in watched.sensor._found if owner() is other] == [not_mine]
