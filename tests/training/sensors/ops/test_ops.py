"""The op census of a monitored training, from the hooks to what it hands to the diagnosis."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.diagnosis.evidence.ops import OpCensus
from ampwatch.diagnosis.pipeline import Diagnosis
from ampwatch.wire.records import CensusSource
from tests.training.sensors.counting import Counted
from tests.trainings import build
from tests.workshop.played_time import play_time

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of:UserWarning")

STEP_SECONDS = 0.005
"""What a step takes where its time is played."""


@pytest.fixture(autouse=True)
def _alone(one_thread: None) -> None:
    """Sums in one order."""


@pytest.fixture
def censuses(monkeypatch: pytest.MonkeyPatch) -> list[OpCensus]:
    """All censuses that reach the diagnosis."""
    taken: list[OpCensus] = []
    observe_census = Diagnosis.observe_census

    def keep(diagnosis: Diagnosis, census: OpCensus, *args: Any) -> None:
        taken.append(census)
        observe_census(diagnosis, census, *args)

    monkeypatch.setattr(Diagnosis, "observe_census", keep)
    deliver = Diagnosis.deliver

    def delivered(diagnosis: Diagnosis, *iterations: Any) -> None:
        taken.extend([i.census for i in iterations if i.census is not None])
        deliver(diagnosis, *iterations)

    monkeypatch.setattr(Diagnosis, "deliver", delivered)
    return taken


def _once(censuses: list[OpCensus]) -> dict[int, OpCensus]:
    return {census.step: census for census in censuses}


@pytest.mark.parametrize("recipe", ["fp16-foreach", "fp16-fused", "bf16-without-scaler"])
def test_at_deep_each_iteration_has_the_census_it_would_have_alone(
    recipe: str, censuses: list[OpCensus]
) -> None:
    """Ops of ampwatch itself, for ranges and readback, are not counted."""
    run = build(recipe)
    run.steps = 4
    with ampwatch.monitor(run.models, run.scaler, level="deep", serve=False):
        run.loop()
    found = _once(censuses)

    alone = build(recipe)
    alone.steps = 1
    with Counted(*alone.models) as counted:
        alone.loop()

    def numbers(tallies: Any) -> dict[Any, tuple[int, ...]]:
        return {key: (t.calls, t.flops, t.bytes) for key, t in dict(tallies).items()}

    assert sorted(found)[:4] == [0, 1, 2, 3]
    assert numbers(found[0].tallies) == numbers(counted.tallies)


def test_standard_counts_now_and_then_where_it_is_allowed(
    censuses: list[OpCensus], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first iteration, and then in turn with the ranges."""
    played = play_time(monkeypatch)
    run = build("fp16-foreach")
    run.steps = 30
    run.after_step = lambda _: played.take(STEP_SECONDS)
    with ampwatch.monitor(run.models, run.scaler, serve=False):
        run.loop()

    steps = sorted(_once(censuses))
    assert steps[0] == 0
    assert 3 <= len(steps) <= 6


def test_what_never_ends_is_counted_at_the_end(censuses: list[OpCensus]) -> None:
    """Without an update the ops until ``close`` are counted; the duration is not known."""
    model = nn.Linear(4, 4)
    with ampwatch.monitor(model, torch.amp.GradScaler("cpu"), level="deep", serve=False):
        model(torch.randn(2, 4)).sum().backward()

    (census,) = _once(censuses).values()
    assert census.duration_s != census.duration_s
    assert sum(t.flops for t in census.tallies.values()) == 2 * 2 * (2 * 4 * 4)


def test_profiler_windows_count_ops_once_they_are_not_counted_one_by_one(
    censuses: list[OpCensus], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the iteration after the one that met what PyTorch computes otherwise under a mode."""
    played = play_time(monkeypatch)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    watched = ampwatch.monitor(
        model, optimizer=optimizer, level="deep", window_seconds=1.0, serve=False
    )
    with watched:
        for step in range(60):
            out = model(torch.randn(2, 4))
            (out.prod() if step == 2 else out.sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
            played.take(10 * STEP_SECONDS)

    found = _once(censuses)
    one_by_one = [s for s, census in found.items() if census.source is CensusSource.DISPATCH]
    assert one_by_one == [0, 1]
    assert [c.source for s, c in found.items() if s > 1][:1] == [CensusSource.PROFILER]


def test_what_could_not_be_counted_is_said() -> None:
    """Why, and what is there instead."""
    model = nn.Linear(4, 4)
    with ampwatch.monitor(model, level="deep", serve=False) as watch:
        quiet = watch.report()
        model(torch.randn(2, 4)).prod().backward()
        altered = watch.report()
        watch._session.bus.runs_compiled = True
        compiled = watch.report()

    assert "not counted one by one" not in quiet
    assert "prod was met" in altered
    assert "compiled code runs" in " ".join(compiled.split())
