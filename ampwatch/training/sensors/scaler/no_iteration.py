"""The one line about a training of which no iteration ends."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING

import torch

from ampwatch.guard import Log
from ampwatch.training.hooks import events as on
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.private import version_of
from ampwatch.training.scalers.factors import factor_at_root
from ampwatch.training.scalers.thrown_away import Contents, Gradients

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.training.iteration.context import Context

logger = Log()

MAX_BACKWARDS = 32
"""Calls of backward without the end of an iteration after which is looked at what becomes of their
gradients."""

MAX_CYCLES = 16
"""Times that gradients are thrown away after that. Accumulation, however long, keeps them."""

MAX_FORWARDS = 128
"""Forward passes that record gradients, before anything was seen of a backward or a step."""

_GONE = (
    "{} backward passes ran, and their gradients were discarded, without the end of an iteration"
)

HAND = "call watch.end_iteration(loss_scale=..., skipped=...) after each step (docs/using.md)"


class NoIteration(Sensor):
    """Says once why nothing is judged although the training goes on.

    Cost: 0.2 us a backward; from ``MAX_BACKWARDS`` without an iteration on some us, and a pass over
    the gradients of one backward of ``MAX_BACKWARDS + MAX_CYCLES``.
    """

    name = "no_iteration"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._bus = context.bus
        self._trained = context.trained
        self._receives_calls = context.samples  # for replays
        # Without a scaler nobody else would notice that no iteration ends any more.
        self.rests = context.is_scaled
        self._gradients = Gradients()
        self._is_reported = False
        self._backwards = self._cycles = self._forwards = 0
        self._num_ended = 0
        self._weights: tuple[int, ...] = ()
        self._end_was_called = False
        self._own_steps = 0
        self._strangers: str = ""
        self._scale: float | None = None
        self._is_check_due = False
        self._contents = Contents()

    def installed(self) -> None:
        """Begin to hear the calls of the models, where they are seen anyway."""
        if self._receives_calls:
            self._bus.listen(self, on.RootCalled)

    def may_rest(self) -> bool:
        """Whether iterations end."""
        return bool(self._num_ended) and not self._is_check_due

    def woken(self) -> None:
        """Count anew."""
        self._backwards = self._cycles = self._own_steps = 0

    def removed(self) -> None:
        """Forget the gradients."""
        self._gradients.forget()

    def iteration_closed(self, _event: on.IterationClosed) -> None:
        """Begin anew: an iteration has ended."""
        self._num_ended += 1
        self._is_check_due = False
        self._backwards = self._cycles = self._own_steps = 0
        self._ignore_calls()

    def compile_called(self, _event: on.CompileCalled) -> None:
        """Hear no calls of models any more: nothing of ours is to be compiled."""
        self._ignore_calls()

    def _ignore_calls(self) -> None:
        if self._receives_calls:
            self._receives_calls = False
            self._bus.ignore(self, on.RootCalled)

    def root_called(self, event: on.RootCalled) -> None:
        """Count forward passes of which nothing else is seen."""
        is_training = event.module.training and torch.is_grad_enabled()
        if not is_training or self._num_ended or self._backwards or self._is_reported:
            return
        self._forwards += 1
        if self._forwards >= MAX_FORWARDS:
            self._say(f"in {self._forwards} forward passes no backward and no step was seen")

    def end_called(self, _event: on.EndCalled) -> None:
        """Take note that the call that is to end iterations is seen."""
        self._end_was_called = True

    def optimizer_stepped(self, event: on.OptimizerStepped) -> None:
        """Take note of steps that end no iteration."""
        if self._context.registry.index_of(event.optimizer) is None:
            self._strangers = type(event.optimizer).__qualname__
            self._bus.ownership.has_company = True
        else:
            self._own_steps += 1

    def zeroed(self, event: on.Zeroed) -> None:
        """Take note that gradients were set to zero or to ``None``."""
        if self._backwards >= MAX_BACKWARDS and not self._is_reported:
            self._gradients.zeroed(event.owner)

    def backward_began(self, event: on.BackwardBegan) -> Callable[[], None] | None:
        """Count backward passes, and how often their gradients were thrown away."""
        self._backwards += 1
        if not self._is_reported and (broken := self._contents.answer()):
            self._say(_GONE.format(MAX_BACKWARDS + MAX_CYCLES - 1), broken=broken)
        if self._is_check_due and event.is_alone:
            return self._check
        if self._backwards < MAX_BACKWARDS or self._is_reported or not event.is_alone:
            return None
        if self._backwards == MAX_BACKWARDS:
            self._weights = self._versions()
            self._cycles = 0
            return self._note
        self._scale = factor_at_root(event.tensors, event.gradients)
        self._cycles += self._gradients.are_gone()
        if self._cycles >= MAX_CYCLES:
            have_moved = self._versions() != self._weights
            # After iterations that did end, a long evaluation with gradients changes no weight. So
            # does a guard that takes no step any more: what it throws away is not finite.
            if have_moved or not self._num_ended:
                self._say(_GONE.format(self._backwards), have_moved=have_moved)
            else:
                self._is_check_due = True
            self._backwards = 0
        return self._note

    def _note(self) -> None:
        if self._trained.thread == get_ident():
            self._gradients.note(self._trained.parameters())

    def _check(self) -> None:
        self._is_check_due = False
        self._contents.ask(self._context.names.parameters())

    def _versions(self) -> tuple[int, ...]:
        # Every op in place raises the version, also what compiled code writes.
        return tuple(version_of(p) for p in self._trained.parameters())

    def _say(self, what: str, *, have_moved: bool = False, broken: str = "") -> None:
        self._is_reported = True
        why, cure = self._reason(have_moved=have_moved, broken=broken)
        since = f"since step {self._context.iteration.step - 1} " if self._num_ended else ""
        logger.warning("no iteration ends: %s%s: %s; %s", since, what, why, cure)

    def _reason(self, *, have_moved: bool, broken: str) -> tuple[str, str]:
        """Return why no iteration ends, as far as there is evidence, and what to do."""
        if broken:
            why = f"no step is taken with them, as those of {broken} are NaN or infinite"
            return why, "find out why; for skips to be counted " + HAND
        if self._bus.loss_scaler is not None:
            return self._reason_of_calls()
        scale = self._scale
        reasons = (
            (
                self._context.is_scaled and self._own_steps,
                "scaler.update() is not called",
                "call it once an iteration, after scaler.step()",
            ),
            (
                self._strangers,
                f"the steps of {self._strangers} are of none of the watched model's parameters",
                "pass it as ampwatch.monitor(..., optimizer=...)",
            ),
            (
                self._context.is_scaled,
                "the scaler that was passed is not used",
                "pass the one that is, or " + HAND,
            ),
            (
                self._bus.runs_compiled and not self._own_steps,
                "compiled code runs, and a step inside it is not observed",
                HAND,
            ),
            (
                scale is not None,
                f"losses are multiplied by {scale or 1.0:g}, and no torch.optim.Optimizer steps",
                "describe the scaler with ampwatch.LossScaler(...), or " + HAND,
            ),
            (have_moved, "weights change, but by no step of a torch.optim.Optimizer", HAND),
            (True, "no step of a torch.optim.Optimizer was seen", HAND),
        )
        return next((why, cure) for evidence, why, cure in reasons if evidence)

    def _reason_of_calls(self) -> tuple[str, str]:
        if self._end_was_called or self._bus.loss_scaler is None:
            return (
                "`skipped` returns each time that the iteration continues",
                "return True or False",
            )
        ends = self._bus.loss_scaler.calls
        calls = " or ".join(f"{type(end.owner).__qualname__}.{end.method}()" for end in ends)
        return (
            f"{calls}, which ends one, was not observed",
            "name the call that is made, or " + HAND,
        )
