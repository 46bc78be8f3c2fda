"""Watching without an edit: ``monitor()`` for the optimizers and scalers that a program makes.

Armed by `ampwatch run` as soon as the program has imported torch. It listens to the making of
optimizers and GradScalers and attaches between two iterations, where nothing is half done: at
``zero_grad``, else at the end of ``scaler.update()``, or without a scaler of ``optimizer.step()``.
A program that calls ``ampwatch.monitor`` itself is left alone.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import multiprocessing
import os
import sys
import time
import weakref
from multiprocessing.util import Finalize
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from ampwatch.errors import AmpwatchError
from ampwatch.guard import Guard
from ampwatch.last_resort import LastResort
from ampwatch.report.one_line import NAME, printable
from ampwatch.settings import ATTACH, FINDINGS_ONLY
from ampwatch.training.announcement import announce
from ampwatch.training.attach.last_word import MAX_SECONDS, last_word
from ampwatch.training.hooks.taps import Listener, listen, listen_to_function
from ampwatch.training.model.living import instances_of
from ampwatch.training.private import scale_tensor
from ampwatch.wire.records import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ampwatch.training.monitor import Monitor
    from ampwatch.training.scalers.rows import Row


def models_of(optimizers: Iterable[Optimizer]) -> list[nn.Module]:
    """Return the outermost modules that hold parameters of the optimizers.

    Where several hold the same ones (a wrapper beside a container), the one with fewest modules
    is taken, and the others left out. They come in the order of their first parameters.

    Cost: one pass over the collector's objects, some 0.1 s.
    """
    order = [id(p) for o in optimizers for g in o.param_groups for p in g["params"]]
    wanted = set(order)
    held: dict[int, set[int]] = {}
    roots = _roots(instances_of(nn.Module), wanted)
    for root in roots:
        held[id(root)] = wanted & {id(p) for p in root.parameters()}
    roots.sort(key=lambda m: (-len(held[id(m)]), sum(1 for _ in m.modules())))
    chosen: list[nn.Module] = []
    covered: set[int] = set()
    for root in roots:
        if held[id(root)] - covered:
            chosen.append(root)
            covered |= held[id(root)]
    place = {parameter: number for number, parameter in reversed(list(enumerate(order)))}
    return sorted(chosen, key=lambda m: min(place[p] for p in held[id(m)]))


def _roots(modules: Sequence[nn.Module], wanted: set[int]) -> list[nn.Module]:
    """Return the modules that hold wanted parameters, or have children that do, and no parent."""
    parents: dict[int, list[nn.Module]] = {}
    queue = []
    for module in modules:
        # A module that is being made, or was unpickled half, has neither.
        state = vars(module)
        for child in (state.get("_modules") or {}).values():
            parents.setdefault(id(child), []).append(module)
        if any(id(p) in wanted for p in (state.get("_parameters") or {}).values()):
            queue.append(module)
    roots = []
    seen = {id(module) for module in queue}
    while queue:
        module = queue.pop()
        above = parents.get(id(module), [])
        if not above:
            roots.append(module)
        new = [m for m in above if id(m) not in seen]
        seen.update(id(m) for m in new)
        queue.extend(new)
    return roots


T = TypeVar("T")

EARLY_BACKWARDS = 2
"""First unwatched calls of backward at which a scaler that is not torch's is looked for."""

UNWATCHED = 64
"""Calls of backward that run unwatched until that is reported, and such a scaler is looked for once more."""

GradScaler = torch.amp.GradScaler
logger = logging.getLogger("ampwatch")


class _ToStderr(logging.Handler):
    """Writes to whatever ``sys.stderr`` is at the moment, and never through the program's handlers.

    A program may have sent its log to stdout, which is its own.
    """

    def emit(self, record: logging.LogRecord) -> None:
        _print(self.format(record).removeprefix(NAME))


def _print(text: str) -> None:
    with contextlib.suppress(Exception):  # no stderr, or one that is closed
        print(f"ampwatch: {text}", file=sys.stderr, flush=True)  # noqa: T201 - ours is the command line


def arm() -> Attacher:
    """Attach to the trainings that this process makes from now on."""
    attacher = Attacher(serve=os.environ.get(ATTACH) != FINDINGS_ONLY)
    if all(isinstance(handler, LastResort) for handler in logger.handlers):
        logger.addHandler(_ToStderr())
        logger.propagate = False
    atexit.register(attacher.report)
    # A worker of a DataLoader inherits monitors whose rings are the parent's to write.
    os.register_at_fork(after_in_child=attacher.forget)
    attacher.install()
    return attacher


class Attacher:
    """Makes one monitor per training.

    Args:
        serve: Whether rings are written and a daemon is started.
    """

    def __init__(self, *, serve: bool) -> None:
        self._serve = serve
        self._guard = Guard("ampwatch run")
        self._listeners: list[Listener] = []
        self._steps: dict[type, Listener] = {}
        self._of_backward: Listener | None = None
        self._waiting: list[weakref.ref[Optimizer]] = []
        self._scalers: list[weakref.ref[GradScaler]] = []
        self._stepped: list[tuple[weakref.ref[GradScaler], weakref.ref[Optimizer]]] = []
        self._backwards = 0
        self._watches: list[tuple[Monitor, weakref.ref[GradScaler] | None]] = []
        self._at_end: Finalize | None = None

    def install(self) -> None:
        """Listen to the making of optimizers and scalers, and to where an iteration begins or ends."""
        on = self._guarded
        self._listeners = [
            listen(Optimizer, "__init__", after=on(self._made_optimizer)),
            listen(Optimizer, "zero_grad", before=on(self._zero_grad)),
            listen(GradScaler, "__init__", after=on(self._made_scaler)),
            listen(GradScaler, "step", before=on(self._scaled_step)),
            listen(GradScaler, "update", after=on(self._updated)),
        ]
        self._listen_to_backward()

    def _listen_to_backward(self) -> None:
        if self._of_backward is None:
            self._of_backward = listen_to_function(
                torch.autograd, "backward", before=self._backward_begins
            )

    def _ignore_backward(self) -> None:
        listener, self._of_backward = self._of_backward, None
        if listener is not None:
            listener.remove()

    def remove(self) -> None:
        """Stop listening; monitors that are open stay."""
        for listener in (*self._listeners, *self._steps.values()):
            listener.remove()
        self._listeners.clear()
        self._steps.clear()
        self._ignore_backward()

    def _guarded(self, work: Callable[..., None]) -> Callable[..., None]:
        def advice(instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._guard.run(work, instance, args, kwargs)

        return advice

    def _made_optimizer(self, optimizer: Optimizer, *_: Any) -> None:
        self._waiting.append(weakref.ref(optimizer))
        if self._listeners:
            self._listen_to_backward()
        kind = type(optimizer)
        if kind not in self._steps:
            # Not by register_optimizer_step_post_hook: attaching places hooks of that kind, and
            # PyTorch iterates over the dictionary of hooks itself while it calls them.
            self._steps[kind] = listen(kind, "step", after=self._guarded(self._stepped_alone))

    def _backward_begins(self, *_: Any) -> None:
        if self._is_nobody_watched():
            self._guard.run(self._backward_of_nobody)

    def _is_nobody_watched(self) -> bool:
        return all(watch.closed for watch, _ in self._watches)

    def _is_searched_at(self, backward: int) -> bool:
        """Whether a scaler that is not torch's is looked for at an unwatched call of backward.

        At the first ones, and rarely after: with a framework of a row it is a pass over all
        objects.
        """
        is_its_turn = backward <= EARLY_BACKWARDS or backward == UNWATCHED
        return is_its_turn and not any(s.is_enabled() for s in _living(self._scalers))

    def _backward_of_nobody(self) -> None:
        """Attach to a scaler that is not torch's; say that there is nothing else to attach to."""
        # Late, as in `_attach`.
        from ampwatch.training.scalers.rows import living  # noqa: PLC0415

        self._backwards += 1
        if self._is_searched_at(self._backwards):
            for row, instance in living(()):
                self._attach(_living(self._waiting), None, 0, (row, instance))
                return
        if self._backwards == UNWATCHED and not self._watches:
            made = {type(o).__qualname__ for o in _living(self._waiting)}
            what = f"{', '.join(sorted(made))} has not stepped" if made else "none was made"
            announce(
                f"{UNWATCHED} backward passes run unwatched: of torch.optim.Optimizer {what}; call"
                " ampwatch.monitor(model), and watch.end_iteration() after each step"
            )

    def _made_scaler(self, scaler: GradScaler, *_: Any) -> None:
        self._scalers.append(weakref.ref(scaler))

    def _zero_grad(self, optimizer: Optimizer, *_: Any) -> None:
        scalers = [s for s in _living(self._scalers) if s.is_enabled()]
        # With several scalers it is not known yet which optimizer steps through which.
        if self._is_waiting(optimizer) and len(scalers) <= 1:
            self._attach(_living(self._waiting), scalers[0] if scalers else None, 0)

    def _stepped_alone(self, optimizer: Optimizer, *_: Any) -> None:
        in_use = [
            s for s in _living(self._scalers) if s.is_enabled() and scale_tensor(s) is not None
        ]
        if self._is_waiting(optimizer) and not in_use:
            self._attach(_living(self._waiting), None, 1)

    def _scaled_step(
        self, scaler: GradScaler, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        optimizer = args[0] if args else kwargs.get("optimizer")
        # Not by its class: fastai has its scaler step an object that only has parameters.
        if (
            optimizer is not None
            and hasattr(optimizer, "param_groups")
            and scaler.is_enabled()
            and not self._is_watched(scaler)
        ):
            self._stepped.append((weakref.ref(scaler), weakref.ref(optimizer)))

    def _updated(self, scaler: GradScaler, *_: Any) -> None:
        if not scaler.is_enabled() or self._is_watched(scaler):
            return
        mine = [o for s, o in self._stepped if s() is scaler]
        self._stepped = [(s, o) for s, o in self._stepped if s() not in (scaler, None)]
        if sum(s.is_enabled() for s in _living(self._scalers)) == 1:
            mine += self._waiting
        if mine:
            self._attach(_living(mine), scaler, 1)

    def _is_waiting(self, optimizer: Optimizer) -> bool:
        return any(reference() is optimizer for reference in self._waiting)

    def _is_watched(self, scaler: GradScaler) -> bool:
        from ampwatch.training.monitor import follows  # noqa: PLC0415 - as in `_attach`

        return any(of is not None and of() is scaler for _, of in self._watches) or follows(scaler)

    def _attach(
        self,
        optimizers: list[Optimizer],
        scaler: GradScaler | None,
        step: int,
        foreign: tuple[Row, Any] | None = None,
    ) -> None:
        """Watch the training of ``optimizers``, of which iteration ``step`` is open."""
        # Late: a program that imports torch and trains nothing should not pay for all of ampwatch.
        from ampwatch.training.monitor import Monitor, watch_unasked  # noqa: PLC0415
        from ampwatch.training.scalers.rows import living  # noqa: PLC0415

        if Monitor.num_asked_for:
            self.remove()
            return
        same = [
            w for w, of in self._watches if scaler is not None and of is not None and of() is scaler
        ]
        models = models_of([*optimizers, *_like_optimizers(foreign)])
        is_for_backward = self._is_nobody_watched() and self._is_searched_at(self._backwards + 1)
        if foreign is None and not models and is_for_backward and any(living(())):
            # Copies in float32 that an engine has made of its model's parameters, and steps once
            # while it is made itself. The next backward finds it whole. Only where that looks: to
            # come here again at each step would be a pass over all objects each time.
            return
        given: Any = scaler if foreign is None else foreign[1]
        if self._covers(models, scaler):
            self._stop_waiting(optimizers)
            return
        models += [m for w in same for m in w.models if not any(m is n for n in models)]
        several = sum(s.is_enabled() for s in _living(self._scalers)) > 1
        try:
            watch = watch_unasked(
                models or None,
                given,
                optimizer=optimizers
                if optimizers and foreign is None and (several or not models)
                else None,
                serve=self._serve,
                step=max([step, *(w.last_step.step + 1 for w in same)]),
            )
        except AmpwatchError as error:
            self.remove()
            logger.warning("this training runs unwatched: %s", error)
            return
        self._keep(watch, scaler, optimizers)

    @property
    def watches(self) -> list[Monitor]:
        """The monitors made so far."""
        return [watch for watch, _ in self._watches]

    def _keep(self, watch: Monitor, scaler: GradScaler | None, now: Iterable[Optimizer]) -> None:
        """Remember what is watched; optimizers that are not yet go on waiting."""
        # Of a program that trains a thousand times only monitors with something to report are kept.
        self._watches = [(w, of) for w, of in self._watches if not w.closed or _has_news(w)]
        self._watches.append((watch, None if scaler is None else weakref.ref(scaler)))
        if self._at_end is None and multiprocessing.parent_process() is not None:
            # A process of multiprocessing runs no atexit. After the monitors, whose priority is 0.
            self._at_end = Finalize(None, self.report, exitpriority=-1)
        self._stop_waiting(now)
        # With a page the monitor has reported so, once; on each machine, one of the ranks does.
        if watch.settings.level != "off" and not watch.url and not watch.identity.local_rank:
            announce(f"watching run {printable(watch.identity.run)}: findings only, at the end")

    def _covers(self, models: list[nn.Module], scaler: GradScaler | None) -> bool:
        """Whether a monitor of ours will find optimizers of ``models`` by itself."""
        return bool(models) and any(
            not watch.closed
            and (scaler is None or (of is not None and of() is scaler))
            and all(any(m is n for n in watch.models) for m in models)
            for watch, of in self._watches
        )

    def _stop_waiting(self, optimizers: Iterable[Optimizer]) -> None:
        watched = {id(optimizer) for optimizer in optimizers}
        self._waiting = [
            w for w in self._waiting if (o := w()) is not None and id(o) not in watched
        ]
        if not self._waiting:
            # All that was made is watched; the next optimizer has backward listened to again.
            self._ignore_backward()
        for kind in [k for k in self._steps if not any(type(w()) is k for w in self._waiting)]:
            self._steps.pop(kind).remove()

    def forget(self) -> None:
        """Drop all optimizers, scalers and monitors: in a forked process they are the parent's."""
        self._waiting.clear()
        self._scalers.clear()
        self._stepped.clear()
        self._watches.clear()
        self._at_end = None

    def report(self) -> None:
        """Print the reports of monitors with findings that matter. Called by ``atexit``.

        Of the ranks of a machine that end together one prints, for all of them; it waits
        ``MAX_SECONDS`` for them, whatever the number of monitors.
        """
        # atexit runs the newest function first, so monitors have closed themselves by now:
        # each has registered its own after this one.
        until_s = time.monotonic() + MAX_SECONDS

        def wait() -> None:
            time.sleep(max(0.0, until_s - time.monotonic()))

        watches, self._watches = self._watches, []
        for watch, _ in watches:
            with contextlib.suppress(Exception):
                if _has_news(watch) and (text := last_word(watch.box(), watch.settings, wait)):
                    _print(f"\n{text}")


def _like_optimizers(foreign: tuple[Row, Any] | None) -> list[Any]:
    """Return an optimizer that is none of torch's, as far as its parameters are where torch's are."""
    groups = getattr(foreign[1], "param_groups", None) if foreign is not None else None
    lists = getattr(foreign[1], "param_lists", None) if foreign is not None else None
    if not groups and lists:
        groups = [{"params": list(parameters)} for parameters in lists]
    return [SimpleNamespace(param_groups=groups)] if groups else []


def _has_news(watch: Monitor) -> bool:
    return any(finding.severity is not Severity.INFO for finding in watch.findings)


def _living(references: Iterable[weakref.ref[T]]) -> list[T]:
    """Return what still lives, each once, in order."""
    things = [thing for reference in references if (thing := reference()) is not None]
    return list({id(thing): thing for thing in things}.values())
