"""Use of the gradients of scaled losses: which ones backward adds up, and which steps use them."""

from __future__ import annotations

import math
import weakref
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING

import torch

from ampwatch.diagnosis.evidence.calls import Mix, MixedGradients, MixedScales, ScaledStep
from ampwatch.training.hooks.compiling import is_traced
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.model.names import parameters_of
from ampwatch.training.model.scaler import READY, STEPPED, UNSCALED, scale_on_host, stage_of, stages
from ampwatch.training.private import (
    accumulate_hooks,
    graph_task,
    scale_tensor,
    states_of_optimizers,
    tensor_hooks,
    version_of,
)
from ampwatch.training.sensors.calls.gradient_contents import GradContents, GradientBefore
from ampwatch.training.sensors.calls.scaled_roots import (
    DIVIDED,
    OF_OTHER,
    PLAIN,
    Branch,
    ScaledRoots,
)
from ampwatch.training.transfer.readback import is_plain_scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn
    from torch.optim import Optimizer

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
"""Combinations of unscaled losses that are distinguished."""

MIN_MOVES = 2
"""Times that weights have moved by a step that was not seen, from which on that is reported."""

MAX_SCALES = 256
"""Scales that are remembered; the oldest goes first."""


class GradientUseSensor(Sensor):
    """Follows the content of ``.grad`` from ``backward`` to the step.

    Following costs two checks of every gradient per call of ``backward``. It is done in the first
    ``FOLLOWED_STEPS`` iterations, and after that only while something is out of the ordinary: a loss that was
    not scaled although others are, a step around the scaler, a backward after ``unscale_``, an
    update that leaves gradients of another optimizer waiting.

    A step in compiled code is not seen. It has been taken where a weight has moved between backward and
    ``zero_grad()``.

    Nothing is reported of a step where the program may have divided gradients itself, which leaves no trace: of
    one after the scale was asked for, in the middle of backward, or by a scaler of the program's own.
    """

    name = "gradient_use"
    any_scaler = True
    rests = True

    def __init__(self, context: Context) -> None:
        self._scaler = context.some_scaler
        self._registry = context.registry
        self._names = context.names
        self._trained = context.trained
        self._iteration = context.iteration
        self._observe = context.observe
        self._bus = context.bus
        self._contents = GradContents()
        self._roots = ScaledRoots(self._scaler)
        self._deferred = context.deferred
        self._scales: dict[int, float] = {}
        self._shapes: set[tuple[str, ...]] = set()
        self._sources: dict[int, str] = {}
        self._calls = 0
        self._since_update: set[int] = set()
        self._follow()
        self._waits = False
        self._may_be_unscaled = False
        self._direct: set[int] = set()
        self._unscaling: set[int] = set()
        self._unused: tuple[weakref.ref[Tensor], int] | None = None
        self._moves = 0

    def tensors_swapping(self, _event: on.TensorsSwapping) -> None:
        """Know nothing of the gradients meanwhile, and after."""
        self._contents.clear()
        self._unused = None

    def may_rest(self) -> bool:
        """Whether no gradient is followed, and nothing is out of the ordinary."""
        return not (self._follows or self._waits or self._contents.known or self._shapes)

    def woken(self) -> None:
        """Begin anew, as after an update."""
        self._begin_anew()

    def removed(self) -> None:
        """Forget all gradients."""
        self._contents.clear()

    # Backward.

    def backward_began(self, call: on.BackwardBegan) -> Callable[[], None] | None:
        """Find the losses that a backward begins at; return what to call when it has ended."""
        if not (call.is_alone and self._trained.thread == get_ident()):
            return None
        follows = self._follows
        self._calls += 1
        branches = self._roots.branches(call.tensors, call.gradients)
        self._roots.asked = False
        is_plain = False
        for branch in branches:
            self._since_update.add(branch.kind)
            is_plain |= branch.kind == PLAIN
        if is_plain and self._roots.any_scaled:
            self._follow_new_shape(branches)
            follows = follows or self._follows
        if follows or self._waits or (self._may_be_unscaled and UNSCALED in stages(self._scaler)):
            seen = self._contents.before(self._trained.parameters())
            return partial(self._backward_ended, branches, seen)
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

    def _backward_ended(self, branches: Sequence[Branch], seen: Sequence[GradientBefore]) -> None:
        self._contents.after(seen, self._roots.reach(branches))
        kinds = {branch.kind for branch in branches}
        if self._bus.runs_compiled and _is_scaled(frozenset(kinds)):
            one = next((p for p in self._trained.parameters() if p.grad is not None), None)
            self._unused = None if one is None else (weakref.ref(one), version_of(one))
        # Nearly all losses are scaled, and finding the user's line walks the stack: the line of a
        # scaled loss matters only after ``unscale_``.
        if PLAIN in kinds or UNSCALED in stages(self._scaler):
            self._sources.update(dict.fromkeys(kinds, user_source()))

    # The scaler.

    def scaled(self, event: on.Scaled) -> None:
        """Remember the node of the graph that multiplies the loss by the scale, or by that of another scaler."""
        if event.scaler is not self._scaler:
            if self._follows:
                self._roots.scaled(event.result, by_other=True)
                self._note_scale(OF_OTHER, event.scaler)
            return
        self._trained.thread = get_ident()
        is_first = not self._roots.num_scaled
        self._roots.scaled(event.result)
        if is_first and (self._waits or self._follows):
            self._note_scale(self._roots.number, self._scaler)
        self._deferred.poll()

    def scale_read(self, _event: on.ScaleRead) -> None:
        """Take note that something may be scaled by hand."""
        self._roots.asked = True

    def unscaling(self, event: on.Unscaling) -> None:
        """Judge the gradients that the user is about to have unscaled."""
        self._may_be_unscaled = True
        self._unused = None
        self._judge_known(event.scaler, event.optimizer)

    def unscaled(self, event: on.Unscaled) -> None:
        """Take note that the user has had gradients divided by the scale."""
        if not self._contents.known or event.scaler is not self._scaler:
            return
        # ``_judge`` has noted which gradients were of known content before: unscaling has raised
        # their versions, so that ``of`` would not find them now.
        of_optimizer = parameters_of(event.optimizer)
        self._contents.set(
            [p for p in of_optimizer if id(p) in self._unscaling], frozenset({DIVIDED})
        )
        # What the program has changed before was not known then, and is not what it was any more.
        self._contents.forget([p for p in of_optimizer if id(p) not in self._unscaling])
        self._unscaling.clear()

    def step_began(self, event: on.StepBegan) -> None:
        """Judge the gradients that the scaler is about to unscale and to step with."""
        # Set before the step: one that raises may have unscaled its gradients already.
        self._may_be_unscaled |= event.scaler is self._scaler
        self._unused = None
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
            self._note_scale(self._roots.number, self._scaler)

    def updated(self, event: on.Updated) -> None:
        """Begin anew: the scale may be another one."""
        if event.scaler is not self._scaler:
            return
        self._begin_anew()
        self._deferred.poll()

    def _note_scale(self, number: int, scaler: torch.amp.GradScaler) -> None:
        """Take the scale as it is now, in stream order, if that of this number was not taken yet.

        That of another scaler has no number of its own, and is taken each time.

        Cost: one read; of a scale on a device one copy of 4 bytes and an event.
        """
        scale = scale_tensor(scaler)
        if (number in self._scales and number != OF_OTHER) or not is_plain_scalar(scale):
            return
        if len(self._scales) >= MAX_SCALES:
            del self._scales[next(iter(self._scales))]
        self._scales[number] = math.nan
        self._deferred.read(scale, partial(self._scale_arrived, number))

    def _scale_arrived(self, number: int, read: list[float]) -> None:
        if number in self._scales:
            self._scales[number] = read[0]

    def _begin_anew(self) -> None:
        self._roots.updated()
        self._may_be_unscaled = False
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
                scaled = [p for p, k in found if _is_scaled(k)]
                self._report_mixed(optimizer, scaled, Mix.AFTER_UNSCALE, self._roots.number)
        elif DIVIDED in kinds:
            divided = [p for p, k in found if DIVIDED in k]
            self._report_mixed(optimizer, divided, Mix.TWICE)
        elif PLAIN in kinds and self._roots.any_scaled:
            plain = [p for p, k in found if PLAIN in k]
            self._report_mixed(optimizer, plain, Mix.BESIDE if any_scaled else Mix.UNSCALED, PLAIN)
        elif any_scaled or OF_OTHER in kinds:
            self._doubt(optimizer, kinds | {self._roots.number}, len(found))

    def _report_mixed(
        self,
        optimizer: Optimizer,
        parameters: Sequence[Tensor],
        mix: Mix,
        kind: int | None = None,
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
                mix=mix,
                source=user_source() if kind is None else self._sources.get(kind, ""),
            )
        )

    def _doubt(self, optimizer: Optimizer, numbers: frozenset[int], parameters: int) -> None:
        """Report gradients that were made by another scale than they are divided by, once their scales are known."""
        newest = scale_tensor(self._scaler)
        if len(numbers) < 2 or not is_plain_scalar(newest):
            return
        observed = MixedScales(
            step=self._iteration.step,
            optimizer=self._registry.admit(optimizer),
            scale=math.nan,
            other=math.nan,
            updates=self._roots.number - min(n for n in numbers if n != OF_OTHER),
            parameters=parameters,
            source=user_source(),
        )

        def judge(read: list[float]) -> None:
            # Values arrive in the order in which they were asked for, so those of the older scales are here. One that
            # was never taken, or was given up, is NaN, and compares as false.
            known = [scale for number in numbers if (scale := self._scales.get(number, 0.0)) > 0.0]
            if known and read[0] > 0.0:
                other = max(known, key=lambda scale: abs(math.log2(scale / read[0])))
                if other != read[0]:
                    is_of_other = other == self._scales.get(OF_OTHER) and OF_OTHER in numbers
                    self._follow()
                    self._observe(
                        observed._replace(scale=read[0], other=other, is_of_other=is_of_other)
                    )

        self._deferred.read(newest, judge)

    def optimizer_stepped(self, event: on.OptimizerStepped) -> None:
        """Judge the gradients of a step that the scaler did not call."""
        self._unused = None
        optimizer = event.optimizer
        index = self._registry.index_of(optimizer)
        if event.by_scaler or index is None or is_traced():
            return
        if graph_task() != -1:
            self._direct.add(id(optimizer))
            return
        roots = self._roots
        self._trained.meet(optimizer)
        self._direct.add(id(optimizer))
        if not self._contents.known:
            # The content of its gradients is not known; that of the next ones will be.
            if roots.num_scaled and stage_of(self._scaler, optimizer) == READY:
                self._follow()
            return
        known = self._contents.of(parameters_of(optimizer))
        # A hook of the program may have divided.
        found = [p for p, kinds in known if _is_scaled(kinds) and not _has_hook(p)]
        # A user who has asked for the scale after backward may have divided by it.
        if found and not roots.asked:
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

    def zeroed(self, event: on.Zeroed) -> None:
        """Take note that gradients were set to zero or to ``None``; has compiled code stepped with them before?"""
        if self._unused is not None:
            self._judge_unseen(event.owner)
        # While no gradient is followed, its content is not asked for.
        if self._waits or self._follows or self._contents.known:
            self._contents.set(parameters_of(event.owner), frozenset())

    def _judge_unseen(self, owner: Optimizer | nn.Module) -> None:
        """Report a step that was not seen, with the gradients of scaled losses as backward has left them."""
        unused, self._unused = self._unused, None
        if unused is None:
            return
        one, version = unused[0](), unused[1]
        # A hook of the program may have divided, as may whoever has asked for the scale.
        if one is None or version_of(one) == version or _has_hook(one) or self._roots.asked:
            return
        self._moves += 1
        owners = [owner, *(optimizer for _, optimizer in self._registry.known())]
        optimizer = next((o for o in owners if isinstance(o, torch.optim.Optimizer)), None)
        if self._moves < MIN_MOVES or optimizer is None:
            return
        self._follow()
        self._observe(
            ScaledStep(
                self._iteration.step,
                self._registry.admit(optimizer),
                scale_on_host(self._scaler),
                len(list(parameters_of(optimizer))),
                "",
                is_compiled=True,
            )
        )

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


def _has_hook(parameter: Tensor) -> bool:
    """Whether a hook of the program may change the gradient before backward ends."""
    return bool(tensor_hooks(parameter) or accumulate_hooks(parameter))
