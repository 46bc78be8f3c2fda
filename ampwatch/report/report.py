"""The report of a run in words, for a terminal."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from ampwatch.numerics.written import counted, scale_text
from ampwatch.report import accounts
from ampwatch.report.endings import Failure, num_led_to
from ampwatch.report.glossary import terms_in
from ampwatch.report.headline import headline
from ampwatch.report.judged_boxes import judge_boxes, state_of
from ampwatch.report.line_change import change_of
from ampwatch.report.pages import more_about
from ampwatch.report.step_times import breakdown_of, notes
from ampwatch.report.verdict import tally
from ampwatch.report.words import percent, plain, step_time
from ampwatch.wire.blackbox.box import DIED
from ampwatch.wire.records import RunState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.report.incidents import Incident
    from ampwatch.report.verdict import RunVerdict
    from ampwatch.wire.blackbox import Box

WIDTH = 92
MAX_LISTED_RANKS = 8


def iterations(box: Box) -> int:
    """Return how many iterations a rank has ended."""
    return box.steps[-1].step + 1 if box.steps else 0


def ending(box: Box) -> str:
    """Say how the rank of a box ended; empty while it runs or if it ended well."""
    if box.state is RunState.FAILED:
        return f"It failed: {box.reason or 'no reason was given'}"
    if box.state is RunState.STALE:
        return f"It seems to hang: {box.reason or 'no step has ended for long'}"
    return box.reason


def render_boxes(boxes: Sequence[Box], width: int = WIDTH) -> str:
    """Return the report of a run: the verdict and what to do first, the numbers, then each finding.

    Roots come in the order of the verdict, each followed by the symptoms it explains.

    Args:
        boxes: Those of its ranks; at least one, all of one run.
        width: Characters in a line.
    """
    verdict = judge_boxes(boxes)
    if len(boxes) == 1:
        lines = _lines_of(boxes[0], width)
    else:
        first = boxes[0].identity
        lines = [f"ampwatch report: run {first.run}, {len(boxes)} of {first.world_size} ranks"]
        for box in boxes[:MAX_LISTED_RANKS]:
            lines += _wrapped(one_line(box, verdict.cause), width, 2, 4)
        if len(boxes) > MAX_LISTED_RANKS:
            lines.append(f"  and {len(boxes) - MAX_LISTED_RANKS} ranks more")
    state = f"{verdict.level.value.upper()}: {accounts.sentence(plain(verdict.sentence))}"
    lines[1:1] = [
        *_wrapped(state, width, 2, 4),
        *_wrapped(headline(verdict).first, width, 2, 4),
    ]
    lines += _step_times(shown_box(boxes, verdict), width)
    lines += _traceback(boxes, verdict)
    if not verdict.incidents:
        lines += ["", "There are no findings."]
    for incident in verdict.incidents:
        lines += ["", *_incident(incident, width)]
    return "\n".join([*lines, *_terms(verdict.incidents, width)]) + "\n"


def render_incident(incident: Incident, width: int = WIDTH) -> str:
    """Return one finding with what it explains, as reports have it.

    Args:
        incident: The finding.
        width: Characters in a line.
    """
    return "\n".join([*_incident(incident, width), *_terms([incident], width)]) + "\n"


def one_line(box: Box, cause: Failure | None = None) -> str:
    """Say in a line how far a rank has come and how it ended.

    Args:
        box: The rank.
        cause: The failure that ended its job, if that is known: what the others raised says nothing.
    """
    state = state_of(box)
    is_known = bool(box.steps) or box.reason != DIED
    parts = [counted(iterations(box), "iteration") if is_known else "no iteration is known"]
    if state.loss_scale is not None:
        parts.append(f"{counted(sum(state.skips.values()), 'step')} skipped")
        parts.append(f"loss scale {scale_text(state.loss_scale)}")
    ended = f". {ending(box)}" if ending(box) else f"; {box.state.value}"
    failure = Failure(box.identity.rank, box.reason, box.last_ns / 1e9)
    if box.state is RunState.FAILED and num_led_to(cause, [failure]) and cause is not None:
        ended = f". It ended ({failure.error}) after rank {cause.rank} had"
    return f"rank {box.identity.rank}, on {box.identity.host}: {', '.join(parts)}{ended}"


def _lines_of(box: Box, width: int) -> list[str]:
    who = box.identity
    head = f"run {who.run}, rank {who.rank}, on {who.host}"
    return [f"ampwatch report: {head}", *_numbers(box, width)]


def shown_box(boxes: Sequence[Box], verdict: RunVerdict) -> Box:
    """Return what the rank has left that the sentence is about; the first one without it."""
    return next((box for box in boxes if box.identity.rank == verdict.shown_rank), boxes[0])


def _step_times(box: Box, width: int) -> list[str]:
    """Say where the time of a step goes; nothing if that is not known."""
    breakdown = breakdown_of(box)
    if breakdown is None:
        return []
    of = f" of rank {box.identity.rank}" if box.identity.world_size > 1 else ""
    head = (
        f"Where the time of a step{of} goes ({step_time(breakdown.seconds)}, {breakdown.source}):"
    )
    longest = max(len(share.phase.words) for share in breakdown.shares)
    lines = ["", *_wrapped(head, width, 0, 2)]
    for phase, seconds, share in breakdown.shares:
        lines.append(f"  {phase.words:<{longest}}  {step_time(seconds):>8}  {percent(share):>7}")
    for text in notes(box, breakdown):
        lines += _wrapped(text, width, 2)
    return [plain(line) for line in lines]


def failed_box(boxes: Sequence[Box], verdict: RunVerdict) -> Box | None:
    """Return the rank whose traceback is to be shown: the one whose failure ended the others."""
    raised = [box for box in boxes if box.traceback]
    if verdict.cause is None:
        return next(iter(raised), None)
    return next((box for box in raised if box.identity.rank == verdict.cause.rank), None)


def _traceback(boxes: Sequence[Box], verdict: RunVerdict) -> list[str]:
    box = failed_box(boxes, verdict)
    if box is None:
        return []
    quoted = (f"  {line}" for line in box.traceback.rstrip().splitlines())
    return ["", f"Traceback (rank {box.identity.rank}):", *quoted]


def _numbers(box: Box, width: int) -> list[str]:
    state = state_of(box)
    lines = [
        f"  {counted(iterations(box), 'iteration')}, {counted(state.attempted, 'optimizer step')} attempted"
    ]
    if total := sum(state.skips.values()):
        lines.append(f"  {counted(total, 'step')} skipped: {plain(tally(state.skips))}")
    elif state.loss_scale is not None:
        lines.append("  no step skipped")
    if (newest := state.newest) is not None:
        if state.loss_scale is not None:
            moves = f"{counted(newest.total_growths, 'growth')}, {counted(newest.total_backoffs, 'backoff')}"
            lines.append(f"  loss scale {scale_text(state.loss_scale)}, {moves}")
        if newest.total_nonfinite_losses:
            bad = counted(newest.total_nonfinite_losses, "iteration")
            lines.append(f"  {bad} with a NaN or infinite loss")
    for text in (*box.notes, *filter(None, [ending(box)])):
        lines += _wrapped(text, width, 2)
    return lines


def _incident(incident: Incident, width: int) -> list[str]:
    finding = incident.finding
    lines = [f"{incident.severity.value.upper()}  {finding.kind}  {accounts.place(finding)}"]
    lines += _wrapped(accounts.sentence(finding.summary), width, 2)
    first, *others = accounts.parts(incident)
    lines += _part(*first, width)
    if change := change_of(finding):
        lines += [f"  In {finding.source}:", *(f"    {line}" for line in change)]
    for part in others:
        lines += _part(*part, width)
    for symptom in incident.symptoms:
        f = symptom.finding
        explained = f"{f.kind} in {accounts.place(f)}, since step {f.first_step}"
        lines += _part("It explains", f"{explained}. {accounts.sentence(f.summary)}", width)
    lines += _evidence(incident.members)
    if more := more_about(finding.kind):
        lines += _part("More", more, width)
    return lines


def _evidence(shown: Sequence[Incident]) -> list[str]:
    """Return the numbers of a finding and its symptoms, one a line."""
    rows = [
        (accounts.evidence(s.finding), s.finding.kind if place else "")
        for place, s in enumerate(shown)
    ]
    names = [name for row, _ in rows for name, _ in row]
    if not names:
        return []
    longest = max(map(len, names))
    lines = ["  Numbers:"]
    for row, of in rows:
        if row and of:
            lines.append(f"    of {of}:")
        lines += [f"    {name:<{longest}}  {value}" for name, value in row]
    return lines


def _terms(shown: Sequence[Incident], width: int) -> list[str]:
    """Return the meaning of the terms that come up in findings."""
    terms = terms_in(*accounts.explained(shown))
    lines = ["", "Terms used above:"] if terms else []
    for term in terms:
        lines += _part(term.name, accounts.sentence(term.meaning), width)
    return lines


def _part(name: str, text: str, width: int) -> list[str]:
    """Return a part of a finding: its name, then its text, indented where it goes on."""
    return _wrapped(f"{name}: {text}", width, 2, 4)


def _wrapped(text: str, width: int, first: int, others: int | None = None) -> list[str]:
    """Return ``text`` in lines, the first and the others indented by so many spaces."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=" " * first,
        subsequent_indent=" " * (first if others is None else others),
        break_on_hyphens=False,
    )
