"""A training that transforms of ``torch.func`` are a part of is watched like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jvp, vmap

import ampwatch
from ampwatch import Monitor

State = dict[str, torch.Tensor]

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
"""PyTorch scripts its rules for forward-mode AD at the first use."""

STEPS = 10
PLANTED = (3, 7)
"""Iterations whose forward overflows: the first within the transform, the second after the last one."""


class Gain(nn.Module):
    """Multiplies."""

    def __init__(self) -> None:
        super().__init__()
        self.by = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


class Model(nn.Module):
    """Two layers, a gain between them, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.gain, self.after = nn.Linear(8, 8), Gain(), nn.Linear(8, 1)
        self.register_buffer("shift", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.after(self.gain(self.before(x)) + self.shift)
        return out


class Training:
    """A training with float16 whose first steps are computed through a transform."""

    def __init__(self, transform: str, level: str | None, *, is_lazy: bool = False) -> None:
        torch.manual_seed(0)
        self.model = Model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        if not is_lazy:
            self.scaler.scale(torch.zeros(()))
        self._transform: Callable[[Training, State, torch.Tensor], State] = TRANSFORMS[transform]
        self.monitor: Monitor | None = None
        if level is not None:
            self.monitor = ampwatch.monitor(self.model, self.scaler, level=level, serve=False)
        for step in range(STEPS):
            self.model.gain.by = 1e6 if step in PLANTED else 1.0
            self.optimizer.zero_grad()
            self._backward(torch.randn(8, 8), transformed=step < PLANTED[1] - 1)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self.monitor is not None:
            self.monitor.close()

    def _backward(self, x: torch.Tensor, *, transformed: bool) -> None:
        parameters = dict(self.model.named_parameters())
        if not transformed:
            self.loss(parameters, x).backward()
            return
        detached = {name: p.detach() for name, p in parameters.items()}
        gradients = self._transform(self, detached, x)
        for name, parameter in parameters.items():
            parameter.grad = gradients[name].detach()

    def loss(self, parameters: State, x: torch.Tensor) -> torch.Tensor:
        """Return the scaled loss."""
        with torch.autocast("cpu", dtype=torch.float16):
            out = functional_call(self.model, parameters, (x,))
        return self.scaler.scale(out.float().square().mean())

    def bits(self) -> list[Any]:
        """Return everything that watching may not change."""
        state = [t.numpy().tobytes() for t in self.model.state_dict().values()]
        return [*state, self.scaler.state_dict(), torch.get_rng_state().tolist()]


def _per_sample(training: Training, parameters: State, x: torch.Tensor) -> State:
    gradients = vmap(grad(training.loss), in_dims=(None, 0))(parameters, x[:, None])
    return {name: g.mean(0) for name, g in gradients.items()}


def _hessian_vector(training: Training, parameters: State, x: torch.Tensor) -> State:
    direction = {name: 1e-3 * p for name, p in parameters.items()}
    gradient = grad(lambda p: training.loss(p, x))
    return dict(jvp(gradient, (parameters,), (direction,))[1])


def _jacobian(training: Training, parameters: State, x: torch.Tensor) -> State:
    found = jacfwd(lambda p: functional_call(training.model, p, (x,)))(parameters)
    return {name: j.mean((0, 1)) for name, j in found.items()}


def _curvature(training: Training, parameters: State, x: torch.Tensor) -> State:
    hessian(lambda given: training.loss(parameters, given))(x)
    return dict(grad(training.loss)(parameters, x))


TRANSFORMS: dict[str, Any] = {
    "grad": lambda training, parameters, x: grad(training.loss)(parameters, x),
    "vmap of grad": _per_sample,
    "jvp of grad": _hessian_vector,
    "jacfwd": _jacobian,
    "hessian": _curvature,
}


@pytest.mark.parametrize(
    ("transform", "level"), [*((name, "standard") for name in TRANSFORMS), ("jvp of grad", "deep")]
)
def test_a_transform_costs_no_sensor(transform: str, level: str, one_thread: None) -> None:
    """All sensors live on, nothing changes, and the overflow after the last transform has its module."""
    bare, watched = Training(transform, None), Training(transform, level)

    assert watched.bits() == bare.bits()
    assert watched.monitor is not None
    assert not [line for line in watched.monitor.report().splitlines() if "failed" in line]
    found = [f for f in watched.monitor.findings if f.kind == "forward_overflow"]
    assert [f.where for f in found] == ["gain"]
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_scale_that_was_made_within_a_transform_is_read(one_thread: None) -> None:
    """The scaler makes its tensors at the first call of ``scale``: they hide their memory for good."""
    bare = Training("grad", None, is_lazy=True)
    watched = Training("grad", "standard", is_lazy=True)

    assert watched.bits() == bare.bits()
    assert watched.monitor is not None
    assert "failed" not in watched.monitor.report()
    last = watched.monitor.last_step
    assert (last.step, last.loss_scale) == (STEPS - 1, bare.scaler.get_scale())


def test_an_op_within_grad_is_named(one_thread: None) -> None:
    """Below a transform arrive the tensors themselves: the overflow in its forward is seen there."""
    training = Training("grad", "standard")

    assert training.monitor is not None
    (found,) = [f for f in training.monitor.findings if f.kind == "forward_overflow"]
    assert found.first_step == PLANTED[0]
