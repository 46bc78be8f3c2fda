"""No added synchronisation: what the host reads from tensors is what it reads without ampwatch."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import ampwatch
from ampwatch.guard import NO_MODES
from ampwatch.training import session
from ampwatch.training.iteration.governor import OPENING
from tests.promises.conftest import ahead, each_recipe
from tests.trainings import Run, build

pytestmark = ahead


@pytest.fixture(autouse=True)
def sees_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the modes here see what ampwatch does, which those of a user do not."""
    monkeypatch.setattr(session, "USERS_MODES", NO_MODES)


READ = "aten::_local_scalar_dense"


class SyncCounter(TorchDispatchMode):
    """Counts what would be a sync on a GPU, and every op there is."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.ops = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.name()
        self.ops += 1
        self.reads += name in ("aten::_local_scalar_dense", "aten::item", "aten::nonzero")
        if name in ("aten::_to_copy", "aten::copy_") and "non_blocking" not in (kwargs or {}):
            target = args[0].device if name == "aten::copy_" else (kwargs or {}).get("device")
            source = args[-1] if name == "aten::copy_" else args[0]
            self.reads += (
                target is not None and target.type == "cpu" and source.device.type != "cpu"
            )
        return func(*args, **(kwargs or {}))


def _step_only(run: Run) -> None:
    """The steps of a run without the reads that its own bookkeeping makes."""
    for step in range(run.steps):
        loss = run.forward(step, 0)
        (loss if run.scaler is None else run.scaler.scale(loss)).backward()
        run.update()
        for optimizer in run.optimizers:
            optimizer.zero_grad()


def _count(
    recipe: str, level: str | None, steps: int | None = None, **settings: Any
) -> SyncCounter:
    run = build(recipe)
    run.steps = steps or run.steps
    if level is None:
        with SyncCounter() as counter:
            _step_only(run)
        return counter
    with (
        ampwatch.monitor(run.models, run.scaler, level=level, serve=False, **settings),
        SyncCounter() as counter,
    ):
        _step_only(run)
    return counter


@each_recipe
def test_light_adds_no_read_and_no_op(recipe: str) -> None:
    """On the CPU not even an ATen op is added, let alone one that waits."""
    bare, watched = _count(recipe, None), _count(recipe, "light")

    assert (watched.reads, watched.ops) == (bare.reads, bare.ops)


@pytest.mark.parametrize("level", ["standard", "deep"])
@each_recipe
def test_measuring_adds_no_read(recipe: str, level: str) -> None:
    """Here every iteration is sampled: ops are added, and none that waits."""
    bare, watched = _count(recipe, None), _count(recipe, level)

    assert watched.reads == bare.reads
    assert watched.ops > bare.ops


def test_an_iteration_that_is_not_sampled_has_no_op_more() -> None:
    """Sampling costs in sampled iterations alone, once a run without a failure is on its way."""
    first, last = OPENING + 2, OPENING + 8
    bare = [_count("bf16-with-scaler", None, steps).ops for steps in (first, last)]
    watched = [
        _count("bf16-with-scaler", "standard", steps, sample_every=10_000).ops
        for steps in (first, last)
    ]

    assert watched[0] > bare[0]
    assert watched[1] - watched[0] == bare[1] - bare[0]


def _profiled_reads(recipe: str, level: str | None) -> int:
    """Count reads wherever they come from, inside of modes as well."""
    run = build(recipe)
    run.steps = 6  # the first ones fail, which has them traced
    watch = ampwatch.monitor(run.models, run.scaler, level=level, serve=False) if level else None
    with watch or nullcontext(), profile(activities=[ProfilerActivity.CPU]) as seen:
        _step_only(run)
    reads = [event for event in seen.events() if event.name == READ]
    return sum(not _is_within(event.cpu_parent, READ) for event in reads)


def _is_within(event: Any, name: str) -> bool:
    """Whether an op is a part of one of that name: what a mode passes on is recorded twice."""
    while event is not None and event.name != name:
        event = event.cpu_parent
    return event is not None


@pytest.mark.rotating
@pytest.mark.parametrize("level", ["deep", pytest.param("standard", marks=pytest.mark.nightly)])
def test_what_is_observed_op_by_op_is_read_from_memory(level: str) -> None:
    """A training that fails is traced. A mode is not told what the mode below it calls; a profiler is."""
    assert _profiled_reads("two-optimizers", level) == _profiled_reads("two-optimizers", None)


def test_the_counter_sees_a_read() -> None:
    """An ``item()`` in the loop is counted, so that the tests above can fail."""
    with SyncCounter() as counter:
        torch.ones(()).item()

    assert counter.reads == 1
