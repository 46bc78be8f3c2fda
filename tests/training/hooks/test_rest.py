"""Sensors that rest: what goes unheard, what still is heard, and what a program does wrong anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it

import ampwatch
from ampwatch.training.hooks.bus import (
    AWAKE,
    AWAKE_AT_FIRST,
    LONG_ROUND,
    ROUND,
    ROUNDS_AT_FIRST,
    next_awake,
)
from ampwatch.training.hooks.events import AutocastEntering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OWNERS = (
    nn.Module,
    torch.amp.GradScaler,
    torch.autocast,
    torch.autograd,
    torch.optim.Optimizer,
)
"""What has methods or functions that are replaced for sensors, of those that rest as well."""


class Loop:
    """A training of a small model on the CPU, one step at a time."""

    def __init__(self, level: str = "light") -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 4)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        self.watch = ampwatch.monitor(self.model, self.scaler, level=level, serve=False)
        self.x = torch.randn(8, 4)

    def loss(self) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return F.mse_loss(self.model(self.x), self.x)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.scaler.scale(self.loss()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def kinds(self) -> set[str]:
        return {finding.kind for finding in self.watch.findings}


@pytest.fixture
def loop() -> Iterator[Callable[..., Loop]]:
    made: list[Loop] = []

    def make(level: str = "light") -> Loop:
        made.append(Loop(level))
        return made[-1]

    yield make
    for one in made:
        one.watch.close()


def in_place() -> list[dict[str, object]]:
    return [dict(vars(owner)) for owner in OWNERS]


def test_every_place_of_a_round_is_heard_in_its_turn() -> None:
    """What a program does in each n-th iteration meets one that is heard, whatever n is."""
    heard, step = set(), 0
    while step < 4096 * ROUND:
        step = next_awake(step)
        heard |= {step, step + 1}
        step += AWAKE

    for length in (ROUND, LONG_ROUND):
        assert {step % length for step in heard} == set(range(length))
    for n in range(2, 50):
        assert {step % n for step in heard} == set(range(n)), n


def test_next_heard_is_the_open_iteration_or_a_later_one() -> None:
    """Never one that is over, and never further away than two rounds."""
    for step in range(4 * ROUND * ROUNDS_AT_FIRST):
        is_late = step >= ROUND * (ROUNDS_AT_FIRST - 1)
        assert step <= next_awake(step) < step + 2 * (LONG_ROUND if is_late else ROUND)
        assert next_awake(next_awake(step)) == next_awake(step)


@pytest.mark.parametrize(
    ("level", "steps"),
    [("light", 200), pytest.param("standard", 1000, marks=pytest.mark.nightly)],
)
def test_plain_steps_replace_nothing_in_pytorch(
    loop: Callable[..., Loop], level: str, steps: int
) -> None:
    """From Python 3.13 on a class whose methods change a thousand times is slow from then on."""
    bare = in_place()
    training = loop(level)
    training.step()
    watched = in_place()
    assert all(now != then for now, then in zip(watched, bare, strict=True))
    changes = 0
    for _ in range(steps):
        training.step()
        changes += in_place() != watched

    assert changes == 0
    training.watch.close()
    assert in_place() == bare


@pytest.mark.rotating
def test_in_most_iterations_sensors_are_not_called(loop: Callable[..., Loop]) -> None:
    """Each at first, then two of each 32; at deep each, for each op is observed with its region."""
    for level, later in (("light", AWAKE), ("deep", ROUND)):
        training = loop(level)
        entered = training.watch._session.bus.channel(AutocastEntering)
        heard = []
        for _ in range(AWAKE_AT_FIRST + ROUND):
            heard.append(bool(entered.subscribers))
            training.step()

        assert all(heard[:AWAKE_AT_FIRST])
        assert sum(heard[AWAKE_AT_FIRST:]) == later, level


def test_closed_while_sensors_rest_it_leaves_nothing_and_can_begin_again(
    loop: Callable[..., Loop],
) -> None:
    """A second monitor hears its first iterations again."""
    before = in_place()
    training = loop()
    for _ in range(AWAKE_AT_FIRST + 1):
        training.step()
    training.watch.close()

    assert in_place() == before
    again = ampwatch.monitor(training.model, training.scaler, level="light", serve=False)
    assert again._session.bus.channel(AutocastEntering).subscribers
    again.close()
    assert in_place() == before


@pytest.mark.parametrize(
    ("level", "every"),
    [
        ("light", 8),
        pytest.param("light", 1, marks=pytest.mark.nightly),
        pytest.param("light", 3, marks=pytest.mark.nightly),
        pytest.param("standard", 8, marks=pytest.mark.nightly),
    ],
)
def test_a_mistake_that_begins_late_is_found(
    loop: Callable[..., Loop], level: str, every: int
) -> None:
    """A loss that is not scaled, from step 150 on, in each iteration or in each n-th."""
    training = loop(level)
    for step in range(150 + 10 * ROUND):
        training.optimizer.zero_grad()
        if step >= 150 and step % every == 0:
            training.loss().backward()
        training.scaler.scale(training.loss()).backward()
        training.scaler.step(training.optimizer)
        training.scaler.update()
        if step == 149:
            assert not training.kinds()

    assert training.kinds() == {"mixed_scaled_backward"}


def test_iterations_that_cease_to_end_are_noticed(
    loop: Callable[..., Loop], caplog: pytest.LogCaptureFixture
) -> None:
    """Sensors wake between iterations, so something else has to wake them."""
    training = loop()
    for _ in range(AWAKE_AT_FIRST + 3):
        training.step()
    for _ in range(200):
        training.optimizer.zero_grad()
        training.scaler.scale(training.loss()).backward()
        training.scaler.step(training.optimizer)
        # What update() would do, which nobody calls: else the next step raises.
        training.scaler._per_optimizer_states.clear()

    assert "no iteration ends" in caplog.text


def test_a_call_that_is_suspicious_is_followed_while_sensors_rest(
    loop: Callable[..., Loop],
) -> None:
    """Gradients that are clipped before they are unscaled: judged by what comes after the call."""
    training = loop()
    for _ in range(AWAKE_AT_FIRST + 3):
        training.step()
    for _ in range(3):
        training.optimizer.zero_grad()
        training.scaler.scale(training.loss()).backward()
        nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        training.scaler.step(training.optimizer)
        training.scaler.update()

    assert training.kinds() == {"clip_before_unscale"}
