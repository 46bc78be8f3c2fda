"""Casts of weights that are used after the weights have changed, and dtypes that autocast regions ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from typing_extensions import Self

import ampwatch
from ampwatch.training.sensors.autocast.aged_casts import AgedCasts
from ampwatch.training.sensors.facts import AutocastSensor
from ampwatch.wire.records import Finding
from tests.training.bench import Bench, Heard

X = torch.ones(2, 8)


def findings_of(program: Callable[[nn.Module], None]) -> list[Finding]:
    """Run a program in which no loss goes back; return what is said of stale casts."""
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
    with ampwatch.monitor(model, level="deep", serve=False) as watch:
        program(model)
    return [f for f in watch.findings if f.kind == "stale_autocast_cache"]


def bfloat16(**options: bool) -> torch.autocast:
    """Return a region."""
    return torch.autocast("cpu", dtype=torch.bfloat16, **options)


@pytest.mark.parametrize("with_grad", [True, False])
def test_a_weight_that_is_written_to_between_two_forwards_is_named(*, with_grad: bool) -> None:
    """With and without gradients; no optimizer and no backward are needed."""

    def program(model: nn.Module) -> None:
        with torch.set_grad_enabled(with_grad), bfloat16():
            first = model(X)
            with torch.no_grad():
                model[1].weight.mul_(2.0)
            assert torch.equal(model(X), first)

    (finding,) = findings_of(program)
    assert (finding.where, finding.dtype, finding.phase) == (
        "param:1.weight",
        "bfloat16",
        "forward",
    )


def _through_data(model: nn.Module) -> None:
    model[1].weight.data.mul_(2.0)


def _of_all(model: nn.Module) -> None:
    data = [p.data for p in model.parameters()]
    torch._foreach_copy_(data, [2.0 * tensor for tensor in data])


KEPT: list[torch.Tensor] = []


def _by_another_tensor(model: nn.Module) -> None:
    KEPT[:] = [model[1].weight.data]  # to be put back after the evaluation
    model[1].weight.data = 2.0 * model[1].weight.detach()


@pytest.mark.parametrize("write", [_through_data, _of_all, _by_another_tensor])
def test_a_write_that_raises_no_version_is_seen(write: Callable[[nn.Module], None]) -> None:
    """Averages of weights are swapped in like that, to evaluate."""

    def program(model: nn.Module) -> None:
        with torch.no_grad(), bfloat16():
            first = model(X)
            version = model[1].weight._version
            write(model)
            assert model[1].weight._version == version
            assert torch.equal(model(X), first)

    (finding,) = findings_of(program)
    assert finding.where in ("param:0.weight", "param:1.weight")


def test_a_weight_that_is_only_moved_has_not_changed() -> None:
    """Offloading and gathering shards put the same numbers elsewhere, and free the memory of before."""

    def program(model: nn.Module) -> None:
        with torch.no_grad(), bfloat16():
            model(X)
            model[1].weight.data = model[1].weight.detach().clone()
            model(X)

    assert findings_of(program) == []


def test_what_is_written_to_other_memory_ages_no_cast() -> None:
    """Nor does a weight that is written to before it is cast."""

    def program(model: nn.Module) -> None:
        with torch.no_grad(), bfloat16():
            model[1].weight.data.mul_(2.0)
            model(X)
            torch.ones(4).mul_(2.0)
            model(X)

    assert findings_of(program) == []


def test_a_cast_is_named_after_an_interrupt_has_left_no_names() -> None:
    """It is the one thing that is known; the sensor goes on."""
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
    with ampwatch.monitor(model, level="deep", serve=False) as watch:
        (sensor,) = (s for s in watch._session.bus.sensors if isinstance(s, AgedCasts))
        with bfloat16():
            model(X)
            with torch.no_grad():
                model[1].weight.mul_(2.0)
            sensor._named.clear()
            model(X)
        assert not any(guard.off for guard in watch._session.bus.guards)

    assert [f.where for f in watch.findings if f.kind == "stale_autocast_cache"] == [
        "param:1.weight"
    ]


def _cleared(model: nn.Module) -> None:
    with bfloat16():
        model(X)
        with torch.no_grad():
            model[1].weight.mul_(2.0)
        torch.clear_autocast_cache()
        model(X)


def _not_kept(model: nn.Module) -> None:
    with bfloat16(cache_enabled=False):
        model(X)
        with torch.no_grad():
            model[1].weight.mul_(2.0)
        model(X)


def _left(model: nn.Module) -> None:
    for _ in range(3):
        with bfloat16():
            model(X)
        with torch.no_grad():
            model[1].weight.mul_(2.0)


def _copied_on_purpose(model: nn.Module) -> None:
    copy = {name: p.detach().to(torch.bfloat16) for name, p in model.named_parameters()}
    for _ in range(3):
        with bfloat16():
            model(X)
            torch.func.functional_call(model, copy, (X,))
        with torch.no_grad():
            model[1].weight.mul_(2.0)


def _backward_after_the_step(model: nn.Module) -> None:
    with bfloat16():
        loss = model(X).float().sum()
        with torch.no_grad():
            model[1].weight.mul_(2.0)
        with torch.autocast("cpu", enabled=False):
            loss.backward()


@pytest.mark.rotating
@pytest.mark.parametrize(
    "program", [_cleared, _not_kept, _left, _copied_on_purpose, _backward_after_the_step]
)
def test_what_is_not_from_before_the_change_is_not_stale(
    program: Callable[[nn.Module], None],
) -> None:
    """Cleared, never kept, forgotten with the region, the user's own copies, a graph of its own."""
    assert findings_of(program) == []


def stale(*, model: nn.Module, steps: int = 3, **how: Any) -> list[Finding]:
    """Take some steps in one region; return what is said of it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dtype = how.pop("dtype", torch.bfloat16)
    with (
        ampwatch.monitor(model, level="light", serve=False) as watch,
        torch.autocast("cpu", dtype=dtype, **how),
    ):
        for _ in range(steps):
            optimizer.zero_grad()
            x = torch.ones(4, 8, dtype=next(model.parameters()).dtype)
            model(x).float().square().mean().backward()
            optimizer.step()
    return [f for f in watch.findings if f.kind == "stale_autocast_cache"]


def test_it_is_counted_as_long_as_it_lasts() -> None:
    """Each backward through such casts counts; the first cannot be one."""
    (finding,) = stale(model=nn.Linear(8, 2), steps=9)
    assert finding.count == 8


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("model", "how"),
    [
        (nn.Linear(8, 2), {"cache_enabled": False}),
        (nn.Linear(8, 2), {"enabled": False}),
        (nn.Linear(8, 2, dtype=torch.bfloat16), {}),
        (nn.LayerNorm(8), {}),
    ],
    ids=["no cache", "disabled", "half already", "never cast"],
)
def test_where_nothing_is_kept_nothing_is_stale(model: nn.Module, how: dict[str, Any]) -> None:
    """The proof is in the graph, not in the region."""
    assert stale(model=model, **how) == []


class Watched:
    """A sensor that is on, and what was known each time that it has said that facts changed."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.changes: list[list[str]] = []
        heard = Heard()
        heard.facts_changed = lambda _: self.changes.append(
            list(self.bench.context.autocast_dtypes)
        )
        self.bench.install(AutocastSensor(self.bench.context), heard)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.bench.remove()


def _region(dtype: torch.dtype, *, enabled: bool = True) -> None:
    with torch.autocast("cpu", dtype=dtype, enabled=enabled):
        pass


def test_each_dtype_is_reported_once_when_it_is_first_asked_for() -> None:
    """A region per step is not news; another dtype is."""
    with Watched() as watched:
        for dtype in (torch.float16, torch.float16, torch.bfloat16, torch.float16):
            _region(dtype)

    assert watched.changes == [["float16"], ["float16", "bfloat16"]]


def test_a_disabled_region_asks_for_nothing() -> None:
    """``enabled=False`` is how people protect an op."""
    with Watched() as watched:
        _region(torch.float16, enabled=False)

    assert watched.changes == []
