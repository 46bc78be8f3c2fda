"""Calls of PyTorch's clipping functions, where the norm is on the host and where it is not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import ampwatch
from ampwatch.diagnosis.evidence.calls import NonfiniteClip, ScaledClip
from ampwatch.training.model.tensors import num_nonfinite
from ampwatch.training.sensors.calls import clipping
from ampwatch.training.sensors.calls.clipping import ClippingSensor
from ampwatch.training.transfer.deferred import Deferred
from tests.training.bench import Bench
from tests.training.sensors.late import FakeDevice

if TYPE_CHECKING:
    from typing_extensions import Self

pytestmark = pytest.mark.usefixtures("one_thread")


class Case:
    """A model whose gradients the test sets, and the sensor."""

    def __init__(self, *, scaler: Any = None, link: Any = None) -> None:
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self.bench = Bench((self.model,), scaler, parts={"deferred": Deferred(link)})
        self.seen: list[Any] = self.bench.seen
        self.sensor = ClippingSensor(self.bench.context, link)

    def __enter__(self) -> Self:
        self.bench.install(self.sensor)
        return self

    def __exit__(self, *_: object) -> None:
        self.bench.remove()

    def clip(self, value: float = 1.0, limit: float = 0.5) -> None:
        for p in self.model.parameters():
            p.grad = torch.ones_like(p)
        self.model.bias.grad[1] = value
        clip_grad_norm_(self.model.parameters(), limit)


def scaler() -> torch.amp.GradScaler:
    made = torch.amp.GradScaler("cpu", init_scale=64.0)
    made.scale(torch.ones(()))  # makes the scale
    return made


def test_a_norm_on_a_device_is_reported_when_it_has_arrived() -> None:
    """Steps later, with the iteration in which it was stepped with; nobody waits for it."""
    device = FakeDevice()
    with Case(link=device) as case:
        case.clip(math.inf)
        case.optimizer.step()
        case.optimizer.zero_grad()
        before = list(case.seen)
        case.bench.iteration.step, device.done = 3, 1
        case.clip()

    assert before == []
    (seen,) = case.seen
    assert isinstance(seen, NonfiniteClip)
    assert (seen.step, seen.optimizer, seen.parameter, seen.norm) == (0, 0, "", math.inf)


def test_a_skipped_step_is_right_also_when_the_norm_arrives_late() -> None:
    """Gradients that were thrown away have harmed nobody."""
    device = FakeDevice()
    with Case(link=device) as case:
        case.clip(math.inf)
        case.optimizer.zero_grad()
        device.done = 1
        case.clip()
        case.optimizer.step()
        device.done = 2
        case.clip()

    assert case.seen == []


def test_a_clip_before_unscale_on_a_device_is_reported_late_and_once() -> None:
    """The optimizer is known at its step, the norm some iterations after."""
    device = FakeDevice()
    made = scaler()
    with Case(scaler=made, link=device) as case:
        case.clip(limit=0.5)
        made.step(case.optimizer)
        made.update()
        before = list(case.seen)
        device.done = 1
        case.bench.iteration.step = 2
        case.clip()

    assert before == []
    (seen,) = case.seen
    assert isinstance(seen, ScaledClip)
    assert (seen.step, seen.optimizer, seen.limit) == (0, 0, 0.5)
    assert seen.norm == pytest.approx(math.sqrt(10))


def test_a_step_that_raised_does_not_hide_the_next() -> None:
    """The scaler's step ends with an exception; the one after is the user's own."""
    made = scaler()
    with Case(scaler=made) as case:
        with pytest.raises(AssertionError):
            made.step(case.optimizer)  # no gradient at all
        case.clip(math.nan)
        case.optimizer.step()

    assert [type(o) for o in case.seen] == [NonfiniteClip]


def test_gradients_given_one_by_one_are_clipped_as_well() -> None:
    """``clip_grad_norm_`` takes a tensor, a generator or a list."""
    made = scaler()
    with Case(scaler=made) as case:
        case.model.weight.grad = torch.ones(2, 4)
        clip_grad_norm_(case.model.weight, 0.5)
        clip_grad_norm_((p for p in case.model.parameters()), 0.25, norm_type=1.0)
        made.unscale_(case.optimizer)

    assert [o.limit for o in case.seen] == [0.5, 0.25]


@pytest.mark.parametrize("joint", [True, False])
def test_a_joint_clip_spoils_the_gradients_of_an_optimizer_whose_own_were_finite(
    monkeypatch: pytest.MonkeyPatch, *, joint: bool
) -> None:
    """The scaler has found nothing in them, and takes the step; clipped by itself each is right, and not read."""
    read: list[torch.Tensor] = []

    def reads(gradient: torch.Tensor) -> int:
        read.append(gradient)
        return num_nonfinite(gradient)

    monkeypatch.setattr(clipping, "num_nonfinite", reads)
    models = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    made = torch.amp.GradScaler("cpu", init_scale=64.0)
    with ampwatch.monitor(models, made, optimizer=optimizers, level="light", serve=False) as watch:
        for step in range(2):
            models.zero_grad()
            made.scale(sum(model(torch.ones(1, 4)).sum() for model in models)).backward()
            if step:
                models[0].weight.grad[0, 0] = math.nan
            for optimizer in optimizers:
                made.unscale_(optimizer)
            for clipped in [models] if joint else models:
                clip_grad_norm_(clipped.parameters(), 0.5)
            for optimizer in optimizers:
                made.step(optimizer)
            made.update()

    found = [f for f in watch.findings if f.kind == "clip_nonfinite_norm"]
    assert [(f.where, f.first_step) for f in found] == [("param:0.weight", 1)] * joint
    assert bool(read) is joint


def test_no_gradient_outlives_its_iteration_for_being_clipped() -> None:
    """A remembered call holds no tensor."""
    import weakref  # noqa: PLC0415 - only this test asks

    made = scaler()
    with Case(scaler=made) as case:
        case.clip()
        gradient = weakref.ref(case.model.weight.grad)
        case.optimizer.zero_grad()
        gone = gradient() is None

    assert gone
