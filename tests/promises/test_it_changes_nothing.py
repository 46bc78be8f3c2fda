"""Promise 1: training with ampwatch is bit for bit the training without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import ampwatch
from tests.promises.conftest import MOST, ahead, each_recipe
from tests.trainings import build

pytestmark = ahead


@pytest.mark.parametrize("level", ["off", "light", "standard", "deep"])
@each_recipe
def test_losses_scales_weights_and_random_state_are_the_same(recipe: str, level: str) -> None:
    """Every recipe at every level ends in the same bits as without ampwatch."""
    bare = build(recipe)
    bare.loop()

    watched = build(recipe)
    with ampwatch.monitor(
        watched.models, watched.scaler, optimizer=watched.optimizers, level=level, serve=False
    ):
        watched.loop()

    assert watched.digest() == bare.digest()


class Drawing(TorchDispatchMode):
    """A mode of the user: counts ops, and draws a random number for each."""

    def __init__(self) -> None:
        super().__init__()
        self.ops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops += 1
        torch.rand(1)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("level", ["light", "standard", "deep"])
@pytest.mark.parametrize("recipe", MOST)
def test_a_mode_of_the_user_sees_the_ops_of_the_training_alone(recipe: str, level: str) -> None:
    """From before ``monitor()`` until after ``close()``: as many ops, and the bits that come of its random numbers."""
    bare = build(recipe)
    with Drawing() as alone:
        bare.loop()
    watched = build(recipe)
    with (
        Drawing() as beside,
        ampwatch.monitor(
            watched.models, watched.scaler, optimizer=watched.optimizers, level=level, serve=False
        ) as watch,
    ):
        watched.loop()
        watch.report()

    assert beside.ops == alone.ops
    assert watched.digest() == bare.digest()


def test_the_digest_notices_a_change_of_one_weight() -> None:
    """The comparison above would fail if ampwatch changed anything at all."""
    bare, other = build("fp16-fused"), build("fp16-fused")
    bare.loop()
    other.after_step = lambda step: (
        other.models[0].last.bias.data[0].mul_(1.0000002) if step == 5 else None
    )
    other.loop()

    assert other.digest() != bare.digest()


def test_a_ring_and_a_reader_change_nothing_either(serving: object) -> None:
    """With a ring in shared memory the bits are the same as well."""
    bare = build("two-optimizers")
    bare.loop()

    watched = build("two-optimizers")
    with ampwatch.monitor(watched.models, watched.scaler):
        watched.loop()

    assert watched.digest() == bare.digest()
