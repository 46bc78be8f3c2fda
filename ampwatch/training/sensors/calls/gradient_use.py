"""How the gradients of scaled losses are used: what backward adds up, what is stepped with it."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from ampwatch.diagnosis.evidence.calls import MixedGradients, MixedScales, ScaledStep
from ampwatch.training.hooks.compiling import is_traced
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.hooks.taps import Listener, listen
from ampwatch.training.model.names import parameters_of
from ampwatch.training.model.scaler import READY, STEPPED, UNSCALED, scale_on_host, stage_of, stages
from ampwatch.training.sensors.calls.gradient_contents import GradContents, Seen
from ampwatch.training.sensors.calls.scale_doubts import Doubt, Doubts
from ampwatch.training.sensors.calls.scaled_roots import PLAIN, Branch, ScaledRoots
from ampwatch.training.transfer.scale_log import ScaleLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch
    from torch import Tensor
    from torch.utils.hooks import RemovableHandle

    from ampwatch.guard import Guard
    from ampwatch.training.hooks.backward import BackwardCall, BackwardTap, Handle
    from ampwatch.training.model.names import Names
    from ampwatch.training.model.optimizers import OptimizerRegistry
    from ampwatch.training.model.trained import Trained

FOLLOWED = 24
"""Calls of backward that are followed after something was out of the ordinary, and at the start."""

LOOK_AGAIN = 64
"""Where unscaled losses are the order of the day, one in so many calls of backward begins another
``FOLLOWED``: a loss may begin to reach the parameters of another optimizer later."""


class GradientUseSensor:
    """Follows what is in ``.grad`` from ``backward`` to the step.

    Following costs two looks at every gradient per call of ``backward``. It is done for the first
    ``FOLLOWED`` calls, and after that only while something is out of the ordinary: a loss that was
    not scaled although others are, a step around the scaler, a backward after ``unscale_``, an
    update that leaves gradients of another optimizer waiting.

    Args:
        scaler: The watched scaler, enabled.
        registry: Numbers the optimizers.
        names: Names of the parameters.
        trained: The parameters.
        step: Returns the index of the open iteration.
        observe: Takes what was found.
        backwards: Hears of backwards.
        guard: The fail-open boundary.
    """

    name = "gradient_use"

    def __init__(
        self,
        scaler: torch.amp.GradScaler,
        registry: OptimizerRegistry,
        names: Names,
        trained: Trained,
        step: Callable[[], int],
        observe: Callable[[object], None],
        backwards: BackwardTap,
        guard: Guard,
    ) -> None:
        self._scaler = scaler
        self._registry = registry
        self._names = names
        self._trained = trained
        self._step = step
        self._observe = observe
        self._backwards = backwards
        self._guard = guard
        self._listeners: list[Listener | Handle | RemovableHandle] = []
        self._contents = GradContents()
        self._roots = ScaledRoots(scaler)
        self._scales = ScaleLog()
        self._doubts = Doubts(self._scales, observe)
        self._shapes: set[tuple[str, ...]] = set()
        self._sources: dict[int, str] = {}
        self._calls = 0
        self._since_update: set[int] = set()
        self._follow_until = FOLLOWED
        self._waits = self._stepping = False
        self._direct: set[int] = set()
        self._judged: set[int] = set()
        self._unscaling: set[int] = set()

    def install(self) -> None:
        """Listen to backward, to the scaler, and to what empties and uses gradients."""
        scaler, owner = self._scaler, type(self._scaler)
        self._listeners = [
            self._backwards.listen(self._guard, self.before_backward),
            listen(owner, "scale", instance=scaler, returned=self._on_scaled),
            listen(owner, "get_scale", instance=scaler, before=self._on_asked),
            self._listen("unscale_", self._on_unscale, self._on_unscaled),
            self._listen("step", self._on_step, self._on_step_end),
            self._listen("update", self._on_update, self._on_updated),
            listen(Optimizer, "zero_grad", after=self._on_zeroed),
            listen(nn.Module, "zero_grad", after=self._on_zeroed),
            register_optimizer_step_post_hook(self._on_stepped),
        ]

    def _listen(
        self, name: str, before: Callable[..., None], after: Callable[..., None]
    ) -> Listener:
        scaler = self._scaler
        return listen(type(scaler), name, instance=scaler, before=before, after=after)

    def remove(self) -> None:
        """Stop listening; forget all."""
        for listener in self._listeners:
            listener.remove()
        self._listeners.clear()
        self._contents.clear()
        self._doubts.clear()

    def _on_scaled(self, _scaler: Any, result: object) -> None:
        if not is_traced():
            self._guard.run(self.scaled, result)

    def _on_asked(self, _scaler: Any, _args: Any, _kwargs: Any) -> None:
        self._roots.asked = True

    def _on_update(self, _scaler: Any, _args: Any, _kwargs: Any) -> None:
        self._guard.run(self.before_update)

    def _on_updated(self, _scaler: Any, _args: Any, _kwargs: Any) -> None:
        # The scale may be another one.
        self._roots.updated()
        self._direct.clear()
        self._since_update.clear()
        self._sources.clear()
        if self._doubts:
            self._guard.run(self._doubts.settle)

    # Where nothing is followed there is nothing to be guarded.

    def _on_unscale(self, _scaler: Any, args: Any, kwargs: Any) -> None:
        if not self._stepping:
            self._look(_first(args, kwargs))

    def _on_unscaled(self, _scaler: Any, args: Any, kwargs: Any) -> None:
        if self._contents and not self._stepping:
            self._guard.run(self.after_unscale, _first(args, kwargs))

    def _on_step(self, _scaler: Any, args: Any, kwargs: Any) -> None:
        self._look(_first(args, kwargs))
        self._stepping = True

    def _look(self, optimizer: Any) -> None:
        if self._contents or not self._trained.has_met(optimizer):
            self._guard.run(self.judge, optimizer)

    def _on_step_end(self, _scaler: Any, args: Any, kwargs: Any) -> None:
        self._stepping = False
        # What is left in .grad after a step is not to be added to: nobody knows what it is.
        if self._contents:
            self._guard.run(self.use_up, _first(args, kwargs))

    def _on_zeroed(self, owner: Any, _args: Any, _kwargs: Any) -> None:
        # Where nothing follows, nobody asks what is left.
        if self._waits or self._calls < self._follow_until or self._contents:
            self._guard.run(self.zeroed, owner)

    def _on_stepped(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not self._stepping and not is_traced():
            self._guard.run(self.stepped, optimizer)

    # Backward.

    def before_backward(self, call: BackwardCall) -> Callable[[], None] | None:
        """A backward begins; return what is to be called when it has ended."""
        if not (call.is_alone and self._trained.is_mine):
            return None
        self._calls += 1
        self._stepping = False  # a step that raised does not say that it is over
        self._judged.clear()
        branches = self._roots.branches(call.tensors, call.gradients)
        self._roots.asked = False
        self._since_update.update(branch.kind for branch in branches)
        self._look_at_shape(branches)
        if self._is_followed():
            seen = self._contents.before(self._trained.parameters())
            return partial(self.after_backward, branches, seen)
        if self._contents:
            self._contents.clear()
        return None

    def _look_at_shape(self, branches: Sequence[Branch]) -> None:
        """Follow for a while if a kind of loss is not scaled that was not met before."""
        plain = tuple(b.node.name() for b in branches if b.kind == PLAIN)
        if not plain or not self._roots.any_scaled:
            return
        if plain not in self._shapes and len(self._shapes) < LOOK_AGAIN:
            self._shapes.add(plain)
            self._follow()
        elif self._calls % LOOK_AGAIN == 0:
            self._follow()

    def _follow(self) -> None:
        self._follow_until = self._calls + FOLLOWED

    def _is_followed(self) -> bool:
        return self._calls <= self._follow_until or self._waits or UNSCALED in stages(self._scaler)

    def after_backward(self, branches: Sequence[Branch], seen: Sequence[Seen]) -> None:
        """A backward that is followed has ended."""
        self._contents.after(seen, self._roots.reach(branches))
        kinds = {branch.kind for branch in branches}
        # Scaled losses are the many; the line of one matters only after ``unscale_``.
        if PLAIN in kinds or UNSCALED in stages(self._scaler):
            self._sources.update(dict.fromkeys(kinds, user_source()))

    # The scaler.

    def scaled(self, result: object) -> None:
        """``scaler.scale`` has returned ``result``."""
        self._trained.in_this_thread()
        is_first = not self._roots.num_scaled
        self._roots.scaled(result)
        if is_first and (self._waits or self._calls < self._follow_until):
            self._scales.note(self._roots.number, self._scaler)
        self._doubts.settle()

    def after_unscale(self, optimizer: Optimizer) -> None:
        """The user has called ``unscale_``; gradients have been divided by the scale."""
        # What was of known content before is so no more for following its version.
        parameters = [p for p in parameters_of(optimizer) if id(p) in self._unscaling]
        self._contents.set(parameters, frozenset({PLAIN}))
        self._unscaling.clear()

    def use_up(self, optimizer: Optimizer) -> None:
        """``scaler.step`` has returned."""
        self._contents.forget(parameters_of(optimizer))

    def before_update(self) -> None:
        """The scale is about to change: see whether gradients are waiting that it would not fit."""
        states = self._scaler._per_optimizer_states  # noqa: SLF001 - no public name for it
        stepped = {key for key, s in states.items() if s["stage"].name == STEPPED}
        is_used = bool(states or self._direct)
        stepped |= self._direct
        others = self._trained.others(frozenset(stepped))
        self._waits = any(p.grad is not None for p in others)
        if self._waits and not is_used and self._since_update == {self._roots.number}:
            # Nobody has unscaled or stepped what was scaled by this scale; it is all there.
            if not self._contents:
                self._contents.set(others, frozenset({self._roots.number}))
            self._scales.note(self._roots.number, self._scaler)

    # What is in the gradients when they are used.

    def judge(self, optimizer: Optimizer) -> None:
        """Look at what is about to be unscaled, or, after ``unscale_``, stepped."""
        self._trained.meet(optimizer)
        stage = stage_of(self._scaler, optimizer)
        if not self._contents or stage not in (READY, UNSCALED):
            return
        found = self._contents.of(parameters_of(optimizer))
        self._unscaling = {id(p) for p, _ in found}
        kinds: frozenset[int] = frozenset()
        for _, of_one in found:
            kinds |= of_one
        any_scaled = _is_scaled(kinds)
        if stage == UNSCALED:
            if any_scaled:
                self._say_mixed(
                    optimizer, [p for p, k in found if _is_scaled(k)], after_unscale=True
                )
        elif PLAIN in kinds and self._roots.any_scaled:
            plain = [p for p, k in found if PLAIN in k]
            self._say_mixed(optimizer, plain, any_scaled=any_scaled)
        elif any_scaled:
            self._doubt(optimizer, kinds | {self._roots.number}, len(found))

    def _say_mixed(
        self,
        optimizer: Optimizer,
        parameters: Sequence[Tensor],
        *,
        any_scaled: bool = True,
        after_unscale: bool = False,
    ) -> None:
        index = self._registry.admit(optimizer)
        names = {id(p): name for name, p in self._names.of_optimizer(optimizer, index)}
        # As long as it lasts it is counted.
        self._follow()
        self._observe(
            MixedGradients(
                step=self._step(),
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
            step=self._step(),
            optimizer=self._registry.admit(optimizer),
            scale=math.nan,
            other=math.nan,
            updates=newest - min(numbers),
            parameters=parameters,
            source=user_source(),
        )
        self._doubts.add(Doubt(numbers, newest, observed))

    def stepped(self, optimizer: Optimizer) -> None:
        """``optimizer.step`` has run, and the scaler did not call it."""
        scaler, roots = self._scaler, self._roots
        index = self._registry.index_of(optimizer)
        if index is None:
            return
        self._trained.meet(optimizer)
        self._direct.add(id(optimizer))
        if not self._contents:
            # Which gradients it had is not known; of the next ones it will be.
            if roots.num_scaled and stage_of(scaler, optimizer) == READY:
                self._follow()
            return
        parameters = [p for p in parameters_of(optimizer) if id(p) not in self._judged]
        found = [p for p, kinds in self._contents.of(parameters) if _is_scaled(kinds)]
        self._judged.update(id(p) for p in parameters)
        # Who asks for the scale after backward may have divided by it.
        if found and not roots.asked:
            self._follow()
            self._observe(
                ScaledStep(self._step(), index, scale_on_host(scaler), len(found), user_source())
            )
        self.use_up(optimizer)

    def zeroed(self, owner: Optimizer | nn.Module) -> None:
        """Gradients were set to zero or to ``None``."""
        owned = owner.parameters() if isinstance(owner, nn.Module) else parameters_of(owner)
        self._contents.set(owned, frozenset())

    def clipped(self, gradients: Iterable[int], changes: int) -> None:
        """Gradients, by identity, are about to be clipped."""
        if self._contents:
            self._contents.bear(gradients, changes)


def _is_scaled(kinds: frozenset[int]) -> bool:
    return any(kind >= 0 for kind in kinds)


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else next(iter(kwargs.values()), None)
