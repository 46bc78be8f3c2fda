"""The report of a run in words, for a terminal."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ampwatch.exporters.precision_words import report_lines
from ampwatch.records import SKIP_CLASSES, Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.records import CensusRecord, Finding, WindowRecord

WIDTH = 92
_ORDER = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(slots=True)
class Summary:
    """The numbers a report begins with.

    Attributes:
        run: Name of the run.
        rank: Global rank.
        iterations: Iterations seen.
        steps: Optimizer steps attempted.
        skipped: Steps skipped, per class in the order of ``SKIP_CLASSES``.
        loss_scale: The newest scale; NaN without one.
        growths: Growths of the scale.
        backoffs: Backoffs of the scale.
        nonfinite_losses: Iterations with a NaN or infinite loss.
        not_seen: What was not observed, in sentences.
        census: The newest op census, if there was one.
        window: The newest profiler window, if there was one.
    """

    run: str
    rank: int
    iterations: int = 0
    steps: int = 0
    skipped: Sequence[int] = field(default_factory=lambda: [0] * len(SKIP_CLASSES))
    loss_scale: float = float("nan")
    growths: int = 0
    backoffs: int = 0
    nonfinite_losses: int = 0
    not_seen: Sequence[str] = ()
    census: CensusRecord | None = None
    window: WindowRecord | None = None


def render(summary: Summary, findings: Sequence[Finding]) -> str:
    """Return the report: the run in numbers, then each finding with its advice.

    Roots come first, by severity, each followed by the symptoms it explains.
    """
    lines = [f"ampwatch report: run {summary.run}, rank {summary.rank}", *_numbers(summary), ""]
    roots = sorted((f for f in findings if f.root), key=lambda f: _ORDER[f.severity])
    if not findings:
        lines.append("Nothing to report: no finding was made.")
    for root in roots:
        lines += _finding(root)
        for symptom in (f for f in findings if f.caused_by == root.key):
            lines += _wrapped(f"explains: {symptom.kind} at {symptom.where}", 4)
            lines += _wrapped(symptom.summary, 6)
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _numbers(summary: Summary) -> list[str]:
    iterations = _plural(summary.iterations, "iteration")
    lines = [f"  {iterations}, {_plural(summary.steps, 'optimizer step')} attempted"]
    total = sum(summary.skipped)
    if total:
        parts = [f"{n} {c.label}" for c, n in zip(SKIP_CLASSES, summary.skipped, strict=True) if n]
        lines.append(f"  {_plural(total, 'step')} skipped: {', '.join(parts)}")
    elif not math.isnan(summary.loss_scale):
        lines.append("  no step skipped")
    if not math.isnan(summary.loss_scale):
        moves = f"{_plural(summary.growths, 'growth')}, {_plural(summary.backoffs, 'backoff')}"
        lines.append(f"  loss scale {summary.loss_scale:g}, {moves}")
    if summary.nonfinite_losses:
        bad = _plural(summary.nonfinite_losses, "iteration")
        lines.append(f"  {bad} with a NaN or infinite loss")
    lines += [f"  {line}" for line in report_lines(summary.census, summary.window)]
    return lines + [f"  {sentence}" for sentence in summary.not_seen]


def _plural(count: int, noun: str) -> str:
    # Not words.plural: its narrow spaces cannot be printed where the locale is plain ASCII.
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _finding(finding: Finding) -> list[str]:
    steps = (
        f"step {finding.first_step}"
        if finding.first_step == finding.last_step
        else f"steps {finding.first_step} to {finding.last_step}"
    )
    place = finding.where or "the model"
    if finding.op:
        place += f", op {finding.op}"
    lines = [f"{finding.severity.value.upper()}  {finding.kind}  ({place}; {steps})"]
    lines += _wrapped(finding.summary + ".", 2)
    lines += _wrapped("What to change: " + finding.advice, 2)
    if finding.source:
        lines += _wrapped(f"At {finding.source}", 2)
    return lines


def _wrapped(text: str, indent: int) -> list[str]:
    margin = " " * indent
    return textwrap.wrap(text, WIDTH, initial_indent=margin, subsequent_indent=margin)
