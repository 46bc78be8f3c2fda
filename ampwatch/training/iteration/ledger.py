"""The open iteration: what has happened since the last update of the scaler.

The bus tells the ledger what happens; the ledger gives it a number, sends
the values that are still on the device through the readback, and delivers each
``Iteration`` once everything about it is on the host, in order.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec import Struct, field

from ampwatch.diagnosis.evidence.iteration import Iteration, ScalerSettings
from ampwatch.guard import Log
from ampwatch.training.hooks.events import (
    FactsChanged,
    IterationArrived,
    IterationClosed,
    IterationClosing,
    IterationOpened,
    IterationsArriving,
)
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.iteration.quiet import (
    BEGAN,
    CALLED,
    NAMES,
    TAPS_SHARE,
    UPDATING,
    WITHIN,
    QuietSteps,
)
from ampwatch.training.model.scaler import STEPPED
from ampwatch.training.private import (
    DECIDES_ON_DEVICE,
    growth_settings,
    growth_tracker,
    scale_tensor,
    states_of_optimizers,
)
from ampwatch.training.scalers.loss_scaler import BACKOFF_FACTOR, GROWTH_FACTOR

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.optim import Optimizer

    from ampwatch.diagnosis.evidence.iteration import StepTime, TensorRange
    from ampwatch.diagnosis.pipeline import Diagnosis
    from ampwatch.guard import Guard
    from ampwatch.training.hooks import events as on
    from ampwatch.training.hooks.bus import Bus, OpenIteration
    from ampwatch.training.model.optimizers import OptimizerRegistry
    from ampwatch.training.transfer.losses import LossSum
    from ampwatch.training.transfer.measuring import Sample
    from ampwatch.training.transfer.readback import Readback, Row

logger = Log()

SCALE_BEFORE, SCALE, TRACKER, LOSS, FOUND_INF = range(5)
"""Columns of a row; those of the verdicts begin at the last."""

MAX_FOUND_INF = 64
"""found_inf tensors taken per iteration: one per optimizer and device."""

ROW_WIDTH = FOUND_INF + MAX_FOUND_INF

NO_INVERSE = 2.0**-128
"""Largest scale whose inverse is infinite in float32: a step that is taken with it breaks the
weights, and ``found_inf`` does not say so."""

BATCH_SECONDS = 0.25
"""How long an iteration without news may wait to be judged together with others. Between
two steps of a training the caches forget our code: judged one by one, iterations cost
several times as much."""

MANY_LOSSES = 16
"""Losses of an iteration from which on no sensor rests: iterations may have ceased to end."""

UNKNOWN_SETTINGS = ScalerSettings(GROWTH_FACTOR, BACKOFF_FACTOR, math.inf)
"""Settings of a scaler of which nothing is known but its scale."""

NOT_STEPPED = -1
"""Number of an optimizer whose gradients were unscaled and that was not stepped."""


class Clock(Struct):
    """The source of time; tests inject their own.

    Attributes:
        monotonic_ns: For durations. Unit: ns.
        unix_ns: For the time of day. Unit: ns.
    """

    monotonic_ns: Callable[[], int] = time.perf_counter_ns
    unix_ns: Callable[[], int] = time.time_ns


class Samples(Protocol):
    """The measurements that belong to an iteration: ranges of tensors."""

    def seal(self) -> Sample | None:
        """Send off what was measured; ``None`` if nothing was."""

    def take(self, sample: Sample) -> Sequence[TensorRange]:
        """Return the measurements of a sample that has arrived."""

    def discard(self, sample: Sample) -> None:
        """Let go of a sample that nobody will ask for."""

    @property
    def quiet(self) -> int:
        """Iterations, the open one included, before one in which something may be measured."""

    def pass_by(self, num: int, duration_s: float) -> None:
        """Account for ``num`` quiet iterations that have ended, and took so long altogether (unit: s)."""


class Schedulers(Protocol):
    """The sensor of schedulers, as the ledger knows it."""

    def has_moved(self, optimizer: Optimizer) -> bool:
        """Whether the learning rate of an optimizer that steps was moved by one since it stepped last."""

    def seen(self, optimizer: Optimizer) -> object:
        """Return what is the same while it does not move."""


class _Draft(Struct):
    """The facts about the open iteration that are on the host, besides its losses.

    Attributes:
        found_inf_of: Number of the optimizer of each verdict, in the order of the columns.
        applied: Numbers of the optimizers that the user has stepped directly.
        applied_ids: Identities of optimizers that were stepped and did not end the iteration.
        uncalled: By number, whether an optimizer that the scaler was asked to step was not called.
        scheduler_stepped: Numbers of the optimizers whose scheduler was stepped.
        seen_scale: The scale that its first loss was seen to be multiplied by, or NaN.
        has_scale: Whether the row has the scale that was in use.
        has_ended: Whether nothing has happened since an optimizer's step ended the last one.
    """

    found_inf_of: list[int] = field(default_factory=list)
    applied: list[int] = field(default_factory=list)
    applied_ids: set[int] = field(default_factory=set)
    uncalled: dict[int, bool] = field(default_factory=dict)
    scheduler_stepped: set[int] = field(default_factory=set)
    seen_scale: float = math.nan
    has_scale: bool = False
    has_ended: bool = False


class _LateScale(Struct):
    """The scale after an iteration, where only the next loss shows it.

    Attributes:
        before: The scale before.
        after: The scale after it; ``None`` until a loss has shown it.
    """

    before: float
    after: float | None = None


class _Parcel(NamedTuple):
    """The facts that wait on the host for the values of an iteration."""

    frame: Iteration
    found_inf_of: list[int]
    sample: Sample | None
    late: _LateScale | None = None


class IterationLedger(Sensor):
    """Puts iterations together from the events of the scaler and of the optimizers.

    With an enabled scaler an iteration ends with ``scaler.update``, and with nothing
    else; with a ``LossScaler`` with the calls that it names, and with ``end_iteration`` once
    that was called. Without any it ends with the step of the leading optimizer: the first that
    steps, or, when that one is gone, the first that steps twice; or where a step was missed.

    ``found_inf`` is taken before ``update`` and the scale after it: ``update`` sums the verdicts
    in place and then forgets them.

    Args:
        bus: Tells of the watched scaler, and is notified of iterations.
        iteration: The open iteration, which this alone moves on.
        losses: Takes the losses of the open iteration.
        readback: Brings device values to the host; at least ``ROW_WIDTH`` wide.
        registry: Numbers the optimizers.
        judge: Takes iterations that are complete.
        samples: What was measured in the open iteration; ``None`` where nothing is.
        clock: The source of time.
        schedulers: The sensor that tells of schedulers; iterations alike are taken down without its event.

    Attributes:
        settings: Those of the scaler at its last update; ``None`` before.
    """

    name = "steps"
    batched = frozenset(NAMES)

    def __init__(  # noqa: PLR0913 - all by keyword
        self,
        *,
        bus: Bus,
        iteration: OpenIteration,
        losses: LossSum,
        readback: Readback,
        registry: OptimizerRegistry,
        judge: Diagnosis,
        samples: Samples | None,
        clock: Clock,
        schedulers: Schedulers | None = None,
    ) -> None:
        self.settings: ScalerSettings | None = None
        self.guard: Guard = bus.guard(self.name, sweep=self.removed)
        self._bus = bus
        self._closing = bus.channel(IterationClosing)
        self._closed = bus.channel(IterationClosed)
        self._opened = bus.channel(IterationOpened)
        self._arriving = bus.channel(IterationsArriving)
        self._arrived = bus.channel(IterationArrived)
        self._iteration = iteration
        self._losses = losses
        self._readback = readback
        self._registry = registry
        self._judge = judge
        self._samples = samples
        self._clock = clock
        self._draft = _Draft()
        self._row: Row | None = None
        self._stepping = NOT_STEPPED
        self._numbers: dict[int, int] = {}
        self._leader: weakref.ref[Optimizer] | None = None
        self._ends_by_call = bus.loss_scaler is not None
        self._is_scaled = False
        self._optimizers: tuple[int, ...] = (0,)
        self._late: _LateScale | None = None
        self._newest = (-1, math.nan)
        self._ended_ns = 0
        self._begun = (iteration.step, 0)
        self._delivered_ns = 0
        self._alarming = False
        self._verdict: tuple[int, tuple[int, ...]] = (-1, ())
        self._times: deque[tuple[int, StepTime]] = deque()
        self._key: int | None = None
        self._stage: object = None
        self._quiet: QuietSteps | None = None
        if schedulers is not None and QuietSteps.may_be(clock):
            self._quiet = QuietSteps(
                lambda: self.guard.run(self._resume),
                lambda: self.guard.run(self._turn),
                bus,
                iteration,
                schedulers,
                int(BATCH_SECONDS * 1e9),
            )
            bus.replace_listener = self._quiet.replace_listener
            iteration.take_over = lambda: self.guard.run(self._take_over)

    @property
    def verdict(self) -> tuple[int, tuple[int, ...]]:
        """Index of an iteration that has ended and the optimizers it skipped.

        As known on the host before its values arrive; only where no optimizer is fused.
        """
        if self._quiet is not None and self._quiet.is_on and self._quiet.num_ended:
            return self._iteration.step - 1, ()
        return self._verdict

    def removed(self) -> None:
        """Take no iterations down natively any more, and let go of the scaler."""
        if self._quiet is not None:
            self._quiet.end()

    def devices_known(self, event: on.DevicesKnown) -> None:
        """Pin memory."""
        if event.has_accelerator:
            self._readback.prepare()
            if self._readback.why_not:
                logger.warning("values of devices are not read: %s", self._readback.why_not)

    def scaled(self, event: on.Scaled) -> None:
        """Take the loss as it was before it was scaled."""
        before = self._losses.num_losses
        self._losses.add(event.outputs)
        if before < MANY_LOSSES <= self._losses.num_losses:
            self._bus.wake()  # no iteration may end any more, and sensors wake between iterations

    # Steps.

    def step_began(self, event: on.StepBegan) -> None:
        """Note which optimizer is about to step."""
        scaler, optimizer = event
        if not scaler.is_enabled():
            return
        index = self._registry.admit(optimizer)
        self._numbers[id(optimizer)] = self._stepping = index
        if not getattr(optimizer, DECIDES_ON_DEVICE, False):
            # GradScaler.step calls it only if nothing non-finite was found. A fused optimizer is
            # always called, gets found_inf as an attribute and decides on the device.
            self._draft.uncalled[index] = True

    def scheduler_stepped(self, event: on.SchedulerStepped) -> None:
        """Note that a scheduler has moved the learning rate of an optimizer that steps."""
        self._draft.scheduler_stepped.add(self._registry.admit(event.optimizer))

    def optimizer_stepped(self, event: on.OptimizerStepped) -> None:
        """Take note that an optimizer was called, by the scaler or by the user."""
        if not event.is_outermost:
            return
        if event.by_scaler:
            # By the number noted in step_began: a wrapper steps another optimizer inside it.
            if self._stepping in self._draft.uncalled:
                self._draft.uncalled[self._stepping] = False
            return
        optimizer = event.optimizer
        index = self._registry.index_of(optimizer)
        if index is None:
            return
        if self._ends_by_call:
            # Several times in an iteration, by frameworks that step part by part.
            if index not in self._draft.applied:
                self._draft.applied.append(index)
            return
        self._draft.applied.append(index)
        if len(self._draft.applied) == MANY_LOSSES:
            self._bus.wake()
        scaler = self._bus.scaler
        if not (scaler is not None and scaler.is_enabled()) and self._leads(optimizer):
            self._close_unscaled()
        else:
            self._draft.applied_ids.add(id(optimizer))

    def _leads(self, optimizer: Optimizer) -> bool:
        # One that steps twice in an iteration takes over: the leader, which would have ended the
        # iteration in between, is gone or out of use.
        if self._leader is None or id(optimizer) in self._draft.applied_ids:
            self._leader = weakref.ref(optimizer)
        return self._leader() is optimizer

    # Updates.

    def updating(self, event: on.Updating) -> None:
        """Take scale and verdicts while they are there."""
        scaler = event.scaler
        # A disabled scaler has none of this state.
        scale = scale_tensor(scaler) if scaler.is_enabled() else None
        if scale is None:
            return
        draft = self._draft
        row = self._row
        verdicts = []
        draft.found_inf_of.clear()
        for key, state in states_of_optimizers(scaler).items():
            # What was unscaled and not stepped has a verdict as well.
            stage = state["stage"]
            is_stepped = stage.name == STEPPED
            if is_stepped:
                self._key, self._stage = key, stage
            index = self._numbers.get(key, NOT_STEPPED) if is_stepped else NOT_STEPPED
            for found_inf in state["found_inf_per_device"].values():
                verdicts.append(found_inf)
                draft.found_inf_of.append(index)
        if row is None:
            row = self._row = self._readback.open()
        if row is not None and len(verdicts) > MAX_FOUND_INF:
            self._readback.give_up(row)
            row = self._row = None
        if row is None:
            draft.found_inf_of.clear()
            return
        self._readback.put(row, SCALE_BEFORE, scale)
        self._readback.put(row, FOUND_INF, *verdicts)

    def updated(self, event: on.Updated) -> None:
        """Take the new scale; the iteration is over.

        An update that only sets the scale, without any step before it, is no iteration.
        """
        scaler = event.scaler
        draft = self._draft
        if not scaler.is_enabled():
            return
        scale = scale_tensor(scaler)
        tracker = growth_tracker(scaler)
        if scale is None or tracker is None:
            return
        self._numbers.clear()
        given = growth_settings(scaler)
        settings = self.settings
        if settings != given:  # nearly never, and a named tuple compares like a tuple
            settings = ScalerSettings(*given)
        if not event.is_given or draft.found_inf_of or draft.applied:
            row = self._row
            if row is not None:
                self._readback.put(row, SCALE, scale, tracker)
            self._close(row, settings, scale_given=event.is_given)
        if settings != self.settings:
            self.settings = settings
            self._bus.emit(FactsChanged())

    def _close_unscaled(self) -> None:
        draft = self._draft
        row = self._row or self._readback.open()
        if row is not None:
            row.values[SCALE_BEFORE] = row.values[SCALE] = draft.seen_scale
            row.values[TRACKER] = -1
        if math.isnan(draft.seen_scale):
            self._close(row, None, scale_given=False)
            return
        self._optimizers = tuple(dict.fromkeys(draft.applied))
        self._put_outcome(row, skipped=False)
        late = self._late = _LateScale(draft.seen_scale)
        self._close(row, UNKNOWN_SETTINGS, scale_given=False, late=late)

    # Scalers that are not torch's.

    def end_called(self, event: on.EndCalled) -> None:
        """Take the scale that was in use, before the call moves it."""
        self._take_over()
        self.settle()
        draft = self._draft
        if not self._ends_by_call:
            # The user's first `end_iteration`: a step of an optimizer may have ended this one already.
            self._ends_by_call = True
            draft.has_ended = bool(self._ended_ns) and not self._losses.num_losses
        row = self._row = self._row or self._readback.open()
        if row is not None and event.scale is not None:
            self._put(row, SCALE_BEFORE, event.scale)
            draft.has_scale = True

    def end_returned(self, event: on.EndReturned) -> None:
        """Take the new scale and the outcome; the iteration is over."""
        draft = self._draft
        if draft.has_ended and not draft.applied:
            draft.has_ended = False
            return
        if draft.applied:
            self._optimizers = tuple(draft.applied)
        # Without any scale and any skip there is nothing to tell of a scaler.
        self._is_scaled |= event.scale is not None or event.skipped is not False
        row = self._row or self._readback.open()
        if row is not None:
            if not draft.has_scale:
                row.values[SCALE_BEFORE] = math.nan
            self._put(row, SCALE, math.nan if event.scale is None else event.scale)
            row.values[TRACKER] = -1
        settings = None
        if self._is_scaled:
            scaler = self._bus.loss_scaler
            settings = UNKNOWN_SETTINGS if scaler is None else scaler.settings
            self._put_outcome(row, skipped=event.skipped)
        else:
            draft.applied = list(self._optimizers)
        self._close(row, settings, scale_given=False)

    def scale_seen(self, event: on.ScaleSeen) -> None:
        """Take the scale that a loss was multiplied by, which is also that after the last iteration."""
        self._take_over()
        if self._ends_by_call:
            return
        self._settle_late(event.scale)
        if math.isnan(self._draft.seen_scale):
            self._draft.seen_scale = event.scale

    def step_missed(self, event: on.StepMissed) -> None:
        """Close an iteration whose gradients were thrown away."""
        self._take_over()
        if self._ends_by_call:
            return
        self._settle_late(event.scale_before)
        row = self._row or self._readback.open()
        if row is not None:
            row.values[SCALE_BEFORE], row.values[SCALE] = event.scale_before, event.scale
            row.values[TRACKER] = -1
        self._put_outcome(row, skipped=True)
        self._close(row, UNKNOWN_SETTINGS, scale_given=False)

    def _settle_late(self, scale: float) -> None:
        late, self._late = self._late, None
        if late is not None:
            late.after = scale

    def settle(self) -> None:
        """Wait for no loss any more: the scale after the last iteration is that before it."""
        if self._late is not None:
            self._settle_late(self._late.before)

    def _put_outcome(self, row: Row | None, *, skipped: object) -> None:
        """Put down for each optimizer of the iteration whether its step was skipped."""
        draft = self._draft
        draft.applied.clear()
        numbers = self._optimizers[:MAX_FOUND_INF]
        draft.found_inf_of[:] = numbers if row is not None else ()
        if row is not None:
            for column in range(FOUND_INF, FOUND_INF + len(numbers)):
                self._put(row, column, skipped)
        if isinstance(skipped, bool):
            draft.uncalled = dict.fromkeys(numbers, skipped)

    def _put(self, row: Row, column: int, value: Any) -> None:
        if isinstance(value, (bool, float)):
            row.values[column] = float(value)
        else:
            self._readback.put(row, column, value)

    def _close(
        self,
        row: Row | None,
        scaler: ScalerSettings | None,
        *,
        scale_given: bool,
        late: _LateScale | None = None,
    ) -> None:
        draft = self._draft
        now = self._clock.monotonic_ns()
        losses = self._losses
        step = self._iteration.step
        frame = Iteration(
            step=step,
            time_ns=self._clock.unix_ns(),
            duration_s=(now - self._ended_ns) / 1e9 if self._ended_ns else math.nan,
            loss=losses.on_host,
            num_losses=losses.num_losses,
            scale_before=math.nan,
            loss_scale=math.nan,
            growth_tracker=-1,
            scaler=scaler,
            scale_given=scale_given,
            found_inf={},
            other_found_inf=False,
            applied_directly=tuple(draft.applied),
            scheduler_stepped=frozenset(draft.scheduler_stepped),
            loss_dtype=losses.dtype,
        )
        well = self._is_well(row, frame, draft)
        # Before the sample is sealed: what sensors measure in this event belongs to the iteration
        # that ends, and is measured before the next step moves the weights.
        if self._closing.subscribers:
            self._closing.emit(IterationClosing(not well))
        sample = None if self._samples is None else self._samples.seal()
        self._bus.note(IterationClosed, (step, frame.duration_s), now)
        if self._closed.subscribers:
            self._closed.emit(IterationClosed(frame))
        has_room = False
        if row is not None:
            # A row is used again: without a loss on a device the old value would be added.
            row.values[LOSS] = 0.0
            if losses.on_device is not None:
                self._readback.put(row, LOSS, losses.on_device)
            # Let go of before it is sealed: after an interrupt in between it would be sealed twice.
            self._row = None
            has_room = self._readback.seal(row, _Parcel(frame, draft.found_inf_of, sample, late))
        elif sample is not None and self._samples is not None:
            self._samples.discard(sample)
        losses.reset()
        self._note_verdict(draft)
        self._draft = _Draft()
        self._ended_ns = now
        self._iteration.step += 1
        self._iteration.thread = get_ident()
        if not (well and has_room) or sample is not None or not self._can_wait(row):
            self.deliver_arrived()
        self._bus.begin_iteration(step + 1)
        self._begin(now)
        if self._quiet is not None and self._next_turn() > step + 1 and self._quiet.may_begin():
            self._begin_quiet(self._quiet, frame)

    def _begin(self, ended_ns: int) -> None:
        """Say that the open iteration begins, when the one before it ended."""
        step, (_, before) = self._iteration.step, self._begun
        self._begun = step, ended_ns
        # At `light` nobody wants to know, and the diagnosis is not asked.
        if self._opened.subscribers:
            duration_s = (ended_ns - before) / 1e9 if before else math.nan
            self._opened.emit(IterationOpened(step, duration_s, self._judge.attention()))

    def _note_verdict(self, draft: _Draft) -> None:
        # Only if all verdicts are of optimizers that are called or not: of a fused one nobody knows
        # on the host whether it has stepped.
        if draft.uncalled and draft.uncalled.keys() >= set(draft.found_inf_of) - {NOT_STEPPED}:
            skipped = tuple(sorted([index for index, skip in draft.uncalled.items() if skip]))
            self._verdict = (self._iteration.step, skipped)

    def _is_well(self, row: Row | None, frame: Iteration, draft: _Draft) -> bool:
        """Whether nothing in the iteration that ends is known on the host to be non-finite."""
        found_inf = row.values[FOUND_INF : FOUND_INF + len(draft.found_inf_of)] if row else ()
        on_device = row is not None and bool(row.marked)
        return math.isfinite(frame.loss) and (on_device or not any(found_inf))

    def _can_wait(self, row: Row | None) -> bool:
        """Whether an iteration in which all is well may be judged later."""
        is_on_host = row is not None and not row.marked
        return is_on_host and self._ended_ns - self._delivered_ns < BATCH_SECONDS * 1e9

    def deliver_arrived(self) -> None:
        """Deliver what has reached the host, several iterations in a call. Never waits."""
        self._delivered_ns = self._ended_ns
        if self._arriving.subscribers:
            self._arriving.emit(IterationsArriving(self._times))
        waiting: list[Iteration] = []
        try:
            if self._quiet is not None and self._quiet.num_ended:
                quiet, spent_ns = self._quiet.ended()
                self._bus.account.add(TAPS_SHARE * spent_ns)
                self._tell_times(quiet)
                self._arrive(quiet[-1], is_alarming=False)
                # Nothing between these: an interrupt before finds them all, and after it they are judged.
                self._quiet.drop(len(quiet))
                self._judge.deliver_alike(quiet)
            for values, parcel in self._readback.arrived(_has_arrived):
                waiting.append(self._complete(values, parcel))
                # What sensors make of it, and what sampling has cost, is that of now.
                if parcel.sample is not None or self._alarming:
                    arrived, waiting = waiting, []
                    self._judge.deliver(*arrived)
        finally:
            # Also before an interrupt goes on: they come no second time.
            if waiting:
                self._judge.deliver(*waiting)

    def _complete(self, values: list[float], parcel: _Parcel) -> Iteration:
        """Return an iteration with what has arrived of it, and say that it has."""
        iteration = _complete(parcel.frame, parcel.found_inf_of, values)
        if parcel.late is not None and parcel.late.after is not None:
            iteration.loss_scale = parcel.late.after
        # A scale that is reported after each iteration is that of the next one.
        follows = iteration.step == self._newest[0] + 1
        if follows and iteration.scaler is not None and math.isnan(iteration.scale_before):
            iteration.scale_before = self._newest[1]
        if parcel.sample is not None and self._samples is not None:
            iteration.topics = frozenset(parcel.sample.topics)
            iteration.incomplete = frozenset(parcel.sample.incomplete)
            taken = self._samples.take(parcel.sample)
            iteration.ranges = [r for r in taken if not r.is_input]
            iteration.inputs = [r for r in taken if r.is_input]
        self._newest = (iteration.step, iteration.loss_scale)
        self._tell_times([iteration])
        self._arrive(iteration, is_alarming=_is_alarming(iteration))
        return iteration

    def _tell_times(self, iterations: Sequence[Iteration]) -> None:
        times, num = self._times, len(iterations)
        first, last = iterations[0].step, iterations[-1].step
        # Indices rise by one: where both ends are the same, so is what lies between.
        if len(times) >= num and (times[0][0], times[num - 1][0]) == (first, last):
            for iteration in iterations:
                iteration.time = times.popleft()[1]
            return
        for iteration in iterations:
            while times and times[0][0] < iteration.step:
                times.popleft()  # its values were given up
            if times and times[0][0] == iteration.step:
                iteration.time = times.popleft()[1]

    def _arrive(self, iteration: Iteration, *, is_alarming: bool) -> None:
        """Say that all of an iteration is there."""
        was_alarming, self._alarming = self._alarming, is_alarming
        if self._arrived.subscribers:
            ends = was_alarming and not self._alarming
            self._arrived.emit(IterationArrived(iteration, self._alarming, ends))

    # Iterations like the one before (``QuietSteps``).

    def _begin_quiet(self, quiet: QuietSteps, last: Iteration) -> None:
        """Have iterations taken down natively, if the last one was of a form that can be."""
        self.deliver_arrived()
        scaler, key = self._bus.scaler, self._key
        reference = None if key is None else self._registry.reference_to(key)
        is_quiet = last.scale_before > NO_INVERSE and not self._ends_by_call and self._late is None
        if key is None or reference is None or self._readback.in_flight or not is_quiet:
            quiet.wait()
            return
        turn = self._next_turn()
        if turn <= self._iteration.step:
            return  # who was notified of what had arrived has closed the monitor, or woken a sensor
        quiet.turn_at(turn)
        quiet.begin(last, scaler, key, reference, self._stage, self._ended_ns)

    def _next_turn(self) -> int:
        """Return the first iteration from the open one on of which a sensor may want more than others do."""
        step = self._iteration.step
        if not self._bus.is_resting:
            return step
        turn = self._bus.next_turn
        # A sample belongs to its iteration.
        return turn if self._samples is None else min(turn, step + self._samples.quiet)

    def _turn(self) -> None:
        """Judge what was taken down natively if it is time, and let sensors rest, wake or measure."""
        quiet = self._quiet
        if quiet is None:
            return
        if quiet.is_due:
            if self._closed.subscribers:
                self._closed.emit(IterationClosed(quiet.newest()))
            self.deliver_arrived()
        self._bus.begin_iteration(self._iteration.step)
        self._begin(quiet.ended_ns)
        turn = self._next_turn()
        if turn > self._iteration.step and quiet.may_begin():
            quiet.turn_at(turn)
        elif quiet.is_on:
            self._resume()

    def _take_over(self) -> None:
        if self._quiet is not None and self._quiet.is_on:
            self._resume()

    def _resume(self) -> None:
        """Go on with the open iteration, which is not like the one before: with what was noted of it."""
        quiet = self._quiet
        form = None if quiet is None else quiet.form
        if quiet is None or form is None:
            return
        if quiet.num_ended:
            self._verdict = self._iteration.step - 1, ()
        noted = quiet.end()
        self._ended_ns = quiet.ended_ns
        draft, losses, index = self._draft, self._losses, form.number
        if noted.num_losses:
            losses.num_losses, losses.on_host = noted.num_losses, noted.loss
            losses.dtype = form.like.loss_dtype
        if noted.is_moved:
            draft.scheduler_stepped.add(index)
        if noted.stage >= BEGAN:
            self._numbers[form.key] = self._stepping = index
            if not form.is_fused:
                draft.uncalled[index] = noted.stage < CALLED
        if noted.stage == WITHIN:
            self._bus.outermost = form.key
            self._bus.stepping = {form.key}
        if noted.stage == UPDATING:
            row = self._row = self._readback.open()
            if row is not None:
                row.values[SCALE_BEFORE] = form.like.loss_scale
                row.values[FOUND_INF] = 0.0
                draft.found_inf_of.append(index)
        self._pass_by()

    def _pass_by(self) -> None:
        """Account for iterations of whose ends nobody was notified, in the middle of the open one."""
        (step, begun_ns), now = self._begun, self._iteration.step
        if self._samples is not None and step != now:
            self._samples.pass_by(now - step, (self._ended_ns - begun_ns) / 1e9)
            self._begun = now, self._ended_ns


def _is_alarming(iteration: Iteration) -> bool:
    """Whether something was not finite, or the scale is so small that its inverse is not."""
    return (
        any(iteration.found_inf.values())
        or iteration.other_found_inf
        or bool(iteration.num_losses and not math.isfinite(iteration.loss))
        or iteration.scale_before <= NO_INVERSE
    )


def _has_arrived(parcel: _Parcel) -> bool:
    if parcel.late is not None and parcel.late.after is None:
        return False
    return parcel.sample is None or parcel.sample.has_arrived()


def _complete(frame: Iteration, found_inf_of: list[int], values: list[float]) -> Iteration:
    """Fill in what came through the readback."""
    verdicts: dict[int, bool] = {}
    for column, index in enumerate(found_inf_of, FOUND_INF):
        # NaN is what the caller of `end_iteration` could not tell: neither a step nor a skip.
        if math.isnan(values[column]):
            frame.is_outcome_known = False
        else:
            verdicts[index] = verdicts.get(index, False) or values[column] > 0
    frame.other_found_inf = verdicts.pop(NOT_STEPPED, False)
    frame.found_inf = verdicts
    if frame.num_losses:
        frame.loss = (frame.loss + values[LOSS]) / frame.num_losses
    else:
        frame.loss = math.nan
    frame.scale_before = values[SCALE_BEFORE]
    frame.loss_scale = values[SCALE]
    frame.growth_tracker = int(values[TRACKER])
    return frame
