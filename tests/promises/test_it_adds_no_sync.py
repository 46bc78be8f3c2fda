"""No added synchronisation: what the host reads from tensors is what it reads without ampwatch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import ampwatch
from tests.promises.conftest import ahead
from tests.training import RECIPES, Net, Run, build, scaler

pytestmark = ahead


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


@pytest.mark.parametrize("recipe", RECIPES)
def test_light_adds_no_read_and_no_op(recipe: str) -> None:
    """On the CPU not even an ATen op is added, let alone one that waits."""
    bare, watched = _count(recipe, None), _count(recipe, "light")

    assert (watched.reads, watched.ops) == (bare.reads, bare.ops)


@pytest.mark.parametrize("level", ["standard", "deep"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_measuring_adds_no_read(recipe: str, level: str) -> None:
    """Here every iteration is sampled: ops are added, and none that waits."""
    bare, watched = _count(recipe, None), _count(recipe, level)

    assert watched.reads == bare.reads
    assert watched.ops > bare.ops


def test_an_iteration_that_is_not_sampled_has_no_op_more() -> None:
    """What sampling costs, it costs in sampled iterations."""
    bare = _count("fp16-foreach", None)
    watched = _count("fp16-foreach", "standard", sample_every=10_000)
    first = _count("fp16-foreach", "standard", sample_every=10_000, steps=1)
    bare_first = _count("fp16-foreach", None, steps=1)

    assert watched.ops - bare.ops == first.ops - bare_first.ops


@pytest.mark.parametrize(("flavour", "per_step"), [("foreach", 1), ("fused", 0)])
def test_a_watched_step_reads_as_often_as_pytorch_itself(flavour: str, per_step: int) -> None:
    """One read a step with a foreach optimizer, none with a fused one."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), **{flavour: True})
    run = Run([model], [optimizer], scaler(init_scale=1024.0))
    with ampwatch.monitor(model, run.scaler, serve=False) as watch, SyncCounter() as counter:
        _step_only(run)

    assert counter.reads == per_step * run.steps
    assert watch.last_step.step == run.steps - 1


def test_the_counter_sees_a_read() -> None:
    """An ``item()`` in the loop is counted, so that the tests above can fail."""
    with SyncCounter() as counter:
        torch.ones(()).item()

    assert counter.reads == 1
