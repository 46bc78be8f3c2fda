"""Which phase of a step the training thread was in, told from the moments of events."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ampwatch.training.hooks.events import (
    BackwardBegan,
    BackwardEnded,
    BatchArrived,
    BatchAwaited,
    ClipBegan,
    ClipEnded,
    CommunicationArrived,
    CommunicationAwaited,
    OptimizerStepped,
    OptimizerStepping,
    RootCalled,
    StepBegan,
    StepEnded,
    Unscaled,
    Unscaling,
)
from ampwatch.wire.records import StepPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ampwatch.training.hooks.bus import Moment

# As plain integers: an enumeration takes longer to index a list with, and this is done in each step.
DATA = int(StepPhase.DATA)
FORWARD = int(StepPhase.FORWARD)
BACKWARD = int(StepPhase.BACKWARD)
BACKWARD_WITH_REDUCTION = int(StepPhase.BACKWARD_WITH_REDUCTION)
REDUCTION = int(StepPhase.REDUCTION)
UNSCALE_AND_CLIP = int(StepPhase.UNSCALE_AND_CLIP)
OPTIMIZER = int(StepPhase.OPTIMIZER)
EVALUATION = int(StepPhase.EVALUATION)
REST = int(StepPhase.REST)

TRAINS, EVALUATES, KEEPS_GRADIENTS, SUMS_GRADIENTS = range(4)
"""What is noted with the moment of ``RootCalled``. The last two train, and say whether the backward to
come sums gradients over ranks."""

COMMUNICATION = frozenset({CommunicationAwaited, CommunicationArrived})
"""Events without which a training of one rank is split."""


class Splitter:
    """Follows the phase that the training thread is in.

    What is no event of PyTorch belongs to the phase that it happens in: computing the loss is forward,
    logging after ``scaler.step`` is the rest. A wait for data belongs to what the batch is used for:
    training, or an evaluation. What lies between unscaling, clipping and the step is part of them.

    Args:
        communicates: Whether gradients may be summed over ranks.

    Attributes:
        phase: The phase after the last moment.
    """

    def __init__(self, *, communicates: bool) -> None:
        self._communicates = communicates
        self._reduces = False
        self._phases: list[int] = []
        self.begin()

    def begin(self) -> None:
        """Begin an iteration."""
        self.phase = self._before_wait = self._before_step = REST
        self._is_stepping = self._is_in_scaler = self._overlaps = self._was_called = False
        self._nested = 0
        self._paused_at = -1
        self._awaited_at = self._backward_at = 0
        self._waits: list[range] = []

    def split(self, moments: Iterable[Moment], thread: int) -> list[int]:
        """Return the phase that begins with each moment.

        Args:
            moments: The moments since the last call, in order.
            thread: Identity of the thread that trains. What others do is in no phase, but for backward,
                which runs in a thread of its own on a device.
        """
        self._phases = phases = []
        # What was noted before these is decided.
        self._awaited_at = self._backward_at = 0
        self._paused_at = -1
        self._waits.clear()
        take = self._TAKE
        for _, of_thread, event, detail in moments:
            if of_thread == thread or (detail and event is CommunicationAwaited):
                take[event](self, detail)
            phases.append(self.phase)
        return phases

    def _rename(self, places: range, phase: int, to: int) -> None:
        """Have a phase be another one: it is known only now."""
        for place in places:
            if self._phases[place] == phase:
                self._phases[place] = to

    def _batch_awaited(self, _detail: int) -> None:
        if self.phase == DATA:
            self._nested += 1  # a loader that reads another one
            return
        self._before_wait, self.phase = self.phase, DATA
        self._awaited_at = len(self._phases)

    def _batch_arrived(self, _detail: int) -> None:
        if self.phase != DATA:
            return
        if self._nested:
            self._nested -= 1
            return
        self.phase = self._before_wait
        # Within forward it is for that: a pipeline of the model's own. Else it shows at the next call.
        if self.phase != FORWARD:
            self._waits.append(range(self._awaited_at, len(self._phases)))

    def _root_called(self, detail: int) -> None:
        evaluates = detail == EVALUATES
        if evaluates:
            for wait in self._waits:
                self._rename(wait, DATA, EVALUATION)
        self._waits.clear()
        self.phase = EVALUATION if evaluates else FORWARD
        if not evaluates:
            self._was_called = True
        # Another model that is called beside it, or its part, says nothing of that.
        if detail in (KEEPS_GRADIENTS, SUMS_GRADIENTS):
            self._reduces = detail == SUMS_GRADIENTS

    def _backward_began(self, _detail: int) -> None:
        self._overlaps = False
        self._backward_at = len(self._phases)
        # Where the call of the model went by unheard nobody knows whether gradients are summed.
        may_reduce = self._reduces or (self._communicates and not self._was_called)
        self.phase = BACKWARD_WITH_REDUCTION if may_reduce else BACKWARD

    def _backward_ended(self, _detail: int) -> None:
        if self.phase not in (BACKWARD, BACKWARD_WITH_REDUCTION):
            return
        # Within a closure: LBFGS and the like call for gradients in their step.
        self.phase = OPTIMIZER if self._is_stepping else REST
        if self._overlaps:
            places = range(self._backward_at, len(self._phases))
            self._rename(places, BACKWARD, BACKWARD_WITH_REDUCTION)

    def _communication_awaited(self, is_within_backward: int) -> None:
        if is_within_backward:
            self._overlaps = self.phase == BACKWARD
        elif self.phase not in (FORWARD, EVALUATION, REDUCTION):
            self._before_wait, self.phase = self.phase, REDUCTION

    def _communication_arrived(self, _detail: int) -> None:
        if self.phase == REDUCTION:
            self.phase = self._before_wait

    def _resume(self) -> None:
        """Have what lies between two parts of unscaling, clipping and the step be part of them."""
        if self._paused_at == len(self._phases) - 1 >= 0:
            self._phases[self._paused_at] = UNSCALE_AND_CLIP

    def _unscaling(self, _detail: int) -> None:
        self.phase = UNSCALE_AND_CLIP

    def _step_began(self, _detail: int) -> None:
        self._resume()
        self._is_in_scaler = True
        self.phase = UNSCALE_AND_CLIP

    def _step_ended(self, _detail: int) -> None:
        self._is_in_scaler = False
        if self.phase in (UNSCALE_AND_CLIP, OPTIMIZER):
            self.phase = REST

    def _clip_began(self, _detail: int) -> None:
        if self.phase == REST:
            self._resume()
            self.phase = UNSCALE_AND_CLIP

    def _paused(self, _detail: int) -> None:
        if self.phase == UNSCALE_AND_CLIP:
            self.phase = REST
            self._paused_at = len(self._phases)

    def _optimizer_stepping(self, _detail: int) -> None:
        self._resume()
        self._is_stepping = True
        if self.phase != OPTIMIZER:
            self._before_step, self.phase = self.phase, OPTIMIZER

    def _optimizer_stepped(self, _detail: int) -> None:
        self._is_stepping = False
        # What the scaler does after it is little, and part of its step.
        if self.phase == OPTIMIZER and not self._is_in_scaler:
            # Within backward each parameter may have an optimizer of its own.
            is_within = self._before_step in (BACKWARD, BACKWARD_WITH_REDUCTION)
            self.phase = self._before_step if is_within else REST

    _TAKE: ClassVar[dict[type, Callable[[Splitter, int], None]]] = {
        BatchAwaited: _batch_awaited,
        BatchArrived: _batch_arrived,
        RootCalled: _root_called,
        BackwardBegan: _backward_began,
        BackwardEnded: _backward_ended,
        CommunicationAwaited: _communication_awaited,
        CommunicationArrived: _communication_arrived,
        Unscaling: _unscaling,
        Unscaled: _paused,
        ClipBegan: _clip_began,
        ClipEnded: _paused,
        StepBegan: _step_began,
        StepEnded: _step_ended,
        OptimizerStepping: _optimizer_stepping,
        OptimizerStepped: _optimizer_stepped,
    }


TIMED = frozenset(Splitter._TAKE) - {RootCalled}  # noqa: SLF001 - of this module
"""Events whose moments are wanted. Calls of the model are heard, for what they are called with."""
