"""Findings about code around the step that counts steps which were not taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.advice import ADVICE
from ampwatch.records import Finding, Severity

if TYPE_CHECKING:
    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.evidence import Iteration
    from ampwatch.settings import Settings


class StepBookkeeping:
    """Holds the steps of learning-rate schedulers against the steps really taken.

    A scheduler's step belongs to the optimizer step before it. One or two ahead,
    while the scale calibrates, are an ``info``; from the threshold on they cost
    warm-up and become a ``warning``.

    Args:
        book: Where findings go.
        settings: Thresholds.
    """

    def __init__(self, book: FindingBook, settings: Settings) -> None:
        self._book = book
        self._settings = settings
        self._last_skip: dict[int, int | None] = {}

    def look(self, iteration: Iteration) -> None:
        """Take in one iteration."""
        for index, found_inf in iteration.found_inf.items():
            skipped_at = self._last_skip.get(index)
            if skipped_at is not None and index in iteration.scheduler_stepped:
                self._ahead(index, skipped_at)
            self._last_skip[index] = iteration.step if found_inf else None

    def _ahead(self, index: int, step: int) -> None:
        where = f"optimizer:{index}"
        finding = self._book.get("scheduler_ahead", where)
        if finding is None:
            self._book.make(
                Finding(
                    kind="scheduler_ahead",
                    severity=Severity.INFO,
                    where=where,
                    summary=_summary(index, 1, step),
                    advice=ADVICE["scheduler_ahead"],
                    phase="optimizer",
                    first_step=step,
                    last_step=step,
                    evidence={"scheduler_steps_ahead": 1.0},
                )
            )
            return
        again = self._book.count(finding, step)
        alarm = finding.count >= self._settings.scheduler_ahead_steps
        if again or (alarm and finding.severity is Severity.INFO):
            finding.severity = Severity.WARNING if alarm else Severity.INFO
            finding.summary = _summary(index, finding.count, finding.first_step)
            finding.evidence["scheduler_steps_ahead"] = float(finding.count)
            self._book.retell(finding)


def _summary(index: int, ahead: int, first: int) -> str:
    times = "once" if ahead == 1 else f"{ahead} times"
    return (
        f"The learning-rate scheduler of optimizer {index} was stepped {times} although the"
        f" optimizer's step had been skipped, since step {first}: the schedule runs ahead of"
        f" the updates"
    )
