"""The page of all that ampwatch replaces or hooks in torch: ``docs/what-is-patched.md``.

The page is printed from the list of the bus (``python -m tools.site.patched >
docs/what-is-patched.md``), and from the few places that are not the bus's.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

import torch

from ampwatch.settings import Settings
from ampwatch.training.hooks.bus import handler_name
from ampwatch.training.hooks.place import FUNCTION, HOOK, REPLACED, Place
from ampwatch.training.hooks.places import PLACES
from ampwatch.training.outlet import Outlet
from ampwatch.training.session import Session
from ampwatch.training.targets import Targets
from ampwatch.version import __version__
from ampwatch.wire.records import RunIdentity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ampwatch.training.hooks.sensor import Sensor

ELSEWHERE: tuple[tuple[str, str, str], ...] = (
    (
        "the program's handler of SIGINT, where it runs one",
        FUNCTION,
        "for microseconds, while something of this list is placed or taken off; then it is called",
    ),
    (
        (
            "torch.autograd.profiler.profile._prepare_trace and __exit__, emit_nvtx.__enter__,"
            " emit_itt.__enter__, torch.autograd.profiler_legacy.profile.__enter__"
        ),
        REPLACED,
        "at standard and deep: a profiler window gives way to the user's own profiler",
    ),
    (
        "torch.cuda.CUDAGraph.capture_begin, torch.xpu.XPUGraph.capture_begin, torch.nn.Module.train",
        REPLACED,
        "while a profiler window is open, which gives way to a capture and to an evaluation",
    ),
    (
        "a hook on the nodes that made outputs of modules (Node.register_prehook)",
        HOOK,
        "in iterations whose gradients of outputs are measured; goes with the graph",
    ),
    (
        "a hook on the nodes that add to the gradients of parameters (Node.register_prehook)",
        HOOK,
        "during a backward, on up to 16 parameters whose optimizers step in the middle of it",
    ),
    (
        "torch.utils._python_dispatch.TorchDispatchMode",
        HOOK,
        "on the stack of modes in iterations whose ops are observed one by one, and in replays",
    ),
    (
        "torch.nn.modules.module.register_module_forward_pre_hook",
        HOOK,
        (
            "until a thread has left the dispatch mode or the recording that only it can leave;"
            " in replays"
        ),
    ),
    ("warnings.warn", REPLACED, "in replays, for the thread that replays: it warns of nothing"),
    (
        "torch.compiler.set_stance",
        FUNCTION,
        'called in counted iterations, only with compiled_census="force_eager"; and in replays',
    ),
    (
        (
            "torch.optim.Optimizer.__init__, zero_grad and the step of each class of optimizer;"
            " torch.amp.GradScaler.__init__, step and update; torch.autograd.backward"
        ),
        REPLACED,
        "only under `ampwatch run`; step and backward until what was made is watched",
    ),
    (
        "torch.amp.GradScaler.step, a module's forward hook, or a hook on the nodes of parameters",
        HOOK,
        "only while a fault is planted by ampwatch.inject",
    ),
)
"""Places that the bus does not put on: what, how and when."""

_INTRODUCTION = """\
# What is patched

Generated from `ampwatch/training/hooks/places/`; change that package, then run
`python -m tools.site.patched > docs/what-is-patched.md`.

To watch a training ampwatch replaces some methods and functions of torch by ones that call the
original with the same arguments, return what it returned and raise what it raised, and it
registers some of PyTorch's own hooks. Everything is put on by `monitor()` or when it is needed,
and taken off by `close()`; then torch is as it was. Nothing is stored on a model, an optimizer or
a scaler: a copied, pickled or saved one is what it would be without ampwatch. Code that
`torch.compile` compiles contains none of it.

A row is there only if one of its sensors is on at the level: `light` watches the scaler and the
steps, `standard` and `deep` everything. Below `deep`, what is there for sensors alone that watch how
PyTorch is called (autocast, `backward`, `zero_grad`) is put back in most iterations after the first 64.

| what of torch | how | when | which sensors use it at every level | at standard and deep also |
| --- | --- | --- | --- | --- |
"""

_ELSEWHERE = """
Besides, for one sensor or for a part of its own:

| what of torch | how | when |
| --- | --- | --- |
"""


_RANK = RunIdentity("docs", 0, 0, 2, 0, "docs", 0, __version__)
"""A rank among others, which checks its weights against theirs."""


@cache
def sensors_of(level: str) -> tuple[Sensor, ...]:
    """Return the sensors of a level, of trainings with and without a GradScaler."""
    scaler = torch.amp.GradScaler("cpu")
    model = torch.nn.Linear(1, 1)
    settings = Settings(level=level)
    outlet = Outlet(settings, _RANK)
    return tuple(
        sensor
        for given in (scaler, None)
        for sensor in Session(Targets((model,), given, ()), settings, outlet).bus.sensors
    )


def markdown() -> str:
    """Return the text of ``docs/what-is-patched.md``."""
    rows = "".join(_row(place) for place in PLACES)
    others = "".join(f"| {what} | {how} | {when} |\n" for what, how, when in ELSEWHERE)
    return _INTRODUCTION + rows + _ELSEWHERE + others


def _row(place: Place) -> str:
    light = list(_listeners(place, "light"))
    more = [name for name in _listeners(place, "standard") if name not in light]
    names = [", ".join(dict.fromkeys(names)) or "-" for names in (light, more)]
    return f"| {place.what} | {place.how} | {place.when} | {' | '.join(names)} |\n"


def _listeners(place: Place, level: str) -> Iterator[str]:
    for sensor in sensors_of(level):
        is_told = any(hasattr(sensor, handler_name(event)) for event in place.events)
        if is_told or not sensor.times.isdisjoint(place.events):
            yield sensor.name


if __name__ == "__main__":
    sys.stdout.write(markdown())
