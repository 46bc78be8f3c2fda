"""Trainings without a watched scaler: their losses, the steps that an unknown scaler has skipped, and those that want one."""

from __future__ import annotations

from itertools import islice
from threading import get_ident
from typing import TYPE_CHECKING

import torch

from ampwatch.diagnosis.evidence.scaler import UnscaledStep
from ampwatch.training.hooks.events import FactsChanged, ScaleSeen, StepMissed
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.model.graph import nodes_behind, nodes_of
from ampwatch.training.private import metadata_of_node
from ampwatch.training.scalers.factors import SURE_SCALE, factor_at_root, may_be_scaled
from ampwatch.training.scalers.thrown_away import Contents, Gradients

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.guard import Guard
    from ampwatch.training.hooks.events import BackwardBegan, OptimizerStepped, Scaled, Zeroed
    from ampwatch.training.iteration.context import Context

MIN_GONE = 1
"""Times in a row that gradients are thrown away at the same scale, without a step, after which is
looked whether the next ones are finite. Twice as many each time, until some are not. After a fall of
the scale the next ones are looked at in any case: it may have nowhere left to fall."""

MAX_STEPS = 8
"""Steps after which a training whose graphs were seen to lead through no float16 is left alone."""

MAX_NODES = 4096
"""Nodes of a graph that are looked at."""


class MissedSteps(Sensor):
    """Infers the scale and the skips of a scaler that is not known.

    The scale is the constant that losses are multiplied by. A large one is taken for it at once, a
    smaller one when it has moved by a power of two: the weight of a loss stays what it is. A step was
    missed where the gradients of a loss that was scaled were thrown away, no optimizer of this
    training has stepped since, and the next loss is multiplied by less; or where the scale stays, and
    the gradients were not finite: of a constant scale with a guard, of a scaler with a hysteresis or
    with nowhere left to fall. Gradients that were thrown away for another reason
    (a saliency map, an adversarial example, a discriminator's backward through the generator) move
    no scale and are finite.

    Cost: 2 us a backward; a pass over the gradients of some that follow others thrown away, and of all
    while those are not finite.
    """

    name = "missed_steps"
    any_scaler = True

    def __init__(self, context: Context) -> None:
        self._bus = context.bus
        # Of its own: the last step that was missed is found at the end, begun by no event.
        self.guard: Guard = context.bus.guard(self.name)
        self._trained = context.trained
        self._registry = context.registry
        self._names = context.names
        self._gradients = Gradients()
        self._scale: float | None = None
        self._is_open = False
        self._falls = False
        self._contents = Contents()
        self._gone = self._unknown = 0
        self._patience = MIN_GONE
        self._probes = self._is_row = False
        self._are_broken: bool | None = None

    def removed(self) -> None:
        """Forget the gradients."""
        self._gradients.forget()

    def zeroed(self, event: Zeroed) -> None:
        """Take note that gradients were set to zero or to ``None``."""
        if self._is_open:
            self._gradients.zeroed(event.owner)

    def optimizer_stepped(self, event: OptimizerStepped) -> None:
        """Take note that the gradients were used."""
        if self._registry.index_of(event.optimizer) is not None:
            self._is_open = self._falls = False
            self._gone = self._unknown = 0
            self._read_answer()
            self._probes = self._is_row = False
            self._are_broken = None
            self._gradients.forget()

    def backward_began(self, event: BackwardBegan) -> Callable[[], None] | None:
        """Compare the scale of a loss with that of the one before."""
        if not event.is_alone or self._trained.thread != get_ident():
            return None
        before = self._scale
        scale = factor_at_root(event.tensors, event.gradients, before)
        if scale is None:
            return None
        self._scale = scale
        moved = before is not None and scale != before
        if not self._bus.infers_scale and (moved or scale >= SURE_SCALE):
            self._bus.infers_scale = True
            self._bus.emit(FactsChanged())
        self._read_answer()
        if before is not None and self._is_open and self._gradients.are_gone():
            self._thrown_away(before, scale)
        if self._bus.infers_scale:
            self._bus.emit(ScaleSeen(scale))
        return self._ended

    def _ended(self) -> None:
        self._is_open = self._gradients.note(self._trained.parameters())
        if self._probes:
            self._contents.ask(self._names.parameters())

    def _read_answer(self) -> None:
        # Of several backward passes that add up, one that is broken is enough.
        answer = self._contents.answer()
        if answer is not None:
            self._are_broken = bool(self._are_broken or answer)

    def _thrown_away(self, before: float, scale: float) -> None:
        """Judge gradients that were thrown away, by what the next loss is multiplied by."""
        are_broken, self._are_broken = self._are_broken, None
        if scale < before:
            self._falls = True
            self._gone = self._unknown = 0
            self._bus.emit(StepMissed(before, scale))
        elif scale == before:
            self._gone += 1
            # Those before, which nobody has looked at, go with the first that is seen to be broken.
            self._unknown = 0 if are_broken is False else self._unknown + 1
            if are_broken and self._bus.infers_scale:
                for _ in range(self._unknown):
                    self._bus.emit(StepMissed(before, before))
                self._unknown, self._patience = 0, MIN_GONE
        self._is_row = bool(are_broken) or (self._is_row and are_broken is None)
        is_due = self._gone >= self._patience
        self._probes = scale < before or self._is_row or is_due
        if is_due and not self._is_row:
            self._patience *= 2

    def end(self) -> None:
        """Count a step that was missed last: nothing will show any more that the scale has fallen."""
        # Where other backward passes came between, it may be one of them.
        self._read_answer()
        falls = self._falls and self._are_broken is not False
        goes_on = self._is_open and (falls or (self._is_row and self._are_broken))
        if goes_on and self._scale is not None and self._gradients.are_gone():
            self._is_open = False
            self._bus.emit(StepMissed(self._scale, self._scale))


class RootLosses(Sensor):
    """Takes the roots of backward for losses, where no scaler multiplies them.

    With a watched scaler, enabled or not, the ledger takes the losses that are handed to
    ``scaler.scale``. A root that autograd knows to be a loss times a likely scale is divided by it,
    if the scale is known to be one; once a scaler of torch's that is not watched is used, roots are
    multiples of losses, and what it is handed is taken.
    """

    name = "losses"
    any_scaler = True
    waking = frozenset({"scaled"})

    def __init__(self, context: Context) -> None:
        self._losses = context.losses
        self._bus = context.bus

    def scaled(self, event: Scaled) -> None:
        """Take the loss that is handed to a scaler that is not watched."""
        if event.scaler.is_enabled():
            # For good: the scaler may be used in any later iteration.
            self.is_dormant = True
            self._losses.add(event.outputs)

    def backward_began(self, event: BackwardBegan) -> None:
        """Take the losses."""
        bus = self._bus
        scale = None
        if bus.infers_scale or bus.loss_scaler is not None:
            scale = factor_at_root(event.tensors, ())
        if scale is None:
            self._losses.add(event.tensors)
        # What is infinite in float16 need not have been so before it was scaled.
        elif all(getattr(t, "dtype", None) is not torch.float16 for t in event.tensors):
            self._losses.add(event.tensors, divisor=scale)


class UnscaledHalf(Sensor):
    """Reports the first step of a training under float16 autocast whose loss no scaler has multiplied.

    The graph behind the loss says whether gradients come out of float16: autocast may have been entered
    for an evaluation. A loss that is multiplied by a constant which is large, or which only a device
    knows, may be scaled by a scaler of the program's own, and nothing is claimed.

    Cost:
        Nothing before float16 autocast is seen; then 0.5 us a node, in one step as a rule.
    """

    name = "unscaled_half"
    any_scaler = True
    waking = frozenset({"facts_changed"})
    is_dormant = True

    def __init__(self, context: Context) -> None:
        self._dtypes = context.autocast_dtypes
        self._registry = context.registry
        self._iteration = context.iteration
        self._bus = context.bus
        self._observe = context.observe
        self._is_half = False
        self._steps_left = MAX_STEPS

    def facts_changed(self, _event: FactsChanged) -> None:
        """Wake once float16 autocast is seen."""
        self.is_dormant = not self._steps_left or "float16" not in self._dtypes

    def scaled(self, event: Scaled) -> None:
        """Claim nothing where a scaler that is not watched is used."""
        if event.scaler.is_enabled():
            self._end()

    def backward_began(self, event: BackwardBegan) -> None:
        """Look whether backward leads through float16, and whether its loss is scaled."""
        if may_be_scaled(event.tensors, event.gradients):
            self._end()
        elif not self._is_half:
            self._is_half = event.is_alone and _leads_through_half(event.tensors)

    def optimizer_stepped(self, event: OptimizerStepped) -> None:
        """Report a step with such gradients."""
        if self._registry.index_of(event.optimizer) is None:
            return
        self._steps_left -= 1
        if self._is_half and not self._bus.infers_scale:
            self._observe(UnscaledStep(self._iteration.step))
        if self._is_half or not self._steps_left:
            self._end()

    def _end(self) -> None:
        self._steps_left, self.is_dormant = 0, True


def _leads_through_half(roots: Sequence[object]) -> bool:
    """Whether what backward computes for some node of a graph is in float16."""
    return any(
        taken.dtype is torch.float16
        for node, _ in islice(nodes_behind(nodes_of(roots)), MAX_NODES)
        for taken in metadata_of_node(node)
    )
