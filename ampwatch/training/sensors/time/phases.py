"""The phases of a step: to what its time goes, by the clock of the host and by that of a device."""

from __future__ import annotations

from collections.abc import Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ampwatch.diagnosis.evidence.time import DevicePhases, StepTime
from ampwatch.guard import Suppress
from ampwatch.training.devices import HOST, is_capturing
from ampwatch.training.hooks.events import RootCalled
from ampwatch.training.hooks.roots import SETTLED
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.private import (
    ACTIVE_REPLICA,
    LOADER_WORKERS,
    NoFunctionModes,
    graph_task,
)
from ampwatch.training.sensors.time.device_clock import DeviceClock
from ampwatch.training.sensors.time.scheduling import ThreadTimes
from ampwatch.wire.records import NO_PHASES, StepPhase
from ampwatch.wire.records.fields import MAX_COUNT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ampwatch.training.hooks.events import (
        BackwardBegan,
        BatchArrived,
        BatchAwaited,
        ClipBegan,
        ClipEnded,
        CommunicationArrived,
        CommunicationAwaited,
        CompileCalled,
        DevicesKnown,
        IterationClosed,
        OptimizerStepped,
        OptimizerStepping,
        StepBegan,
        StepEnded,
        Unscaled,
        Unscaling,
    )
    from ampwatch.training.iteration.context import Context
    from ampwatch.wire.records import Phases

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
NUM_PHASES = len(StepPhase)

DEVICE_PERIOD = 4
"""Iterations from one that a device is timed in to the next. An event costs its thread 1 to 3 us to
record and an iteration has about eight: in each, they would take more than the sensor may."""

DEVICE_TURN = 3
"""Remainder of those iterations: samples are taken in multiples of powers of two."""

MAX_DEPTH = 3
"""Containers within one another in which the batch is looked for."""

THREAD_PERIOD = 8
"""Iterations from one reading of the thread's times to the next: 2.4 us each."""


class PhaseSensor(Sensor):
    """Says where the time of each iteration goes.

    It knows the phase that the training thread is in, and adds the time since the last event to it
    when the next event comes. What is no event of PyTorch belongs to the phase that it happens in:
    computing the loss is forward, logging after ``scaler.step`` is the rest. A wait for data belongs
    to what the batch is used for: training, or an evaluation. Phases do not overlap, and their sum is
    the duration of the iteration.

    Args:
        context: Shared parts of the training.

    Cost: a clock reading an event, of which a plain iteration has about eight; on a device an event of
    its stream more for each, in one iteration of ``DEVICE_PERIOD``. ``benchmarks/phases.py`` measures it.
    """

    name = "phases"
    is_thread_safe = True  # what comes from another thread is told apart, and at most marks a flag

    def __init__(self, context: Context) -> None:
        self._context = context
        self._iteration = context.iteration
        self._bus = context.bus
        self._now: Callable[[], int] = context.clock.monotonic_ns
        self._spent = [0] * NUM_PHASES
        self._phase = REST
        self._outer = self._outer_of_step = REST
        self._since = self._now()
        self._awaited_since = 0
        self._awaited = self._nested = 0
        self._communicates = context.peers.world_size > 1
        self._reduces = self._overlaps = self._was_called = False
        self._backward_before = 0
        self._is_listening = self._was_settled = self._is_unheard = False
        self._listening_since = 0
        self._num_heard = 0
        self._workers: int | None = None
        self._numel = 0
        self._samples = self._tokens = -1
        self._thread = ThreadTimes()
        self._device: DeviceClock | None = None
        if not self._communicates:
            self.deaf_to = frozenset({"communication_awaited", "communication_arrived"})

    def installed(self) -> None:
        """Begin to hear when the model is called."""
        self._listen()
        self._since = self._now()

    def removed(self) -> None:
        """Let go of the device's events and of the file of the thread's times."""
        self._is_listening = False
        self._device = None
        self._thread.close()

    def devices_known(self, event: DevicesKnown) -> None:
        """Make events on the device of the training, where it has one."""
        device = self._context.home.device
        self._device = None
        if event.has_accelerator and device is not None and device.type != HOST:
            # A backend may have events that take no time.
            with Suppress(RuntimeError, TypeError, NotImplementedError, AttributeError):
                self._device = DeviceClock(device)

    # Where the time goes.

    def _enter(self, phase: int) -> None:
        now = self._now()
        self._spent[self._phase] += now - self._since
        self._since = now
        self._phase = phase
        if self._device is not None:
            self._device.mark(phase)

    def _is_elsewhere(self) -> bool:
        """Whether the calling thread is not the one that trains, as far as is known."""
        thread = self._iteration.thread
        return bool(thread) and get_ident() != thread

    def batch_awaited(self, event: BatchAwaited) -> None:
        """Begin to wait for data, unless in the middle of something else."""
        if self._is_elsewhere():
            return
        if self._phase == DATA:
            self._nested += 1  # a loader that reads another one
            return
        self._outer = self._phase
        self._enter(DATA)
        self._awaited_since = self._since
        workers = getattr(event.loader, LOADER_WORKERS, -1)
        # Of loaders with different numbers of workers nobody knows which is short of them.
        self._workers = workers if self._workers in (None, workers) else -1

    def batch_arrived(self, _event: BatchArrived) -> None:
        """End the wait; what it was for shows when the model is called."""
        if self._phase != DATA or self._is_elsewhere():
            return
        if self._nested:
            self._nested -= 1
            return
        self._enter(self._outer)
        # Within forward it is for that: a pipeline of the model's own. Else it is not known yet what for.
        if self._outer != FORWARD:
            self._awaited += self._since - self._awaited_since

    def root_called(self, event: RootCalled) -> None:
        """Begin forward, or an evaluation."""
        if self._is_elsewhere() or graph_task() != -1:
            return  # made again within backward, by activation checkpointing
        self._num_heard += 1
        evaluates = not (event.module.training or torch.is_grad_enabled())
        if evaluates and self._awaited:
            self._spent[DATA] -= self._awaited
            self._spent[EVALUATION] += self._awaited
            if self._device is not None:
                self._device.rename(DATA, EVALUATION, (FORWARD, EVALUATION))
        self._awaited = 0
        self._enter(EVALUATION if evaluates else FORWARD)
        if not evaluates:
            self._note_call(event)

    def _note_call(self, event: RootCalled) -> None:
        self._was_called = True
        # Without the function modes and the subclasses of the user, which would see our question.
        with NoFunctionModes():
            self._numel += _numel_of((*event.args, *event.kwargs.values()), MAX_DEPTH)
        if self._communicates:
            # While it calls the model it says whether the backward to come is to sum gradients.
            replica: Any = getattr(DistributedDataParallel, ACTIVE_REPLICA, None)
            # Another model that is called beside it, or its part, says nothing of that.
            if replica is not None:
                self._reduces = replica.require_backward_grad_sync

    def backward_began(self, _event: BackwardBegan) -> Callable[[], None] | None:
        """Begin backward."""
        if self._is_elsewhere():
            return None
        self._overlaps = False
        self._backward_before = self._spent[BACKWARD]
        # Where the call of the model went by unheard nobody knows whether gradients are summed.
        may_reduce = self._reduces or (self._communicates and not self._was_called)
        self._enter(BACKWARD_WITH_REDUCTION if may_reduce else BACKWARD)
        return self._end_backward

    def _end_backward(self) -> None:
        if self._phase not in (BACKWARD, BACKWARD_WITH_REDUCTION):
            return
        # Within a closure: LBFGS and the like call for gradients in their step.
        self._enter(OPTIMIZER if self._bus.is_optimizer_stepping else REST)
        if self._overlaps:
            spent = self._spent
            spent[BACKWARD_WITH_REDUCTION] += spent[BACKWARD] - self._backward_before
            spent[BACKWARD] = self._backward_before
            if self._device is not None:
                self._device.rename(BACKWARD, BACKWARD_WITH_REDUCTION, (FORWARD,))

    def communication_awaited(self, _event: CommunicationAwaited) -> None:
        """Begin to wait for other ranks; within backward take note that it is shared with them."""
        if graph_task() != -1:
            # Not by the thread: on a device autograd has threads of its own.
            self._overlaps = self._phase == BACKWARD
        elif self._phase not in (FORWARD, EVALUATION, REDUCTION) and not self._is_elsewhere():
            self._outer = self._phase
            self._enter(REDUCTION)

    def communication_arrived(self, _event: CommunicationArrived) -> None:
        """End the wait."""
        if self._phase == REDUCTION and not self._is_elsewhere():
            self._enter(self._outer)

    def unscaling(self, _event: Unscaling) -> None:
        """Begin to unscale."""
        self._enter(UNSCALE_AND_CLIP)

    def unscaled(self, _event: Unscaled) -> None:
        """End it."""
        if self._phase == UNSCALE_AND_CLIP:
            self._enter(REST)

    def clip_began(self, _event: ClipBegan) -> None:
        """Begin to clip."""
        if self._phase == REST and not self._is_elsewhere():
            self._enter(UNSCALE_AND_CLIP)

    def clip_ended(self, _event: ClipEnded) -> None:
        """End it."""
        if self._phase == UNSCALE_AND_CLIP and not self._is_elsewhere():
            self._enter(REST)

    def step_began(self, _event: StepBegan) -> None:
        """Begin to check for non-finite gradients, and to unscale them if nobody has."""
        self._enter(UNSCALE_AND_CLIP)

    def step_ended(self, _event: StepEnded) -> None:
        """End them, where the step was skipped."""
        if self._phase == UNSCALE_AND_CLIP:
            self._enter(REST)

    def optimizer_stepping(self, _event: OptimizerStepping) -> None:
        """Begin the step of an optimizer."""
        if self._phase != OPTIMIZER and not self._is_elsewhere():
            self._outer_of_step = self._phase
            self._enter(OPTIMIZER)

    def optimizer_stepped(self, event: OptimizerStepped) -> None:
        """End it."""
        if event.is_outermost and self._phase == OPTIMIZER:
            # Within backward each parameter may have an optimizer of its own.
            is_within = self._outer_of_step in (BACKWARD, BACKWARD_WITH_REDUCTION)
            self._enter(self._outer_of_step if is_within else REST)

    # What the program says of its batches.

    def count(self, samples: object, tokens: object) -> str:
        """Add samples and tokens that the open iteration trains on, each a whole number or ``None``.

        Returns:
            What is wrong with them, and then nothing was added; empty as a rule.
        """
        given = {"samples": samples, "tokens": tokens}
        for name, value in given.items():
            # bool first: it is an int of Python, and True is no number of samples.
            is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            if value is not None and not is_count:
                return f"expected `{name}` to be a whole number from 0 on, got {value!r:.80}"
        if isinstance(samples, int):
            self._samples = min(max(self._samples, 0) + samples, MAX_COUNT)
        if isinstance(tokens, int):
            self._tokens = min(max(self._tokens, 0) + tokens, MAX_COUNT)
        return ""

    # The end of an iteration.

    def iteration_closed(self, event: IterationClosed) -> None:
        """Hand over the times of the iteration that ends, and begin anew."""
        iteration = event.iteration
        self._enter(REST)
        spent, self._spent = self._spent, [0] * NUM_PHASES
        numel, self._numel = self._numel, 0
        self._awaited = self._nested = 0
        workers, self._workers = self._workers, None
        self._was_called = False
        if iteration.step % THREAD_PERIOD == 0:
            self._thread.read()
        device = self._context.home.device
        iteration.time = StepTime(
            _phases(spent, iteration.duration_s),
            self._samples,
            self._tokens,
            self._thread.cpu_ns,
            self._thread.run_delay_ns,
            numel,
            -1 if workers is None else workers,
            device is not None and device.type != HOST,
        )
        if self._device is not None:
            self._read_device(iteration.step)
        if self._bus.may_compile:
            self._follow_compiled(iteration.step)
        if not self._is_listening and not self._is_unheard:
            self._listen()

    def _read_device(self, step: int) -> None:
        clock = self._device
        if clock is None:
            return
        for timed, spent in clock.arrived():
            self._context.observe(DevicePhases(timed, spent))
        if (step + 1) % DEVICE_PERIOD == DEVICE_TURN and not is_capturing():
            clock.begin(step + 1)
        else:
            clock.end()

    # The calls of models.

    def compile_called(self, _event: CompileCalled) -> None:
        """Have the calls tapped anew in the next iteration: nothing of ours is to be compiled."""
        self._is_unheard = False
        self._ignore()

    def _listen(self) -> None:
        self._listening_since = self._iteration.step
        self._num_heard = 0
        self._bus.listen(self, RootCalled)
        self._is_listening = True

    def _ignore(self) -> None:
        if self._is_listening:
            self._is_listening = False
            self._bus.ignore(self, RootCalled)

    def _follow_compiled(self, step: int) -> None:
        """Have the calls tapped anew once what is compiled has been traced; or give up."""
        is_settled = self._bus.is_compiling_settled
        if is_settled != self._was_settled:
            self._was_settled = is_settled
            self._is_unheard = False
            self._ignore()
        elif is_settled and step - self._listening_since > SETTLED and not self._num_heard:
            self._is_unheard = True  # only compiled functions call the model, and go by unheard
            self._ignore()


def _numel_of(values: Iterable[Any], depth: int) -> int:
    """Return the elements of the first tensor that a model is called with: its batch is as large."""
    for value in values:
        numel = 0
        if isinstance(value, torch.Tensor):
            numel = value.numel()
        elif depth and isinstance(value, Mapping):
            numel = _numel_of(value.values(), depth - 1)
        elif depth and isinstance(value, (list, tuple)):
            numel = _numel_of(value, depth - 1)
        if numel:
            return numel
    return 0


def _phases(spent: list[int], duration_s: float) -> Phases:
    """Return the phases of an iteration, unit s; zeros without a duration."""
    if not duration_s > 0.0:  # NaN as well
        return NO_PHASES
    # No time goes backwards; a clock of a virtual machine that is moved may.
    seconds = [max(nanoseconds, 0) / 1e9 for nanoseconds in spent]
    seconds[REST] = 0.0
    is_split = seconds[FORWARD] or seconds[BACKWARD] or seconds[BACKWARD_WITH_REDUCTION]
    seconds[REST if is_split else STEP] = max(duration_s - sum(seconds), 0.0)
    return tuple(seconds)  # type: ignore[return-value] # as many as there are phases
