"""A report that fits one screen: the four lines of the verdict, and what else there is, counted."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING

from ampwatch.numerics.written import counted
from ampwatch.report.headline import headline
from ampwatch.report.judged_boxes import judge_boxes
from ampwatch.report.report import WIDTH, shown_box
from ampwatch.report.step_times import breakdown_of
from ampwatch.report.words import plain
from ampwatch.wire.records import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ampwatch.report.incidents import Incident
    from ampwatch.report.verdict import RunVerdict
    from ampwatch.wire.blackbox import Box

LABELS = ("what", "where", "do first")
"""What the lines after the first one are about; that one says so itself."""

MORE = ("step", "explains", "also")
INDENT = max(map(len, (*LABELS, *MORE))) + 2
MIN_WIDTH = 20
MAX_KINDS = 4
"""Kinds that are named when findings are counted."""


def render_short(boxes: Sequence[Box], now_s: float, width: int = WIDTH) -> str:
    """Return the report of a run in some ten lines.

    Args:
        boxes: Those of its ranks; at least one, all of one run.
        now_s: Unix time. Unit: s.
        width: Characters in a line.
    """
    verdict = judge_boxes(boxes)
    summary = headline(verdict, now_s)
    lines = labelled(boxes[0].identity.run, summary.lines, width)
    symptoms = "" if verdict.subject is None else _counted(verdict.subject.symptoms)
    more_lines = (_step(shown_box(boxes, verdict)), symptoms, _others(verdict))
    for label, text in zip(MORE, more_lines, strict=True):
        lines += part(label, text, width)
    return plain("\n".join(map("".join, lines))) + "\n"


def labelled(who: str, summary: Sequence[str], width: int) -> list[tuple[str, str]]:
    """Return the four lines of a verdict, wrapped: on each line what it is about, and the text.

    Args:
        who: The run or the rank.
        summary: State, cause, place and remedy; what is empty is left out.
        width: Characters in a line.
    """
    state = textwrap.wrap(f"{who}: {summary[0]}", max(width, MIN_WIDTH), break_on_hyphens=False)
    lines = [("", line) for line in state]
    for label, text in zip(LABELS, summary[1:], strict=True):
        lines += part(label, text, width)
    return lines


def part(label: str, text: str, width: int) -> Iterator[tuple[str, str]]:
    """Yield ``text``, wrapped to lines of ``width`` characters, each with its label or the room of one."""
    room = max(width - INDENT, MIN_WIDTH)
    for place, line in enumerate(textwrap.wrap(text, room, break_on_hyphens=False)):
        yield f"{'' if place else label:<{INDENT}}", line


def _step(box: Box) -> str:
    """Say where the time of a step goes; empty if that is not known."""
    summary = breakdown_of(box)
    return "" if summary is None else summary.line


def _others(verdict: RunVerdict) -> str:
    """Count the findings that have nothing to do with it, those that are alarming by their kind."""
    others = [incident for incident in verdict.incidents if incident is not verdict.subject]
    alarming = [incident for incident in others if incident.severity is not Severity.INFO]
    notes = len(others) - len(alarming)
    parts = [_counted(alarming), f"{notes} of severity info" if notes else ""]
    return "; ".join(filter(None, parts))


def _counted(found: Iterable[Incident]) -> str:
    """Write findings by their kind, as in "3 findings: 2 grad_underflow, divergence"."""
    kinds = Counter(incident.finding.kind for incident in found)
    if not kinds:
        return ""
    total = sum(kinds.values())
    named = [kind if n == 1 else f"{n} {kind}" for kind, n in kinds.most_common(MAX_KINDS)]
    rest = len(kinds) - len(named)
    named += [f"{rest} kinds more"] if rest else []
    return f"{counted(total, 'finding')}: {', '.join(named)}"
