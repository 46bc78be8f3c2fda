"""Steps on scaled gradients where the program might have divided them unseen: in hooks, and in its own scaler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import ampwatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.wire.records import Finding

pytestmark = pytest.mark.usefixtures("one_thread")

SCALE = 128.0


class Program:
    """A model, its optimizer and a scaler."""

    def __init__(
        self,
        scaler: type[torch.amp.GradScaler] = torch.amp.GradScaler,
        optimizer: Callable[..., Any] = torch.optim.SGD,
        rate: float = 1e-3,
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = optimizer(self.model.parameters(), lr=rate)
        self.scaler = scaler("cpu", init_scale=SCALE)

    def backward(self) -> None:
        x = torch.randn(16, 8)
        with torch.autocast("cpu", dtype=torch.float16):
            out = self.model(x)
        self.scaler.scale((out.float() - 1.0).square().mean()).backward()

    def end(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def found(self, end: Callable[[], object], *, level: str = "standard") -> list[Finding]:
        """Train; return what is said about steps on scaled gradients."""
        with ampwatch.monitor(self.model, self.scaler, level=level, serve=False) as watch:
            for _ in range(12):
                self.backward()
                end()
                self.optimizer.zero_grad()
            assert not any(guard.off for guard in watch._session.bus.guards)
        return [f for f in watch.findings if f.kind == "unscaled_step"]


def _gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p.grad for group in optimizer.param_groups for p in group["params"]]


class Logs(torch.amp.GradScaler):
    """Logs the right norm, and steps by itself."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self.norm = torch.stack([g.norm() for g in _gradients(optimizer)]).norm() / self.get_scale()
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        """Leave the scale."""


class Quiet(Logs):
    """Asks for nothing."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)


class Divides(Logs):
    """Divides by itself."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        for gradient in _gradients(optimizer):
            gradient.div_(self.get_scale())
        return optimizer.step(*args, **kwargs)


class DividesUnseen(Logs):
    """Divides by a number that nobody sees asked for, and no counter tells."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        for gradient in _gradients(optimizer):
            gradient.data.div_(SCALE)
        return optimizer.step(*args, **kwargs)


class DividesTheRate(Logs):
    """Makes the step smaller in place of the gradients."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        optimizer.param_groups[0]["lr"] = 1e-3 / self.get_scale()
        return optimizer.step(*args, **kwargs)


class UnscalesFirst(Logs):
    """Has them unscaled, and steps by itself."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self.unscale_(optimizer)
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        """Leave that to PyTorch."""
        torch.amp.GradScaler.update(self, new_scale)


class Extends(torch.amp.GradScaler):
    """Leaves the step to PyTorch."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self.get_scale()
        return super().step(optimizer, *args, **kwargs)


class DividesWithin(torch.optim.SGD):
    """Is told of the scale, and divides itself."""

    def step(self, closure: Any = None, *, scale: float = 1.0) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad, alpha=-group["lr"] / scale)


class HandsOver(Logs):
    """Tells the optimizer."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, scale=self.get_scale(), **kwargs)


@pytest.mark.parametrize("scaler", [Logs, Quiet])
@pytest.mark.parametrize("level", ["standard", "deep"])
def test_a_scaler_of_ones_own_that_never_unscales_is_seen(
    scaler: type[torch.amp.GradScaler], level: str
) -> None:
    """Whether it asks for the scale, as for a log, or not."""
    program = Program(scaler)

    (finding,) = program.found(lambda: program.scaler.step(program.optimizer), level=level)

    assert (finding.where, finding.phase) == ("optimizer:0", "optimizer")
    assert finding.evidence == {"loss_scale": SCALE, "parameters": 4.0}
    assert "overridden step()" in finding.summary


@pytest.mark.rotating
@pytest.mark.parametrize("scaler", [Divides, DividesUnseen, DividesTheRate, UnscalesFirst, Extends])
@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_that_divides_in_its_own_way_is_right(
    scaler: type[torch.amp.GradScaler], *, fused: bool
) -> None:
    """By arithmetic of its own, unseen or not, or by the learning rate; with an optimizer that may divide too."""
    program = Program(scaler, lambda *a, **k: torch.optim.SGD(*a, **k, fused=fused))

    assert program.found(program.end) == []


def test_an_optimizer_that_is_handed_the_scale_is_right() -> None:
    """Its step takes more than a closure."""
    program = Program(HandsOver, DividesWithin)

    assert program.found(lambda: program.scaler.step(program.optimizer)) == []


def test_a_step_after_the_scale_was_asked_for_is_judged_by_the_gradients() -> None:
    """A log of the scale divides nothing; a division through ``.data`` does, which no counter shows."""
    wrong, right = Program(), Program()

    def log_and_step() -> None:
        wrong.scaler.get_scale()
        wrong.optimizer.step()

    def divide_and_step() -> None:
        scale = right.scaler.get_scale()
        for gradient in _gradients(right.optimizer):
            gradient.data.div_(scale)
        right.optimizer.step()

    assert len(wrong.found(log_and_step)) == 1
    assert right.found(divide_and_step) == []


# In a hook of another optimizer.


def _chained(before: Callable[[Program, Any], object]) -> list[Finding]:
    """Step an optimizer of its own for the first weight whenever the other one has stepped."""
    program = Program()
    weight, *others = program.model.parameters()
    program.optimizer = torch.optim.SGD(others, lr=1e-3)
    second = torch.optim.SGD([weight], lr=1e-3)

    def step(*_: Any) -> None:
        before(program, second)
        second.step()
        second.zero_grad()

    program.optimizer.register_step_post_hook(step)

    return program.found(program.end)


def test_an_optimizer_that_a_hook_of_another_steps_is_seen() -> None:
    """The scaler unscales the gradients of the one that it was given."""
    (finding,) = _chained(lambda _program, _second: None)

    assert (finding.where, finding.phase) == ("optimizer:1", "optimizer")
    assert "was stepped directly" in finding.summary


def _unscales(program: Program, second: Any) -> None:
    program.scaler.unscale_(second)


def _divides(program: Program, second: Any) -> None:
    for gradient in _gradients(second):
        gradient.data.div_(SCALE)


@pytest.mark.rotating
@pytest.mark.parametrize("before", [_unscales, _divides])
def test_a_hook_that_divides_may_step(before: Callable[[Program, Any], object]) -> None:
    """By the scaler or by itself."""
    assert _chained(before) == []


class Around(torch.optim.SGD):
    """Steps the optimizer that it is around, as Lookahead does."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=0.0)
        self.inner = torch.optim.SGD(self.param_groups[0]["params"], lr=lr)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()
        super().step(closure)


class AroundAndDivides(Around):
    """Takes the scale from the scaler, and divides by it on the device."""

    _step_supports_amp_scaling = True

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for gradient in _gradients(self):
            if self.grad_scale is not None:  # the user may have had them unscaled
                gradient.div_(self.grad_scale)
        self.inner.step(closure)


class AroundFused(Around):
    """Hands the scale on to a fused optimizer."""

    _step_supports_amp_scaling = True

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr)
        self.inner = torch.optim.SGD(self.param_groups[0]["params"], lr=lr, fused=True)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.grad_scale, self.inner.found_inf = self.grad_scale, self.found_inf
        self.inner.step(closure)


@pytest.mark.rotating
@pytest.mark.parametrize("around", [Around, AroundAndDivides, AroundFused])
@pytest.mark.parametrize("unscales", [False, True])
def test_an_optimizer_within_another_one_of_the_same_parameters_is_right(
    around: type[Around], *, unscales: bool
) -> None:
    """The gradients of both are unscaled, whoever does it."""
    program = Program(optimizer=around)

    def end() -> None:
        if unscales:
            program.scaler.unscale_(program.optimizer)
        program.end()

    assert program.found(end) == []


# In the middle of backward.


def _steps_in_backward(change: Callable[[Any, Program], object]) -> list[Finding]:
    program = Program()
    second = torch.optim.SGD([program.model[0].weight], lr=1e-3)
    program.optimizer = torch.optim.SGD(list(program.model.parameters())[1:], lr=1e-3)

    def hook(parameter: Any) -> None:
        change(parameter, program)
        second.step()
        second.zero_grad()

    program.model[0].weight.register_post_accumulate_grad_hook(hook)

    return program.found(program.end)


def test_an_optimizer_that_steps_in_backward_is_seen() -> None:
    """What makes its gradient is the backward of a scaled loss."""
    (finding,) = _steps_in_backward(lambda _p, _t: None)

    assert finding.phase == "backward"
    assert "in the middle of backward" in finding.summary


def _in_place(parameter: Any, _program: Program) -> None:
    parameter.grad.div_(SCALE)


def _through_data(parameter: Any, _program: Program) -> None:
    parameter.grad.data.mul_(1.0 / SCALE)


def _anew(parameter: Any, _program: Program) -> None:
    parameter.grad = parameter.grad / SCALE


@pytest.mark.rotating
@pytest.mark.parametrize("change", [_in_place, _through_data, _anew])
def test_a_hook_that_divides_before_it_steps_is_right(
    change: Callable[[Any, Program], object],
) -> None:
    """However it does it."""
    assert _steps_in_backward(change) == []


def test_a_gradient_that_is_divided_on_its_way_is_right() -> None:
    """By a hook of the parameter: what backward brings is not scaled any more."""
    program = Program()
    second = torch.optim.SGD([program.model[0].weight], lr=1e-3)
    program.model[0].weight.register_hook(lambda gradient: gradient / SCALE)
    program.model[0].weight.register_post_accumulate_grad_hook(lambda _: second.step())

    assert program.found(lambda: None) == []


def test_a_backward_of_a_plain_loss_may_step() -> None:
    """Its own optimizer does not need the scaler."""
    program = Program()
    other = nn.Linear(8, 1)
    second = torch.optim.SGD(other.parameters(), lr=1e-3)
    other.bias.register_post_accumulate_grad_hook(lambda _: second.step())

    def end() -> None:
        other(torch.randn(4, 8)).square().mean().backward()
        program.end()

    assert program.found(end) == []


def test_nothing_is_left_on_the_nodes_of_parameters() -> None:
    """Who holds the node that adds to a gradient finds no hook there afterwards."""
    program = Program()
    weight = program.model[0].weight
    node = torch.autograd.graph.get_gradient_edge(weight).node
    second = torch.optim.SGD([weight], lr=1e-3)
    weight.register_post_accumulate_grad_hook(lambda _: second.step())

    assert program.found(lambda: None)

    placed = node.register_prehook(lambda _: None)
    assert len(placed.hooks_dict_ref()) == 1
    placed.remove()


def test_a_gradient_that_is_always_zero_hides_nothing() -> None:
    """Zero stays zero, whatever it is divided by: the others tell."""
    program = Program(Quiet)
    program.model[0].bias.register_hook(torch.zeros_like)
    dead = nn.Linear(8, 1, bias=False)
    nn.init.zeros_(dead.weight)
    program.model = nn.Sequential(*program.model, nn.Linear(1, 8), dead)
    program.optimizer = torch.optim.SGD(program.model.parameters(), lr=1e-3)

    assert program.found(lambda: program.scaler.step(program.optimizer))


@pytest.mark.parametrize("is_late", [False, True])
def test_a_hook_that_divides_makes_a_step_of_the_optimizer_right(*, is_late: bool) -> None:
    """By a scale that was asked for before backward."""
    program = Program()

    def divide(gradient: Any) -> Any:
        return gradient / SCALE

    def divide_late(parameter: Any) -> None:
        parameter.grad.div_(SCALE)

    for parameter in program.model.parameters():
        if is_late:
            parameter.register_post_accumulate_grad_hook(divide_late)
        else:
            parameter.register_hook(divide)

    assert program.found(program.optimizer.step) == []
