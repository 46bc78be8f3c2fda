"""A program that has been fitted in a process needs no opening there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.guard import Account
from ampwatch.training.iteration.governor import OPENING, SHORT_NS, Governor
from tests.trainings import Gain

STEPS = OPENING + 4


class Other(nn.Module):
    """Does something else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.0


@pytest.fixture(autouse=True)
def _alone(one_thread: None) -> None:
    """One thread."""


def fit(
    monkeypatch: pytest.MonkeyPatch,
    *,
    steps: int = STEPS,
    width: int = 8,
    failing: range = range(0),
    middle: type[nn.Module] = Gain,
) -> tuple[list[int], list[str]]:
    """Return the steps that were sampled, and what was found."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, width), middle(), nn.Linear(width, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    seen: list[int] = []
    original = Governor.next

    def end(governor: Governor, duration_s: float, probe_every: int, num: int) -> None:
        if governor.wanted:
            seen.append(governor.step)
        # Iterations are short and samples are dear, however busy the host is.
        original(governor, min(duration_s, num * SHORT_NS / 8e9), probe_every, num)

    with monkeypatch.context() as patch:
        patch.setattr(Governor, "next", end)
        patch.setattr(Account, "spent_ns", property(lambda _: len(seen) * SHORT_NS / 8))
        with ampwatch.monitor(model, scaler, optimizer=optimizer, serve=False) as watch:
            for step in range(steps):
                optimizer.zero_grad()
                if step in failing:
                    model[1].by = 1e6
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = model(torch.randn(8, 8)).float().square().mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                model[1].by = 1.0
    return seen, [f"{f.kind} {f.where}" for f in watch.findings]


def test_the_second_fit_of_a_program_has_no_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor has one with other widths: the same lines and modules are the same program."""
    fits = [fit(monkeypatch, width=width)[0] for width in (8, 8, 16)]

    assert len(fits[0]) >= OPENING - 1
    assert max(map(len, fits[1:])) <= OPENING // 4


def test_each_fit_of_several_ranks_has_an_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one of them finds the others do not know, and they sample in the same steps."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    fits = [fit(monkeypatch)[0] for _ in range(2)]

    assert min(map(len, fits)) >= OPENING - 1


def test_fits_that_are_shorter_than_the_opening_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three thirds of it, and no more."""
    third = OPENING // 3 + 1

    lengths = [len(fit(monkeypatch, steps=third)[0]) for _ in range(5)]

    assert min(lengths[:2]) >= third - 1
    assert max(lengths[3:]) <= third // 2


@pytest.mark.rotating
def test_another_program_has_an_opening_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with another module, and one that is called from another line."""
    fit(monkeypatch)
    with_other = fit(monkeypatch, middle=Other)[0]
    fits = [fit(monkeypatch)[0] for _ in range(2)]

    assert len(with_other) >= OPENING - 1
    assert len(fits[0]) >= OPENING - 1
    assert len(fits[1]) < OPENING // 4


@pytest.mark.rotating
def test_a_program_that_went_wrong_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found in one fit is found in the next one as well."""
    found = [fit(monkeypatch, failing=range(6, STEPS)) for _ in range(2)]

    assert ["forward_overflow 1" in kinds for _, kinds in found] == [True, True]
    assert min(len(steps) for steps, _ in found) >= OPENING - 1


def test_a_fault_in_a_later_fit_is_found_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A skipped step is looked at more closely in any fit."""
    fits = [fit(monkeypatch, failing=steps) for steps in (range(0), range(0), range(6, 8))]

    assert [kinds for _, kinds in fits] == [[], [], ["forward_overflow 1"]]
