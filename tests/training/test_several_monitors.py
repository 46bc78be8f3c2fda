"""Several monitors in one process: each judges what is its own."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.training.hooks.ownership import Ownership
from tests.trainings import Gain

STEPS = 12
PLANTED = (5, 6)


class Fit:
    """One training of its own."""

    def __init__(self, *, fails: bool) -> None:
        torch.manual_seed(0)
        self.gain = Gain()
        self.model = nn.Sequential(nn.Linear(8, 8), self.gain, nn.Linear(8, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        self._data = torch.Generator().manual_seed(1)
        self._fails = fails

    def watch(self, level: str) -> ampwatch.Monitor:
        return ampwatch.monitor(
            self.model, self.scaler, optimizer=self.optimizer, level=level, serve=False
        )

    def loss(self, step: int) -> torch.Tensor:
        self.gain.by = 1e6 if self._fails and step in PLANTED else 1.0
        with torch.autocast("cpu", dtype=torch.float16):
            out: torch.Tensor = self.model(torch.randn(8, 8, generator=self._data))
        return out.float().square().mean()

    def step(self, step: int) -> None:
        self.optimizer.zero_grad()
        self.scaler.scale(self.loss(step)).backward()
        self.update()

    def update(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


def in_turn(fits: list[Fit]) -> None:
    """Each step of one, and then of the other."""
    for step in range(STEPS):
        for fit in fits:
            fit.step(step)


def one_after_the_other(fits: list[Fit]) -> None:
    """The whole of one, while the other is watched already."""
    for fit in fits:
        for step in range(STEPS):
            fit.step(step)


def together(fits: list[Fit]) -> None:
    """Both forwards, then both backwards, then both steps."""
    for step in range(STEPS):
        for fit in fits:
            fit.optimizer.zero_grad()
        for loss in [fit.scaler.scale(fit.loss(step)) for fit in fits]:
            loss.backward()
        for fit in fits:
            fit.update()


def in_threads(fits: list[Fit]) -> None:
    """At the same time, none of them in the main thread."""
    threads = [threading.Thread(target=one_after_the_other, args=([fit],)) for fit in fits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("failing_first", [True, pytest.param(False, marks=pytest.mark.rotating)])
@pytest.mark.parametrize("train", [in_turn, one_after_the_other, together, in_threads])
def test_a_fault_is_found_by_the_monitor_of_its_model_alone(
    train: Callable[[list[Fit]], None], *, failing_first: bool, one_thread: None
) -> None:
    """Its module is named once, the other has nothing to say, and both count all of their steps."""
    fits = [Fit(fails=failing_first), Fit(fails=not failing_first)]
    monitors = [fit.watch("standard") for fit in fits]
    train(fits)
    for monitor in monitors:
        monitor.close()

    found = [[f.where for f in m.findings if f.kind == "forward_overflow"] for m in monitors]
    assert found == ([["1"], []] if failing_first else [[], ["1"]])
    assert [m.last_step.step for m in monitors] == [STEPS - 1] * 2
    assert all("failed" not in m.report() for m in monitors)


@pytest.mark.rotating
def test_an_evaluated_model_that_is_watched_hears_nothing_of_a_training(one_thread: None) -> None:
    """A fault of the training is none of a frozen model beside it."""
    fit, frozen = Fit(fails=True), Fit(fails=False)
    frozen.model.requires_grad_(requires_grad=False)
    with fit.watch("standard") as watch, ampwatch.monitor(frozen.model, serve=False) as beside:
        for step in range(STEPS):
            fit.step(step)
            frozen.loss(step)

    assert [f.where for f in watch.findings] == ["1"]
    assert not beside.findings


def test_a_failure_to_tell_whose_an_optimizer_is_reaches_no_step(
    monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    """What somebody's optimizer does when it is read is not known; to ask is ampwatch's own."""

    def fails(*_: object) -> bool:
        msg = "its parameters cannot be read now"
        raise RuntimeError(msg)

    monkeypatch.setattr(Ownership, "is_of_another", fails)
    fits = [Fit(fails=False), Fit(fails=False)]
    monitors = [fit.watch("light") for fit in fits]
    one_after_the_other(fits)
    for monitor in monitors:
        monitor.close()

    assert [m.last_step.step for m in monitors] == [STEPS - 1] * 2
    assert all("ownership failed" in m.report() for m in monitors)


def test_what_belongs_to_nobody_is_everybodys() -> None:
    """An optimizer of another training is another's, until that training is over."""
    mine, others, nobodys = (nn.Linear(2, 2) for _ in range(3))
    one, two = Ownership(lambda: [mine]), Ownership(lambda: [others])
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (mine, others, nobodys)]
    shared = torch.optim.SGD([*mine.parameters(), *others.parameters()], lr=0.1)

    one.begin()
    alone = [one.is_of_another(o) for o in (*optimizers, shared, others)]
    two.begin()
    beside = [one.is_of_another(o) for o in (*optimizers, shared, others)]
    foreign = one.modules_of_others()
    two.end()
    after = [one.is_of_another(o) for o in (*optimizers, shared, others)]
    one.end()

    assert alone == after == [False] * 5
    assert beside == [False, True, False, False, True]
    assert foreign == {id(others)}


def _plain(height: float) -> tuple[nn.Linear, Callable[[], None]]:
    """Return a model, and a step of its training, with a loss of a given height."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step() -> None:
        (model(torch.randn(2, 4)).mean() * 0.0 + height).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def test_losses_are_those_of_the_model_that_they_lead_to(one_thread: None) -> None:
    heights = (1.0, 100.0)
    fits = [_plain(height) for height in heights]
    monitors = [ampwatch.monitor(model, serve=False) for model, _ in fits]
    seen: list[set[float]] = [set(), set()]
    for monitor, losses in zip(monitors, seen, strict=True):
        deliver = monitor._session.diagnosis.deliver

        def note(*iterations: Any, losses: set[float] = losses, deliver: Any = deliver) -> None:
            losses.update([iteration.loss for iteration in iterations])
            deliver(*iterations)

        monitor._session.diagnosis.deliver = note  # type: ignore[method-assign]
    for _ in range(STEPS):
        for _, step in fits:
            step()
    for monitor in monitors:
        monitor.close()
        assert not monitor._session.bus.ownership._ours
    assert seen == [{height} for height in heights]


@pytest.mark.rotating
@pytest.mark.parametrize("level", ["", "light"])
def test_the_scale_of_another_training_is_not_ones_own(level: str, one_thread: None) -> None:
    """Nor are its skips, and its losses are not added to one's own."""
    model, step = _plain(1.0)
    other = Fit(fails=True)
    beside = other.watch(level) if level else None
    with ampwatch.monitor(model, level="light", serve=False) as monitor:
        for number in range(STEPS):
            other.step(number)
            step()
        totals = monitor._session.diagnosis.totals
        assert math.isnan(monitor.last_step.loss_scale)
        assert sum(totals.steps.values()) == STEPS
        assert not sum(map(sum, totals.skipped.values()))
        assert not monitor.findings
    if beside is not None:
        beside.close()


def test_a_scaler_that_nobody_handed_in_is_of_the_model_that_its_losses_lead_to(
    one_thread: None,
) -> None:
    """Beside another training its skips are inferred as they are without one."""
    _, step = _plain(1.0)
    fit = Fit(fails=True)
    fit.scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    with ampwatch.monitor(fit.model, serve=False) as monitor:
        for number in range(STEPS):
            step()
            fit.step(number)
        totals = monitor._session.diagnosis.totals
        assert sum(map(sum, totals.skipped.values())) == len(PLANTED)
        assert monitor.last_step.loss_scale == fit.scaler.get_scale()
