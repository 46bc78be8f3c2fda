"""Findings about trainings that diverge."""

from __future__ import annotations

import math
import random

import pytest

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.detector import Shared
from ampwatch.diagnosis.state.divergence import Divergence
from ampwatch.wire.records import Topic
from tests.workshop.iterations import iteration
from tests.workshop.replay import Replay, measured
from tests.workshop.simulation import Simulation

OK, INF = False, True


def train(*losses: float) -> Simulation:
    """Take a step with each loss."""
    run = Simulation(scale=1024.0)
    for loss in losses:
        run.run([OK], loss=loss)
    return run


def test_a_loss_that_grows_until_it_is_not_finite_diverges() -> None:
    """Told at the first non-finite loss, with where it began."""
    rising = [10.0**n for n in range(8)]
    assert train(*[1.0] * 20, *rising).kinds == []
    (finding,) = train(*[1.0] * 20, *rising, math.inf).book.findings

    assert (finding.kind, finding.where, finding.phase) == ("divergence", "loss", "forward")
    assert (finding.first_step, finding.last_step) == (21, 28)
    assert finding.evidence["loss"] == 1e7
    assert "learning rate" in finding.advice


def test_a_loss_without_end_is_reported_although_it_is_finite() -> None:
    """In float32 it takes long to leave the format, and nothing gets better meanwhile."""
    assert train(*[2.0] * 5, *[4.0**n for n in range(1, 20)]).kinds == ["divergence"]


@pytest.mark.parametrize(
    "losses",
    [
        [1.0] * 30 + [math.inf] * 3,
        [1.0] * 30 + [1e9, math.nan],
        [1.0] * 30 + [5.0, 50.0, 5e3, 5e6, 10.0, 1.0, math.inf],
        [3.0, 2.0, 1.0, 0.5, 0.6, 0.7, 0.8, 0.9, math.nan],
        [0.0] * 5 + [math.nan],
        [1e-12 * 10.0**n for n in range(12)] + [math.nan],
    ],
    ids=["out of the blue", "one bad batch", "a spike", "a slow rise", "nothing", "from nothing"],
)
def test_what_did_not_grow_before_it_broke_did_not_diverge(losses: list[float]) -> None:
    """An overflow is another failure."""
    assert "divergence" not in train(*losses).kinds


def test_the_loss_of_a_critic_passes_through_zero_and_is_left_alone() -> None:
    """It wanders about zero and away from it, over four orders of magnitude."""
    draw = random.Random(0)
    losses = [draw.gauss(0.0, 1e-3 + step) for step in range(400)]
    assert train(*losses).kinds == []


def test_a_loss_that_jumps_and_stays_there_does_not_diverge() -> None:
    """About its new level it is larger than ever again and again, by a little each time."""
    draw = random.Random(3)
    level = [1e5 * (1.0 + 0.01 * n + 0.02 * draw.random()) for n in range(20)]

    assert train(*[1.0] * 30, *level, math.inf, math.inf).kinds == []


@pytest.mark.parametrize("grown_first", [False, True])
def test_weights_must_have_grown_before_the_loss_rises(*, grown_first: bool) -> None:
    """One update with the gradients of a broken loss throws the weights anywhere."""
    replay = Replay(scale=1024.0)
    for step in range(24):
        weight = 1e4 if step >= (20 if grown_first else 21) else 1.0
        values = measured(Topic.WEIGHT, "w", [weight, 0.5])
        loss = (1.0 if step < 21 else 1e5) if step < 23 else math.inf
        replay.take(values, loss=loss, found_inf=step == 23)

    assert ("divergence" in [f.kind for f in replay.findings]) is grown_first


def test_a_bias_that_begins_at_zero_has_not_blown_up() -> None:
    """Beside the weights of the model it is still small."""
    replay = Replay(scale=1024.0)
    for step in range(24):
        weights = measured(Topic.WEIGHT, "weight", [0.3, -0.1])
        bias = measured(Topic.WEIGHT, "bias", [1e-12 * 2.0**step])
        loss = (1.0 if step < 21 else 1e5) if step < 23 else math.inf
        replay.take(weights, bias, loss=loss, found_inf=step == 23)

    assert replay.findings == []


@pytest.mark.parametrize("seed", range(6))
def test_losses_are_followed_alike_however_many_come_at_once(seed: int) -> None:
    """Falling and noisy ones, with a rise and a way back now and then."""
    chance = random.Random(seed)
    losses, level = [], 1.0
    for _ in range(600):
        level *= 20.0 if chance.random() < 0.01 else 0.02 if chance.random() < 0.01 else 0.995
        losses.append(level * (1.0 + chance.random()))
    plain = [iteration(step=step, loss=loss, num_losses=1) for step, loss in enumerate(losses)]
    one_by_one, at_once = (Divergence(Shared(FindingBook(lambda _: None))) for _ in range(2))
    begin = 0
    while begin < len(plain):
        part = plain[begin : (begin := begin + chance.randrange(1, 60))]
        at_once.count(part)
        for one in part:
            one_by_one._follow(abs(one.loss), one.step)
            one_by_one._updated = True

    known = ("_losses", "_level", "_largest", "_record", "_records", "_newest", "_updated")
    assert [getattr(at_once, name) for name in known] == [
        getattr(one_by_one, name) for name in known
    ]
