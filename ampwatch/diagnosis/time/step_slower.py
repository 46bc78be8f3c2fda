"""Findings about steps that have become slower than they were."""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import TYPE_CHECKING

from ampwatch.diagnosis.time.kinds import MAIN_SHARE, STEP_SLOWER
from ampwatch.numerics.written import step_time
from ampwatch.wire.records import Severity, StepPhase

if TYPE_CHECKING:
    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.time.spans import Span


REFERENCE_SPANS = 4
"""Spans in a row whose median is what steps take."""

SLOW_SPANS = 4
MIN_SLOW_SECONDS = 60.0
"""Slower spans in a row, and time, after which it is no passing trouble of the host. Unit: s."""

RATIO = 1.3
"""Ratio of durations from which on a step is slower."""

NOISE_RATIO = 1.15
"""Ratio to the slowest span of the reference, so that a reference that varies is not exceeded by chance."""

WARNING_RATIO = 1.5
WARNING_SECONDS = 300.0
"""Ratio, and time, from which on it is worth a warning. Unit: s."""


SAME_SIZE = 0.05
"""Relative change of the mean size of batches up to which they are compared."""

ERRORS = 4.0
"""Standard errors up to which they are as well: lengths vary from batch to batch."""

BUSY_SHARE = 0.1
"""Share of the time without a core from which on the host is called busy."""


class StepSlower:
    """Compares the durations of steps with those of before.

    The reference is the fastest run of ``REFERENCE_SPANS`` spans so far. It begins anew where batches
    have another size.

    Args:
        book: Where findings go.
    """

    def __init__(self, book: FindingBook) -> None:
        self._book = book
        self._recent: deque[Span] = deque(maxlen=REFERENCE_SPANS)
        self._reference: list[Span] = []
        self._slow: list[Span] = []
        self._slow_seconds = 0.0

    def take(self, span: Span) -> None:
        """Take in the next steps."""
        if self._recent and not _is_alike(span, (self._reference or self._recent)[0]):
            self._recent.clear()
            self._reference = []
            self._forget()
        self._recent.append(span)
        if len(self._recent) < REFERENCE_SPANS:
            return
        if not self._reference or _usual(self._recent) < _usual(self._reference):
            self._reference = list(self._recent)
        if span.usual < self._limit():
            self._forget()
            return
        self._slow.append(span)
        self._slow_seconds += span.wall_seconds
        if len(self._slow) >= SLOW_SPANS and self._slow_seconds >= MIN_SLOW_SECONDS:
            self._say()
            # Of a long trouble the beginning and the end are all that is reported.
            del self._slow[1 : -SLOW_SPANS + 1]

    def _forget(self) -> None:
        self._slow = []
        self._slow_seconds = 0.0

    def _limit(self) -> float:
        worst = max(span.usual for span in self._reference)
        return max(RATIO * _usual(self._reference), NOISE_RATIO * worst)

    def _say(self) -> None:
        before, now = _usual(self._reference), _usual(self._slow)
        phase, more = _grown(self._reference, self._slow)
        growth = now - before
        delay = _delay(self._slow) - _delay(self._reference)
        evidence = {
            "step_seconds": now,
            "step_seconds_before": before,
            "ratio": now / before,
            "phase_seconds_more": more,
            "data_share": _more(self._reference, self._slow, StepPhase.DATA) / growth,
            "minutes": self._slow_seconds / 60.0,
        }
        if math.isfinite(delay):
            evidence["no_core_share"] = max(delay, 0.0)
        is_long = self._slow_seconds >= WARNING_SECONDS and now >= WARNING_RATIO * before
        severity = Severity.WARNING if is_long else Severity.INFO
        first, last = self._slow[0].first_step, self._slow[-1].last_step
        made = self._book.get(STEP_SLOWER.slug, "step")
        says = _summary(evidence, first, phase, growth)
        if made is not None:
            made.count += last - self._slow[-1].first_step  # one more is counted with it
        self._book.report(
            STEP_SLOWER,
            "step",
            last,
            summary=says,
            severity=severity,
            first_step=first,
            count=last - first + 1,
            evidence=evidence,
        )


def _is_alike(span: Span, before: Span) -> bool:
    by_chance = ERRORS * math.hypot(span.numel_error, before.numel_error)
    return abs(span.numel - before.numel) <= max(SAME_SIZE * before.numel, by_chance)


def _usual(spans: deque[Span] | list[Span]) -> float:
    return median(span.usual for span in spans)


def _more(before: list[Span], now: list[Span], phase: int) -> float:
    """Return how much more time a phase takes. Unit: s."""
    was = median(span.usual_phases[phase] for span in before)
    return median(span.usual_phases[phase] for span in now) - was


def _grown(before: list[Span], now: list[Span]) -> tuple[StepPhase, float]:
    """Return the phase that has grown most, and by how much. Unit: s."""
    more = {phase: _more(before, now, phase) for phase in StepPhase}
    phase = max(more, key=lambda p: more[p])
    return phase, more[phase]


def _delay(spans: list[Span]) -> float:
    return median(span.delay_share for span in spans)


def _summary(evidence: dict[str, float], first: int, phase: StepPhase, growth: float) -> str:
    more = evidence["phase_seconds_more"]
    where = f"{phase.words} takes {step_time(more)} more"
    if more < MAIN_SHARE * growth:
        where = f"no phase alone has grown, most {phase.words}, by {step_time(more)}"
    busy = ""
    if (delay := evidence.get("no_core_share", 0.0)) >= BUSY_SHARE:
        busy = (
            f"; of the time in which its thread could run it had no core in {delay:.0%} more: this"
            " host is busy"
        )
    return (
        f"Steps take {step_time(evidence['step_seconds'])} since step {first},"
        f" {evidence['ratio']:.1f} times the {step_time(evidence['step_seconds_before'])} of before:"
        f" {where}{busy}"
    )
