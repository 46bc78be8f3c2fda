"""Findings about code around the step that counts steps which were not taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.detector import Detector, Shared
from ampwatch.diagnosis.steps.kinds import SCHEDULER_AHEAD
from ampwatch.wire.records import Severity, SkipClass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.steps.steps import StepVerdict


STEPWISE_SHARE = 0.5
"""A schedule that moves after fewer of the optimizer's steps than this goes by the epoch."""

AHEAD_STEPS = 3
"""Scheduler steps on skipped iterations from which it may be a warning."""

AHEAD_SHARE = 0.01
"""Share of the schedule's steps that must be ahead for a warning: less, nobody notices."""


class StepBookkeeping(Detector):
    """Holds the moves of learning-rate schedules against the steps really taken.

    A move belongs to the optimizer step before it, whether a scheduler or the program makes it. Steps ahead are an
    ``info`` until they cost a share of the schedule; then they are a ``warning``.
    Probes do not count: one step in a growth interval is the price of a scaler. Nor
    does a schedule by the epoch, which happens to move after a skipped step. Steps ahead
    count once the optimizer steps again: while every step is skipped no learning rate is
    used, and what is wrong is what the steps are skipped for.

    Args:
        shared: What the detectors have in common.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._last_skip: dict[int, int | None] = {}
        # The skipped steps after which the schedule has moved, since the optimizer stepped last.
        self._waiting: dict[int, list[int]] = {}
        self._steps: dict[int, int] = {}
        self._moves: dict[int, int] = {}

    def detect(self, iteration: Iteration, verdict: StepVerdict) -> None:
        """Take in one judged iteration."""
        for index, found_inf in iteration.found_inf.items():
            self._steps[index] = self._steps.get(index, 0) + 1
            skipped_at = self._last_skip.get(index)
            if index in iteration.scheduler_stepped:
                self._moves[index] = self._moves.get(index, 0) + 1
                if skipped_at is not None and self._is_stepwise(index):
                    self._waiting.setdefault(index, []).append(skipped_at)
            if not found_inf:
                for skipped in self._waiting.pop(index, ()):
                    self._ahead(index, skipped)
            counts = found_inf and verdict.skip_class is not SkipClass.PROBE
            self._last_skip[index] = iteration.step if counts else None

    def count(self, quiet: Sequence[Iteration]) -> None:
        """Take in quiet iterations in a row."""
        like = quiet[-1]
        for index in like.found_inf:
            self._steps[index] += len(quiet)
            if index in like.scheduler_stepped:
                self._moves[index] += len(quiet)

    def _is_stepwise(self, index: int) -> bool:
        return self._moves[index] >= STEPWISE_SHARE * (self._steps[index] - 1)

    def _ahead(self, index: int, step: int) -> None:
        where = f"optimizer:{index}"
        finding = self._book.get(SCHEDULER_AHEAD.slug, where)
        if finding is None:
            self._book.report(
                SCHEDULER_AHEAD,
                where,
                step,
                summary=_summary(index, 1, step),
                phase="optimizer",
                evidence={"scheduler_steps_ahead": 1.0},
            )
            return
        again = self._book.count(finding, step)
        finding.summary = _summary(index, finding.count, finding.first_step)
        finding.evidence["scheduler_steps_ahead"] = float(finding.count)
        alarm = finding.count >= AHEAD_STEPS and finding.count >= AHEAD_SHARE * self._moves[index]
        if again or (alarm and finding.severity is Severity.INFO):
            finding.severity = Severity.WARNING if alarm else Severity.INFO
            self._book.report_change(finding)


def _summary(index: int, ahead: int, first: int) -> str:
    times = "once" if ahead == 1 else f"{ahead} times"
    return (
        f"The learning-rate schedule of optimizer {index} has moved on {times} although the"
        f" optimizer's step had been skipped, since step {first}: it runs ahead of the updates"
    )
