"""Whether what a model is given is finite."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from typing_extensions import Self

from ampwatch.diagnosis.evidence.iteration import Attention
from ampwatch.diagnosis.evidence.origins import BadInput
from ampwatch.training.hooks.events import IterationPlanned
from ampwatch.training.sensors.ops.inputs import InputSensor
from tests.training.bench import Bench


class Watching:
    """One iteration, number 7, in which the inputs of some models are added up."""

    def __init__(self, *models: nn.Module) -> None:
        self.bench = Bench(models)
        self.bench.iteration.step = 7
        self.seen: list[BadInput] = self.bench.seen
        self.sensor = InputSensor(self.bench.context)

    def __enter__(self) -> Self:
        self.bench.install(self.sensor)  # at its start a training is observed anyway
        return self

    def __exit__(self, *_: object) -> None:
        self.bench.remove()


@dataclass
class Batch:
    """A batch, as loaders hand it over."""

    image: torch.Tensor
    label: int = 0


class Taking(nn.Module):
    """Takes anything."""

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        return torch.zeros(())


def batch(value: float = 1.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    tensor = torch.ones(4, 3, dtype=dtype)
    tensor[2, 1] = value
    return tensor


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
@pytest.mark.parametrize("value", [1.0, 0.0, -1e4, math.inf, math.nan, -math.inf])
def test_a_bad_batch_is_reported_with_step_size_and_line(value: float, dtype: torch.dtype) -> None:
    """NaN and infinity are bad; minus infinity alone is a mask."""
    model = Taking()
    with Watching(model) as watching:
        model(batch(value, dtype))

    is_bad = math.isnan(value) or value == math.inf
    assert len(watching.seen) == is_bad
    for bad in watching.seen:
        assert (bad.step, bad.nans, bad.numel) == (7, math.isnan(value), 12)
        assert "test_inputs.py" in bad.source


def _handed_over(x: torch.Tensor) -> Iterator[Any]:
    yield x
    yield [torch.ones(2), (x,)]
    yield {"input": {"values": x}}
    yield Batch(x)
    yield x.t()[1::2]


@pytest.mark.parametrize("form", range(5))
def test_it_is_found_in_whatever_holds_it(form: int) -> None:
    """Lists, mappings, dataclasses, views."""
    model = Taking()
    bad, good = (list(_handed_over(x))[form] for x in (batch(math.nan), batch()))
    with Watching(model) as watching:
        model(good, named=good)
        assert watching.seen == []
        model(torch.arange(3), bad)
        model(torch.arange(3), named=bad)

    assert len(watching.seen) == 2


def test_what_holds_no_numbers_is_passed_over() -> None:
    """Nothing of it is an error, and what comes beside it is added up."""
    model = Taking()
    odd = (
        *(torch.empty(0), torch.arange(3), torch.ones(2, dtype=torch.complex64)),
        *(torch.eye(2).to_sparse(), torch.ones(2, device="meta"), None, "text"),
        torch.ones(2).to(torch.float8_e5m2),
    )
    with Watching(model) as watching:
        for thing in odd:
            model(thing)
        assert watching.seen == []
        model(*odd, batch(math.inf))

    assert [bad.nans for bad in watching.seen] == [False]


def test_only_watched_models_are_observed_and_no_parts_of_them() -> None:
    """Outputs of one layer are no inputs of the model."""

    class Breaking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / 0.0

    model = nn.Sequential(Breaking(), nn.Identity())
    with Watching(model) as watching:
        model(batch())
        nn.Identity()(batch(math.nan))
        assert watching.seen == []
        model(batch(math.nan))

    assert len(watching.seen) == 1


def test_an_evaluation_is_not_observed() -> None:
    """Batches of an evaluation break no training."""
    model = Taking()
    with Watching(model) as watching:
        with torch.no_grad():
            model(batch(math.nan))
        with torch.inference_mode():
            model(batch(math.nan))

    assert watching.seen == []


def test_a_model_that_is_mapped_over_its_batch_is_no_error() -> None:
    """Inside of ``vmap`` no value can be read."""
    model = nn.Linear(3, 3)
    with Watching(model) as watching:
        torch.func.vmap(model)(batch(math.nan))
        model(batch(math.nan))

    assert len(watching.seen) == 1


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_a_model_that_is_traced_is_not_observed() -> None:
    """Nothing of it gets into the graph."""
    model = nn.Linear(3, 3)
    with Watching(model) as watching:
        traced = torch.jit.trace(model, batch(math.nan), check_trace=False)

    assert [n.kind() for n in traced.graph.nodes()] == ["prim::GetAttr"] * 2 + ["aten::linear"]
    assert watching.seen == []


def test_inputs_are_checked_only_while_that_is_wanted() -> None:
    """Each iteration says so anew; to listen or to end it twice is nothing."""
    model = Taking()
    watching = Watching(model)
    counts = []
    with watching:
        watching.bench.context.governor.is_opening = False
        for wanted in (False, True, True, False, False):
            watching.bench.bus.emit(IterationPlanned(0, Attention(inputs=wanted)))
            model(batch(math.nan))
            counts.append(len(watching.seen))

    assert counts == [0, 1, 2, 2, 2]


def test_a_compiled_model_is_observed() -> None:
    """Where its compiled code is called from, and nothing of it gets into the graph."""
    model = nn.Linear(3, 3)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with Watching(model) as watching:
        compiled(batch())
        assert watching.seen == []
        compiled(batch(math.nan))

    assert len(watching.seen) == 1
