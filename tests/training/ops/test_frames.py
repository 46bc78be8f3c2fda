"""Ops of compiled code: the same modules as without the compiler, by the frames they come from."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.ops.events import Op, OpPlace
from ampwatch.training.private import SEES_COMPILED
from ampwatch.training.sensors.ops import census
from tests.training.sensors.counting import Counted
from tests.training.sensors.tracing import Traced

pytestmark = [
    pytest.mark.skipif(not SEES_COMPILED, reason="before PyTorch 2.10 nothing is seen"),
    # The compiler's own, which it hides unless they are errors.
    pytest.mark.filterwarnings("default"),
]

PRODUCTS = {"addmm", "mm", "gelu", "gelu_backward", "native_layer_norm"}


class Block(nn.Module):
    """A block with a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Two blocks of one kind, and a head."""

    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(8, 4)
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
            if self.breaks:
                torch._dynamo.graph_break()  # type: ignore[no-untyped-call]
        out: torch.Tensor = self.head(x)
        return out


class Ear(Sensor):
    """Keeps which op has run where."""

    name = "ear"
    is_thread_safe = True

    def __init__(self, sees: Callable[[], object] = lambda: None) -> None:
        self.ops: list[tuple[str, OpPlace]] = []
        self._sees = sees

    def op(self, event: Op) -> None:
        self.ops.append((event.call.info.name, event.place._replace(unseen=())))
        self._sees()


Call = Any


def whole(net: Net, backend: str) -> Call:
    """Compile the model."""
    return torch.compile(net, backend=backend)


def in_place(net: Net, backend: str) -> Call:
    """Compile the model, which stays what it is."""
    net.compile(backend=backend)
    return net


def regional(net: Net, backend: str) -> Call:
    """Compile each block by itself: PyTorch captures one graph for both."""
    for block in net.blocks:
        block.compile(backend=backend)
    return net


def wrapped(net: Net, backend: str) -> Call:
    """Replace each block by a compiled one."""
    for index in range(2):
        net.blocks[index] = torch.compile(net.blocks[index], backend=backend)  # type: ignore[assignment]
    return net


def function(net: Net, backend: str) -> Call:
    """Compile a function that calls the model."""

    def step(x: torch.Tensor) -> Any:
        return net(x)

    return torch.compile(step, backend=backend)


def uncompiled(net: Net, _backend: str) -> Call:
    """Compile nothing."""
    return net


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()  # type: ignore[no-untyped-call]
    yield
    torch._dynamo.reset()  # type: ignore[no-untyped-call]


def watched(
    way: Callable[[Net, str], Call], backend: str = "eager", *, breaks: bool = False
) -> list[tuple[str, OpPlace]]:
    """Ops of the second of two iterations, the first of which has compiled."""
    torch.manual_seed(0)
    net = Net(breaks=breaks)
    call = way(net, backend)
    ear = Ear()
    counted = Counted(net, count=False)
    counted.add(ear)
    counted.bench.install()
    for step in range(2):
        ear.ops.clear()
        assert counted.sensor.begin(step, count=False, follow=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = call(torch.ones(3, 8)).float().square().mean()
        loss.backward()
        counted.sensor.end(step, 0.5)
    counted.bench.remove()
    assert not counted.sensor.guard.errors
    assert torch._C._len_torch_dispatch_stack() == 0
    return ear.ops


def where(ops: list[tuple[str, OpPlace]], names: set[str]) -> Counter[tuple[Phase, str]]:
    """How often which ops ran, by phase and module; a product is one whether it adds or not."""
    return Counter((place.phase, place.module) for name, place in ops if name in names)


WAYS = [whole, in_place, regional, wrapped, function]


@pytest.mark.parametrize(
    "backend", [pytest.param("eager", marks=pytest.mark.rotating), "aot_eager"]
)
@pytest.mark.parametrize(
    "way",
    [whole, *(pytest.param(way, marks=pytest.mark.rotating) for way in WAYS[1:])],
    ids=lambda way: way.__name__,
)
def test_ops_are_in_the_same_modules_as_without_the_compiler(
    way: Callable[[Net, str], Call], backend: str
) -> None:
    """Forward and backward, whatever was compiled; by hooks, and by frames."""
    assert where(watched(way, backend), PRODUCTS) == where(watched(uncompiled), PRODUCTS)


@pytest.mark.rotating
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_so_they_are_behind_a_graph_break(backend: str) -> None:
    """The model is compiled in pieces, and what lies between them runs as it is."""
    ops = watched(whole, backend, breaks=True)

    assert where(ops, PRODUCTS) == where(watched(uncompiled), PRODUCTS)


def test_of_compiled_code_nothing_is_said_about_autocast() -> None:
    """It is off while the code runs, and its casts are in the code; an eager model is off itself."""

    def overflow(x: torch.Tensor) -> torch.Tensor:
        return (x * 300.0) * 300.0

    call: Call = torch.compile(overflow, backend="aot_eager")
    x = torch.ones(2, dtype=torch.float16)
    with torch.autocast("cpu"):
        call(x)
    said = {}
    for name, function in {"compiled": call, "eager": overflow}.items():
        with Traced() as traced, torch.autocast("cpu", enabled=name == "compiled"):
            function(x)
        said[name] = [origin.has_autocast for origin in traced.origins]

    assert said == {"compiled": [None], "eager": [False]}


@pytest.mark.rotating
def test_a_compiled_op_has_the_line_that_it_was_compiled_from() -> None:
    """Its own frames are those of code that was generated."""
    ops = watched(whole, "aot_eager")
    lines = {place.source.rpartition(":")[0] for name, place in ops if name == "addmm"}

    assert lines == {__file__}
    assert len({place.source for name, place in ops if name in ("addmm", "gelu")}) == 2


def test_a_failure_inside_of_compiled_code_leaves_the_dispatcher_whole() -> None:
    """Compiled code restores the dispatcher's state: a mode that left inside would be half there."""
    net = Net()
    call = torch.compile(net, backend="eager")
    counted = Counted(net, count=False)
    stops: list[None] = []

    def stop() -> None:
        if len(ear.ops) == 4:
            stops.append(counted.sensor.stop())

    ear = Ear(stop)
    counted.add(ear)
    counted.bench.install()
    call(torch.ones(3, 8)).sum().backward()
    assert counted.sensor.begin(1, count=False, follow=True)
    call(torch.ones(3, 8)).sum().backward()
    counted.sensor.end(1, 0.5)
    counted.bench.remove()

    assert stops
    assert len(ear.ops) == 4
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.empty(2).shape == (2,)
    assert not torch.nn.modules.module._global_forward_pre_hooks


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a C++ compiler on a CPU")
@pytest.mark.parametrize("way", [whole, regional], ids=lambda way: way.__name__)
def test_products_of_generated_code_are_in_the_modules_they_are_of(
    way: Callable[[Net, str], Call],
) -> None:
    """What is fused has no ops; matrix products have, in backward as well."""
    products = {"addmm", "mm"}
    bare = where(watched(uncompiled), products)
    ops = watched(way, "inductor")

    # The gradient of the input of the first layer is not needed.
    assert where(ops, products) == bare
    assert any(place.follows_fused for _, place in ops)
    assert {place.source.rpartition(":")[0] for n, place in ops if n == "addmm"} <= {__file__, ""}


def test_before_2_10_nothing_is_followed_where_compiled_code_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What ran first under a mode was not compiled."""
    monkeypatch.setattr(census, "SEES_COMPILED", False)
    counted = Counted(Net(), count=False)
    counted.add(Ear())
    counted.bench.install()
    counted.bench.bus.runs_compiled = True
    begun = counted.sensor.begin(0, count=True, follow=True)
    depth = torch._C._len_torch_dispatch_stack()
    counted.bench.remove()

    assert (begun, depth) == (False, 0)
