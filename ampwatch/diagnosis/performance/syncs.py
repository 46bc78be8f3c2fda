"""Findings about waits of the host for the device within a step."""

from __future__ import annotations

from collections import Counter, deque
from pathlib import PurePath
from typing import TYPE_CHECKING

from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.ops import HostWaits
from ampwatch.diagnosis.performance.kinds import SYNC_IN_STEP
from ampwatch.wire.records import Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.evidence.ops import WaitingLine, Window
    from ampwatch.diagnosis.steps.steps import StepVerdict


WINDOW = 16
"""Iterations whose ops were observed that are judged together."""

MIN_SHARE = 0.75
"""Share of them in which a line has to wait: what is logged now and then, or printed at the beginning,
does no harm."""

MANY = 2.0
"""Waits in an iteration from which they may be more than an info. After one the host begins anew with
nothing queued once, as it does after the read of a scaler."""

LONG_SHARE = 0.2
"""Share of the time of iterations that the host has to wait."""

IDLE_SHARE = 0.3
"""Share of it in which the device has to be idle. Where it is busy, waiting for it costs nothing: the host
is ahead, and would have to wait at the end."""

MAX_NAMED = 3
"""Lines that the sentence names."""


class SyncsInStep(Detector):
    """Reports once the lines of a program at which the host waits for the device in each iteration.

    It is an info. It is a warning where profiler windows have measured that the host waits for long
    and that the device is idle meanwhile, or after that.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._observed: deque[HostWaits] = deque(maxlen=WINDOW)
        self._window: Window | None = None

    @takes(HostWaits, is_aside=True)
    def observe(self, waits: HostWaits) -> None:
        """Take in the waits of an iteration whose ops were observed."""
        self._observed.append(waits)
        if len(self._observed) < WINDOW:
            return
        lines = self._lasting()
        if not lines:
            return
        each = {line: sum(w.lines.get(line, 0) for w in self._observed) / WINDOW for line in lines}
        most = sorted(lines, key=lambda line: (-each[line], line))
        self._report(waits.step, [(line, each[line]) for line in most])

    def detect(self, iteration: Iteration, _verdict: StepVerdict) -> None:
        """Take in the profiler window of an iteration, if one has ended with it."""
        if iteration.window is not None:
            self._window = iteration.window

    def _lasting(self) -> list[WaitingLine]:
        """Return the lines that wait in most iterations."""
        seen = Counter(line for waits in self._observed for line in waits.lines)
        return [line for line, times in seen.items() if times >= MIN_SHARE * WINDOW]

    def _report(self, step: int, lines: Sequence[tuple[WaitingLine, float]]) -> None:
        waits = sum(each for _, each in lines)
        evidence = {"waits_per_iteration": waits, "lines": float(len(lines))}
        for number, (_, each) in enumerate(lines[:MAX_NAMED], 1):
            evidence[f"waits_of_line_{number}"] = each
        measured = ""
        severity = Severity.INFO
        window = self._window
        if window is not None and window.wall_s > 0.0:
            waited, idle = window.waited_s / window.wall_s, 1.0 - window.busy_s / window.wall_s
            evidence |= {"waiting_share": waited, "idle_share": idle}
            measured = (
                f". Profiler windows have measured that it waits for {waited:.0%} of the time, and"
                f" that the device is idle for {idle:.0%}"
            )
            if waits >= MANY and waited >= LONG_SHARE and idle >= IDLE_SHARE:
                severity = Severity.WARNING
        summary = f"{_sentence(lines, waits)}{measured}"
        first = lines[0][0]
        self._book.report(
            SYNC_IN_STEP,
            "api",
            step,
            summary=summary,
            severity=severity,
            first_step=self._observed[0].step,
            op=first.op if first.op.isidentifier() else "copy_",
            source=first.source,
            evidence=evidence,
        )


def _sentence(lines: Sequence[tuple[WaitingLine, float]], waits: float) -> str:
    """Say how often the host waits, and where: nothing of it is known to be dear."""
    named = [f"{line.op}{_at(line)} ({_often(each)})" for line, each in lines[:MAX_NAMED]]
    more = f" and more, at {len(lines)} lines in all" if len(lines) > MAX_NAMED else ""
    return f"The host waits for the device in each iteration, {_often(waits)}: {', '.join(named)}{more}"


def _at(line: WaitingLine) -> str:
    """Return the last part of a path and the line: the finding has the first one in whole."""
    if not line.source:
        return ""
    file, _, number = line.source.rpartition(":")
    return f" at '{PurePath(file).name}:{number}'"


def _often(times: float) -> str:
    return "once" if times == 1.0 else f"{times:.3g} times"
