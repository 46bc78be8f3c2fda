"""The census of compiled code where the user allows it to run eagerly for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch._dynamo import eval_frame

import ampwatch
from ampwatch.training.hooks.compiling import ForcedEager
from ampwatch.wire.records import CensusSource

if TYPE_CHECKING:
    from collections.abc import Iterator


class Backend:
    """A compiler that compiles nothing and counts how often it was asked and its code ran."""

    def __init__(self) -> None:
        self.compiled = self.runs = 0

    def __call__(self, graph: Any, _inputs: Any) -> Any:
        self.compiled += 1

        def run(*args: Any) -> Any:
            self.runs += 1
            return graph.forward(*args)

        return run


@pytest.fixture
def backend() -> Iterator[Backend]:
    torch._dynamo.reset()
    yield Backend()
    torch._dynamo.reset()


def _compiled(model: nn.Module, backend: Backend) -> Any:
    """A function, as PyTorch warns where a whole model is compiled and there are global hooks."""

    def forward(batch: torch.Tensor) -> torch.Tensor:
        return model(batch)

    return torch.compile(forward, backend=backend)


def _train(model: nn.Module, forward: Any, steps: int, **settings: Any) -> ampwatch.Monitor:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ampwatch.monitor(model, optimizer=optimizer, serve=False, **settings) as watch:
        for _ in range(steps):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = forward(torch.randn(4, 16)).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return watch


def test_counted_iterations_run_eagerly_and_all_others_compiled(backend: Backend) -> None:
    """Nothing is compiled anew afterwards, and the table says how it was counted."""
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    forward = _compiled(model, backend)

    watch = _train(
        model,
        forward,
        20,
        level="standard",
        sample_every=1000,
        compiled_census="force_eager",
    )

    census = watch._session.census
    assert census is not None
    assert census.source is CensusSource.FORCED_EAGER
    assert census.iterations == 1
    # One product forward and one backward; the input needs no gradient.
    flops = {total.dtype: total.flops for total in census.ops if total.flops}
    assert flops == {"bfloat16": 2 * (2 * 4 * 16 * 16)}
    assert (backend.compiled, backend.runs) == (1, 19)
    assert "its compiled code run eagerly" in watch.op_table()
    forward(torch.randn(4, 16))
    assert backend.runs > 19


def test_a_stance_that_the_user_sets_meanwhile_stays() -> None:
    """Only what was set here is taken back."""
    forced = ForcedEager()
    with torch.compiler.set_stance("eager_on_recompile"):
        forced.end()
        during = eval_frame._stance.stance
    forced.end()

    assert (during, eval_frame._stance.stance) == ("eager_on_recompile", "default")


def test_without_the_setting_compiled_code_is_left_alone(backend: Backend) -> None:
    """Every iteration runs compiled, and the report says why there is no table."""
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    forward = _compiled(model, backend)

    watch = _train(model, forward, 5, level="deep")

    assert watch._session.census is None
    assert (backend.compiled, backend.runs) == (1, 5)
    assert "force_eager" in watch.report()
