"""The open iteration: what the sensors have seen since the last update of the scaler.

The sensors tell the ledger what happened; the ledger gives it a number, sends
the values that are still on the device through the readback, and delivers each
``Iteration`` once everything about it is on the host, in order.
"""

from __future__ import annotations

import math
import time
import weakref
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ampwatch.diagnosis.evidence.iteration import Iteration, ScalerSettings
from ampwatch.training.transfer.losses import LossSum, is_capturing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch.optim import Optimizer

    from ampwatch.diagnosis.evidence.iteration import TensorRange
    from ampwatch.diagnosis.evidence.ops import OpCensus, Window
    from ampwatch.training.model.optimizers import OptimizerRegistry
    from ampwatch.training.transfer.measuring import Sample
    from ampwatch.training.transfer.readback import Readback, Row

SCALE_BEFORE, SCALE, TRACKER, LOSS, FOUND_INF = range(5)
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

NOT_STEPPED = -1
"""Number of an optimizer whose gradients were unscaled and that was not stepped."""


@dataclass(slots=True)
class Clock:
    """Where the time comes from; tests inject their own.

    Attributes:
        monotonic_ns: For durations. Unit: ns.
        unix_ns: For the time of day. Unit: ns.
    """

    monotonic_ns: Callable[[], int] = time.perf_counter_ns
    unix_ns: Callable[[], int] = time.time_ns


class Measurements(Protocol):
    """What else belongs to an iteration: the ranges that were measured in it."""

    def closing(self, *, nonfinite: bool) -> None:
        """The iteration is about to end; whether something in it is known not to be finite."""

    def seal(self) -> Sample | None:
        """Send off what was measured."""

    def opened(self, duration_s: float) -> None:
        """The next iteration begins; the one before took so long. Unit: s."""

    def take(self, sample: Sample) -> Sequence[TensorRange]:
        """Return the measurements of a sample that has arrived."""

    def discard(self, sample: Sample) -> None:
        """Let go of a sample that nobody will ask for."""

    def alarm(self) -> None:
        """Something in an iteration that was delivered was not finite, or is about to be."""

    def calm(self) -> None:
        """The iteration that was delivered is the first without after such ones."""


class Ops(Protocol):
    """What else is seen of an iteration: its ops and its kernels."""

    def closed(self, step: int, duration_s: float) -> tuple[OpCensus | None, Window | None]:
        """Iteration ``step`` has ended and took so long; return what was seen. Unit: s."""

    def opened(self) -> None:
        """The next iteration begins."""


class IterationSink(Protocol):
    """Where iterations go."""

    def deliver(self, iteration: Iteration) -> None:
        """Take an iteration that is complete; they come in order."""


@dataclass(slots=True)
class _Draft:
    """What the host knows of the open iteration besides its losses."""

    found_inf_of: list[int] = field(default_factory=list)
    applied: list[int] = field(default_factory=list)
    applied_ids: set[int] = field(default_factory=set)
    uncalled: dict[int, bool] = field(default_factory=dict)
    scheduler_stepped: set[int] = field(default_factory=set)


class _Parcel(NamedTuple):
    """What travels with the values of an iteration."""

    frame: Iteration
    found_inf_of: list[int]
    sample: Sample | None


class IterationLedger:
    """Puts iterations together.

    With an enabled scaler an iteration ends with ``scaler.update``, and with nothing
    else. Without one it ends with the step of the leading optimizer: the first that
    steps, or, when that one is gone, the first that steps twice.

    Args:
        readback: Brings device values to the host; at least ``ROW_WIDTH`` wide.
        registry: Numbers the optimizers.
        sink: Where iterations go.
        measurements: What was measured in the open iteration.
        ops: What was seen of its ops.
        scheduler_moved: Asked once per optimizer step whether its scheduler was
            stepped since the step before.
        clock: Where the time comes from.

    Attributes:
        losses: Takes the losses of the open iteration.
        step: Index of the open iteration.
        verdict: Index of an iteration that has ended and the optimizers it skipped, as
            known on the host before its values arrive; only where no optimizer is fused.
        thread: Identity of the thread that trains, as of the last iteration.
    """

    def __init__(
        self,
        readback: Readback,
        registry: OptimizerRegistry,
        sink: IterationSink,
        measurements: Measurements,
        ops: Ops,
        scheduler_moved: Callable[[Optimizer], bool],
        clock: Clock,
    ) -> None:
        self.losses = LossSum()
        self.step = 0
        self.verdict: tuple[int, tuple[int, ...]] = (-1, ())
        self.thread = 0
        self._readback = readback
        self._registry = registry
        self._sink = sink
        self._measurements = measurements
        self._ops = ops
        self._scheduler_moved = scheduler_moved
        self._clock = clock
        self._draft = _Draft()
        self._row: Row | None = None
        self._stepping: int | None = None
        self._leader: weakref.ref[Optimizer] | None = None
        self._ended_ns = 0
        self._delivered_ns = 0
        self._alarming = False

    def begin_scaled_step(self, optimizer: Optimizer) -> None:
        """``scaler.step(optimizer)`` begins."""
        index = self._registry.admit(optimizer)
        self._stepping = index
        if not getattr(optimizer, "_step_supports_amp_scaling", False):
            # Such an optimizer is only called when its step is not skipped.
            self._draft.uncalled[index] = True
        if self._scheduler_moved(optimizer):
            self._draft.scheduler_stepped.add(index)

    def end_scaled_step(self) -> None:
        """``scaler.step`` has returned."""
        self._stepping = None

    def optimizer_stepped(self, optimizer: Optimizer, *, scaler_enabled: bool) -> None:
        """``optimizer.step`` has run, called by the scaler or by the user."""
        if self._stepping is not None:
            # Also where a wrapper steps the optimizer inside it.
            if self._stepping in self._draft.uncalled:
                self._draft.uncalled[self._stepping] = False
            return
        index = self._registry.index_of(optimizer)
        if index is None:
            return
        self._draft.applied.append(index)
        if not scaler_enabled and self._leads(optimizer):
            self._close_unscaled()
        else:
            self._draft.applied_ids.add(id(optimizer))

    def _leads(self, optimizer: Optimizer) -> bool:
        if self._leader is None or id(optimizer) in self._draft.applied_ids:
            self._leader = weakref.ref(optimizer)
        return self._leader() is optimizer

    def take_verdicts(
        self, scale: torch.Tensor, found_inf: Sequence[tuple[int, torch.Tensor]]
    ) -> None:
        """Take scale and verdicts as they stand before ``scaler.update`` changes them.

        Args:
            scale: The scaler's scale.
            found_inf: Number of the optimizer (or ``NOT_STEPPED``) and its verdict on
                one device.
        """
        self._draft.found_inf_of.clear()
        if self._row is None and not is_capturing(scale):
            self._row = self._readback.open()
        if self._row is None:
            return
        if len(found_inf) > MAX_FOUND_INF:
            self._readback.give_up(self._row)
            self._row = None
            return
        self._readback.put(self._row, SCALE_BEFORE, scale)
        for column, (index, value) in enumerate(found_inf):
            self._readback.put(self._row, FOUND_INF + column, value)
            self._draft.found_inf_of.append(index)

    def close_scaled(
        self,
        scale: torch.Tensor,
        tracker: torch.Tensor,
        scaler: ScalerSettings,
        *,
        scale_given: bool,
    ) -> None:
        """``scaler.update`` has returned: the iteration ends.

        An update that only sets the scale, without any step before it, is no iteration.
        """
        if scale_given and not self._draft.found_inf_of and not self._draft.applied:
            return
        row = self._row
        if row is not None:
            self._readback.put(row, SCALE, scale)
            self._readback.put(row, TRACKER, tracker)
        self._close(row, scaler, scale_given=scale_given)

    def _close_unscaled(self) -> None:
        row = self._row or self._readback.open()
        if row is not None:
            row.values[SCALE_BEFORE] = row.values[SCALE] = math.nan
            row.values[TRACKER] = -1
        self._close(row, None, scale_given=False)

    def _close(self, row: Row | None, scaler: ScalerSettings | None, *, scale_given: bool) -> None:
        draft, now = self._draft, self._clock.monotonic_ns()
        frame = Iteration(
            step=self.step,
            time_ns=self._clock.unix_ns(),
            duration_s=(now - self._ended_ns) / 1e9 if self._ended_ns else math.nan,
            loss=self.losses.on_host,
            num_losses=self.losses.num_losses,
            scale_before=math.nan,
            loss_scale=math.nan,
            growth_tracker=-1,
            scaler=scaler,
            scale_given=scale_given,
            found_inf={},
            other_found_inf=False,
            applied_directly=tuple(draft.applied),
            scheduler_stepped=frozenset(draft.scheduler_stepped),
            loss_dtype=self.losses.dtype,
        )
        well = self._is_well(row, frame, draft)
        self._measurements.closing(nonfinite=not well)
        sample = self._measurements.seal()
        frame.census, frame.window = self._ops.closed(self.step, frame.duration_s)
        if row is not None:
            row.values[LOSS] = 0.0
            if self.losses.on_device is not None:
                self._readback.put(row, LOSS, self.losses.on_device)
            self._readback.seal(row, _Parcel(frame, draft.found_inf_of, sample))
        elif sample is not None:
            self._measurements.discard(sample)
        self._note_verdict(draft)
        self._row, self._stepping = None, None
        self._draft, self._ended_ns = _Draft(), now
        self.losses.reset()
        self.step += 1
        self.thread = get_ident()
        if row is None or sample is not None or not (well and self._can_wait(row)):
            self.deliver_arrived()
        self._measurements.opened(frame.duration_s)
        self._ops.opened()

    def _note_verdict(self, draft: _Draft) -> None:
        if draft.uncalled and draft.uncalled.keys() >= set(draft.found_inf_of) - {NOT_STEPPED}:
            skipped = tuple(sorted(index for index, skip in draft.uncalled.items() if skip))
            self.verdict = (self.step, skipped)

    def _is_well(self, row: Row | None, frame: Iteration, draft: _Draft) -> bool:
        """Whether nothing in the iteration that ends is known on the host to be non-finite."""
        found_inf = row.values[FOUND_INF : FOUND_INF + len(draft.found_inf_of)] if row else ()
        on_device = row is not None and bool(row.marked)
        return math.isfinite(frame.loss) and (on_device or not any(found_inf))

    def _can_wait(self, row: Row) -> bool:
        """Whether an iteration in which all is well may be judged later."""
        return (
            not row.marked
            and self._ended_ns - self._delivered_ns < BATCH_SECONDS * 1e9
            and not self._readback.half_full
        )

    def deliver_arrived(self) -> None:
        """Deliver what has reached the host. Never waits."""
        self._delivered_ns = self._ended_ns
        for values, parcel in self._readback.arrived(_has_arrived):
            iteration = _complete(parcel.frame, parcel.found_inf_of, values)
            if parcel.sample is not None:
                iteration.topics = frozenset(parcel.sample.topics)
                iteration.ranges = self._measurements.take(parcel.sample)
            was_alarming, self._alarming = self._alarming, _is_alarming(iteration)
            if self._alarming:
                self._measurements.alarm()
            elif was_alarming:
                self._measurements.calm()
            self._sink.deliver(iteration)


def _is_alarming(iteration: Iteration) -> bool:
    """Whether something was not finite, or the scale is so small that its inverse is not."""
    return (
        any(iteration.found_inf.values())
        or iteration.other_found_inf
        or bool(iteration.num_losses and not math.isfinite(iteration.loss))
        or iteration.scale_before <= NO_INVERSE
    )


def _has_arrived(parcel: _Parcel) -> bool:
    return parcel.sample is None or parcel.sample.has_arrived()


def _complete(frame: Iteration, found_inf_of: list[int], values: list[float]) -> Iteration:
    """Fill in what came through the readback."""
    verdicts: dict[int, bool] = {}
    for column, index in enumerate(found_inf_of, FOUND_INF):
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
