"""Observations of programs that use AMP's calls in every way there is, right and wrong."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.checkpoint import checkpoint

from ampwatch.diagnosis.evidence.calls import (
    AutocastBackward,
    Mix,
    MixedGradients,
    MixedScales,
    NonfiniteClip,
    ScaledClip,
    ScaledStep,
)
from ampwatch.training.sensors.calls.autocast_backward import AutocastBackwardSensor
from ampwatch.training.sensors.calls.clipping import ClippingSensor
from ampwatch.training.sensors.calls.gradient_contents import GradContents
from ampwatch.training.sensors.calls.gradient_use import FOLLOWED, FOLLOWED_STEPS, GradientUseSensor
from ampwatch.training.transfer.deferred import Deferred
from tests.training.bench import Bench
from tests.training.sensors.late import FakeDevice

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("one_thread")

X = torch.linspace(-1, 1, 64).reshape(8, 8)
Y = torch.linspace(0, 1, 8).reshape(8, 1)
STEPS = 40


class Training:
    """Two small models, their optimizers and a scaler that grows every other step."""

    def __init__(self, *, growth_interval: int = 2, enabled: bool = True) -> None:
        torch.manual_seed(0)
        self.model, self.other = (
            nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)) for _ in range(2)
        )
        self.optimizer, self.second = (
            torch.optim.SGD(m.parameters(), lr=1e-4) for m in (self.model, self.other)
        )
        self.scaler = torch.amp.GradScaler(
            "cpu", init_scale=16.0, growth_interval=growth_interval, enabled=enabled
        )
        self.step = 0

    def loss(self, model: nn.Module | None = None) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            out = (model or self.model)(X)
        return nn.functional.mse_loss(out.float(), Y)

    def finish(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


def observations(
    program: Callable[[Training], None], training: Training | None = None, steps: int = STEPS
) -> list[Any]:
    """Run a program's step ``steps`` times; return what was observed."""
    t = training or Training()
    bench = Bench([t.model, t.other], t.scaler)
    context = bench.context
    sensors = [AutocastBackwardSensor(context), ClippingSensor(context)]
    bench.install(*sensors, *([GradientUseSensor(context)] if context.is_scaled else []))
    try:
        for t.step in range(steps):
            bench.iteration.step = t.step
            program(t)
    finally:
        bench.remove()
    return bench.seen


RIGHT: list[Callable[[Training], None]] = []


def right(program: Callable[[Training], None]) -> Callable[[Training], None]:
    RIGHT.append(program)
    return program


@right
def accumulates_then_unscales_then_clips(t: Training) -> None:
    t.scaler.scale(t.loss() / 3).backward()
    if t.step % 3 == 2:
        t.scaler.unscale_(t.optimizer)
        clip_grad_norm_(t.model.parameters(), 0.01)
        clip_grad_value_(t.model.parameters(), 0.001)
        t.finish()
        t.optimizer.zero_grad(set_to_none=False)


@right
def takes_turns(t: Training) -> None:
    """Each turn leaves gradients in the other model, which are thrown away."""
    for model, optimizer in ((t.model, t.optimizer), (t.other, t.second)):
        model.zero_grad()
        t.scaler.scale(t.loss(t.model) + t.loss(t.other)).backward()
        t.scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 0.01)
        t.scaler.step(optimizer)
        t.scaler.update()


@right
def leaves_one_optimizer_out_of_the_scaler(t: Training) -> None:
    t.second.zero_grad()
    nn.functional.mse_loss(t.other(X), Y).backward()
    clip_grad_norm_(t.other.parameters(), 0.01)
    t.second.step()
    t.optimizer.zero_grad()
    t.scaler.scale(t.loss()).backward()
    t.finish()


@right
def multiplies_the_limit_by_the_scale(t: Training) -> None:
    t.optimizer.zero_grad()
    t.scaler.scale(t.loss()).backward()
    clip_grad_norm_(t.model.parameters(), 100.0 * t.scaler.get_scale())
    t.finish()


@right
def scales_by_hand(t: Training) -> None:
    t.optimizer.zero_grad()
    t.scaler.scale(t.loss()).backward()
    aside = t.model[0].weight.square().sum()
    if t.step % 3 == 0:
        (aside * t.scaler.get_scale()).backward()
    elif t.step % 3 == 1:
        (t.scaler._scale * aside).backward()
    else:
        aside.backward(gradient=t.scaler._scale.clone())
    t.finish()


@right
def attacks_its_inputs(t: Training) -> None:
    x = X.clone().requires_grad_()
    nn.functional.mse_loss(t.model(x), Y).backward()
    t.model.zero_grad()
    t.scaler.scale(t.loss()).backward()
    t.finish()
    t.optimizer.zero_grad()


@right
def goes_back_in_two_pieces(t: Training) -> None:
    t.optimizer.zero_grad()
    hidden = t.model[0](X)
    detached = hidden.detach().requires_grad_()
    with torch.autocast("cpu", dtype=torch.float16):
        out = t.model[1:](detached)
    t.scaler.scale(out.float().square().mean()).backward()
    hidden.backward(detached.grad)
    t.finish()


@right
def computes_again_in_backward(t: Training) -> None:
    t.optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        out = checkpoint(t.model, X.clone().requires_grad_(), use_reentrant=bool(t.step % 2))
    t.scaler.scale(out.float().square().mean()).backward()
    t.finish()


@right
def freezes_and_thaws(t: Training) -> None:
    t.model[0].requires_grad_(t.step % 8 < 4)
    t.optimizer.zero_grad()
    t.scaler.scale(t.loss()).backward()
    t.finish()


@right
def repairs_what_clipping_broke(t: Training) -> None:
    t.second.zero_grad()
    (t.other(X).square().mean() * (float("inf") if t.step == 5 else 1.0)).backward()
    clip_grad_norm_(t.other.parameters(), 0.01)
    for p in t.other.parameters():
        p.grad.nan_to_num_(0.0)
    t.second.step()


@pytest.mark.rotating
@pytest.mark.parametrize("program", RIGHT, ids=lambda p: p.__name__)
def test_a_program_that_is_right_is_left_alone(program: Callable[[Training], None]) -> None:
    """Whatever it searches like; a limit beyond the scale is left to the diagnosis."""
    seen = observations(program)

    assert [o for o in seen if not (isinstance(o, ScaledClip) and o.limit >= o.scale)] == []


def test_a_disabled_scaler_is_none() -> None:
    """Nothing is scaled, so nothing has to be unscaled."""

    def program(t: Training) -> None:
        t.optimizer.zero_grad()
        t.scaler.scale(t.loss()).backward()
        t.model[0].weight.sum().backward()
        clip_grad_norm_(t.model.parameters(), 0.01)
        t.finish()

    assert observations(program, Training(enabled=False)) == []


def test_other_trainings_of_the_process_are_not_ours() -> None:
    """A teacher that trains under autocast by itself, with a clip and a step of its own."""
    teacher = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(teacher.parameters(), lr=1e-3)

    def program(t: Training) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            (teacher(X).float().mean() * (float("inf") if t.step == 3 else 1.0)).backward()
        clip_grad_norm_(teacher.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
        t.optimizer.zero_grad()
        t.scaler.scale(t.loss()).backward()
        t.finish()

    assert observations(program) == []


@pytest.mark.parametrize("foreach", [True, False])
def test_clipping_before_unscale_is_seen_with_its_numbers(*, foreach: bool) -> None:
    """The norm is that of the scaled gradients, as ``clip_grad_norm_`` returns it."""
    norms = []

    def program(t: Training) -> None:
        t.optimizer.zero_grad()
        t.scaler.scale(t.loss()).backward()
        norms.append(float(clip_grad_norm_(t.model.parameters(), 0.25, foreach=foreach)))
        t.finish()

    seen = observations(program, Training(growth_interval=1000), steps=5)

    assert [(type(o), o.step, o.optimizer, o.limit, o.scale) for o in seen] == [
        (ScaledClip, step, 0, 0.25, 16.0) for step in range(5)
    ]
    assert [o.norm for o in seen] == pytest.approx(norms)
    assert all(o.source.startswith(__file__) for o in seen)


def test_clipping_without_effect_is_not_a_mistake_yet() -> None:
    """A norm below the limit leaves the gradients as they are."""

    def program(t: Training) -> None:
        t.optimizer.zero_grad()
        t.scaler.scale(1e-3 * t.loss()).backward()
        clip_grad_norm_(t.model.parameters(), 5.0)
        t.finish()

    assert observations(program, Training(growth_interval=1000)) == []


def test_a_step_around_the_scaler_is_seen_at_once_and_late() -> None:
    """In the first iteration; and where it begins long after, in the next but one."""

    def always(t: Training) -> None:
        t.optimizer.zero_grad()
        t.scaler.scale(t.loss()).backward()
        t.optimizer.step()

    def late(t: Training) -> None:
        if t.step < 50:
            t.optimizer.zero_grad()
            t.scaler.scale(t.loss()).backward()
            t.finish()
        else:
            always(t)

    assert [type(o) for o in observations(always, steps=3)] == [ScaledStep] * 3
    assert observations(late, steps=60)[0].step <= 51


def test_gradients_of_two_scales_are_reported_once_their_scales_have_arrived() -> None:
    """Scales on a device are not waited for; the one of the newest update arrives last."""
    t, device = Training(), FakeDevice()
    bench = Bench([t.model], t.scaler, parts={"deferred": Deferred(device)})
    bench.install(GradientUseSensor(bench.context))
    try:
        t.scaler.scale(t.loss()).backward()
        t.scaler.update(64.0)
        t.scaler.scale(t.loss()).backward()
        t.scaler.step(t.optimizer)
        t.scaler.update()
        before = [type(seen) for seen in bench.seen]
        device.done = device.recorded
        bench.context.deferred.poll()
    finally:
        bench.remove()

    found = [seen for seen in bench.seen if isinstance(seen, MixedScales)]
    assert MixedScales not in before
    assert [(seen.other, seen.scale, seen.updates) for seen in found] == [(16.0, 64.0, 1)]


@pytest.mark.parametrize(
    ("scale", "is_zeroed", "found"),
    [(64.0, False, [(64.0, 16.0, True)]), (16.0, False, []), (64.0, True, [])],
    ids=["two scales", "the same scale", "zeroed before its own loss"],
)
def test_losses_that_another_scaler_has_scaled_are_reported(
    scale: float, found: list[tuple[float, float, bool]], *, is_zeroed: bool
) -> None:
    """Where its scale is another one: a step divides by the scale of its own scaler."""
    another = torch.amp.GradScaler("cpu", init_scale=scale)

    def program(t: Training) -> None:
        another.scale(t.loss()).backward()
        if is_zeroed:
            t.optimizer.zero_grad()
        t.scaler.scale(t.loss()).backward()
        t.finish()
        t.optimizer.zero_grad()

    seen = [o for o in observations(program, steps=1) if isinstance(o, MixedScales)]
    assert [(o.other, o.scale, o.is_of_other) for o in seen] == found


def test_a_closure_that_scales_is_seen() -> None:
    """LBFGS goes back inside its own step."""

    def program(t: Training) -> None:
        optimizer = torch.optim.LBFGS(t.model.parameters(), lr=1e-4, max_iter=2)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = t.scaler.scale(t.loss())
            loss.backward()
            return loss

        optimizer.step(closure)

    seen = observations(program, steps=2)

    assert {type(o) for o in seen} == {ScaledStep}


def test_an_unscaled_loss_beside_a_scaled_one_is_seen_in_either_order() -> None:
    """First or second, from the start or later: within two iterations."""

    def program(order: bool, begin: int) -> Callable[[Training], None]:  # noqa: FBT001 - two cases
        def step(t: Training) -> None:
            t.optimizer.zero_grad()
            losses = [t.scaler.scale(t.loss())]
            if t.step >= begin:
                losses.insert(int(order), t.model[0].weight.square().sum())
            for loss in losses:
                loss.backward()
            t.finish()

        return step

    for order in (False, True):
        for begin in (0, 50):
            seen = observations(program(order, begin), steps=begin + 6)
            assert {type(o) for o in seen} == {MixedGradients}
            assert begin <= seen[0].step <= begin + 1
            assert (seen[-1].parameter, seen[-1].mix) == ("0.0.weight", Mix.BESIDE)


@pytest.mark.parametrize("wraps", [True, False])
def test_gradients_that_are_divided_twice_are_seen(*, wraps: bool) -> None:
    """unscale_ of an object around the optimizer, or before an update; the step divides again."""

    def program(t: Training) -> None:
        t.optimizer.zero_grad()
        t.scaler.scale(t.loss()).backward()
        wrapper = type("Wrapper", (), {"param_groups": t.optimizer.param_groups})()
        t.scaler.unscale_(wrapper if wraps else t.optimizer)
        if not wraps:
            t.scaler.update()
        t.finish()

    assert {o.mix for o in observations(program)} == {Mix.TWICE}


def test_the_parts_of_a_sum_are_distinguished_by_the_optimizers_they_reach() -> None:
    """A sum of a scaled loss and a plain one of another optimizer, outside the scaler, is right."""

    def program(mixed: bool) -> Callable[[Training], None]:  # noqa: FBT001 - two cases
        def step(t: Training) -> None:
            t.optimizer.zero_grad()
            t.second.zero_grad()
            aside = (t.model if mixed else t.other)[0].weight.square().sum()
            (t.scaler.scale(t.loss()) + aside).backward()
            t.second.step()
            t.finish()

        return step

    assert observations(program(mixed=False)) == []
    assert {type(o) for o in observations(program(mixed=True))} == {MixedGradients}


def test_backward_under_autocast_is_seen_and_checkpointing_is_not() -> None:
    """Every call counts once, whatever it computes again inside."""

    def program(t: Training) -> None:
        t.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = checkpoint(t.model, X.clone().requires_grad_(), use_reentrant=True)
            t.scaler.scale(out.float().mean()).backward()
        t.finish()

    seen = observations(program, steps=4)

    assert [(type(o), o.step, o.dtype) for o in seen] == [
        (AutocastBackward, step, "float16") for step in range(4)
    ]


def test_a_region_that_is_held_from_step_to_step_is_reported_as_held() -> None:
    """The first of its backwards may be the usual slip, and is told with the others or not at all."""

    def program(t: Training) -> None:
        t.optimizer.zero_grad()
        t.scaler.scale(t.model(X).float().mean()).backward()
        t.finish()

    with torch.autocast("cpu", dtype=torch.float16):
        seen = observations(program, steps=5)

    assert [(o.step, o.is_held) for o in seen] == [(step, True) for step in (2, 3, 4)]


class Plugin:
    """A precision plugin of Lightning, that of mixed precision if it is ``mixed``."""

    def __init__(self, *, mixed: bool) -> None:
        if mixed:
            self.autocast_context_manager = torch.autocast


@pytest.mark.parametrize(("mixed", "owner"), [(True, "Lightning's Trainer"), (False, "")])
def test_the_region_of_lightnings_trainer_is_reported_as_its_own(
    owner: str, *, mixed: bool
) -> None:
    """Where the Trainer has none, a region around manual_backward is the user's."""
    # A method of that name in a module of that name is what there is on the stack.
    place: dict[str, Any] = {"__name__": "lightning.pytorch.core.module"}
    exec("def manual_backward(self, loss): loss.backward()", place)
    module = SimpleNamespace(trainer=SimpleNamespace(precision_plugin=Plugin(mixed=mixed)))

    def program(t: Training) -> None:
        t.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = t.scaler.scale(t.model(X).float().mean())
            place["manual_backward"](module, loss)
        t.finish()

    assert {o.region_of for o in observations(program, steps=2)} == {owner}


def test_a_nonfinite_norm_names_the_parameter_where_backward_met_it() -> None:
    """The last layer that has any, of what is finite after it and broken before."""

    def program(t: Training) -> None:
        t.optimizer.zero_grad()
        nn.functional.mse_loss(t.model(X), Y).backward()
        if t.step == 2:
            for p in t.model[0].parameters():
                p.grad.fill_(float("nan"))
        clip_grad_norm_(t.model.parameters(), 0.01)
        t.optimizer.step()

    (seen,) = observations(program, Training(enabled=False), steps=3)

    assert isinstance(seen, NonfiniteClip)
    assert (seen.step, seen.optimizer, seen.parameter, seen.broken) == (2, 0, "0.0.weight", 64)


def test_a_training_of_another_thread_is_not_mixed_with_ours() -> None:
    """The other backward begins and ends while ours runs; the losses there are not scaled."""
    aside = nn.Linear(8, 1)

    class Meanwhile(torch.autograd.Function):
        """Runs another training's backward in the middle of ours."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            other = threading.Thread(target=lambda: aside(X).mean().backward())
            other.start()
            other.join()
            return gradient

    def program(t: Training) -> None:
        t.optimizer.zero_grad()
        t.scaler.scale(Meanwhile.apply(t.loss())).backward()
        if t.step >= 4:
            t.optimizer.step()
        else:
            t.finish()

    assert {type(o) for o in observations(program, steps=6)} == {ScaledStep}


def test_parameters_that_no_optimizer_holds_are_not_searched_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the head is trained, and nobody has frozen the rest: its gradients stay for ever."""
    searches: list[int] = []
    before = GradContents.before

    def counted(self: GradContents, parameters: Any) -> Any:
        searches.append(1)
        return before(self, parameters)

    monkeypatch.setattr(GradContents, "before", counted)
    training = Training(growth_interval=100)
    training.optimizer = torch.optim.SGD(training.model[2].parameters(), lr=1e-4)

    def program(t: Training) -> None:
        t.scaler.scale(t.loss()).backward()
        t.finish()
        t.optimizer.zero_grad()

    assert observations(program, training, steps=3 * FOLLOWED) == []
    assert len(searches) <= FOLLOWED_STEPS + 1
