"""The phases of a step: to what its time goes, by the clock of the host and by that of a device."""

from __future__ import annotations

import os
from collections import deque
from itertools import repeat
from operator import sub, truediv
from threading import get_ident
from typing import TYPE_CHECKING, Any

from ampwatch.diagnosis.evidence.iteration import DevicePhases, StepTime
from ampwatch.guard import Suppress
from ampwatch.training.devices import HOST, is_capturing
from ampwatch.training.hooks.compiling import SETTLED
from ampwatch.training.hooks.events import BatchAwaited, IterationClosed, RootCalled
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.sensors.time.call_notes import CallNotes, notes_by
from ampwatch.training.sensors.time.device_clock import DeviceClock
from ampwatch.training.sensors.time.splitting import (
    BACKWARD,
    BACKWARD_WITH_REDUCTION,
    COMMUNICATION,
    FORWARD,
    REST,
    STEP,
    TIMED,
    Splitter,
    of_thread,
)
from ampwatch.wire.records import NO_PHASES, StepPhase
from ampwatch.wire.records.fields import MAX_COUNT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ampwatch.guard import Guard
    from ampwatch.training.hooks.events import CompileCalled, DevicesKnown, IterationsArriving
    from ampwatch.training.iteration.context import Context
    from ampwatch.wire.records import Phases


SCHEDSTAT = "/proc/thread-self/schedstat"
"""Linux' account of the calling thread: ns on a core, ns ready to run without one, times it ran.

Source: Documentation/scheduler/sched-stats.rst of the kernel."""

LENGTH = 96
"""Bytes that three numbers of 64 bits take at most, and more."""


class ThreadTimes:
    """The times of the thread that reads them first. Never raises.

    Attributes:
        cpu_ns: CPU time so far; -1 where the system does not tell. Unit: ns.
        run_delay_ns: Time so far in which the thread could run and had no core; -1 likewise. Unit: ns.

    Cost: 2.4 us a reading, 5 us the first.
    """

    def __init__(self) -> None:
        self.cpu_ns = self.run_delay_ns = -1
        self._file = -1
        self._has_tried = False

    def read(self) -> None:
        """Read both, on the thread whose they are."""
        # Which thread the file is of is decided where it is opened.
        with Suppress(OSError, ValueError):
            if not self._has_tried:
                self._has_tried = True
                self._file = os.open(SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
            if self._file >= 0:
                cpu, delay = os.pread(self._file, LENGTH, 0).split()[:2]
                self.cpu_ns, self.run_delay_ns = int(cpu), int(delay)

    def close(self) -> None:
        """Close the file. Idempotent."""
        file, self._file, self._has_tried = self._file, -1, False
        if file >= 0:
            with Suppress(OSError):
                os.close(file)


NUM_PHASES = len(StepPhase)

FOLDED = 1024
"""Moments that are added up before the iteration ends: a long evaluation has many. An iteration of more is
not timed on its device."""

MAX_MOMENTS = 8 * FOLDED
"""Moments that are kept where no call of the model is seen, at which they would be added up. Of more the
oldest are lost, and their time is that of the phase before them."""

DEVICE_PERIOD = 4
"""Iterations from one that a device is timed in to the next. An event costs its thread 1 to 3 us to
record and an iteration has about eight: in each, they would take more than the sensor may."""

DEVICE_TURN = 3
"""Remainder of those iterations: samples are taken in multiples of powers of two."""

THREAD_PERIOD_NS = 100_000_000
"""Time from one reading of the thread's times to the next, at least: one takes 2.4 us, and on a virtual
machine 40. They are compared over 1.5 s and more."""


class PhaseSensor(Sensor):
    """Says where the time of each iteration goes.

    It has the bus note when something happens, the end of the iteration as well. Before iterations are
    judged it adds up what lies in between, of all that have ended: ``Splitter`` tells of which phase it is.
    Between two steps of a training the caches forget our code, so iterations are split as they are judged,
    many at once. Phases do not overlap, and their sum is the duration of the iteration.

    Cost: a clock reading an event, of which a quiet iteration has about eight; on a device an event of
    its stream more for each, in one iteration of ``DEVICE_PERIOD``.
    """

    name = "phases"
    guard: Guard
    is_thread_safe = True  # what comes from another thread is distinguished
    # Received where something is to be done at the end of each iteration; as a rule it is noted only.
    deaf_to = frozenset({"iteration_closed"})

    def __init__(self, context: Context) -> None:
        self._context = context
        self._iteration = context.iteration
        self._bus = context.bus
        self._now = context.clock.monotonic_ns
        self._communicates = context.peers.world_size > 1
        self.times = TIMED if self._communicates else TIMED - COMMUNICATION
        self.guard = context.bus.guard(self.name, is_thread_safe=True, sweep=self.failed)
        self._splitter = Splitter(communicates=self._communicates)
        self._notes = notes_by(self._now, MAX_MOMENTS)
        self._note = self._notes.note
        self._since = self._now()
        # Of an iteration of which a part is split already; ``None`` of others.
        self._spent: list[int] | None = None
        self._before = REST
        self._numel = 0
        self._workers: int | None = None
        self._trained_by = 0
        self._phases: list[int] = []
        self._ended: list[tuple[int, StepTime]] = []
        self._is_listening = self._was_settled = self._is_unseen = False
        self._listening_since = 0
        self._calls = CallNotes(
            context, self._notes, FOLDED, lambda: self.guard.run(self._fold_early)
        )
        self._samples = self._tokens = -1
        self._totals: deque[tuple[int, int, int]] = deque()
        self._counted = (-1, -1)
        self._thread = ThreadTimes()
        self._thread_read_at = self._since - THREAD_PERIOD_NS
        self._device: DeviceClock | None = None
        self._on_device: Guard | None = None

    def installed(self) -> None:
        """Begin to have noted what happens."""
        self._bus.time(self, self._note, self._calls.noting())
        self._is_listening = True
        self._listening_since = self._iteration.step
        self._since = self._now()
        self._spent = self._workers = None
        self._numel = 0
        self._splitter.begin()
        if self._bus.may_compile or self._device is not None:
            self._bus.listen(self, IterationClosed)

    def failed(self) -> None:
        """Have nothing noted any more."""
        self._bus.time_no_more()
        self._notes.drop(len(self._notes))

    def removed(self) -> None:
        """Let go of the device's events and of the file of the thread's times."""
        self._is_listening = False
        self._device = None
        self._notes.drop(len(self._notes))
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
        self._bus.listen(self, IterationClosed)
        if self._on_device is None:
            # A guard of its own: a call of the model is noted by the sensor, which is in its own one then.
            # And what fails on a device is not the host's.
            self._on_device = self._bus.guard("phases_of_device", sweep=self._forget_device)

    def _forget_device(self) -> None:
        self._device = None
        self._bus.note = self._note

    # What happens.

    def _note_on_device(self, kind: Any, given: Any = 0, at: int | None = None) -> None:
        """Take a moment, and mark on the device what comes after it."""
        self._note(kind, given, at)
        clock, guard = self._device, self._on_device
        if clock is None or guard is None or kind is IterationClosed:
            return
        if get_ident() == self._iteration.thread:
            guard.run(clock.mark, len(self._notes) - 1)

    def _fold(self) -> None:
        """Say of each iteration that has ended where its time has gone."""
        times, threads, kinds, given = noted = self._notes.columns()
        begin = stop = 0
        if IterationClosed in kinds:
            stop = len(kinds) - kinds[::-1].index(IterationClosed)
        while begin < stop:
            end = kinds.index(IterationClosed, begin)
            folded = self._fold_alike(noted, begin, end)
            if folded:
                begin += folded
                continue
            # What is noted is noted with the thread that has ended the one before: it trains.
            thread, self._trained_by = self._trained_by or threads[end], threads[end]
            on_thread = kinds[begin:end]
            if threads[begin:end].count(thread) < end - begin:
                on_thread = of_thread(thread, threads[begin:end], on_thread)
            step, duration_s = given[end]
            phases = self._split(times[begin : end + 1], on_thread, given[begin:end], duration_s)
            while self._totals and self._totals[0][0] <= step:
                self._counted = self._totals.popleft()[1:]
            workers = -1 if self._workers is None else self._workers
            self._end([(step, phases, self._numel)], workers)
            self._since = times[end]
            self._numel, self._workers = 0, None
            begin = end + 1
        self._notes.drop(begin)

    def _end(self, ended: Iterable[tuple[int, Phases, int]], workers: int) -> None:
        """Say of iterations where their time has gone: of each its index, its phases and its elements."""
        device = self._context.home.device
        is_ahead = device is not None and device.type != HOST
        samples, tokens = self._counted
        cpu_ns, delay_ns = self._thread.cpu_ns, self._thread.run_delay_ns
        self._ended += [
            (step, StepTime(phases, samples, tokens, cpu_ns, delay_ns, numel, workers, is_ahead))
            for step, phases, numel in ended
        ]

    def _fold_alike(self, noted: tuple[tuple[Any, ...], ...], begin: int, end: int) -> int:
        """Say of iterations in a row, in which the same has happened, where their time has gone.

        As ``_fold`` does of each, all at once.

        Returns:
            How many moments they have; 0 where they are to be split one by one.
        """
        times, threads, kinds, given = noted
        width, form = end + 1 - begin, kinds[begin : end + 1]
        known = self._splitter.repeats(form[:-1])
        if known is None or known.runs is None or self._spent is not None or self._totals:
            return 0
        stop = end + 1
        while kinds[stop : stop + width] == form:
            stop += width
        thread = threads[end]
        is_alone = thread == self._trained_by and threads[begin:stop].count(thread) == stop - begin
        ends = given[end:stop:width]
        if not (is_alone and known.has_elements_only and all(d > 0.0 for _, d in ends)):
            return 0
        rest = [duration_s for _, duration_s in ends]
        columns = [[0.0] * len(ends)] * NUM_PHASES
        for phase, first, last in known.runs:
            begins, stops = times[begin + first : stop : width], times[begin + last : stop : width]
            spent = list(map(sub, stops, begins))
            if (
                min(spent) < 0
            ):  # no time goes backwards; a clock of a virtual machine that is moved may
                spent = [max(nanoseconds, 0) for nanoseconds in spent]
            taken = list(map(truediv, spent, repeat(1e9)))
            columns[phase], rest = taken, list(map(sub, rest, taken))
        columns[known.rest] = [max(seconds, 0.0) for seconds in rest]
        all_phases: Any = zip(*columns, strict=True)  # as many each as there are phases
        numels = [sum(given[place : place + width - 1]) for place in range(begin, stop, width)]
        steps = [step for step, _ in ends]
        self._end(zip(steps, all_phases, numels, strict=True), -1)
        self._since, self._phases = times[stop - 1], known.phases
        return stop - begin

    def _split(
        self,
        times: tuple[int, ...],
        on_thread: tuple[Any, ...],
        given: tuple[Any, ...],
        duration_s: float,
    ) -> Phases:
        """Return the phases of an iteration that has ended, unit s; zeros without a duration."""
        if self._spent is None:
            known = self._splitter.split_whole(on_thread)
            if known.has_elements_only:
                self._numel += sum(given)
            else:
                self._take_given(on_thread, given)
            self._phases = known.phases
            # As a rule each phase comes once.
            if known.runs is not None and duration_s > 0.0:
                seconds = [0.0] * NUM_PHASES
                rest = duration_s
                for phase, begin, end in known.runs:
                    taken = times[end] - times[begin]
                    # No time goes backwards; a clock of a virtual machine that is moved may.
                    if taken > 0:
                        seconds[phase] = taken / 1e9
                        rest -= seconds[phase]
                seconds[known.rest] = max(rest, 0.0)
                return tuple(seconds)  # type: ignore[return-value] # as many as there are phases
            spent, self._before = [0] * NUM_PHASES, REST
            self._add(times, known.phases, known.last, spent)
        else:
            self._take_given(on_thread, given)
            spent, self._phases = self._spent, self._splitter.split(on_thread)
            self._add(times, self._phases, self._splitter.phase, spent)
            self._splitter.begin()
            self._spent = None
        spent[self._before] += times[-1] - self._since
        return _phases(spent, duration_s)

    def _fold_early(self) -> None:
        """Split a part of the open iteration: it has many moments."""
        self._fold()
        times, threads, kinds, given = self._notes.columns()
        if len(times) < FOLDED:
            return
        self._notes.drop(len(times))
        if self._spent is None:
            self._spent, self._before = [0] * NUM_PHASES, REST
        on_thread = of_thread(self._iteration.thread or get_ident(), threads, kinds)
        self._add(times, self._splitter.split(on_thread), self._splitter.phase, self._spent)
        self._take_given(on_thread, given)
        if self._device is not None:
            self._device.drop()

    def _add(self, times: tuple[int, ...], phases: list[int], last: int, spent: list[int]) -> None:
        """Add the time between moments to the phases that they are in."""
        before, since = self._before, self._since
        for now, phase in zip(times, phases):  # noqa: B905 - the end has a time and no phase
            spent[before] += now - since
            before = phase
            since = now
        self._before, self._since = last, since

    def _take_given(self, on_thread: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        """Take what was noted besides: elements, and workers of the loaders."""
        for kind, what in zip(on_thread, given):  # noqa: B905 - as many
            if kind is BatchAwaited:
                # Of loaders with different numbers of workers nobody knows which is short of them.
                self._workers = what if self._workers in (None, what) else -1
            elif kind is not None:
                self._numel += what

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
        # Those that have ended may still have to be split, and have no part in it.
        step, totals = self._iteration.step, self._totals
        if totals and totals[-1][0] == step:
            totals.pop()
        totals.append((step, self._samples, self._tokens))
        return ""

    # The end of an iteration.

    def iterations_arriving(self, event: IterationsArriving) -> None:
        """Split what has ended."""
        if get_ident() == self._iteration.thread:
            self._read_thread()
        self._fold()
        event.times.extend(self._ended)
        self._ended.clear()

    def _read_thread(self) -> None:
        """Read the times of the thread, if that is due: those of the newest iteration."""
        now = self._now()
        if now - self._thread_read_at >= THREAD_PERIOD_NS:
            self._thread_read_at = now
            self._thread.read()

    def _retime(self) -> None:
        """Have calls of the model noted while it listens to them."""
        self._bus.time_only(self.times - (set() if self._is_listening else {RootCalled}))

    def iteration_closed(self, event: IterationClosed) -> None:
        """Go on with what is done from iteration to iteration: on a device, or once something is compiled."""
        step = event.iteration.step
        clock, guard = self._device, self._on_device
        if clock is not None and guard is not None:
            is_next = (step + 1) % DEVICE_PERIOD == DEVICE_TURN
            # A mark is known by its place among the moments of the iteration: before it is none of others.
            if is_next or clock.is_timing:
                self._fold()
                guard.run(self._read_device, clock, step, self._phases)
        if self._bus.may_compile:
            self._follow_compiled(step)
        if not self._is_listening and not self._is_unseen:
            self._listen()

    def _read_device(self, clock: DeviceClock, step: int, phases: list[int]) -> None:
        clock.end(phases)
        for timed, spent in clock.arrived():
            self._context.observe(DevicePhases(timed, spent))
        if (step + 1) % DEVICE_PERIOD == DEVICE_TURN and not is_capturing():
            clock.begin(step + 1)
            self._bus.note = self._note_on_device
        else:
            self._bus.note = self._note

    # The calls of models.

    def compile_called(self, _event: CompileCalled) -> None:
        """Have the calls tapped anew in the next iteration: nothing of ours is to be compiled."""
        self._is_unseen = False
        self._bus.listen(self, IterationClosed)
        self._ignore()

    def _listen(self) -> None:
        self._listening_since = self._iteration.step
        self._calls.num_compiled = 0
        self._is_listening = True
        self._retime()

    def _ignore(self) -> None:
        if self._is_listening:
            self._is_listening = False
            self._retime()

    def _follow_compiled(self, step: int) -> None:
        """Have the calls tapped anew once what is compiled has been traced; or give up."""
        is_settled = self._bus.is_compiling_settled
        if is_settled != self._was_settled:
            self._was_settled = is_settled
            self._is_unseen = False
            self._bus.place_again(RootCalled)
            self._listen()
        elif is_settled and step - self._listening_since > SETTLED and not self._calls.num_compiled:
            self._is_unseen = True  # only compiled functions call the model, and go by unseen
            self._ignore()


def _phases(spent: list[int], duration_s: float) -> Phases:
    """Return the phases of an iteration, unit s; zeros without a duration."""
    if not duration_s > 0.0:  # NaN as well
        return NO_PHASES
    spent[REST] = 0
    # No time goes backwards; a clock of a virtual machine that is moved may.
    seconds = [max(nanoseconds, 0) / 1e9 for nanoseconds in spent]
    is_split = spent[FORWARD] or spent[BACKWARD] or spent[BACKWARD_WITH_REDUCTION]
    seconds[REST if is_split else STEP] = max(duration_s - sum(seconds), 0.0)
    return tuple(seconds)  # type: ignore[return-value] # as many as there are phases
