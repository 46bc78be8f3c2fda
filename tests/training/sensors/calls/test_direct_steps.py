"""Steps around the scaler on scaled gradients, compiled ones too, and those before which the program might have divided them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._dynamo
from torch import nn

import ampwatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCALE = 128.0


class Divides(torch.amp.GradScaler):
    """Divides in its own way."""

    def step(self, optimizer: Any, *_args: Any, **_kwargs: Any) -> Any:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.data.div_(SCALE)
        return optimizer.step()

    def update(self, new_scale: Any = None) -> None:
        """Leave the scale."""


def plainly(_scaler: Any, optimizer: Any) -> None:
    optimizer.step()


def after_a_question(scaler: Any, optimizer: Any) -> None:
    scale = scaler.get_scale()
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad.data.mul_(1.0 / scale)
    optimizer.step()


def by_the_scaler(scaler: Any, optimizer: Any) -> None:
    scaler.step(optimizer)
    scaler.update()


def in_compiled_code(_scaler: Any, optimizer: Any) -> None:
    # Not when this file is imported: that is seen by every test of the process.
    torch.compile(plainly, backend="eager")(None, optimizer)


def compiled_after_unscale(scaler: Any, optimizer: Any) -> None:
    scaler.unscale_(optimizer)
    in_compiled_code(scaler, optimizer)
    scaler.update()


def compiled_after_a_question(scaler: Any, optimizer: Any) -> None:
    scale = scaler.get_scale()
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad.data.mul_(1.0 / scale)
    in_compiled_code(scaler, optimizer)


def divided(gradient: torch.Tensor) -> torch.Tensor:
    return gradient / SCALE


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("end", "hook", "is_wrong"),
    [
        (plainly, None, True),
        (plainly, divided, False),
        (after_a_question, None, False),
        (by_the_scaler, None, False),
    ],
)
def test_a_step_is_reported_where_nothing_can_have_divided(
    end: Callable[..., None], hook: Any, *, is_wrong: bool
) -> None:
    """Not after a hook of the program, a question for the scale, or the program's own kind of scaler."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = Divides("cpu", init_scale=SCALE)
    for parameter in model.parameters() if hook else ():
        parameter.register_hook(hook)
    with ampwatch.monitor(model, scaler, serve=False) as watch:
        for _ in range(8):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(16, 8)).square().mean()).backward()
            end(scaler, optimizer)
        assert not any(guard.off for guard in watch._session.bus.guards)

    assert ("unscaled_step" in {f.kind for f in watch.findings}) is is_wrong


@pytest.fixture
def compiler() -> Iterator[None]:
    """The compiler, as if nothing had been compiled, before the test and after it."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# The compiler imports what is deprecated.
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
@pytest.mark.usefixtures("one_thread", "compiler")
@pytest.mark.parametrize(
    ("end", "hook", "is_wrong"),
    [
        (in_compiled_code, None, True),
        (in_compiled_code, divided, False),
        (compiled_after_a_question, None, False),
        (compiled_after_unscale, None, False),
        (by_the_scaler, None, False),
    ],
)
def test_a_step_in_compiled_code_is_reported_by_the_weights_that_have_moved(
    end: Callable[..., None], hook: Any, *, is_wrong: bool
) -> None:
    """Where it is reported the weights have moved by the gradients as backward has left them."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    for parameter in model.parameters() if hook else ():
        parameter.register_hook(hook)
    with ampwatch.monitor(model, scaler, optimizer=optimizer, serve=False) as watch:
        for _ in range(5):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(16, 8)).square().mean()).backward()
            before, gradient = model.weight.detach().clone(), model.weight.grad.clone()
            end(scaler, optimizer)
            is_undivided = torch.allclose(before - 1e-5 * gradient, model.weight)
        assert not any(guard.off for guard in watch._session.bus.guards)

    found = [f for f in watch.findings if f.kind == "unscaled_step"]
    assert bool(found) is is_wrong
    assert is_undivided is (is_wrong or bool(hook))
    if is_wrong:
        assert (found[0].where, found[0].op, found[0].evidence["loss_scale"]) == (
            "optimizer:0",
            "step",
            SCALE,
        )
        assert found[0].advice.startswith("Compile the model and not the step")
