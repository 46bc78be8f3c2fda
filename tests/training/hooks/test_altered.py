"""Calls that PyTorch computes otherwise while any mode is on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import ampwatch
from ampwatch.training.hooks.events import AlteredCalled
from ampwatch.training.hooks.sensor import Sensor
from tests.training.bench import Bench
from tests.training.sensors.tracing import Traced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

MATRIX = torch.linspace(-1.0, 1.0, 48, dtype=torch.float64).sin().reshape(8, 6).float()
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
"""PyTorch scripts its rules for forward-mode AD at the first use."""


def _named(name: str, module: Any = torch.linalg) -> Callable[[torch.Tensor], Any]:
    """Return a call of a function that is looked up when it is made, as in most code."""

    def call(x: torch.Tensor) -> Any:
        return getattr(module, name)(x)

    return call


def forward_ad_of(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Any:
    """Return the derivative of a function along its input, in forward mode."""
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(x, x))).tangent


CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "svdvals": _named("svdvals"),
    "eigvalsh": lambda x: torch.linalg.eigvalsh(x[:6] @ x[:6].T),
    "pinv": _named("pinv"),
    "nuc": lambda x: torch.linalg.matrix_norm(x, "nuc"),
    "norm 2": lambda x: torch.linalg.norm(x, 2),
    "norm -2": lambda x: torch.linalg.matrix_norm(x, ord=-2),
    "cond": _named("cond"),
    "matrix_rank": _named("matrix_rank"),
    "pinverse": _named("pinverse", torch),
    "Tensor.pinverse": lambda x: x.pinverse(),
    "enter_dual_level": lambda x: forward_ad_of(lambda t: t.sum(0) * 2 + 1, x),
    "jvp": lambda x: torch.func.jvp(lambda t: t.sum(0) * 2 + 1, (x,), (x,))[1],
}


@pytest.fixture(autouse=True)
def _alone(one_thread: None) -> None:
    """Bits that can be compared."""


class Calling(nn.Module):
    """Multiplies, calls, and multiplies again."""

    def __init__(self, call: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 6)
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(self.first(x)).float().sum() * self.first.weight.sum()


def _train(call: Callable[[torch.Tensor], Any], level: str | None) -> list[Any]:
    model = Calling(call)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    watch = None if level is None else ampwatch.monitor(model, level=level, serve=False)
    found: list[Any] = []
    for _ in range(3):
        before = call(MATRIX).tolist()  # outside of the model as well
        loss = model(MATRIX)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found += [before, loss.item(), call(MATRIX).tolist()]
    if watch is not None:
        watch.close()
    return [*found, model.first.weight.tolist()]


@pytest.mark.parametrize("level", [pytest.param("standard", marks=pytest.mark.nightly), "deep"])
@pytest.mark.parametrize("name", CALLS)
def test_results_are_the_same_bits_as_without(name: str, level: str) -> None:
    """In the model, before it and after it."""
    assert _train(CALLS[name], level) == _train(CALLS[name], None)


class Hearing(Sensor):
    """Hears of the calls, from ``with`` to its end."""

    name = "hearing"

    def __init__(self) -> None:
        self.names: list[str] = []
        self._bench = Bench()

    def altered_called(self, event: AlteredCalled) -> None:
        self.names.append(event.name)

    def __enter__(self) -> Self:
        self._bench.install(self)
        self._bench.bus.listen(self, AlteredCalled)
        return self

    def __exit__(self, *_: object) -> None:
        self._bench.remove()


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """The names that were called."""
    with Hearing() as hearing:
        yield hearing.names


def test_each_function_is_heard_of_by_name(heard: list[str]) -> None:
    """Before it is called, with the arguments it was given."""
    for call in CALLS.values():
        call(MATRIX)

    names = {"svdvals", "eigvalsh", "pinv", "norm", "cond", "matrix_rank", "pinverse"}
    assert names | {"enter_dual_level"} == set(heard)


def test_norms_that_need_no_singular_values_are_nothing(heard: list[str]) -> None:
    """A clip computes norms of this kind."""
    torch.linalg.norm(MATRIX)
    torch.linalg.matrix_norm(MATRIX, "fro")
    torch.linalg.matrix_norm(MATRIX, torch.inf)
    torch.linalg.norm(MATRIX, ord=1)
    torch.linalg.vector_norm(MATRIX)

    assert heard == []


def test_a_call_ends_the_iteration_and_the_counting_but_not_the_origins() -> None:
    """The rest of it is not seen; the next one has its origins followed, and is not counted."""
    model = nn.Linear(6, 6)
    traced = Traced(model)
    with traced:
        torch.zeros(2).log()
        torch.linalg.svdvals(MATRIX)
        torch.zeros(2).reciprocal()
    with traced:
        torch.zeros(2).rsqrt()

    assert [[b.op for b in t.origins] for t in traced.traces] == [["log"], ["rsqrt"]]
    assert traced.sensor.uncounted == "svdvals"
    assert not traced.sensor.altered
    assert not traced.sensor.begin(9)


def test_a_call_of_another_thread_counts_as_well() -> None:
    """Nobody knows in which thread a mode is on: nothing is seen any more."""
    traced = Traced()
    with traced:
        thread = threading.Thread(target=torch.linalg.svdvals, args=(MATRIX,))
        thread.start()
        thread.join()
        torch.zeros(2).log()

    assert traced.sensor.uncounted == "svdvals"
    assert traced.origins == []


def test_what_is_called_while_nothing_is_seen_changes_nothing() -> None:
    """Between iterations, and while a compiler traces."""
    traced = Traced()
    with traced:
        pass
    traced.bench.install()
    torch.linalg.svdvals(MATRIX)
    assert traced.sensor.uncounted == ""

    traced.sensor.begin(1, follow=True)
    torch.compile(lambda x: torch.linalg.svdvals(x) + 1, backend="eager")(MATRIX)
    traced.bench.remove()
    assert traced.sensor.uncounted == ""


def test_functions_that_are_listened_to_can_be_scripted_as_ever(heard: list[str]) -> None:
    """``torch.jit.script`` knows them by their identity."""

    def scripted(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svdvals(x).sum() + torch.linalg.norm(x) + torch.pinverse(x).sum()

    during = torch.jit.script(scripted)(MATRIX)

    assert torch.equal(during, scripted(MATRIX))
    assert len(heard) == 2


def test_what_scripting_knows_is_the_same_afterwards() -> None:
    """Nothing of ours stays in its table, and nothing of PyTorch's is missing."""
    before = dict(torch.jit._builtins._get_builtin_table())
    with Hearing():
        during = len(torch.jit._builtins._get_builtin_table())

    assert during > len(before)
    assert torch.jit._builtins._get_builtin_table() == before
