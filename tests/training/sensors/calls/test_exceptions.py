"""Exceptions that end a training, and what is found out about them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import ampwatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.workshop.nursery import Nursery

pytestmark = pytest.mark.usefixtures("one_thread")


def half() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.float16)


def scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=64.0)


def ended(
    model: nn.Module, made: Any, loop: Callable[[], object]
) -> tuple[Exception, list[ampwatch.Finding]]:
    """Run a loop that raises; return what reached the user and the findings."""
    with (
        pytest.raises(Exception) as info,  # noqa: PT011 - any of them
        ampwatch.monitor(model, made, serve=False) as watch,
    ):
        loop()
    return info.value, [f for f in watch.findings if f.kind == "api_error"]


class Masking(nn.Module):
    """Attention as it is often copied."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.project(x) @ self.project(x).transpose(-2, -1)
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        if self.how == "masked_fill":
            return scores.masked_fill(mask, -1e9).softmax(-1)
        if self.how == "masked_fill_":
            scores.masked_fill_(mask.expand_as(scores), torch.tensor(-1e30).item())
            return scores
        return torch.full_like(
            scores,
            -1e9,
        )


@pytest.mark.parametrize("how", ["masked_fill", "masked_fill_", "full_like"])
@pytest.mark.skipif(sys.version_info < (3, 11), reason="columns are known from Python 3.11 on")
def test_a_constant_that_overflows_is_placed_in_its_module_and_its_call(how: str) -> None:
    """Module, op and line, although PyTorch's own function is no frame of the traceback."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ModuleDict({"attention": Masking(how)})["attention"])

    def loop() -> None:
        with half():
            model(torch.randn(2, 4, 8))

    error, (finding,) = ended(model, scaler(), loop)

    assert type(error) is RuntimeError
    assert "without overflow" in str(error)
    assert (finding.where, finding.op, finding.phase) == ("1", how, "forward")
    assert finding.source.startswith(__file__)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_matrix_that_cannot_be_factorized_is_explained_in_half_precision_only(
    *, enabled: bool
) -> None:
    """A float32 training rounds no matrix to half precision."""
    model = nn.Linear(4, 4)

    def loop() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            torch.linalg.cholesky(model(torch.zeros(4, 4)).float() - 9.0 * torch.eye(4))

    assert len(ended(model, None, loop)[1]) == enabled


def test_an_optimizer_without_gradients_is_named_with_its_parameters() -> None:
    """Frozen ones and unused ones, by name."""
    model = nn.ModuleDict({"used": nn.Linear(4, 1), "unused": nn.Linear(4, 1)})
    model["unused"].bias.requires_grad_(requires_grad=False)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in model.values()]
    made = scaler()

    def loop() -> None:
        made.scale(model["used"](torch.randn(2, 4)).mean()).backward()
        for optimizer in optimizers:
            made.step(optimizer)

    error, (finding,) = ended(model, made, loop)

    assert str(error) == "No inf checks were recorded for this optimizer."
    assert (finding.where, finding.op, finding.phase) == ("optimizer:1", "step", "optimizer")
    assert "unused.bias (frozen" in finding.summary
    assert "unused.weight (unused or detached" in finding.summary


@pytest.mark.parametrize("call", ["unscale_ unscale_", "step unscale_", "step step"])
def test_a_call_out_of_order_is_that_of_its_optimizer(call: str) -> None:
    """The three orders that the scaler refuses."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = scaler()

    def loop() -> None:
        made.scale(model(torch.randn(2, 4)).mean()).backward()
        for name in call.split():
            getattr(made, name)(optimizer)

    error, (finding,) = ended(model, made, loop)

    assert (finding.where, finding.phase) == ("optimizer:0", "optimizer")
    assert finding.op == call.rsplit(maxsplit=1)[-1]
    assert str(error)[:20] in finding.summary


def test_a_layer_outside_autocast_that_is_fed_half_is_named() -> None:
    """The layer whose matmul it was, not the one that made the tensor."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def loop() -> None:
        with half():
            hidden = model[0](torch.randn(2, 4))
        model[1](hidden)

    _, (finding,) = ended(model, scaler(), loop)

    assert (finding.where, finding.op, finding.phase) == ("1", "linear", "forward")


@pytest.mark.parametrize("is_decorated", [False, True])
def test_the_backward_of_a_function_is_to_be_decorated(*, is_decorated: bool) -> None:
    """Unless it is, and has been called without autocast."""

    def double(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(True)
        return x * 2

    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient @ torch.ones(4, 4, dtype=torch.float16)

    if is_decorated:
        double = torch.amp.custom_fwd(double, device_type="cpu")
        backward = torch.amp.custom_bwd(backward, device_type="cpu")
    made = {"forward": staticmethod(double), "backward": staticmethod(backward)}
    function: Any = type("Doubled", (torch.autograd.Function,), made)
    model = nn.Linear(4, 4)

    def loop() -> None:
        function.apply(model(torch.ones(2, 4))).sum().backward()

    _, (finding,) = ended(model, scaler(), loop)

    assert finding.phase == "backward"
    assert ("torch.amp.custom_bwd" in finding.advice) is not is_decorated


def test_a_loss_without_a_graph_is_a_matter_of_backward() -> None:
    """Detached somewhere."""
    model = nn.Linear(4, 1)

    def loop() -> None:
        scaler().scale(model(torch.randn(2, 4)).mean().detach()).backward()

    _, (finding,) = ended(model, scaler(), loop)

    assert (finding.where, finding.phase) == ("api", "backward")


def test_the_cause_of_an_exception_is_explained_too() -> None:
    """Frameworks wrap what was raised in one of their own."""
    model = nn.Linear(4, 1)
    made = scaler()

    def loop() -> None:
        try:
            made.scale(model(torch.randn(2, 4)).mean()).backward()
            made.update()
        except AssertionError as error:
            msg = "the trainer failed"
            raise KeyError(msg) from error

    error, (finding,) = ended(model, made, loop)

    assert type(error) is KeyError
    assert "No inf checks were recorded prior to update" in finding.summary


@pytest.mark.parametrize("error", [ValueError("bad batch"), ZeroDivisionError(), StopIteration()])
def test_what_is_not_known_is_passed_on_without_a_word(error: Exception) -> None:
    """The very object, and no finding."""

    def loop() -> None:
        raise error

    reached, findings = ended(nn.Linear(4, 1), scaler(), loop)

    assert reached is error
    assert findings == []


def test_what_the_user_has_caught_is_no_finding() -> None:
    """A program that goes on has no error to explain; nor has one that is interrupted."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = scaler()
    with ampwatch.monitor(model, made, serve=False) as watch:
        made.scale(model(torch.randn(2, 4)).mean()).backward()
        made.step(optimizer)
        with pytest.raises(RuntimeError):
            made.step(optimizer)
        made.update()

    with (
        pytest.raises(KeyboardInterrupt),
        ampwatch.monitor(model, made, serve=False) as interrupted,
    ):
        raise KeyboardInterrupt

    assert [f.kind for f in (*watch.findings, *interrupted.findings) if f.kind == "api_error"] == []


PROGRAM = """
import torch, ampwatch
model = torch.nn.Linear(4, 1)
scaler = torch.amp.GradScaler("cpu")
ampwatch.monitor(model, scaler, serve=False, level="light")
scaler.scale(model(torch.randn(2, 4)).mean()).backward()
scaler.update()
"""


def test_a_program_that_dies_of_it_is_explained_beside_its_traceback(nursery: Nursery) -> None:
    """Without a with-block: the interpreter ends, the traceback is as always."""
    done = nursery.start(PROGRAM)

    assert done.wait() == 1
    assert "AssertionError: No inf checks were recorded prior to update." in done.stderr
    assert "api_error in " in done.stderr
    assert ": Training ended at step 0" in done.stderr
    assert "ampwatch explain api_error" in done.stderr


class MuteError(RuntimeError):
    """An exception that raises when it is asked for its text."""

    def __str__(self) -> str:
        raise ValueError


class Raising(nn.Module):
    """It raises."""

    def forward(self, _x: torch.Tensor) -> torch.Tensor:
        raise MuteError


def test_an_exception_in_a_compiled_part_is_explained_too() -> None:
    """What ``torch.compile`` has wrapped has no truth: its ``len`` is that of the module."""
    model = nn.Sequential(nn.Linear(2, 2), torch.compile(Raising(), backend="eager"))  # type: ignore[arg-type]
    with pytest.raises(MuteError), ampwatch.monitor(model, None, serve=False) as watch:
        model(torch.ones(1, 2))
    assert "switched off" not in watch.report()


def test_an_exception_without_a_text_reaches_the_user_and_no_sensor_fails() -> None:
    """The class is known; the exception that goes on is the user's own."""
    seen = MuteError()
    with (
        pytest.raises(MuteError) as info,
        ampwatch.monitor(nn.Linear(2, 2), None, serve=False) as watch,
    ):
        raise seen
    assert info.value is seen
    assert "switched off" not in watch.report()
