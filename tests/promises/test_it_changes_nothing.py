"""Promise 1: training with ampwatch is bit for bit the training without it."""

from __future__ import annotations

import pytest

import ampwatch
from tests.promises.conftest import ahead, each_recipe
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
