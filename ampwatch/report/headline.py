"""The verdict in four short lines: how it goes, what is wrong, where, and what to do first.

Computed once, here. The page, the terminal, short reports and the demo show these lines and add
nothing to them. Reads the verdict only, so it may be called wherever one is at hand.

Lines have grouped digits and raised powers (``words``); ``words.plain`` makes ASCII of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ampwatch.diagnosis.calls.kinds import API_ERROR
from ampwatch.diagnosis.forward.kinds import (
    BACKWARD_NONFINITE_ANY_SCALE,
    FORWARD_NAN_UNDERFLOW,
    FORWARD_OVERFLOW,
    INVALID_OPERATION,
    MASKED_ROW_NAN,
    SILENT_OVERFLOW,
)
from ampwatch.diagnosis.kinds.registry import row_of
from ampwatch.report import accounts
from ampwatch.report.endings import Failure
from ampwatch.report.verdict import Level, RunVerdict, skipped
from ampwatch.report.words import number, plural, scale, time_span
from ampwatch.wire.records import in_words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ampwatch.report.incidents import Incident
    from ampwatch.report.verdict import Grounds, Verdict
    from ampwatch.wire.records import Finding, SkipClass

MAX_LINE = 100
"""Characters of a line: one line on a laptop's screen, two on a phone's."""

MAX_REMEDY = 240
"""Characters of a remedy, which is a sentence of its own; the first one of each kind's advice fits."""

NO_ACTION = "No action needed"
"""Beginning of a remedy where there is none."""

MAX_NAME = 48
"""Characters of the name of a module that are shown: its end, which tells it from others."""

MAX_SOURCE = 32
"""Characters of the path of a source line that are shown: its end."""

_OF_OPS = {
    FORWARD_OVERFLOW.slug: "{op} overflowed {dtype}",
    SILENT_OVERFLOW.slug: "{op} overflowed {dtype}, and a later op hid it",
    FORWARD_NAN_UNDERFLOW.slug: "{op} got a zero in {dtype}: its result is not finite",
    MASKED_ROW_NAN.slug: "{op} got a row that is fully masked",
    INVALID_OPERATION.slug: "{op} has no finite result for its inputs",
    BACKWARD_NONFINITE_ANY_SCALE.slug: "{op} has a gradient that no loss scale makes finite",
}
"""Causes whose op is known, in fewer words than the meaning of their kind has."""

_ENDS = {
    Level.BROKEN: "broken, ended",
    Level.FAILED: "failed",
    Level.FINISHED: "finished",
    Level.STALE: "stale, silent",
}
"""States in which there is a last step, and how that is reported."""


@dataclass(frozen=True, slots=True)
class Headline:
    """A verdict in four lines of about ``MAX_LINE`` characters each, the last of up to ``MAX_REMEDY``.

    Attributes:
        state: The word of the state, since when, and how long ago that was.
        cause: What is wrong, with op and place; of a healthy run what is healthy.
        where: Module, op, dtype, phase, source line and ranks, those that are known.
        remedy: What to do first, in one sentence.
        is_tried: Whether the remedy was tried on the batch that failed, and cures it.
    """

    state: str
    cause: str
    where: str
    remedy: str
    is_tried: bool = False

    @property
    def lines(self) -> tuple[str, str, str, str]:
        """The lines in reading order."""
        return self.state, self.cause, self.where, self.remedy

    @property
    def first(self) -> str:
        """The remedy as a sentence of its own, with its label."""
        return self.remedy if self.remedy.startswith(NO_ACTION) else f"Do first: {self.remedy}"


def headline(verdict: Verdict, now_s: float | None = None) -> Headline:
    """Return a verdict in four lines.

    Args:
        verdict: On a run or on a rank.
        now_s: Unix time; without it nothing is reported of how long ago anything was. Unit: s.
    """
    incident = verdict.subject
    state = _state(verdict, now_s)
    if incident is None:
        cause, remedy = _without_finding(verdict)
        return Headline(state, accounts.cut(cause, MAX_LINE), _who(verdict), remedy)
    # What a kind means it means while it lasts: what is over has a sentence of its own.
    is_over = not incident.is_current and incident.finding.kind not in _OF_OPS
    cause = _summary(incident.finding) if is_over else cause_of(incident.finding)
    where = ", ".join([_place(incident.finding), *_circumstances(verdict, incident)])
    remedy, is_tried = first_remedy(incident.finding), incident.finding.cure is not None
    return Headline(state, accounts.cut(cause, MAX_LINE), where, remedy, is_tried)


def cause_of(finding: Finding) -> str:
    """Say what a finding is about: what failed, and where, without numbers."""
    row, place = row_of(finding.kind), _place(finding)
    template = _OF_OPS.get(finding.kind)
    if template is not None and finding.op and finding.dtype:
        short = place.removeprefix("module ")
        op = f"{finding.op} {'outside the model' if finding.where == 'loss' else f'in {short}'}"
        return template.format(op=op, dtype=finding.dtype)
    # What the exception was is in the summary alone.
    if row is None or row is API_ERROR:
        return _summary(finding)
    meaning = row.meaning.replace("`", "")
    if finding.where in ("step", "api", "env"):
        return meaning
    # The place first: where a line is cut, it stays. The op is in the next line, too.
    of_op = f"{finding.op} in {place}: {meaning}"
    return of_op if finding.op and len(of_op) <= MAX_LINE else f"{place}: {meaning}"


def _summary(finding: Finding) -> str:
    return accounts.first_sentence(finding.summary).rstrip(".") or finding.kind


def first_remedy(finding: Finding, max_characters: int = 0) -> str:
    """Return what to do first: what was tried and cures it, else the first sentence of the advice.

    Args:
        finding: The finding.
        max_characters: Room for further sentences of the advice; 0 for the first alone.
    """
    if finding.cure is not None:
        return accounts.first_sentence(finding.advice)
    if not finding.kind_advice.strip():
        return f"Read about it: ampwatch explain {finding.kind}."
    if max_characters:
        return _without_open_ends(accounts.fitting(finding.kind_advice, max_characters))
    first = accounts.first_sentence(finding.kind_advice)
    return _without_open_ends(accounts.cut(first, MAX_REMEDY))


def _without_open_ends(text: str) -> str:
    """Return ``text`` up to a bracket or a piece of code that was cut before it was closed."""
    while text.count("(") > text.count(")"):
        text = f"{text[: text.rindex('(')].rstrip()}..."
    if text.count("`") % 2:
        text = f"{text[: text.rindex('`')].rstrip(' :,')}..."
    return text


def _shortened(name: str, room: int) -> str:
    """Return the end of a name that is too long: modules differ there."""
    return name if len(name) <= room else f"...{name[-(room - 3) :]}"


def _short_path(source: str) -> str:
    """Return the end of a path that is too long, from a directory on."""
    if len(source) <= MAX_SOURCE:
        return source
    parts = source.replace("\\", "/").split("/")
    while len(parts) > 1 and len("/".join(parts)) > MAX_SOURCE - len(".../"):
        parts.pop(0)
    return f".../{'/'.join(parts)}"


def _place(finding: Finding) -> str:
    prefix, colon, name = finding.where.rpartition(":")
    return in_words(f"{prefix}{colon}{_shortened(name, MAX_NAME)}")


def _circumstances(verdict: Verdict, incident: Incident) -> list[str]:
    short = replace(incident.finding, source=_short_path(incident.finding.source))
    parts = accounts.circumstances(replace(incident, finding=short))
    size = verdict.world_size if isinstance(verdict, RunVerdict) else 1
    ranks = accounts.ranks(incident.ranks, size) if size > 1 else ""
    # The ranks are the last of them; one alone needs no number.
    return [*parts[:-1], *filter(None, [ranks])]


def _who(verdict: Verdict) -> str:
    """Say which ranks a verdict without a finding is about."""
    if not isinstance(verdict, RunVerdict) or verdict.world_size == 1:
        return f"rank {verdict.grounds.rank}"
    alike = [rank for rank, of in verdict.by_rank.items() if of.level is verdict.level]
    if verdict.is_cause:
        first = accounts.ranks([verdict.shown_rank], verdict.world_size)
        others = accounts.ranks([rank for rank in alike if rank != verdict.shown_rank])
        return f"{first}, and because of it {others}" if others else first
    return accounts.ranks(alike, verdict.world_size)


def _state(verdict: Verdict, now_s: float | None) -> str:
    grounds, incident, level = verdict.grounds, verdict.subject, verdict.level
    step = "before its first step"
    if grounds.newest is not None:
        step = f"{'since' if level is Level.STALE else 'at'} step {number(grounds.newest.step)}"
    if level in _ENDS:
        text = f"{_ENDS[level]} {step}{_ago(grounds.last_s, now_s)}"
        if level is Level.FAILED:
            text += f": {Failure(grounds.rank, grounds.reason, grounds.last_s).error}"
        began = (
            ""
            if incident is None
            else f"; in trouble since step {number(incident.finding.first_step)}"
        )
        return text + began
    if incident is None:
        age = "" if now_s is None else f", {time_span(now_s - grounds.started_s)} after the start"
        return f"{level.value}, {step}{age}"
    since = number(incident.finding.first_step)
    if verdict.root is None:
        if incident.finding.is_gone:
            return f"{level.value}, from step {since} on; {incident.finding.last_seen}"
        until = number(incident.finding.last_step)
        return f"{level.value}, from step {since} to step {until}; over now"
    began = _ago(grounds.since_s, now_s)
    return f"{level.value}, since step {since}{began}"


def _ago(then_s: float | None, now_s: float | None) -> str:
    if then_s is None or now_s is None:
        return ""
    return f", {time_span(now_s - then_s)} ago"


def _without_finding(verdict: Verdict) -> tuple[str, str]:
    """Return what there is to say, and what to do, where no finding is at the root of a state."""
    grounds = verdict.grounds
    if verdict.level in {Level.FAILED, Level.STALE}:
        return _of_an_end(verdict)
    if verdict.level is Level.CALIBRATING:
        cause = (
            f"{skipped(grounds.skips)} while the scaler searches for its scale, {_scale(grounds)}"
        )
        return cause, f"{NO_ACTION}: skipped steps are normal at the start."
    if verdict.level is Level.STARTING:
        return "no step has finished yet", f"{NO_ACTION}: wait for the first step."
    remedy = f"{NO_ACTION}."
    if grounds.num_alarming:
        to_read = plural(grounds.num_alarming, "finding")
        remedy = f"{NO_ACTION} now. {to_read} from before."
    if verdict.level is Level.FINISHED:
        return _history(grounds, grounds.skips, ""), remedy
    last = f" in the last {number(grounds.recent_steps)}"
    return _history(grounds, grounds.recent_skips, last), remedy


def _of_an_end(verdict: Verdict) -> tuple[str, str]:
    grounds = verdict.grounds
    if verdict.level is Level.STALE:
        cause = "no finding before it: a hang in a collective, in the data or in a lock"
        return cause, "Find out what the process waits for: py-spy dump --pid."
    if (first := verdict.ended_by) is not None:
        # What it has raised itself says only that the other one was gone.
        return f"rank {first.rank} had ended: {first.reason.rstrip('.')}", f"See rank {first.rank}."
    reason = grounds.reason.rstrip(".") or "ended with an error"
    failure = Failure(grounds.rank, grounds.reason, grounds.last_s)
    if failure.is_lost_connection and not verdict.is_cause:
        lost = "the connection to another rank was lost"
        return lost, "Read the reports of the other ranks, also on other machines: one ended first."
    if failure.was_killed:
        who = "the kernel's log (dmesg), the launcher, the scheduler"
        return reason, f"Find out what ended it: {who}."
    return reason, "Read the traceback: ampwatch report."


def _history(grounds: Grounds, skips: Mapping[SkipClass, int], last: str) -> str:
    if grounds.newest is None:
        return "no step was taken"
    if math.isnan(grounds.newest.loss_scale):
        return "no finding is current; no loss scaler, so no step can be skipped"
    return f"{_scale(grounds)}, {skipped(skips)}{last}"


def _scale(grounds: Grounds) -> str:
    newest = grounds.newest
    if newest is None or math.isnan(newest.loss_scale):
        return "no loss scaler"
    return f"loss scale {scale(newest.loss_scale)}"
