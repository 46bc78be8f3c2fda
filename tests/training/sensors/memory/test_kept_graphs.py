"""A graph is followed without being held, and by nothing that outlives it; memory is read in few iterations."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ampwatch
from ampwatch.diagnosis.evidence.memory import Holding
from ampwatch.training.devices import MemoryUse
from ampwatch.training.sensors.memory import growth
from ampwatch.training.sensors.memory.growth import KEY, MAX_MARKED, MIN_AGE, HeldGraphs

MODEL = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def followed(keep: Callable[[int, Tensor, Tensor], object], steps: int = 20) -> HeldGraphs:
    """Follow a training of so many iterations, after each of which something is kept."""
    graphs = HeldGraphs()
    for step in range(steps):
        out = MODEL(torch.randn(3, 4))
        loss = out.square().mean()
        assert graphs.mark(step, loss)
        loss.backward()
        keep(step, out, loss)
    return graphs


HOLDERS: dict[str, tuple[Holding | None, Callable[[list[Tensor], Tensor, Tensor], object]]] = {
    "a list of losses": (Holding.LOSS, lambda kept, _out, loss: kept.append(loss)),
    "losses without a graph": (None, lambda kept, _out, loss: kept.append(loss.detach())),
    "a total": (Holding.SUM, lambda kept, _out, loss: kept.append(sum(kept[-1:], 0.0) + loss)),
    "outputs": (Holding.PART, lambda kept, out, _loss: kept.append(out)),
    "outputs without a graph": (None, lambda kept, out, _loss: kept.append(out.detach())),
    "nothing": (None, lambda _kept, _out, _loss: None),
}


@pytest.mark.parametrize(("holding", "keep"), HOLDERS.values(), ids=HOLDERS.keys())
def test_what_is_kept_is_known(
    holding: Holding | None, keep: Callable[[list[Tensor], Tensor, Tensor], object]
) -> None:
    """Of each iteration, since the first one."""
    kept: list[Tensor] = []
    graphs = followed(lambda _step, out, loss: keep(kept, out, loss))

    found = graphs.kept(20)

    if holding is None:
        assert found is None
    else:
        assert found is not None
        assert (found.holding, found.since, found.iterations) == (holding, 0, 20 - MIN_AGE + 1)
        assert found.source.startswith(__file__)
        kept.clear()
        assert graphs.kept(20) is None


class _Residual(nn.Module):
    """A block as transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Add what is computed of the input to it."""
        return x + self.down(torch.relu(self.up(self.norm(x))))  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kept_after", [0, 2, 5])
def test_an_output_deep_in_the_model_is_kept(kept_after: int, dtype: torch.dtype) -> None:
    """Of any layer, in float32 and where autocast has cast weights and biases before each op."""
    layers = [nn.Linear(4, 4), *(_Residual() for _ in range(4)), nn.Linear(4, 2)]
    kept: list[Tensor] = []
    graphs = HeldGraphs()
    for step in range(20):
        x = torch.randn(3, 4)
        with torch.autocast("cpu", torch.float16, enabled=dtype is torch.float16):
            for index, layer in enumerate(layers):
                x = layer(x)
                if index == kept_after:
                    kept.append(x)
        loss = x.float().square().mean()
        assert graphs.mark(step, loss)
        loss.backward()  # type: ignore[no-untyped-call]

    found = graphs.kept(20)

    assert found is not None
    assert (found.holding, found.since) == (Holding.PART, 0)


@pytest.mark.parametrize(("begin", "most", "steps"), [(7, 20, 20), (0, 10, 40)])
def test_what_is_kept_counts_from_the_first_that_is(begin: int, most: int, steps: int) -> None:
    """From some iteration on, or for some iterations."""
    kept: list[Tensor] = []

    def keep(step: int, _out: Tensor, loss: Tensor) -> None:
        kept.extend([loss] * (step >= begin))
        del kept[:-most]

    found = followed(keep, steps).kept(steps)

    assert found is not None
    assert found.since == max(begin, steps - most)


def test_however_long_it_goes_on_few_are_followed() -> None:
    """The first one among them."""
    kept: list[Tensor] = []
    graphs = followed(lambda _step, _out, loss: kept.append(loss), 10 * MAX_MARKED)

    found = graphs.kept(10 * MAX_MARKED)

    assert found is not None
    assert found.since == 0
    assert MAX_MARKED / 2 - MIN_AGE <= found.iterations <= MAX_MARKED


def test_all_that_stays_in_a_graph_is_an_empty_set() -> None:
    """Of a builtin class, under a key of its own."""
    loss = MODEL(torch.randn(3, 4)).square().mean()
    HeldGraphs().mark(0, loss)

    assert loss.grad_fn is not None
    assert loss.grad_fn.metadata == {KEY: set()}


def test_a_loss_without_a_graph_is_not_followed() -> None:
    graphs = HeldGraphs()

    assert not graphs.mark(0, torch.ones(()))
    assert not graphs.mark(0, 3.0)
    assert not graphs.mark(0, torch.ones((), requires_grad=True))
    assert graphs.kept(9) is None


def test_a_part_that_all_iterations_share_is_not_kept_by_any() -> None:
    """An encoding that is computed once, and used with ``retain_graph``."""
    graphs = HeldGraphs()
    shared = MODEL(torch.randn(3, 4)).tanh()
    for step in range(20):
        loss = (shared * (step + 1)).square().mean()
        graphs.mark(step, loss)
        loss.backward(retain_graph=True)

    found = graphs.kept(20)

    assert found is None


LEVELS = ("light", "standard", "deep")
GIB = 2**30


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Times that the memory of the host was read; it is one byte more each time."""
    seen: list[int] = []

    def read() -> MemoryUse:
        seen.append(len(seen))
        return MemoryUse(GIB + len(seen), 2 * GIB + len(seen))

    monkeypatch.setattr(growth, "host_memory", read)
    monkeypatch.setattr(growth, "host_memory_limit", lambda: 64 * GIB)
    return seen


def train(
    steps: int, after: Callable[[torch.Tensor], object] = lambda _loss: None, **settings: Any
) -> ampwatch.Monitor:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ampwatch.monitor(model, serve=False, **settings) as watch:
        for _ in range(steps):
            loss = model(torch.randn(3, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            after(loss)
    return watch


@pytest.mark.parametrize("level", LEVELS)
def test_what_was_read_last_is_told(level: str, reads: list[int]) -> None:
    """By ``watch.metrics()``, at every level."""
    watch = train(20, level=level)

    metrics = watch.metrics()
    assert metrics["amp/memory_bytes"] == GIB + len(reads)
    assert metrics["amp/memory_peak_bytes"] == 2 * GIB + len(reads)


def test_memory_is_read_ever_more_seldom(reads: list[int]) -> None:
    """In one of four of the first iterations, then in one of some 45: a leak has time to show."""
    train(64, level="light")
    first = len(reads)
    reads.clear()
    train(2000, level="light")
    most = len(reads) - first

    assert first == 16
    assert (2000 - 64) / 64 <= most <= (2000 - 64) / 24


def test_a_system_that_does_not_say_it_is_named_in_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is told, and why."""
    monkeypatch.setattr(growth, "host_memory", lambda: None)

    watch = train(8, level="light")

    assert "amp/memory_bytes" not in watch.metrics()
    assert "memory of the host is not read" in watch.report()


def test_a_loss_that_is_let_go_is_let_go() -> None:
    """The sensor holds none of them, and none of their graphs."""
    gone: list[bool] = []
    before: list[Any] = []

    def keep_track(loss: torch.Tensor) -> None:
        if before:
            gone.append(before[0]() is None)
        before[:] = [weakref.ref(loss)]

    train(10, keep_track, level="light")

    # The loop's own name holds each until the next one is computed.
    assert gone == [True] * 9
