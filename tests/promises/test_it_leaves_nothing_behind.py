"""Promise 3: after ``close()`` nothing of ampwatch is left, and copies never had any of it."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import optimizer as optimizer_module

import ampwatch
from ampwatch.training.hooks import taps
from tests.promises.conftest import MOST, ahead
from tests.trainings import Net, Run, adamw, build

pytestmark = ahead


_MODULES = (torch, torch.linalg, torch.autograd, torch.nn.utils, torch.nn.utils.clip_grad)
"""Modules with functions that somebody may listen to."""


def _residue(run: Run) -> dict[str, Any]:
    """Everything a monitor could leave behind."""
    hooks = [
        len(getattr(module, name))
        for model in run.models
        for module in model.modules()
        for name in vars(module)
        if name.endswith("hooks")
    ]
    return {
        "module hooks": hooks,
        "optimizer hooks": [
            len(getattr(o, name))
            for o in run.optimizers
            for name in vars(o)
            if name.endswith("hooks")
        ],
        "global hooks": (
            len(optimizer_module._global_optimizer_pre_hooks),
            len(optimizer_module._global_optimizer_post_hooks),
            len(torch.nn.modules.module._global_forward_hooks),
            len(torch.nn.modules.module._global_forward_pre_hooks),
            len(torch.nn.modules.module._global_forward_hooks_always_called),
        ),
        "methods": {
            f"{owner.__name__}.{name}": id(value)
            for owner in (
                torch.amp.GradScaler,
                torch.autocast,
                torch.optim.Optimizer,
                torch.optim.lr_scheduler.LRScheduler,
                torch.Tensor,
                torch.nn.Module,
                torch._TorchCompileWrapper,
                torch._TorchCompileInductorWrapper,
            )
            for name, value in vars(owner).items()
        },
        "functions": {
            f"{module.__name__}.{name}": id(value)
            for module in _MODULES
            for name, value in vars(module).items()
            if callable(value)
        },
        "instances": [sorted(vars(x)) for x in (*run.optimizers, run.scaler) if x is not None],
        "classes": [type(x) for x in (*run.models, *run.optimizers, run.scaler)],
        "modes": torch._C._len_torch_dispatch_stack(),
        "threads": [t.name for t in threading.enumerate() if t.name.startswith("ampwatch")],
        "files": _open_files(),
        "taps": dict(taps._taps),
    }


def _open_files() -> list[str]:
    targets = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one iterdir itself had open
            targets.append(str(link.readlink()))
    return sorted(targets)


@pytest.mark.parametrize("level", ["off", "light", "standard", "deep"])
@pytest.mark.parametrize("recipe", MOST)
def test_nothing_is_left_after_close(recipe: str, level: str) -> None:
    """Hooks, methods, attributes, classes, modes, threads and files are as before."""
    run = build(recipe)
    run.loop()
    before = _residue(run)

    with ampwatch.monitor(run.models, run.scaler, level=level, serve=False):
        run.loop()

    assert _residue(run) == before


@pytest.mark.parametrize("level", ["light", "standard", "deep"])
def test_nothing_is_left_if_a_callback_closes_in_the_middle_of_a_step(level: str) -> None:
    """What was going on when the callback came goes on, and begins nothing anew."""
    run = build("fp16-foreach")
    run.scaler._init_scale = 2.0**40
    before = _residue(run)
    watch = ampwatch.monitor(run.models, run.scaler, level=level, serve=False)
    closed: list[str] = []

    def close(finding: ampwatch.Finding) -> None:
        watch.close()
        closed.append(finding.kind)

    watch.on_finding(close)
    run.loop()
    run.loop()

    assert closed
    assert _residue(run)["modes"] == before["modes"] == 0
    assert _residue(run) == before


def test_nothing_is_left_with_a_ring_and_without_a_daemon(serving: Path) -> None:
    """The ring file goes with the monitor when no daemon is there to take it."""
    run = build("fp16-foreach")
    before = _residue(run)
    watch = ampwatch.monitor(run.models, run.scaler)
    run.loop()
    rings = list(serving.rglob("*.ring"))
    watch.close()

    assert len(rings) == 1
    assert list(serving.rglob("*.ring")) == []
    assert _residue(run)["files"] == before["files"]


def test_a_set_up_error_leaves_nothing_behind() -> None:
    """Wrong arguments are refused before any hook is placed."""
    run = build("fp16-foreach")
    before = _residue(run)
    for arguments in (
        {"model": "a string"},
        {"model": run.models, "scaler": "a string"},
        {"model": run.models, "scaler": run.scaler, "optimizer": run.models[0]},
        {"model": run.models, "scaler": run.scaler, "level": "loud"},
    ):
        with pytest.raises(ampwatch.AmpwatchError):
            ampwatch.monitor(**arguments, serve=False)

    assert _residue(run) == before


def test_a_wrapper_that_came_after_ours_stays() -> None:
    """Another tool that wrapped the method meanwhile is not taken out with us."""
    run = build("fp16-foreach")
    original = torch.amp.GradScaler.update
    calls = []
    watch = ampwatch.monitor(run.models, run.scaler, serve=False)
    ours = torch.amp.GradScaler.update

    def theirs(self: Any, *args: Any) -> None:
        calls.append(1)
        ours(self, *args)

    try:
        torch.amp.GradScaler.update = theirs
        watch.close()
        run.loop()

        assert torch.amp.GradScaler.update is theirs
        assert len(calls) == run.steps
    finally:
        torch.amp.GradScaler.update = original
        taps._taps.clear()


def test_a_forgotten_monitor_of_a_dead_model_does_not_stay() -> None:
    """A notebook that builds its model again does not collect monitors."""
    run = build("fp16-foreach")
    first = ampwatch.monitor(run.models, run.scaler, serve=False)
    del run
    gc.collect()
    again = build("fp16-foreach")
    second = ampwatch.monitor(again.models, again.scaler, serve=False)
    second.close()

    assert "closed" in repr(first)


def _copies(thing: Any) -> list[Any]:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    buffer.seek(0)
    return [
        copy.copy(thing),
        copy.deepcopy(thing),
        pickle.loads(pickle.dumps(thing)),
        torch.load(buffer, weights_only=False),
    ]


def test_copies_of_watched_objects_are_ordinary_and_not_watched() -> None:
    """Copying, pickling and saving work as without ampwatch, and the copy is on its own."""
    run = build("two-optimizers")
    run.loop()
    things = (run.models[0], run.optimizers[0], run.scaler)
    plain = [(type(twin), sorted(vars(twin))) for x in things for twin in _copies(x)]
    with ampwatch.monitor(run.models, run.scaler, optimizer=run.optimizers, serve=False) as watch:
        run.loop()
        step = watch.last_step.step
        twins = [twin for x in things for twin in _copies(x)]
        for twin in _copies(run.scaler):
            model = Net()
            Run([model], [adamw(model)], twin, steps=2).loop()

        assert [(type(twin), sorted(vars(twin))) for twin in twins] == plain
        assert watch.last_step.step == step


def test_a_forked_child_does_not_close_the_parents_watch(serving: Path) -> None:
    """A DataLoader worker that ends leaves ring and monitor of its parent alone."""
    run = build("fp16-foreach")
    with ampwatch.monitor(run.models, run.scaler) as watch:
        run.loop()
        pid = os.fork()
        if pid == 0:
            watch.close()
            os._exit(0)
        os.waitpid(pid, 0)
        rings = list(serving.rglob("*.ring"))

    assert len(rings) == 1
