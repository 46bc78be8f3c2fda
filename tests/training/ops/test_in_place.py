"""Ops that write, and ops of users: the same bits, graph and versions under the mode as without."""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ampwatch
from ampwatch.training.ops.mode import OpMode

if TYPE_CHECKING:
    from collections.abc import Callable

Target = tuple[torch.Tensor, torch.Tensor]
"""What is written to, and a leaf."""


def _product() -> Target:
    leaf = torch.linspace(0.2, 0.8, 9).reshape(3, 3).requires_grad_()
    return leaf * 0.9, leaf


def _view() -> Target:
    base, leaf = _product()
    return base.t(), leaf


def _slice() -> Target:
    base, leaf = _product()
    return base[:2], leaf


def _of_a_gradient() -> Target:
    leaf = torch.linspace(0.2, 0.8, 9).reshape(3, 3).requires_grad_()
    loss = torch.nn.functional.linear(torch.full((2, 3), 0.3), leaf).square().sum()
    return torch.autograd.grad(loss, leaf, create_graph=True)[0], leaf


def _detached() -> Target:
    base, leaf = _product()
    return base.detach(), leaf


def _leaf() -> Target:
    leaf = torch.linspace(0.2, 0.8, 9).reshape(3, 3).requires_grad_()
    return leaf, leaf


TARGETS = (_product, _view, _slice, _of_a_gradient, _detached, _leaf)

NUMBERS = {"Scalar": 0.5, "float": 0.5, "number": 0.5, "int": 0, "SymInt": 0, "bool": False}

CONSTANTS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda like: torch.full_like(like, 0.4).detach(),
    lambda _: torch.tensor(0.4),
    lambda like: torch.zeros(like.shape, dtype=torch.long),
    lambda like: torch.ones(like.shape, dtype=torch.bool),
    lambda like: torch.arange(len(like)),
)
"""What is given to an op besides what it writes to: the first that it takes."""


def _overloads() -> dict[str, Any]:
    """Return all ops of PyTorch that write to what they are given, by name."""
    found: dict[str, Any] = {}
    for full in torch._C._dispatch_get_all_op_names():
        space, _, name = full.partition("::")
        packet, _, overload = name.partition(".")
        func = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if space != "aten" or func is None or not func._schema.is_mutable:
            continue
        if not any(argument.is_out for argument in func._schema.arguments):
            found[name] = func
    return found


OVERLOADS = _overloads()


def _given(
    func: Any, target: torch.Tensor, constant: torch.Tensor
) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument in func._schema.arguments:
        if argument.has_default_value():
            continue
        kind = str(argument.type)
        value: Any
        if "Tensor" in kind:
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            value = target if is_written else constant
            if argument.name == "scalars":
                value = torch.tensor([0.4])
        else:
            value = NUMBERS.get(re.sub(r"List\[(.*)\]", r"\1", kind))
        value = [value] if kind.startswith("List") else value
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


def _chain(node: Any) -> list[str]:
    names: list[str] = []
    nodes = [node]
    while nodes:
        if (node := nodes.pop()) is not None:
            names.append(node.name())
            nodes += [of for of, _ in node.next_functions]
    return names


def _outcome(
    call: Callable[[torch.Tensor], Any], make: Callable[[], Target], mode: Any, *, record: bool
) -> list[Any]:
    """Return what there is after a call: values, versions, graphs and gradients, or what was raised."""
    torch.manual_seed(0)
    target, leaf = make()
    saved = target.exp().square()
    with mode:
        product = target * target  # holds the tensor for its backward
        try:
            with torch.set_grad_enabled(record):
                out = call(target)
        except REFUSALS as error:
            return [type(error)]
        out = out if isinstance(out, torch.Tensor) else target
        found: list[Any] = [target.tolist(), target._version, _chain(target.grad_fn), out.tolist()]
        for loss in (target.square().sum(), out.square().sum(), product.sum(), saved.sum()):
            leaf.grad = None
            try:
                torch.autograd.backward(loss, retain_graph=True)
                found.append(None if leaf.grad is None else leaf.grad.tolist())
            except REFUSALS as error:
                found.append(str(error))
    return found


def _mode() -> OpMode:
    return OpMode(lambda *_: None)


def _differing(call: Callable[[torch.Tensor], Any], mode: Callable[[], Any] = _mode) -> list[str]:
    """Return for which targets a call makes something else in a mode."""
    found: list[str] = []
    for make in TARGETS:
        for record in (True, False):
            without = _outcome(call, make, nullcontext(), record=record)
            within = _outcome(call, make, mode(), record=record)
            if repr(within) != repr(without):  # NaN is NaN
                found.append(f"{make.__name__}, record={record}")
    return found


def _call_of(func: Any, constant: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    def call(target: torch.Tensor) -> Any:
        args, kwargs = _given(func, target, constant(target))
        return func(*args, **kwargs)

    return call


@cache
def _calls(name: str) -> list[Any]:
    """Return calls of an op that it takes."""
    calls = [_call_of(OVERLOADS[name], constant) for constant in CONSTANTS]
    return [x for x in calls if len(_outcome(x, _detached, nullcontext(), record=True)) > 1][:1]


REFUSALS = (RuntimeError, IndexError, TypeError, ValueError)

OFTEN = (
    "_foreach_div_.Scalar",
    "_foreach_mul_.Tensor",
    "_foreach_zero_",
    "_foreach_copy_",
    "_foreach_add_.List",
    "mul_.Tensor",
    "index_put_",
)

MOST = 250
"""Of this many ops, and more, there are calls that are taken."""


@pytest.mark.parametrize("name", OFTEN)
def test_an_op_that_writes_does_the_same(name: str) -> None:
    """To views and others, recorded or not; what saved them still knows."""
    for call in _calls(name):
        assert _differing(call) == []


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_every_op_that_writes_does_the_same() -> None:
    """All that the dispatcher knows."""
    called = {name: call for name in OVERLOADS for call in _calls(name)}

    assert [name for name in OVERLOADS if name.startswith("_foreach_") and name not in called] == []
    assert len(called) > MOST
    assert {name: found for name, call in called.items() if (found := _differing(call))} == {}


class _Sevenfold(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.ampwatch_in_place.formula(x)

    @staticmethod
    def backward(_ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * 7


def _writes(x: torch.Tensor) -> None:
    x.mul_(3.0)


def _writes_inside(x: torch.Tensor) -> torch.Tensor:
    base = x * 2
    view = base.t()
    base.mul_(3.0)
    return view.mul_(2.0)


@pytest.fixture(scope="module")
def ops_of_a_user() -> Any:
    """Ops with kernels that call others."""
    library: Any = torch.library.Library("ampwatch_in_place", "DEF")  # type: ignore[no-untyped-call]
    for name in ("exp", "inside", "formula"):
        library.define(f"{name}(Tensor x) -> Tensor")
    library.define("write(Tensor(a!) x) -> ()")
    library.define("all(Tensor(a!)[] x) -> ()")
    library.impl("exp", torch.exp, "CPU")
    library.impl("inside", _writes_inside, "CPU")
    library.impl("formula", torch.exp, "CPU")
    library.impl("formula", _Sevenfold.apply, "Autograd")
    library.impl("write", _writes, "CPU")
    library.impl("all", lambda xs: [x.mul_(3.0) for x in xs] and None, "CompositeExplicitAutograd")
    yield torch.ops.ampwatch_in_place
    library._destroy()


USERS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "no formula": lambda ops, x: ops.exp(x),
    "no formula, writes inside": lambda ops, x: ops.inside(x),
    "written to after": lambda ops, x: ops.inside(x).mul_(2.0),
    "a formula": lambda ops, x: ops.formula(x),
    "writes": lambda ops, x: ops.write(x),
    "writes to a list": lambda ops, x: ops.all([x]),
}


@pytest.mark.filterwarnings("ignore:.*autograd kernel was not registered")
@pytest.mark.parametrize("name", USERS)
def test_an_op_of_a_user_does_the_same(ops_of_a_user: Any, name: str) -> None:
    """Autograd records what the kernel of an op calls that has no formula for it."""
    assert _differing(lambda x: USERS[name](ops_of_a_user, x)) == []


def _penalized(level: str | None, divide: Callable[[list[torch.Tensor]], Any]) -> list[Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    x = torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    watch = level and ampwatch.monitor(model, optimizer=optimizer, level=level, serve=False)
    found: list[Any] = []
    for _ in range(3):
        optimizer.zero_grad()
        score = model(x).square().sum() * 1024
        grads = list(torch.autograd.grad(score, list(model.parameters()), create_graph=True))
        divide(grads)
        torch.autograd.backward(torch.stack([g.square().sum() for g in grads]).sum())
        found += [p.grad.tolist() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        found += [[*p.tolist(), p._version] for p in model.parameters()]
    if watch:
        watch.close()
    return found


@pytest.mark.parametrize("level", ["standard", "deep"])
def test_gradients_that_are_unscaled_at_once_are_the_same_bits(
    one_thread: None, level: str
) -> None:
    """A penalty of gradients that ``_foreach_div_`` has divided by the scale."""

    def divide(grads: list[torch.Tensor]) -> None:
        torch._foreach_div_(grads, 1024.0)

    assert _penalized(level, divide) == _penalized(None, divide)
