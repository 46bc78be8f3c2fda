"""Trainings in FP8 through a tensor subclass, watched: the same bits, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

import ampwatch
from tests.training.fp8_tensors import E4M3, mlp, to_fp8

STEPS = 6
HOWS = [{"rows": rows, "emulates": emulates} for rows, emulates in product((False, True), repeat=2)]


def _batch(_step: int) -> torch.Tensor:
    return torch.randn(32, 64)


def _trained(
    model: nn.Module,
    level: str | None,
    batch: Callable[[int], torch.Tensor] = _batch,
    rate: float = 1e-2,
) -> tuple[list[torch.Tensor], list[str]]:
    """Train; return losses, weights and random state, and the kinds of what was found."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    watch = ampwatch.monitor(model, level=level, serve=False) if level else None  # type: ignore[arg-type]
    losses = []
    for step in range(STEPS):
        loss = model(batch(step)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    found: list[str] = []
    if watch is not None:
        watch.close()
        found = [finding.kind for finding in watch.findings]
    weights = [parameter.detach() for parameter in model.parameters()]
    return [*losses, *weights, torch.get_rng_state()], found


def _made(how: dict[str, bool]) -> nn.Module:
    torch.manual_seed(0)
    return mlp(**how)


@pytest.mark.parametrize(
    "level",
    [
        pytest.param("light", marks=pytest.mark.rotating),
        pytest.param("standard", marks=pytest.mark.rotating),
        "deep",
    ],
)
@pytest.mark.parametrize("how", HOWS, ids=str)
def test_losses_weights_and_random_state_are_the_same_bits(
    how: dict[str, bool], level: str
) -> None:
    """And nothing is said of a healthy training."""
    bare, _ = _trained(_made(how), None)
    watched, found = _trained(_made(how), level)

    assert all(map(torch.equal, bare, watched))
    assert found == []


def _outlier(_step: int) -> torch.Tensor:
    """One element so large that numbers of less than 0.157, an eighth of a bell curve, become zero."""
    x = torch.randn(32, 64)
    x[0, 0] = 0.157 * 448 * 2**10
    return x


@pytest.mark.parametrize("emulates", [True, False])
def test_an_outlier_because_of_which_an_eighth_becomes_zero_is_found(*, emulates: bool) -> None:
    """In the layer that casts it."""
    model = _made({"rows": False, "emulates": emulates})
    flushed = to_fp8(_outlier(0), E4M3).numbers.float().eq(0).float().mean().item()
    _, found = _trained(model, "deep", _outlier, rate=0.0)

    assert flushed == pytest.approx(1 / 8, abs=0.02)
    assert found == ["fp8_underflow"]


class Closed(torch.Tensor):
    """A tensor made of another one that it does not name."""

    inner: torch.Tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [a.inner if isinstance(a, Closed) else a for a in args]
        return func(*plain, **(kwargs or {}))


def _closed(inner: torch.Tensor) -> torch.Tensor:
    made: Closed = torch.Tensor._make_wrapper_subclass(Closed, inner.shape, dtype=inner.dtype)
    made.inner = inner
    return made


class Shut(nn.Linear):
    """Computes something on such a tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        extra = torch.exp(_closed(x.detach()))
        return super().forward(x) + extra.mean()


def test_ops_that_cannot_be_seen_are_said_by_the_name_of_their_class() -> None:
    """With the reason; and of a class that names its parts nothing is said."""
    said = []
    for model in (nn.Sequential(Shut(64, 32)), _made(HOWS[0])):
        watch = ampwatch.monitor(model, level="deep", serve=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for step in range(2):
            model(_batch(step)).square().mean().backward()
            optimizer.step()
        watch.close()
        said.append([line for line in watch.report().splitlines() if "Closed" in line])

    assert [bool(lines) for lines in said] == [True, False]
