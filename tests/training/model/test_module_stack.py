"""In which module ops run, forward and backward, whatever the model does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from threading import get_ident
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ampwatch.numerics.units.ops import Phase
from ampwatch.training.model import module_stack
from tests.training.sensors.counting import Counted

FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD


class Net(nn.Module):
    """Two layers inside a block, one beside it, and a function between them."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.last = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(x).sin())


def matmuls(counted: Counted, phase: Phase) -> dict[str, int]:
    ops = ("addmm", "mm")
    modules = {key.module for key, _ in counted.of(phase=phase) if key.op in ops}
    return {m: sum(counted.sum(op=op, module=m, phase=phase) for op in ops) for m in modules}


def test_ops_are_in_the_innermost_module_forward_and_backward() -> None:
    """A function between modules is in the one that calls it."""
    model = Net()
    with Counted(model) as counted:
        model(torch.randn(2, 4)).cos().sum().backward()

    assert matmuls(counted, FORWARD) == {"block.0": 1, "block.1": 1, "last": 1}
    assert matmuls(counted, BACKWARD) == {"block.0": 1, "block.1": 2, "last": 2}
    assert counted.by("module", op="sin", phase=FORWARD) == {"": 1}
    assert counted.by("module", op="cos", phase=FORWARD) == {"": 1}
    # The gradient of the sine after a block, which is not in the module before.
    assert counted.by("module", op="cos", phase=BACKWARD) == {"": 1}


def test_a_module_that_is_called_twice_has_both_calls() -> None:
    """Tied modules have one name: the first."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.same = self.a
            self.b = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.same(self.b(self.a(x)))

    model = Twice()
    with Counted(model) as counted:
        model(torch.randn(2, 4)).sum().backward()

    assert matmuls(counted, FORWARD) == {"a": 2, "b": 1}
    assert matmuls(counted, BACKWARD) == {"a": 3, "b": 2}


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_checkpointing_computes_again_is_backward_in_its_modules(*, reentrant: bool) -> None:
    """One more forward of each, and the same backward."""

    class Saving(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(checkpoint(self.block, x, use_reentrant=reentrant))

    model = Saving()
    x = torch.randn(2, 4, requires_grad=True)
    with Counted(model) as counted:
        model(x).sum().backward()

    assert matmuls(counted, FORWARD) == {"block.0": 1, "block.1": 1, "last": 1}
    backward = matmuls(counted, BACKWARD)
    assert backward["last"] == 2
    # PyTorch stops to compute again once it has what it needs: the last one is not run for that.
    assert backward["block.0"] == 3
    assert backward["block.1"] in (2, 3)
    assert set(backward) == {"block.0", "block.1", "last"}


def test_after_an_exception_in_a_forward_names_are_right_again() -> None:
    """The user catches it and goes on, in the same iteration."""

    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError

    model = nn.ModuleDict({"good": nn.Linear(4, 4), "bad": nn.Sequential(Failing())})
    outer = nn.Sequential(model["bad"])
    with Counted(model) as counted:
        with pytest.raises(ValueError, match=r"^$"):
            outer(torch.randn(2, 4))
        model["good"](torch.randn(2, 4)).sin().sum().backward()

    assert matmuls(counted, FORWARD) == {"good": 1}
    assert matmuls(counted, BACKWARD) == {"good": 1}
    assert counted.by("module", op="sin") == {"": 1}


def test_an_interrupt_leaves_no_module_behind_once_its_caller_is_left() -> None:
    """Hooks are not called for it; the enclosing module cleans up."""

    class Stopping(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

    class Catching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Stopping()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                self.inner(x)
            except KeyboardInterrupt:
                return self.linear(x)

    model = Catching()
    with Counted(model) as counted:
        model(torch.randn(2, 4)).sin().sum().backward()

    assert matmuls(counted, FORWARD) == {"linear": 1}
    assert counted.by("module", op="sin") == {"": 1}


def test_a_gradient_of_a_gradient_is_backward() -> None:
    """A penalty on it is made outside of all modules, and nodes of backward are in none."""
    model = Net()
    x = torch.randn(2, 4, requires_grad=True)
    with Counted(model) as counted:
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        penalty = gradient.norm().square()
        penalty.backward()

    assert matmuls(counted, FORWARD) == {"block.0": 1, "block.1": 1, "last": 1}
    backward = matmuls(counted, BACKWARD)
    assert backward["block.0"] >= 1
    assert sum(backward.values()) >= 6
    # It needs a gradient itself: not what comes between backward and the optimizer.
    assert counted.by("phase", op="linalg_vector_norm") == {FORWARD: 1}


def test_a_gradient_taken_inside_a_forward_is_in_that_module() -> None:
    """A module of physics does this: the output is a derivative."""

    class Force(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.autograd.grad(self.energy(x).tanh().sum(), x, create_graph=True)[0]

    model = Force()
    with Counted(model) as counted:
        model(torch.randn(2, 4, requires_grad=True)).sum().backward()

    assert matmuls(counted, FORWARD) == {"energy": 1}
    assert "energy" in matmuls(counted, BACKWARD)


def _double(x: torch.Tensor) -> torch.Tensor:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: torch.Tensor) -> torch.Tensor:
            return y.sinh()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient.cosh()

    return Double.apply(x)  # type: ignore[no-any-return]


def _saved(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.sinh(), lambda t: t.cosh()):
        return x.exp()


@pytest.mark.parametrize("call", [_double, _saved])
def test_a_function_of_the_user_is_in_the_module_that_called_it(
    call: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """An ``autograd.Function`` records no gradients inside, and is part of the forward pass."""

    class Calling(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return call(x)

    model = nn.Sequential(nn.Linear(4, 4), Calling())
    with Counted(model) as counted:
        model(torch.randn(2, 4)).sum().backward()

    assert [(k.module, k.phase) for k, _ in counted.of(op="sinh")] == [("1", FORWARD)]
    assert [(k.module, k.phase) for k, _ in counted.of(op="cosh")] == [("1", BACKWARD)]


def test_of_very_many_calls_the_first_are_named_and_none_is_named_wrongly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calls without gradients leave nothing behind at all."""
    monkeypatch.setattr(module_stack, "MAX_MARKS", 6)
    model = Net()
    with Counted(model) as counted:
        with torch.no_grad():
            for _ in range(10):
                model(torch.randn(2, 4))
        model(torch.randn(2, 4)).sum().backward()

    # block, block.0, block, block.1 are the places 2 to 5; what comes after place 6 has no name.
    assert matmuls(counted, BACKWARD) == {"block.0": 1, "block.1": 2, "": 2}


def test_an_interrupt_at_any_instant_of_a_mark_names_no_later_node_wrongly() -> None:
    """At each of its bytecodes, more than where Python handles signals; each call is made again."""
    stack = module_stack.ModuleStack()
    code, me, named = module_stack.ModuleStack._mark.__code__, get_ident(), list[str]()
    weight = torch.ones(2, requires_grad=True)

    def marked(name: str, at: int) -> bool:
        """Mark, but be interrupted at one of the bytecodes; return whether there is one."""
        passed = count()

        def trace(frame: FrameType, _event: str, _argument: object) -> Any:
            def at_opcode(_frame: FrameType, event: str, _argument: object) -> Any:
                if event == "opcode" and next(passed) == at:
                    raise KeyboardInterrupt
                return at_opcode

            if frame.f_code is not code:
                return None
            frame.f_trace_opcodes = True
            return at_opcode

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            stack._mark(name)
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    def named_of_a_node() -> str:
        node = weight * 2
        node.register_hook(lambda _: named.append(stack.name_of_node(me)))
        node.sum().backward()
        return named[-1]

    instant = 0
    while marked(f"interrupted{instant}", instant):
        stack._mark(f"whole{instant}")
        assert named_of_a_node() == f"whole{instant}"
        instant += 1

    assert instant > 20
