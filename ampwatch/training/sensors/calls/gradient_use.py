"""Use of the gradients of scaled losses: which ones backward adds up, and which steps use them."""

from __future__ import annotations

import math
import weakref
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, TypeAlias

import torch

from ampwatch.diagnosis.evidence.calls import MixedGradients, MixedScales, ScaledStep
from ampwatch.training.hooks.compiling import is_traced
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.model.names import parameters_of
from ampwatch.training.model.scaler import READY, STEPPED, UNSCALED, scale_on_host, stage_of, stages
from ampwatch.training.private import graph_task, states_of_optimizers, version_of
from ampwatch.training.sensors.calls.gradient_contents import GradContents, GradientBefore
from ampwatch.training.sensors.calls.scale_doubts import Doubt, Doubts, ScaleLog
from ampwatch.training.sensors.calls.scaled_roots import PLAIN, UNKNOWN, Branch, ScaledRoots
from ampwatch.training.sensors.calls.untouched import (
    Untouched,
    has_hook,
    may_be_changed,
    may_divide,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from torch.optim import Optimizer

    from ampwatch.guard import Guard
    from ampwatch.training.hooks import events as on
    from ampwatch.training.iteration.context import Context

FOLLOWED = 24
"""Calls of backward that are followed after something was out of the ordinary, and at the start, at most."""

FOLLOWED_STEPS = 8
"""Iterations of which they are: what a program does with its gradients it does again."""

FOLLOW_AGAIN_EVERY = 64
"""Calls of backward after which another ``FOLLOWED`` are followed where unscaled losses are usual:
a loss may begin to reach the parameters of another optimizer later."""

MAX_SHAPES = 64
"""Combinations of unscaled losses that are told apart."""


Added: TypeAlias = "dict[int, frozenset[int]] | frozenset[int]"
"""What a backward adds: by identity of the parameter, or to all alike."""


class _Backward:
    """A backward that is running.

    Args:
        branches: The losses that it began at.
        seen: Gradients from before it.

    Attributes:
        branches: The losses that it began at.
        seen: Gradients from before it, by identity of the parameter.
        added: What it adds to gradients, once that was asked for.
    """

    def __init__(self, branches: Sequence[Branch], seen: Sequence[GradientBefore]) -> None:
        self.branches = branches
        self.seen = {id(one.parameter): one for one in seen}
        self.added: Added | None = None


class GradientUseSensor(Sensor):
    """Follows the content of ``.grad`` from ``backward`` to the step.

    Following costs two checks of every gradient per call of ``backward``. It is done in the first
    ``FOLLOWED_STEPS`` iterations, and after that only while something is out of the ordinary: a loss that was
    not scaled although others are, a step around the scaler, a backward after ``unscale_``, an
    update that leaves gradients of another optimizer waiting.

    Where the program may have divided gradients itself, unseen, that they are what backward has left is
    proved by their norms: in the steps of a scaler that has unscaled nothing, in steps after the scale
    was asked for, and in those in the middle of backward.
    """

    name = "gradient_use"
    rests = True

    def __init__(self, context: Context) -> None:
        self._scaler = context.some_scaler
        self._registry = context.registry
        self._names = context.names
        self._trained = context.trained
        self._iteration = context.iteration
        self._observe = context.observe
        self._contents = GradContents()
        self._roots = ScaledRoots(self._scaler)
        self._scales = ScaleLog()
        self._doubts = Doubts(self._scales, context.observe)
        self._bus = context.bus
        self._deferred = context.deferred
        # Of its own: gradients come in the middle of backward, begun by no event.
        self.guard: Guard = context.bus.guard(self.name, sweep=self.failed)
        self._untouched = Untouched(self.guard)
        # Weak: it holds nodes of the graph, which has to go where backward raises.
        self._running: weakref.ref[_Backward] | None = None
        self._was_asked_within = False
        self._shapes: set[tuple[str, ...]] = set()
        self._sources: dict[int, str] = {}
        self._calls = 0
        self._since_update: set[int] = set()
        self._follow()
        self._waits = False
        self._may_be_unscaled = False
        self._direct: set[int] = set()
        self._judged: set[int] = set()
        self._unscaling: set[int] = set()

    def devices_known(self, event: on.DevicesKnown) -> None:
        """Pin memory."""
        if event.has_accelerator:
            self._scales.prepare()

    def tensors_swapping(self, _event: on.TensorsSwapping) -> None:
        """Know nothing of the gradients meanwhile, and after."""
        self._contents.clear()
        self._untouched.clear()

    def may_rest(self) -> bool:
        """Whether no gradient is followed, and nothing is out of the ordinary."""
        follows = self._follows or self._waits or self._contents.known
        return not (follows or self._doubts.pending or self._shapes)

    def woken(self) -> None:
        """Begin anew, as after an update."""
        self._begin_anew()

    def failed(self) -> None:
        """Listen to no gradient any more."""
        self._running = None
        self._untouched.clear()

    def removed(self) -> None:
        """Forget all gradients."""
        self.failed()
        self._contents.clear()
        self._doubts.clear()

    # Backward.

    def backward_began(self, call: on.BackwardBegan) -> Callable[[], None] | None:
        """Find the losses that a backward begins at; return what to call when it has ended."""
        if not (call.is_alone and self._trained.thread == get_ident()):
            return None
        follows = self._follows
        self._calls += 1
        self._judged.clear()
        branches = self._roots.branches(call.tensors, call.gradients)
        self._roots.asked = False
        self._running = None
        is_plain = False
        for branch in branches:
            self._since_update.add(branch.kind)
            is_plain |= branch.kind == PLAIN
        if is_plain and self._roots.any_scaled:
            self._follow_new_shape(branches)
            follows = follows or self._follows
        if follows or self._waits or (self._may_be_unscaled and UNSCALED in stages(self._scaler)):
            parameters = self._trained.parameters()
            seen = self._contents.before(parameters)
            running = _Backward(branches, seen)
            self._running = weakref.ref(running)
            self._untouched.begin(parameters)
            return partial(self._backward_ended, running, seen)
        if self._contents.known:
            self._contents.clear()
        return None

    def _follow_new_shape(self, branches: Sequence[Branch]) -> None:
        """Follow for a while if losses are not scaled that were not met before."""
        plain = tuple(b.node.name() for b in branches if b.kind == PLAIN)
        if plain not in self._shapes and len(self._shapes) < MAX_SHAPES:
            self._shapes.add(plain)
            self._follow()
        elif self._calls % FOLLOW_AGAIN_EVERY == 0:
            self._follow()

    def _follow(self) -> None:
        self._follow_until = self._calls + FOLLOWED, self._iteration.step + FOLLOWED_STEPS

    @property
    def _follows(self) -> bool:
        calls, step = self._follow_until
        return self._calls < calls and self._iteration.step < step

    def _backward_ended(self, running: _Backward, seen: Sequence[GradientBefore]) -> None:
        self._running = None
        branches = running.branches
        self._contents.after(seen, self._added_by(running))
        self._untouched.end()
        self._was_asked_within |= self._roots.asked
        if not self._was_asked_within:
            self._untouched.left(one.parameter for one in seen)
        kinds = {branch.kind for branch in branches}
        # Nearly all losses are scaled, and finding the user's line walks the stack: the line of a
        # scaled loss matters only after ``unscale_``.
        if PLAIN in kinds or UNSCALED in stages(self._scaler):
            self._sources.update(dict.fromkeys(kinds, user_source()))

    def _added_by(self, running: _Backward) -> Added:
        if running.added is None:
            running.added = self._roots.reach(running.branches)
        return running.added

    # The scaler.

    def scaled(self, event: on.Scaled) -> None:
        """Remember the node of the graph that multiplies the loss by the scale."""
        if event.scaler is not self._scaler:
            return
        self._trained.thread = get_ident()
        is_first = not self._roots.num_scaled
        self._roots.scaled(event.result)
        if is_first and (self._waits or self._follows):
            self._scales.note(self._roots.number, self._scaler)
        if self._doubts.pending:
            self._doubts.settle()

    def scale_read(self, _event: on.ScaleRead) -> None:
        """Take note that something may be scaled by hand."""
        self._roots.asked = True
        self._was_asked_within |= self._bus.is_optimizer_stepping

    def unscaling(self, event: on.Unscaling) -> None:
        """Judge the gradients that the user is about to have unscaled."""
        self._may_be_unscaled = True
        self._judge_known(event.scaler, event.optimizer)

    def unscaled(self, event: on.Unscaled) -> None:
        """Take note that the user has had gradients divided by the scale."""
        if not self._contents.known or event.scaler is not self._scaler:
            return
        # ``_judge`` has noted which gradients were of known content before: unscaling has raised
        # their versions, so that ``of`` would not find them now.
        of_optimizer = parameters_of(event.optimizer)
        self._contents.set(
            [p for p in of_optimizer if id(p) in self._unscaling], frozenset({PLAIN})
        )
        # What the program has changed before was not known then, and is not what it was any more.
        self._contents.forget([p for p in of_optimizer if id(p) not in self._unscaling])
        self._unscaling.clear()

    def step_began(self, event: on.StepBegan) -> None:
        """Judge the gradients that the scaler is about to unscale and to step with."""
        # Set before the step: one that raises may have unscaled its gradients already.
        self._may_be_unscaled = True
        self._judge_known(event.scaler, event.optimizer)

    def _judge_known(self, scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
        if scaler is self._scaler and (
            self._contents.known or id(optimizer) not in self._trained.met
        ):
            self._judge(optimizer)

    def step_ended(self, event: on.StepEnded) -> None:
        """Forget the content of the gradients that the scaler has stepped with.

        Whatever is left in ``.grad`` after a step is of unknown content.
        """
        if self._contents.known and event.scaler is self._scaler:
            self._contents.forget(parameters_of(event.optimizer))

    def updating(self, event: on.Updating) -> None:
        """Check whether gradients are waiting that the scale, which changes, will not fit."""
        if event.scaler is not self._scaler:
            return
        states = states_of_optimizers(self._scaler)
        stepped = set(self._direct)
        for key, state in states.items():
            if state["stage"].name == STEPPED:
                stepped.add(key)
        is_used = bool(states or self._direct)
        # As a rule all have stepped, and no parameter has to be asked for a gradient.
        all_stepped = self._trained.met.keys() <= stepped
        others = [] if all_stepped else self._trained.others(frozenset(stepped))
        self._waits = bool(others) and any(p.grad is not None for p in others)
        if self._waits and not is_used and self._since_update == {self._roots.number}:
            # No gradient that was scaled by this scale was unscaled or stepped with: all wait.
            if not self._contents.known:
                self._contents.set(others, frozenset({self._roots.number}))
            self._scales.note(self._roots.number, self._scaler)

    def updated(self, event: on.Updated) -> None:
        """Begin anew: the scale may be another one."""
        if event.scaler is not self._scaler:
            return
        self._begin_anew()
        if self._doubts.pending:
            self._doubts.settle()

    def _begin_anew(self) -> None:
        self._roots.updated()
        self._may_be_unscaled = False
        self._was_asked_within = False
        self._direct.clear()
        self._since_update.clear()
        self._sources.clear()

    # Contents of the gradients when they are used.

    def _judge(self, optimizer: Optimizer) -> None:
        """Judge the gradients that are about to be unscaled, or, after ``unscale_``, stepped."""
        self._trained.meet(optimizer)
        stage = stage_of(self._scaler, optimizer)
        if not self._contents.known or stage not in (READY, UNSCALED):
            return
        found = self._contents.of(parameters_of(optimizer))
        self._unscaling = {id(p) for p, _ in found}
        kinds: frozenset[int] = frozenset()
        for _, of_one in found:
            kinds |= of_one
        any_scaled = _is_scaled(kinds)
        if stage == UNSCALED:
            if any_scaled:
                self._report_mixed(
                    optimizer, [p for p, k in found if _is_scaled(k)], after_unscale=True
                )
        elif PLAIN in kinds and self._roots.any_scaled:
            plain = [p for p, k in found if PLAIN in k]
            self._report_mixed(optimizer, plain, any_scaled=any_scaled)
        elif any_scaled:
            self._doubt(optimizer, kinds | {self._roots.number}, len(found))

    def _report_mixed(
        self,
        optimizer: Optimizer,
        parameters: Sequence[Tensor],
        *,
        any_scaled: bool = True,
        after_unscale: bool = False,
    ) -> None:
        index = self._registry.admit(optimizer)
        names = {id(p): name for name, p in self._names.of_optimizer(optimizer, index)}
        # Following goes on for as long as the mistake does: findings count how often it is made.
        self._follow()
        self._observe(
            MixedGradients(
                step=self._iteration.step,
                optimizer=index,
                scale=scale_on_host(self._scaler),
                parameter=names.get(id(parameters[0]), ""),
                parameters=len(parameters),
                any_scaled=any_scaled,
                after_unscale=after_unscale,
                source=self._sources.get(self._roots.number if after_unscale else PLAIN, ""),
            )
        )

    def _doubt(self, optimizer: Optimizer, numbers: frozenset[int], parameters: int) -> None:
        if len(numbers) < 2:
            return
        newest = self._roots.number
        self._scales.note(newest, self._scaler)
        observed = MixedScales(
            step=self._iteration.step,
            optimizer=self._registry.admit(optimizer),
            scale=math.nan,
            other=math.nan,
            updates=newest - min(numbers),
            parameters=parameters,
            source=user_source(),
        )
        self._doubts.add(Doubt(numbers, newest, observed))

    def optimizer_stepped(self, event: on.OptimizerStepped) -> None:
        """Judge the gradients of a step that the scaler did not call, or that it has not unscaled for."""
        optimizer, by_scaler, is_outermost = event
        if (by_scaler and self._is_unscaled(optimizer)) or is_traced():
            return
        index = self._registry.index_of(optimizer)
        is_nested = by_scaler and not is_outermost
        # Nothing is known of gradients within most steps of most trainings.
        if index is None or (is_nested and not self._contents.known):
            return
        running = None if self._running is None else self._running()
        if running is not None and graph_task() != -1:
            self._direct.add(id(optimizer))
            self._judge_within(running, optimizer, index)
            return
        if by_scaler:
            self._judge_scaler(optimizer, index, is_nested=is_nested)
            return
        roots = self._roots
        self._trained.meet(optimizer)
        self._direct.add(id(optimizer))
        if not self._contents.known:
            # The content of its gradients is not known; that of the next ones will be.
            if roots.num_scaled and stage_of(self._scaler, optimizer) == READY:
                self._follow()
            return
        parameters = [p for p in parameters_of(optimizer) if id(p) not in self._judged]
        known = self._contents.of(parameters)
        # A hook of the program may have divided.
        found = [p for p, kinds in known if _is_scaled(kinds) and not may_be_changed(p)]
        self._judged.update(id(p) for p in parameters)
        # A user who has asked for the scale after backward may have divided by it.
        if found and roots.asked:
            self._prove(optimizer, index, found)
        elif found:
            self._follow()
            self._observe(
                ScaledStep(
                    self._iteration.step,
                    index,
                    scale_on_host(self._scaler),
                    len(found),
                    user_source(),
                )
            )
        self._contents.forget(parameters_of(optimizer))

    def _is_unscaled(self, optimizer: Optimizer) -> bool:
        """Whether the scaler has looked for infinities in the gradients of an optimizer, as it does to unscale."""
        state = states_of_optimizers(self._scaler).get(id(optimizer))
        return state is not None and bool(state["found_inf_per_device"])

    def _judge_scaler(self, optimizer: Optimizer, index: int, *, is_nested: bool) -> None:
        """Judge the gradients of a step within that of the scaler, which has not unscaled them.

        A class of the user's has stepped in place of the scaler's own step, or a hook of the optimizer that the
        scaler steps has stepped another one. An optimizer within one that the scaler was given has the same
        gradients: unscaling has changed them, so that they are not known to be scaled any more.
        """
        found = [p for p, kinds in self._contents.of(parameters_of(optimizer)) if _is_scaled(kinds)]
        if found and stage_of(self._scaler, optimizer) == READY:
            self._prove(optimizer, index, found, by_scaler=not is_nested)

    def _judge_within(self, running: _Backward, optimizer: Optimizer, index: int) -> None:
        """Judge the gradients that a step in the middle of backward, in a hook, has used."""
        if stage_of(self._scaler, optimizer) != READY:
            return
        added = self._added_by(running)
        found = []
        for parameter in parameters_of(optimizer):
            before, gradient = running.seen.get(id(parameter)), parameter.grad
            # What was there before would be in the norm.
            if before is None or gradient is None or before.kinds:
                continue
            if id(gradient) == before.gradient and version_of(gradient) == before.version:
                continue
            kinds = added.get(id(parameter), frozenset()) if isinstance(added, dict) else added
            if _is_scaled(kinds) and UNKNOWN not in kinds:
                found.append(parameter)
        if found:
            self._prove(optimizer, index, found, in_backward=True)

    def _prove(
        self,
        optimizer: Optimizer,
        index: int,
        found: Sequence[Tensor],
        *,
        by_scaler: bool = False,
        in_backward: bool = False,
    ) -> None:
        """Report a step on scaled gradients if nobody has changed them, or have the next ones compared."""
        # Where it was asked for within backward, or within the step, it may have been divided by there.
        is_asked = self._was_asked_within or (in_backward and self._roots.asked)
        if is_asked or may_divide(optimizer, by_scaler=by_scaler):
            return
        found = [p for p in found if not has_hook(p)]
        is_same = self._untouched.compare(found)
        if is_same is None:
            if self._untouched.suspect(found, in_backward=in_backward):
                self._follow()
            return
        observed = ScaledStep(
            self._iteration.step,
            index,
            scale_on_host(self._scaler),
            len(found),
            user_source(),
            by_scaler=by_scaler,
            in_backward=in_backward,
        )

        def judge(read: list[float]) -> None:
            is_same, is_other = read
            if is_same:
                self._follow()
                self._observe(observed)
            elif is_other:
                self._untouched.were_changed()

        self._deferred.read(is_same, judge)

    def zeroed(self, event: on.Zeroed) -> None:
        """Take note that gradients were set to zero or to ``None``."""
        # While no gradient is followed, its content is not asked for.
        if self._waits or self._follows or self._contents.known:
            self._contents.set(parameters_of(event.owner), frozenset())

    def clipping_by_norm(self, event: on.ClippingByNorm) -> None:
        """Take note that gradients are about to be changed by an operation in place."""
        parameters = event.parameters
        if self._contents.known and isinstance(parameters, (torch.Tensor, list, tuple)):
            each = [parameters] if isinstance(parameters, torch.Tensor) else parameters
            self._contents.allow_changes([id(p.grad) for p in each if p.grad is not None], 1)

    def clipping_by_value(self, event: on.ClippingByValue) -> None:
        """Take note that gradients are about to be changed by two operations in place."""
        if self._contents.known:
            self._contents.allow_changes([id(g) for g in event.gradients], 2)


def _is_scaled(kinds: frozenset[int]) -> bool:
    return any(kind >= 0 for kind in kinds)
