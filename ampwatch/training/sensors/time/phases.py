"""The phases of a step: to what its time goes, by the clock of the host and by that of a device."""

from __future__ import annotations

from collections import deque
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
from ampwatch.training.sensors.time.splitting import (
    BACKWARD,
    BACKWARD_WITH_REDUCTION,
    COMMUNICATION,
    EVALUATES,
    FORWARD,
    KEEPS_GRADIENTS,
    REST,
    SUMS_GRADIENTS,
    TIMED,
    TRAINS,
    Splitter,
)
from ampwatch.wire.records import NO_PHASES, StepPhase
from ampwatch.wire.records.fields import MAX_COUNT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ampwatch.guard import Guard
    from ampwatch.training.hooks.bus import Moment
    from ampwatch.training.hooks.events import (
        BatchAwaited,
        CompileCalled,
        DevicesKnown,
        IterationClosed,
    )
    from ampwatch.training.iteration.context import Context
    from ampwatch.wire.records import Phases

STEP = int(StepPhase.STEP)
NUM_PHASES = len(StepPhase)

FOLDED = 1024
"""Moments that are added up before the iteration ends: a long evaluation has many. An iteration of more is
not timed on its device."""

MAX_MOMENTS = 8 * FOLDED
"""Moments that are kept where no call of the model is heard, at which they would be added up. Of more the
oldest are lost, and their time is that of the phase before them."""

DEVICE_PERIOD = 4
"""Iterations from one that a device is timed in to the next. An event costs its thread 1 to 3 us to
record and an iteration has about eight: in each, they would take more than the sensor may."""

DEVICE_TURN = 3
"""Remainder of those iterations: samples are taken in multiples of powers of two."""

MAX_DEPTH = 3
"""Containers within one another in which the batch is looked for."""

THREAD_PERIOD_NS = 100_000_000
"""Time from one reading of the thread's times to the next, at least: one takes 2.4 us, and on a virtual
machine 40. They are compared over 1.5 s and more."""


class PhaseSensor(Sensor):
    """Says where the time of each iteration goes.

    It has the bus note when something happens, and adds up at the end of the iteration what lies in
    between: ``Splitter`` tells of which phase it is. Phases do not overlap, and their sum is the duration
    of the iteration.

    Args:
        context: Shared parts of the training.

    Cost: a clock reading an event, of which a plain iteration has about eight; on a device an event of
    its stream more for each, in one iteration of ``DEVICE_PERIOD``. ``benchmarks/phases.py`` measures it.
    """

    name = "phases"
    is_thread_safe = True  # what comes from another thread is told apart

    def __init__(self, context: Context) -> None:
        self._context = context
        self._iteration = context.iteration
        self._bus = context.bus
        self._now = context.clock.monotonic_ns
        self._communicates = context.peers.world_size > 1
        self.times = TIMED if self._communicates else TIMED - COMMUNICATION
        self._splitter = Splitter(communicates=self._communicates)
        self._moments: deque[Moment] = deque(maxlen=MAX_MOMENTS)
        self._spent = [0] * NUM_PHASES
        self._since = self._now()
        self._is_listening = self._was_settled = self._is_unheard = False
        self._listening_since = 0
        self._num_heard = 0
        self._workers: int | None = None
        self._numel = 0
        self._samples = self._tokens = -1
        self._thread = ThreadTimes()
        self._thread_read_at = self._since - THREAD_PERIOD_NS
        self._device: DeviceClock | None = None
        self._on_device: Guard | None = None

    def installed(self) -> None:
        """Begin to hear when the model is called, and to have the rest noted."""
        self._listen()
        self._bus.time(self, self._now, self._moments.append)
        self._since = self._now()

    def failed(self) -> None:
        """Have nothing noted any more."""
        self._bus.time_no_more()
        self._moments.clear()

    def removed(self) -> None:
        """Let go of the device's events and of the file of the thread's times."""
        self._is_listening = False
        self._device = None
        self._moments.clear()
        self._thread.close()

    def devices_known(self, event: DevicesKnown) -> None:
        """Make events on the device of the training, where it has one."""
        device = self._context.home.device
        self._device = None
        if event.has_accelerator and device is not None and device.type != HOST:
            # A backend may have events that take no time.
            with Suppress(RuntimeError, TypeError, NotImplementedError, AttributeError):
                self._time_on(DeviceClock(device))

    def _time_on(self, clock: DeviceClock) -> None:
        self._device = clock
        if self._on_device is None:
            # A guard of its own: a call of the model is noted by the sensor, which is in its own one then.
            # And what fails on a device is not the host's.
            self._on_device = self._bus.guard("phases_of_device", sweep=self._forget_device)

    def _forget_device(self) -> None:
        self._device = None
        self._bus.note = self._moments.append

    # What happens.

    def _note_on_device(self, moment: Moment) -> None:
        """Take a moment, and mark on the device what comes after it."""
        self._moments.append(moment)
        clock, guard = self._device, self._on_device
        if clock is not None and guard is not None and moment[1] == self._iteration.thread:
            guard.run(clock.mark, len(self._moments) - 1)

    def batch_awaited(self, event: BatchAwaited) -> None:
        """Learn how many workers the loader has."""
        if self._iteration.thread in (0, get_ident()):
            workers = getattr(event.loader, LOADER_WORKERS, -1)
            # Of loaders with different numbers of workers nobody knows which is short of them.
            self._workers = workers if self._workers in (None, workers) else -1

    def root_called(self, event: RootCalled) -> None:
        """Begin forward, or an evaluation."""
        now, me, thread = self._now(), get_ident(), self._iteration.thread
        if (thread and me != thread) or graph_task() != -1:
            return  # made again within backward, by activation checkpointing
        self._num_heard += 1
        detail = EVALUATES
        if event.module.training or torch.is_grad_enabled():
            detail = self._sums_gradients() if self._communicates else TRAINS
            # Without the function modes and the subclasses of the user, which would see our question.
            with NoFunctionModes():
                self._numel += _numel_of((*event.args, *event.kwargs.values()), MAX_DEPTH)
        self._bus.note((now, me, RootCalled, detail))
        if len(self._moments) >= FOLDED:
            self._fold()
            if self._device is not None:
                self._device.drop()

    @staticmethod
    def _sums_gradients() -> int:
        """Return what a replica says of the backward to come, which it does while it calls the model."""
        replica: Any = getattr(DistributedDataParallel, ACTIVE_REPLICA, None)
        if replica is None:
            return TRAINS
        return SUMS_GRADIENTS if replica.require_backward_grad_sync else KEEPS_GRADIENTS

    def _fold(self) -> list[int]:
        """Add what was noted to the phases; return the phase that begins with each moment."""
        before, since, spent = self._splitter.phase, self._since, self._spent
        # At once: another thread may be about to add one.
        moments = tuple(self._moments)
        self._moments.clear()
        phases = self._splitter.split(moments, self._iteration.thread or get_ident())
        for moment, phase in zip(moments, phases):  # noqa: B905 - as many; to have it checked takes longer
            now = moment[0]
            spent[before] += now - since
            before = phase
            since = now
        self._since = since
        return phases

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
        now = self._now()
        phases = self._fold()
        self._spent[self._splitter.phase] += now - self._since
        self._since = now
        self._splitter.begin()
        spent, self._spent = self._spent, [0] * NUM_PHASES
        numel, self._numel = self._numel, 0
        workers, self._workers = self._workers, None
        if now - self._thread_read_at >= THREAD_PERIOD_NS:
            self._thread_read_at = now
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
        if self._device is not None and self._on_device is not None:
            self._on_device.run(self._read_device, self._device, iteration.step, phases)
        if self._bus.may_compile:
            self._follow_compiled(iteration.step)
        if not self._is_listening and not self._is_unheard:
            self._listen()

    def _read_device(self, clock: DeviceClock, step: int, phases: list[int]) -> None:
        clock.end(phases)
        for timed, spent in clock.arrived():
            self._context.observe(DevicePhases(timed, spent))
        if (step + 1) % DEVICE_PERIOD == DEVICE_TURN and not is_capturing():
            clock.begin(step + 1)
            self._bus.note = self._note_on_device
        else:
            self._bus.note = self._moments.append

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
    spent[REST] = 0
    if min(spent) < 0:  # no time goes backwards; a clock of a virtual machine that is moved may
        spent = [max(nanoseconds, 0) for nanoseconds in spent]
    is_split = spent[FORWARD] or spent[BACKWARD] or spent[BACKWARD_WITH_REDUCTION]
    seconds = [nanoseconds / 1e9 for nanoseconds in spent]
    seconds[REST if is_split else STEP] = max(duration_s - sum(seconds), 0.0)
    return tuple(seconds)  # type: ignore[return-value] # as many as there are phases
