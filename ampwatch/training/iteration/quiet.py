"""Iterations like the one before, taken down in C: nothing is made of them until they are judged.

A part of the extension module (`native/steps.c`); where that is not built, or a clock is not the
system's, the ledger takes each iteration down itself.
"""

from __future__ import annotations

import math
import time
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.iteration import Iteration
from ampwatch.guard import is_of_a_signal
from ampwatch.training.hooks import events as on
from ampwatch.training.hooks.bus import handler_name
from ampwatch.training.native import timed
from ampwatch.training.private import (
    DECIDES_ON_DEVICE,
    IS_ENABLED,
    SCALER_STATE,
    growth_settings,
    growth_tracker,
    scale_tensor,
    tracing_state,
)
from ampwatch.training.transfer.readback import CODES, is_plain_scalar

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable

    from torch.optim import Optimizer

    from ampwatch.training.hooks.bus import Bus, OpenIteration
    from ampwatch.training.iteration.ledger import Clock, Schedulers

LISTENED = (
    on.Scaled,
    on.StepBegan,
    on.StepEnded,
    on.OptimizerStepping,
    on.OptimizerStepped,
    on.Updating,
    on.Updated,
)
"""Events that are not made of what is taken down, in the order of steps.c."""

ENDS = (on.IterationClosing, on.IterationClosed, on.IterationOpened)
"""Events between two iterations: where anybody is to be notified of each, the ledger ends the iteration."""

NAMES = tuple(handler_name(kind) for kind in (*LISTENED, *ENDS))
"""Names by which sensors know them."""

NOTED = (*LISTENED[:-1], on.IterationClosed)
"""What is noted of each; of the first and of the last but one nothing is."""

PATIENCE = 32
"""Iterations that are taken down as ever where one is not of a form that can be, or the next is not like it."""

TAPS_SHARE = 8
"""How many times as long as is measured here a quiet iteration takes longer than a bare one: what stands in place of
PyTorch's callables cannot time itself, nor what the training finds out of its caches afterwards. Measured beside a bare
training of 0.31 ms a step (benchmarks/overhead.py): 80 us at `light`, of which 7.5 us were measured here and 21 us in
what judges, and 144 us at `standard`, of which 9 us and 52 us."""

NOT_YET, BEGAN, WITHIN, CALLED, ENDED, UPDATING = range(6)
"""What has happened to the optimizer in the open iteration, as in steps.c."""


def _is_own(error: BaseException) -> bool:
    return not is_of_a_signal(error)


class Noted(NamedTuple):
    """What was noted of the open iteration.

    Attributes:
        loss: Sum of its losses.
        num_losses: How many there were.
        is_moved: Whether a scheduler was stepped.
        stage: How far the step of the optimizer has come.
    """

    loss: float
    num_losses: int
    is_moved: bool
    stage: int


class Form(NamedTuple):
    """What iterations are like.

    Attributes:
        like: One of them: one optimizer was stepped through one scaler, and all of it is on the host.
        number: Number of the optimizer.
        key: Its identity.
        is_fused: Whether it is called in skipped steps as well.
    """

    like: Iteration
    number: int
    key: int
    is_fused: bool


class QuietSteps:
    """Takes iterations down that are like one.

    Args:
        resume: Called where one is not: the ledger goes on with what was noted (``end``).
        turn: Called between two iterations where ``is_due``, and when that of ``turn_at`` begins.
        bus: Notes what happens; notifies nobody of it.
        iteration: The open iteration; is moved on here as well.
        schedulers: Says whether one has moved the learning rate of an optimizer that steps.
        batch_ns: Time from one judgement to the next. Unit: ns.

    Attributes:
        form: What the iterations are like.
        replace_listener: Returns what listens in place of a listener, by the name of what it receives.
    """

    def __init__(
        self,
        resume: Callable[[], object],
        turn: Callable[[], object],
        bus: Bus,
        iteration: OpenIteration,
        schedulers: Schedulers,
        batch_ns: int,
    ) -> None:
        timed.prepare_steps((IS_ENABLED, *SCALER_STATE), (torch.Tensor, tracing_state))
        self._channels = tuple(bus.channel(kind) for kind in (*LISTENED, *ENDS))
        moved = schedulers.has_moved, schedulers.seen
        given = resume, turn, bus, iteration, *moved, _is_own, NOTED
        self._steps = timed.Steps(given, self._channels, batch_ns)
        self.replace_listener: Callable[[str, Callable[..., Any]], Callable[..., Any]] = (
            self._steps.listener
        )
        self._iteration = iteration
        self._begins_at = self._begun_at = 0
        self.form: Form | None = None

    @staticmethod
    def may_be(clock: Clock) -> bool:
        """Whether there is an extension module that has the same clock."""
        return (
            timed is not None
            and clock.monotonic_ns is time.perf_counter_ns
            and clock.unix_ns is time.time_ns
            and isinstance(time.time_ns, BuiltinFunctionType)
        )

    @property
    def is_on(self) -> bool:
        """Whether iterations are taken down here."""
        return bool(self._steps.is_on)

    @property
    def num_ended(self) -> int:
        """How many have ended and were not taken."""
        return int(self._steps.num)

    @property
    def is_due(self) -> bool:
        """Whether those that have ended are to be judged: there is no room for more, or ``batch_ns`` is over."""
        return bool(self._steps.is_due)

    @property
    def ended_ns(self) -> int:
        """When the newest one has ended. Unit: ns."""
        return int(self._steps.ended_ns)

    def may_begin(self) -> bool:
        """Whether the open iteration may be taken down here, as far as others are concerned."""
        if self._iteration.step < self._begins_at:
            return False
        for name, channel in zip(NAMES, self._channels, strict=True):
            for sensor, guard, _, wakes in channel.subscribers:
                is_wanted = not guard.off and (wakes or not sensor.is_dormant)
                if is_wanted and name not in sensor.batched:
                    return False
        return True

    def begin(
        self,
        like: Iteration,
        scaler: Any,
        key: int,
        optimizer: weakref.ref[Optimizer],
        stage: object,
        ended_ns: int,
    ) -> None:
        """Take iterations down from the open one on, if the last one is of a form that can be.

        Args:
            like: The last one.
            scaler: The watched scaler.
            key: Identity of the optimizer that it has stepped.
            optimizer: The optimizer.
            stage: Of a state of the scaler that was stepped.
            ended_ns: When the last one has ended. Unit: ns.
        """
        dtype = getattr(torch, like.loss_dtype, None)
        scale, tracker = scale_tensor(scaler), growth_tracker(scaler)
        is_plain = (
            type(scaler) is torch.amp.GradScaler
            and all(
                type(t) is torch.Tensor and is_plain_scalar(t) and t.is_cpu and t.dtype in CODES
                for t in (scale, tracker)
            )
            and like.scaler is not None
            and like.loss_scale == like.scale_before
            and math.isfinite(like.loss)
            and list(like.found_inf.values()) == [False]
            and not (like.other_found_inf or like.applied_directly or like.scale_given)
        )
        if not is_plain or dtype not in CODES or scale is None or tracker is None:
            self.wait()
            return
        is_fused = getattr(optimizer(), DECIDES_ON_DEVICE, False)
        self.form = Form(like, next(iter(like.found_inf)), key, is_fused)
        storages = scale.untyped_storage(), tracker.untyped_storage()
        objects = (
            scaler,
            optimizer,
            key,
            dtype,
            stage,
            scale,
            tracker,
            growth_settings(scaler),
            storages,
        )
        dormant = tuple(
            tuple(s.sensor for s in channel.subscribers if s.sensor.is_dormant and not s.guard.off)
            for channel in self._channels
        )
        self._begun_at = step = self._iteration.step
        has_moved = bool(like.scheduler_stepped)
        self._steps.begin(
            objects, dormant, like.loss_scale, like.num_losses, has_moved, step, ended_ns
        )

    def wait(self) -> None:
        """Have some iterations taken down as ever."""
        self._begins_at = self._iteration.step + PATIENCE

    def turn_at(self, step: int) -> None:
        """Have the ledger called when iteration ``step`` begins."""
        self._steps.next_turn = step

    def end(self) -> Noted:
        """Take none down any more, and return what was noted of the open one."""
        if self._iteration.step == self._begun_at:
            self.wait()
        return Noted(*self._steps.end())

    def newest(self) -> Iteration:
        """Return the newest that has ended."""
        return self.ended()[0][-1]

    def ended(self) -> tuple[list[Iteration], int]:
        """Return those that have ended and were not dropped, and what it took to take them down (unit: ns).

        Cost: 1 us each.
        """
        form = self.form
        if form is None or not self._steps.num:
            return [], 0
        like = form.like
        ended, spent_ns = self._steps.ended()
        first = self._steps.step - len(ended)
        iterations = [
            Iteration(
                step,
                time_ns,
                duration_s,
                loss,
                like.num_losses,
                like.scale_before,
                like.loss_scale,
                tracker,
                like.scaler,
                scale_given=False,
                found_inf=like.found_inf,
                other_found_inf=False,
                applied_directly=(),
                scheduler_stepped=like.scheduler_stepped,
                loss_dtype=like.loss_dtype,
            )
            for step, (time_ns, duration_s, loss, tracker) in enumerate(ended, first)
        ]
        return iterations, spent_ns

    def drop(self, num: int) -> None:
        """Forget the first ones that have ended: they are judged."""
        self._steps.drop(num)
