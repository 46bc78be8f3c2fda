"""Profiler windows: now and then torch.profiler records a few iterations.

A window is one iteration to warm up, then one to three that are recorded, all from one step
boundary to another. The raw events are walked once, added up and dropped. A window is the one thing of
ampwatch that waits for the device: twice, at its beginning and at its end.

A window gives way: to the user's profiler, before it begins; to the capture of a CUDA graph; to
an evaluation, whose forward passes are not what it is for; and to a fork, whose child would
inherit the recording.
"""

from __future__ import annotations

import math
import os
import threading
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from msgspec import Struct

from ampwatch.diagnosis.evidence.ops import Window
from ampwatch.guard import Account, is_of_a_signal
from ampwatch.numerics.units.kernels.classifier import NameClassifier
from ampwatch.numerics.units.kernels.kernel_patterns import parse_patterns
from ampwatch.numerics.units.ops import OpKind
from ampwatch.training.devices import PROFILED, is_capturing, resident_bytes
from ampwatch.training.hooks import fork
from ampwatch.training.hooks.events import Requested
from ampwatch.training.hooks.profilers import OtherProfilers
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.iteration.governor import OPENING
from ampwatch.training.model.machine import allows_tf32
from ampwatch.training.sensors.window.census import census_of
from ampwatch.training.sensors.window.events import call_tree, cpu_work, device_work
from ampwatch.training.sensors.window.recording import Recording, close_soon
from ampwatch.training.sensors.window.requests import Requests
from ampwatch.training.sensors.window.schedule import StepTimes, WindowSchedule
from ampwatch.training.sensors.window.totals import (
    Found,
    WindowTotals,
    by_time,
    kernels_found,
    ops_found,
)
from ampwatch.wire.records import WindowSkip
from ampwatch.wire.ring.requests import NO_LAB, TRACE, Answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.ops import OpCensus
    from ampwatch.training.hooks.events import IterationClosed
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.sensors.window.events import Node
    from ampwatch.wire.records import WindowRecord
    from ampwatch.wire.ring.requests import Request

ITERATIONS = 2
"""Iterations that a window records where nobody has reported how many."""

BY_ITSELF_SECONDS = 600.0
"""Value of ``window_seconds`` where the user has set none. Unit: s."""

TOGETHER = 32
"""Iterations at whose multiples windows begin, on all ranks alike: they wait for one another in
every step, so a rank that is profiled while the others are not would delay them all."""

SELDOM = 4
"""Iterations from one look for requests to the next, where windows are opened by nothing else."""

UNUSUAL = 4
"""Factor over the usual time that a profiled iteration is charged with at most: one that takes
longer was not one alone."""

MAX_GIVEN_WAY = 3
"""Times in a row that a window makes room for evaluation: some trainings evaluate in each step."""

FAILED = "requests are no longer answered: a sensor failed, see the log"
ELSEWHERE = "this training runs in a thread that is not the main one; only that is profiled"


class _OpenWindow(Struct):
    """The open window."""

    request: Request | None  # request that it answers, ``None`` if it opened by itself
    wanted: int  # iterations to record
    # Usual time of a step before it; NaN if unknown. Unit: ns.
    usual_ns: float
    # Memory of the process before it. Unit: bytes.
    memory: int
    # Cost of warming up and beginning. Unit: ns.
    start_ns: int = 0
    # Time at which recording began; 0 while the profiler warms up. Unit: ns.
    began_ns: int = 0
    step: int = 0  # first recorded iteration
    seen: int = 0  # recorded iterations that have ended


class WindowSensor(Sensor):
    """Opens and closes profiler windows.

    Everything runs on the training thread. On a CPU windows open by themselves only where
    something was compiled.
    """

    name = "window"

    def __init__(self, context: Context) -> None:
        settings = context.settings
        gap_s = settings.window_seconds
        self._is_automatic = gap_s < 0
        self._classify = NameClassifier(parse_patterns(settings.kernel_patterns)).classify
        self._home = context.home
        self._bus = context.bus
        self._has_lab = context.settings.lab == "on"
        # An account of its own: the first start of a profiler takes a second; as a debt it would
        # end all sampling.
        self._guard = context.bus.guard(
            self.name, account=Account(context.bus.account.modes), sweep=self.failed
        )
        self.guard = self._guard
        self._out = context.out
        self._clock = context.clock
        self._governor = context.governor
        self._forces_eager = settings.compiled_census == "force_eager"
        self._requests = Requests(context.out)
        self._charged_ns = 0
        self.newest: WindowRecord | None = None
        self._others = OtherProfilers(lambda reason: self._guard.run(self.give_way, reason))
        if self._is_automatic:
            gap_s = BY_ITSELF_SECONDS
        self._schedule = WindowSchedule(gap_s, settings.overhead_budget)
        self._times = StepTimes(all_alike=settings.level == "deep")
        self._totals = WindowTotals()
        self._open: _OpenWindow | None = None
        self._recording: Recording | None = None
        self._pending: Request | None = None
        self._is_installed = False
        self._was_busy = True
        self._pid = os.getpid()
        self._given_way = 0
        self._forked = 0
        self._forked_in_a_row = 0
        self._grown_from = 0
        self._is_elsewhere = False
        self._reported_skips = 0
        self._evidence: Window | None = None
        self._census: OpCensus | None = None
        self._step = 0

    def installed(self) -> None:
        """Begin to observe other profilers and boundaries."""
        self._others.install()
        self._is_installed = True

    def failed(self) -> None:
        """Let other sensors measure again."""
        self._governor.is_held = False

    def removed(self) -> None:
        """Close an open window and leave nothing behind."""
        self._is_installed = False
        self._guard.run(self.end_now)
        self._others.remove()
        self._requests.remove()

    def iteration_closed(self, event: IterationClosed) -> None:
        """Open or close a window, and add the results of one to the iteration."""
        iteration = event.iteration
        if iteration.step + 1 < self._step + SELDOM and self._waits_for_requests():
            return
        was_open = self._open is not None
        sampled = bool(self._governor.wanted)
        self.boundary(iteration.step + 1, iteration.duration_s, sampled=sampled)
        if was_open or self._open is not None:
            self._governor.is_held = self.is_open
            self._governor.owe(self._totals.cost_ns - self._charged_ns)
            self._charged_ns = self._totals.cost_ns
        iteration.window, census = self.take()
        iteration.census = iteration.census or census

    @property
    def batched(self) -> frozenset[str]:
        """The end of an iteration, where no window is open or opens by itself."""
        return frozenset({"iteration_closed"} if self._waits_for_requests() else ())

    def _waits_for_requests(self) -> bool:
        """Whether none opens by itself, and none was ever opened."""
        is_idle = self._open is None and self._pending is None and not self._totals.windows
        by_itself = not self._is_automatic or self._gpu is not None or self._bus.runs_compiled
        return is_idle and not by_itself

    @property
    def _gpu(self) -> torch.device | None:
        """The device whose kernels are recorded; ``None`` where only ops of the host are."""
        device = self._home.device
        return device if device is not None and device.type in PROFILED else None

    @property
    def _wants_census(self) -> bool:
        """Whether ops are counted from windows, since they are not counted one by one."""
        is_compiled = self._bus.runs_compiled and not self._forces_eager
        return (
            not self._governor.counts_one_by_one or is_compiled or bool(self._governor.uncountable)
        )

    @property
    def is_open(self) -> bool:
        """Whether the profiler is on: while it is, nothing else is measured."""
        return self._open is not None

    def boundary(self, step: int, duration_s: float, *, sampled: bool) -> None:
        """Open, advance or close a window between two iterations.

        Does nothing unless installed, and nothing in a forked child.

        Args:
            step: Index of the iteration that begins.
            duration_s: Wall time of the iteration that has ended; NaN for the first. Unit: s.
            sampled: Whether ranges or ops were observed in the iteration that has ended.
        """
        if not self._is_installed or os.getpid() != self._pid:
            return
        self._step = step
        window = self._open
        recording = self._recording
        was_busy = self._was_busy
        self._was_busy = window is not None
        try:
            if window is None or recording is None:
                if not was_busy:
                    self._note(duration_s, sampled=sampled)
                elif self._grown_from:
                    self._weigh()
                self._consider(step)
            elif recording.thread == get_ident():
                self._advance(window, recording)
        except BaseException:
            # A recording that nobody closes crashes the process at its end.
            self._abandon()
            raise

    def take(self) -> tuple[Window | None, OpCensus | None]:
        """Return the kernels of a window that has ended, and its ops, once."""
        taken = self._evidence, self._census
        self._evidence = self._census = None
        return taken

    def not_seen(self) -> list[str]:
        """Return, in sentences, which windows are missing and why."""
        sentences: list[str] = []
        skipped = self._schedule.skipped
        if self._totals.invalid:
            sentences.append(
                f"{self._totals.invalid} of {self._totals.windows} profiler windows lost data and"
                " are not counted"
            )
        if skipped[WindowSkip.PROFILER]:
            sentences.append(
                f"{skipped[WindowSkip.PROFILER]} profiler windows were not opened, or were given"
                " up: another profiler was active"
            )
        if self._is_elsewhere:
            sentences.append(f"profiler windows were not opened: {ELSEWHERE}")
        if self._forked:
            sentences.append(
                f"{self._forked} profiler windows were given up: the process was forked"
            )
        if skipped[WindowSkip.DRAG]:
            sentences.append(
                "profiler windows come less often: steps were slower after them; TEARDOWN_CUPTI=1"
                " in the environment has CUPTI detached after each (not with CUDA graphs before"
                " CUDA 12.6, where CUPTI crashes when it is attached again)"
            )
        if skipped[WindowSkip.MEMORY]:
            sentences.append("profiler windows come less often: the process grew with each")
        return sentences

    def _note(self, duration_s: float, *, sampled: bool) -> None:
        self._times.add(duration_s, sampled=sampled)
        drag = self._times.drag()
        if drag is not None:
            self._totals.drag = drag
            self._schedule.dragged(drag, self._now_s)
            self._report(self._step)

    def _consider(self, step: int) -> None:
        request = self._pending
        self._pending = None
        if request is None:
            request = self._requests.newest(self._clock.monotonic_ns())
            if request is not None and request.what != TRACE:
                self._hand_on(request)
                request = None
        if request is None and not self._is_due(step):
            return
        if get_ident() != threading.main_thread().ident:
            # A thread that ends under a recording crashes the process.
            self._is_elsewhere = True
            if request is not None:
                self._requests.refuse(request, ELSEWHERE)
        elif self._others.are_active:
            self._hold_back(WindowSkip.PROFILER, request)
        elif is_capturing():
            self._hold_back(WindowSkip.CAPTURE, request)
        else:
            self._start(request)

    def _hand_on(self, request: Request) -> None:
        """Have whoever knows answer a request that is not for a trace."""
        requests = self._requests

        def answer(why_not: str) -> None:
            requests.answer(Answer(request.token, why_not, self._step - 1))

        self._bus.emit(Requested(request, answer))
        if not requests.has_answered(request):
            answer(FAILED if self._has_lab else NO_LAB)

    def _is_due(self, step: int) -> bool:
        if step < OPENING or step % TOGETHER or math.isnan(self._times.usual_s):
            return False
        if self._is_automatic and self._gpu is None and not self._bus.runs_compiled:
            return False
        is_due = self._schedule.is_due(self._now_s, self._totals.memory_bytes)
        self._report_skips()
        return is_due

    def _hold_back(self, reason: WindowSkip, request: Request | None) -> None:
        if request is None:
            self._schedule.give_way(reason, self._now_s)
            self._report_skips()
        elif reason is WindowSkip.CAPTURE:
            self._pending = request
        else:
            self._requests.refuse(request, "another profiler is active in this training")

    def _start(self, request: Request | None) -> None:
        began_ns = self._clock.monotonic_ns()
        usual_ns = self._times.usual_s * 1e9
        memory = resident_bytes()
        wanted = ITERATIONS if request is None else request.iterations
        self._was_busy = True
        self._open = window = _OpenWindow(request, wanted, usual_ns, memory)
        self._recording = recording = Recording(self._gpu)
        self._others.hold(recording.profile)
        # From here on a fork would hand the open recording to the child.
        fork.hold(self._forking)
        recording.prepare()
        window.start_ns = self._clock.monotonic_ns() - began_ns

    def _advance(self, window: _OpenWindow, recording: Recording) -> None:
        if recording.is_stolen:
            # Kineto has one session for all threads: ending ours now would end theirs.
            if not self._others.have_begun:
                self._give_up(window, WindowSkip.PROFILER)
            return
        # While a graph is captured nothing may wait: the window goes on for an iteration more.
        is_late = is_capturing()
        if window.began_ns:
            window.seen += 1
            if window.seen >= window.wanted and not is_late:
                self._finish(window, recording)
        elif not is_late:
            self._begin(window, recording)

    def _begin(self, window: _OpenWindow, recording: Recording) -> None:
        entered_ns = self._clock.monotonic_ns()
        # Kernels of the iterations before would be recorded without the ops that launched them.
        recording.wait()
        recording.begin()
        window.step = self._step
        window.began_ns = self._clock.monotonic_ns()
        window.start_ns += window.began_ns - entered_ns

    def _finish(self, window: _OpenWindow, recording: Recording) -> None:
        now = self._clock.monotonic_ns
        totals = self._totals
        spent_ns = totals.cost_ns
        # Kernels of the last iteration that still run would be missing.
        recording.wait()
        wall_ns = now() - window.began_ns
        self._charge(window, wall_ns)
        began_ns = now()
        is_cut = recording.has_stopped_early
        self._end(recording)
        walk_ns = now()
        totals.stop_ns += walk_ns - began_ns
        found = self._walk(window, recording, wall_ns) if not is_cut else None
        totals.windows += 1
        if found is None:
            totals.invalid += 1
        else:
            totals.add(found, window.seen, wall_ns)
        self._answer(window, recording, found, wall_ns)
        if found is not None and found.times:
            self._evidence = Window(
                step=window.step,
                iterations=window.seen,
                wall_s=wall_ns / 1e9,
                busy_s=found.busy_ns / 1e9,
                kernels=found.times,
                waited_s=found.waited_ns / 1e9,
            )
        totals.walk_ns += now() - walk_ns
        self._grown_from = window.memory
        self._given_way = 0
        self._forked_in_a_row = 0
        self._times.window_ended()
        self._schedule.ended(self._now_s, totals.cost_ns - spent_ns)
        self._report(window.step)

    def _walk(self, window: _OpenWindow, recording: Recording, wall_ns: int) -> Found | None:
        """Return the kernels or ops of the window; ``None`` if it has lost data."""
        events = recording.events
        gpu = self._gpu
        wants_census = self._wants_census
        # Building the tree of calls takes longer than all the rest.
        nodes = call_tree(events) if gpu is None or wants_census else []
        found = self._ops(nodes) if gpu is None else self._kernels(events, gpu)
        if wants_census and found is not None:
            self._census = census_of(
                nodes,
                step=window.step,
                iterations=window.seen,
                duration_s=wall_ns / 1e9,
                device_type="cpu" if self._home.device is None else self._home.device.type,
            )
        return found

    def _ops(self, nodes: Sequence[Node]) -> Found | None:
        ops = cpu_work(nodes)
        return ops_found(ops) if ops else None

    def _kernels(self, events: Sequence[Any], gpu: torch.device) -> Found | None:
        work = device_work(events, gpu.index or 0)
        if not work.is_whole:
            return None
        found = kernels_found(
            work.kernels,
            busy_ns=work.busy_ns,
            capability=capability_of(gpu),
            tf32_allowed=allows_tf32(OpKind.MATMUL),
            classify=self._classify,
        )
        found.waited_ns = work.waited_ns
        return found

    def _answer(
        self, window: _OpenWindow, recording: Recording, found: Found | None, wall_ns: int
    ) -> None:
        requests = self._requests
        request = window.request
        if request is None or requests.is_withdrawn(request):
            return
        try:
            recording.save(request.path)
        except (OSError, RuntimeError) as error:
            if is_of_a_signal(error):
                raise
            requests.refuse(request, f"the trace could not be written: {error}")
            return
        totals = by_time(found.totals) if found is not None else ()
        busy_ns = found.busy_ns if found is not None else 0
        requests.answer(
            Answer(request.token, "", window.step, window.seen, wall_ns, busy_ns, totals)
        )

    def _charge(self, window: _OpenWindow, wall_ns: int) -> None:
        totals = self._totals
        if totals.first_ns:
            totals.start_ns += window.start_ns
        else:
            totals.first_ns = window.start_ns
        if wall_ns and not math.isnan(window.usual_ns):
            usual_ns = int(window.usual_ns) * window.seen
            totals.run_ns += max(0, min(wall_ns, UNUSUAL * usual_ns) - usual_ns)

    def _weigh(self) -> None:
        """Weigh the growth of the process, now that the events of the last window are gone."""
        before = self._grown_from
        self._grown_from = 0
        # The first window has loaded the profiler, which is no growth by windows.
        if not before or self._totals.windows < 2:
            return
        grown = resident_bytes() - before
        self._totals.memory_bytes = max(self._totals.memory_bytes + grown, 0)

    def give_way(self, reason: WindowSkip | None) -> None:
        """Give way to somebody about to profile, to capture a graph, or (``None``) to evaluate."""
        window = self._open
        recording = self._recording
        if window is None or recording is None:
            return
        if recording.thread != get_ident():
            recording.is_stolen = reason is WindowSkip.PROFILER
            return
        if reason is None:
            self._given_way += 1
            if self._given_way > MAX_GIVEN_WAY:
                return
        self._give_up(window, reason)

    def _give_up(self, window: _OpenWindow, reason: WindowSkip | None) -> None:
        began_ns = self._clock.monotonic_ns()
        self._abandon()
        self._charge(window, 0)
        self._totals.stop_ns += self._clock.monotonic_ns() - began_ns
        if reason is WindowSkip.PROFILER and window.request is not None:
            self._requests.refuse(window.request, "another profiler was started in this training")
        else:
            self._pending = window.request
        if reason is not None and window.request is None:
            self._schedule.give_way(reason, self._now_s)
            self._report_skips()

    def _forking(self) -> None:
        self._guard.run(self.give_way_to_fork)

    def give_way_to_fork(self) -> None:
        """Give way to a fork that is about to happen."""
        window = self._open
        recording = self._recording
        # A child has only the thread that forked: another thread's recording does not reach it.
        if window is None or recording is None or recording.thread != get_ident():
            return
        if recording.is_stolen and self._others.have_begun:
            return
        self._forked += 1
        self._forked_in_a_row += 1
        self._give_up(window, None)
        self._schedule.put_off(self._now_s)
        request = self._pending
        if request is not None and self._forked_in_a_row > MAX_GIVEN_WAY:
            self._pending = None
            self._requests.refuse(request, "this training forks processes repeatedly")

    def end_now(self) -> None:
        """Close the window, if one is open and of this process."""
        recording = self._recording
        if recording is None or os.getpid() != self._pid:
            return
        if recording.thread == get_ident():
            self._abandon()
        else:
            self._open = self._recording = None
            fork.let_go()
            close_soon(recording, self._guard)

    def _abandon(self) -> None:
        recording = self._recording
        self._open = None
        self._was_busy = True
        if recording is not None and not (recording.is_stolen and self._others.have_begun):
            self._end(recording)

    def _end(self, recording: Recording) -> None:
        self._open = self._recording = None
        self._others.let_go()
        fork.let_go()
        recording.close()

    @property
    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def _report_skips(self) -> None:
        skips = sum(self._schedule.skipped)
        if skips != self._reported_skips:
            self._reported_skips = skips
            self._report(self._step)

    def _report(self, step: int) -> None:
        self.newest = self._totals.record(step, self._schedule.skipped)
        self._out.put(self.newest)


def capability_of(device: torch.device) -> tuple[int, int] | None:
    """Return the compute capability of an NVIDIA GPU, ``None`` for anything else."""
    if device.type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return major, minor
