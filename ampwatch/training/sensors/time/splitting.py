"""Which phase of a step the training thread was in, from the moments of events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ampwatch.training.hooks import events as on
from ampwatch.wire.records import StepPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


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
STEP = int(StepPhase.STEP)

SPLIT = frozenset({FORWARD, BACKWARD, BACKWARD_WITH_REDUCTION})
"""Phases without any of which an iteration is one phase, but for what is seen of it."""

TRAINS, EVALUATES, KEEPS_GRADIENTS, SUMS_GRADIENTS = range(4)
"""What is noted for ``RootCalled``. The last two train, and say whether the backward to come sums gradients
over ranks."""

WITHIN = on.CommunicationAwaitedWithin

COMMUNICATION = frozenset(
    {on.CommunicationAwaited, on.CommunicationAwaitedWithin, on.CommunicationArrived}
)
"""Events without which a training of one rank is split."""


MAX_KNOWN = 64
"""Courses of an iteration that are remembered: a training takes the same one again and again."""


class Split(NamedTuple):
    """The phases of a whole iteration.

    Attributes:
        phases: The phase that begins with each moment.
        last: The phase after the last one.
        reduces: Whether the next backward sums gradients, as far as is known.
        runs: Each phase but the rest, at which moment it begins and at which it ends; ``None`` where one
            comes several times. What follows the last moment is the end of the iteration.
        rest: The phase that all other time belongs to.
        has_elements_only: Whether all that comes with its moments are elements of batches.
    """

    phases: list[int]
    last: int
    reduces: bool
    runs: tuple[tuple[int, int, int], ...] | None
    rest: int
    has_elements_only: bool


TELLING = frozenset({on.BatchAwaited, None})
"""Events that come without a number of elements; ``None`` are those of other threads."""


def _runs_of(phases: list[int]) -> tuple[tuple[int, int, int], ...] | None:
    runs: dict[int, tuple[int, int, int]] = {}
    for place, phase in enumerate(phases):
        if phase == REST:
            continue
        begin, end = runs.get(phase, (phase, place, place))[1:]
        if end != place:
            return None
        runs[phase] = (phase, begin, place + 1)
    return tuple(runs.values())


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
        self._known: dict[Any, Split] = {}
        self.begin()

    def begin(self) -> None:
        """Begin an iteration."""
        self.phase = self._before_wait = self._before_step = REST
        self._is_stepping = self._is_in_scaler = self._overlaps = self._was_called = False
        self._nested = 0
        self._paused_at = -1
        self._awaited_at = self._backward_at = 0
        self._waits: list[range] = []

    def split(self, kinds: Iterable[Any]) -> list[int]:
        """Return the phase that begins with each moment.

        Args:
            kinds: What happened at each moment since the last call, in order; ``None`` for what is in no
                phase.
        """
        self._phases = phases = []
        # What was noted before these is decided.
        self._awaited_at = self._backward_at = 0
        self._paused_at = -1
        self._waits.clear()
        take = self._TAKE
        for kind in kinds:
            if kind is not None:
                take[kind](self)
            phases.append(self.phase)
        return phases

    def split_whole(self, kinds: tuple[Any, ...]) -> Split:
        """Return the phases of an iteration of which nothing was split before, and begin the next one.

        Args:
            kinds: As of ``split``, of all of its moments.

        Cost: 1 us for an iteration like one that was split before, ten times as much for another one.
        """
        key = (self._reduces, kinds)
        known = self._known.get(key)
        if known is None:
            phases = self.split(kinds)
            rest = STEP if SPLIT.isdisjoint(phases) else REST
            has_elements_only = TELLING.isdisjoint(kinds)
            known = Split(
                phases, self.phase, self._reduces, _runs_of(phases), rest, has_elements_only
            )
            self.begin()
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = known
        self._reduces = known.reduces
        return known

    def repeats(self, kinds: tuple[Any, ...]) -> Split | None:
        """Return the phases of each of several iterations in a row, if they are known and all the same.

        Args:
            kinds: As of ``split_whole``, of each.
        """
        known = self._known.get((self._reduces, kinds))
        return known if known is not None and known.reduces == self._reduces else None

    def _rename(self, places: range, phase: int, to: int) -> None:
        """Have a phase be another one: it is known only now."""
        for place in places:
            if self._phases[place] == phase:
                self._phases[place] = to

    def _batch_awaited(self) -> None:
        if self.phase == DATA:
            self._nested += 1  # a loader that reads another one
            return
        self._before_wait, self.phase = self.phase, DATA
        self._awaited_at = len(self._phases)

    def _batch_arrived(self) -> None:
        if self.phase != DATA:
            return
        if self._nested:
            self._nested -= 1
            return
        self.phase = self._before_wait
        # Within forward it is for that: a pipeline of the model's own. Else it shows at the next call.
        if self.phase != FORWARD:
            self._waits.append(range(self._awaited_at, len(self._phases)))

    def _evaluates(self) -> None:
        for wait in self._waits:
            self._rename(wait, DATA, EVALUATION)
        self._waits.clear()
        self.phase = EVALUATION

    def _trains(self) -> None:
        self._waits.clear()
        self.phase = FORWARD
        self._was_called = True

    # Another model that is called beside it, or its part, says nothing of reduction.

    def _keeps_gradients(self) -> None:
        self._trains()
        self._reduces = False

    def _sums_gradients(self) -> None:
        self._trains()
        self._reduces = True

    def _backward_began(self) -> None:
        self._overlaps = False
        self._backward_at = len(self._phases)
        # Where the call of the model went by unseen nobody knows whether gradients are summed.
        may_reduce = self._reduces or (self._communicates and not self._was_called)
        self.phase = BACKWARD_WITH_REDUCTION if may_reduce else BACKWARD

    def _backward_ended(self) -> None:
        if self.phase not in (BACKWARD, BACKWARD_WITH_REDUCTION):
            return
        # Within a closure: LBFGS and the like call for gradients in their step.
        self.phase = OPTIMIZER if self._is_stepping else REST
        if self._overlaps:
            places = range(self._backward_at, len(self._phases))
            self._rename(places, BACKWARD, BACKWARD_WITH_REDUCTION)

    def _communication_awaited(self) -> None:
        if self.phase not in (FORWARD, EVALUATION, REDUCTION):
            self._before_wait, self.phase = self.phase, REDUCTION

    def _communication_awaited_within(self) -> None:
        self._overlaps = self.phase == BACKWARD

    def _communication_arrived(self) -> None:
        if self.phase == REDUCTION:
            self.phase = self._before_wait

    def _resume(self) -> None:
        """Have what lies between two parts of unscaling, clipping and the step be part of them."""
        if self._paused_at == len(self._phases) - 1 >= 0:
            self._phases[self._paused_at] = UNSCALE_AND_CLIP

    def _unscaling(self) -> None:
        self.phase = UNSCALE_AND_CLIP

    def _step_began(self) -> None:
        self._resume()
        self._is_in_scaler = True
        self.phase = UNSCALE_AND_CLIP

    def _step_ended(self) -> None:
        self._is_in_scaler = False
        if self.phase in (UNSCALE_AND_CLIP, OPTIMIZER):
            self.phase = REST

    def _clip_began(self) -> None:
        if self.phase == REST:
            self._resume()
            self.phase = UNSCALE_AND_CLIP

    def _paused(self) -> None:
        if self.phase == UNSCALE_AND_CLIP:
            self.phase = REST
            self._paused_at = len(self._phases)

    def _optimizer_stepping(self) -> None:
        self._resume()
        self._is_stepping = True
        if self.phase != OPTIMIZER:
            self._before_step, self.phase = self.phase, OPTIMIZER

    def _optimizer_stepped(self) -> None:
        self._is_stepping = False
        # What the scaler does after it is little, and part of its step.
        if self.phase == OPTIMIZER and not self._is_in_scaler:
            # Within backward each parameter may have an optimizer of its own.
            is_within = self._before_step in (BACKWARD, BACKWARD_WITH_REDUCTION)
            self.phase = self._before_step if is_within else REST

    _TAKE: ClassVar[dict[Any, Callable[[Splitter], None]]] = {
        EVALUATES: _evaluates,
        TRAINS: _trains,
        KEEPS_GRADIENTS: _keeps_gradients,
        SUMS_GRADIENTS: _sums_gradients,
        on.BatchAwaited: _batch_awaited,
        on.BatchArrived: _batch_arrived,
        on.BackwardBegan: _backward_began,
        on.BackwardEnded: _backward_ended,
        on.CommunicationAwaited: _communication_awaited,
        on.CommunicationAwaitedWithin: _communication_awaited_within,
        on.CommunicationArrived: _communication_arrived,
        on.Unscaling: _unscaling,
        on.Unscaled: _paused,
        on.ClipBegan: _clip_began,
        on.ClipEnded: _paused,
        on.StepBegan: _step_began,
        on.StepEnded: _step_ended,
        on.OptimizerStepping: _optimizer_stepping,
        on.OptimizerStepped: _optimizer_stepped,
    }


def of_thread(thread: int, threads: Iterable[int], kinds: Iterable[Any]) -> tuple[Any, ...]:
    """Return what happened at each moment; ``None`` for what is in no phase of a thread.

    What others do is in none, but for backward, which runs in a thread of its own on a device.

    Args:
        thread: Identity of the thread that trains.
        threads: On which thread it happened.
        kinds: What happened.
    """
    return tuple(
        kind if of == thread or kind is WITHIN else None
        for of, kind in zip(threads, kinds)  # noqa: B905 - as many
    )


TIMED = frozenset(kind for kind in Splitter._TAKE if isinstance(kind, type)) | {on.RootCalled}  # noqa: SLF001 - of this module
"""Events whose moments are wanted."""
