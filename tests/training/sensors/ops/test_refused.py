"""The loss of a probability that was rounded, under autocast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from ampwatch.training.hooks.regions import Regions
from ampwatch.training.sensors.ops.refused import RefusedOps
from tests.training.sensors.listening import EVALUATED, Listening

HALF = (torch.float16, torch.bfloat16)


@pytest.fixture
def listening() -> Listening:
    regions = Regions()
    listening = Listening(RefusedOps, regions=regions)
    listening.bench.install(regions)
    return listening


def _answers() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Linear(4, 1), torch.randn(8, 4), (torch.rand(8, 1) > 0.5).float()


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("loss_of", [nn.BCELoss(), functional.binary_cross_entropy], ids=["m", "f"])
def test_a_rounded_probability_is_seen(
    listening: Listening, loss_of: Any, dtype: torch.dtype
) -> None:
    """The op, where it ran, and what the probability was rounded to."""
    model, x, y = _answers()
    with listening, torch.autocast("cpu", dtype=dtype):
        loss_of(torch.sigmoid(model(x)), y)

    (seen,) = listening.seen
    assert (seen.op, seen.where) == ("binary_cross_entropy", "loss")
    assert f"torch.{seen.dtype}" == str(dtype)


def test_a_cast_that_is_written_brings_nothing_back(listening: Listening) -> None:
    """``.float()`` after the sigmoid."""
    model, x, y = _answers()
    with listening, torch.autocast("cpu", dtype=torch.float16):
        functional.binary_cross_entropy(torch.sigmoid(model(x)).float(), y)

    assert len(listening.seen) == 1


def test_what_is_computed_in_float32_is_left_alone(listening: Listening) -> None:
    """A sigmoid of float32 logits, an island, the loss of logits, no autocast at all."""
    model, x, y = _answers()
    with listening, torch.autocast("cpu", dtype=torch.float16):
        functional.binary_cross_entropy(torch.sigmoid(model(x).float()), y)
        functional.binary_cross_entropy_with_logits(model(x), y)
        probability = torch.sigmoid(model(x))
        with torch.autocast("cpu", enabled=False):
            functional.binary_cross_entropy(probability.float(), y)
    with listening:
        functional.binary_cross_entropy(probability.float(), y)
        functional.binary_cross_entropy(torch.sigmoid(model(x)), y)

    assert listening.seen == []


def test_an_evaluation_is_no_training(listening: Listening) -> None:
    """Nothing is learnt from its loss."""
    model, x, y = _answers()
    listening.place = EVALUATED
    with listening, torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        functional.binary_cross_entropy(torch.sigmoid(model(x)), y)

    assert listening.seen == []
