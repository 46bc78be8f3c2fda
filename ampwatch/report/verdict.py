"""The verdict on a run: how it goes, in one word and one sentence, and which finding is at its root.

It is passed once, here, from what is known of the ranks of a run, be that the daemon's state or
the reports that the ranks have left. The page, the metrics, the alerts, the terminal and reports
show it and judge nothing by themselves, so that they cannot contradict one another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from ampwatch.diagnosis.book import REPORTED_AGAIN_NS, REPORTED_AGAIN_STEPS
from ampwatch.diagnosis.gradients.kinds import FP16_WITHOUT_SCALER
from ampwatch.diagnosis.kinds.registry import row_of
from ampwatch.numerics.written import is_in_digits
from ampwatch.report.endings import Failure, cause_of, num_led_to
from ampwatch.report.incidents import Incident, incidents
from ampwatch.report.words import number, plural, scale, time_span
from ampwatch.wire.records import RunState, Severity, SkipClass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ampwatch.wire.records import Finding, StepRecord

RECENT_STEPS = 1000
"""Steps back that "now" reaches at most: skips are counted over them, and a finding not seen for
longer may be over. Half of GradScaler's growth interval, so that a healthy run shows at most
one probe."""

MIN_RECENT_STEPS = 2 * REPORTED_AGAIN_STEPS
"""Steps back that "now" reaches at least: twice the steps after which a finding that lasts is
reported again."""

RECENT_GAPS = 10
"""Times the mean distance between two sightings of a finding after which it is over: one that was
seen in every step is over soon, one that comes every hundred steps is not."""

RECENT_SECONDS = 2 * REPORTED_AGAIN_NS / 1e9
"""Time back that "now" reaches at least while a run goes on: long enough to be read, and twice the
minute after which a finding that lasts is reported again, however slow the steps. Unit: s."""


class Level(str, Enum):
    """The state of a run in a word, the worst first."""

    FAILING = "failing"
    BROKEN = "broken"
    FAILED = "failed"
    STALE = "stale"
    ATTENTION = "needs attention"
    CALIBRATING = "calibrating"
    STARTING = "starting"
    HEALTHY = "healthy"
    FINISHED = "finished"

    @property
    def label(self) -> str:
        """Name of the level in metrics: one word."""
        return self.value.rpartition(" ")[2]

    @property
    def badness(self) -> int:
        """Place among the levels; 0 is the worst."""
        return list(Level).index(self)


@dataclass(frozen=True, slots=True)
class JudgedRank:
    """The knowledge about one rank that a verdict rests on.

    Attributes:
        rank: Global rank.
        state: What its process is doing.
        reason: Why it ended, in words; empty while it runs, or if it ended well.
        started_s: Unix time of its start. Unit: s.
        last_s: Unix time of its last word. Unit: s.
        newest: Its newest iteration; ``None`` before the first.
        findings: Its findings by their key, in the order in which they were made.
        seen_s: Returns the Unix time at which a finding was last seen. Unit: s.
        skips: Optimizer steps skipped since the beginning, per class.
        recent: Returns the skipped iterations of the newest ones per class, and how many those are.
        time_of: Returns the Unix time by which a step was over; ``None`` where it is not known.
    """

    rank: int
    state: RunState
    reason: str
    started_s: float
    last_s: float
    newest: StepRecord | None
    findings: Mapping[str, Finding]
    seen_s: Callable[[Finding], float]
    skips: Mapping[SkipClass, int]
    recent: Callable[[], tuple[Mapping[SkipClass, int], int]]
    time_of: Callable[[int], float | None]

    def is_current(self, finding: Finding) -> bool:
        """Return whether ``finding`` still holds at the newest step.

        What was seen to be gone does not. What is wrong in the code or the environment is seen once
        and stays wrong, and a state that outlives steps holds until then. What happens in steps is
        over when it was not seen for much longer than it used to take from one time to the next,
        and for a while; of a run that has ended there is no while.
        """
        if finding.is_gone:
            return False
        row = row_of(finding.kind)
        if row is not None and row.is_state:
            return True
        if finding.phase == "config" or finding.where in ("api", "env") or self.newest is None:
            return True
        if self.newest.step - finding.last_step <= reach(finding):
            return True
        has_ended = self.state in (RunState.FINISHED, RunState.FAILED)
        silence = self.newest.time_ns / 1e9 - self.seen_s(finding)
        return not has_ended and silence <= RECENT_SECONDS


def reach(finding: Finding) -> float:
    """Return how many steps ``finding`` may not be seen for and still be current."""
    if finding.count <= 1:
        return RECENT_STEPS  # seen once: nothing says how often it would come
    gap = (finding.last_step - finding.first_step) / (finding.count - 1)
    return min(max(RECENT_GAPS * gap, MIN_RECENT_STEPS), RECENT_STEPS)


@dataclass(frozen=True, slots=True)
class Grounds:
    """The numbers of a rank that a verdict on it rests on, as of when it was passed.

    Attributes:
        rank: Global rank.
        reason: Why it ended, in words; empty while it runs, or if it ended well.
        started_s: Unix time of its start. Unit: s.
        last_s: Unix time of its last word. Unit: s.
        since_s: Unix time by which what it speaks of had begun; ``None`` if that is nothing, or it is
            not known. Unit: s.
        newest: Its newest iteration; ``None`` before the first.
        skips: Optimizer steps skipped since the beginning, per class.
        recent_skips: Those of them among the newest iterations, per class.
        recent_steps: How many iterations those are.
        num_alarming: Findings that are more than information, those that are over included.
    """

    rank: int = 0
    reason: str = ""
    started_s: float = 0.0
    last_s: float = 0.0
    since_s: float | None = None
    newest: StepRecord | None = None
    skips: Mapping[SkipClass, int] = field(default_factory=dict)
    recent_skips: Mapping[SkipClass, int] = field(default_factory=dict)
    recent_steps: int = 0
    num_alarming: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a user who wants to know how it goes.

    Attributes:
        level: The state in a word.
        sentence: What happened, with the numbers; without the state word and the run's name.
        advice: What to change, where a finding says so; else empty.
        root: The finding it speaks of, with what that explains; ``None`` where nothing alarming is
            current.
        is_cause: Whether this rank's failure is what made the others end.
        ended_by: The failure of another rank that made this one end; ``None`` if none did, or it is
            not known.
        incidents: The findings that it rests on, in the order in which they are shown.
        grounds: The numbers that it rests on; of a run those of the rank that speaks.
    """

    level: Level
    sentence: str
    advice: str = ""
    root: Incident | None = None
    is_cause: bool = False
    ended_by: Failure | None = None
    incidents: Sequence[Incident] = ()
    grounds: Grounds = field(default_factory=Grounds)

    @property
    def subject(self) -> Incident | None:
        """Return the incident that the verdict is about: the root, or what was critical and is over."""
        if self.root is not None or self.level is not Level.ATTENTION:
            return self.root
        return next((s for s in self.incidents if s.severity is Severity.CRITICAL), None)


@dataclass(frozen=True, slots=True)
class RunVerdict(Verdict):
    """The verdict on a run, and on each of its ranks.

    Attributes:
        shown_rank: Rank that the sentence is about.
        by_rank: The verdict on each rank.
        cause: The failure that made the ranks end; ``None`` if none failed, or it is not known.
        world_size: Ranks of the run, those that are not known included.
    """

    shown_rank: int = 0
    by_rank: Mapping[int, Verdict] = field(default_factory=dict)
    cause: Failure | None = None
    world_size: int = 1


def judge(of_ranks: Sequence[JudgedRank], world_size: int, now_s: float) -> RunVerdict:
    """Pass the verdict on a run.

    The worst rank speaks; of equals the one whose failure is the cause, then the one with the worst
    incident, then one that has its cause, then the lowest. A finished rank is never shown for those still running.

    Args:
        of_ranks: What is known of its ranks; at least one.
        world_size: Ranks of the run, those that are not known included.
        now_s: Unix time. Unit: s.

    Cost: some 40 us a rank with a handful of findings, 1 ms with 256, which are all that are kept.
    """
    failures = [_failure(s) for s in of_ranks if s.state is RunState.FAILED]
    cause = cause_of(failures, is_whole_job=len(of_ranks) >= world_size)
    by_rank = {s.rank: _judged(s, now_s, cause) for s in of_ranks}
    shown = incidents_of(of_ranks)
    # A finding that one rank has as a root may be explained by what only another one has.
    place = {m.finding.key: i for i, incident in enumerate(shown) for m in incident.members}

    def badness(rank: int) -> tuple[int, bool, int, bool, int]:
        verdict = by_rank[rank]
        key = "" if verdict.root is None else verdict.root.finding.key
        incident = place.get(key, len(shown))
        is_symptom = bool(key) and shown[incident].finding.key != key
        return verdict.level.badness, not verdict.is_cause, incident, is_symptom, rank

    shown_rank = min(by_rank, key=badness)
    judged = by_rank[shown_rank]
    sentence = judged.sentence
    if len(of_ranks) > 1:
        alike = sum(_reason(other) == _reason(judged) for other in by_rank.values())
        others = num_led_to(cause, failures)
        if judged.is_cause and others:
            who = plural(others, "other rank")
            sentence = f"rank {shown_rank}: {sentence}; {who} ended because of it"
        elif alike == len(of_ranks):
            sentence = f"{sentence}; {alike} ranks alike"
            if world_size > alike:
                sentence = f"{sentence}, {world_size - alike} not known here"
        else:
            sentence = f"rank {shown_rank}: {sentence}"
    verdict = RunVerdict(
        judged.level,
        sentence,
        judged.advice,
        None if judged.root is None else shown[place[judged.root.finding.key]],
        is_cause=judged.is_cause,
        incidents=shown,
        grounds=judged.grounds,
        shown_rank=shown_rank,
        by_rank=by_rank,
        cause=cause,
        world_size=max(world_size, len(of_ranks)),
    )
    if verdict.subject is None:
        return verdict
    # Another rank may have seen it first.
    judged_rank = next(judged_rank for judged_rank in of_ranks if judged_rank.rank == shown_rank)
    began = judged_rank.time_of(verdict.subject.finding.first_step)
    return replace(verdict, grounds=replace(judged.grounds, since_s=began))


def _reason(verdict: Verdict) -> tuple[Level, str, bool]:
    """Return the state of a rank and what it is due to: ranks that have all in common are alike."""
    root = "" if verdict.root is None else verdict.root.finding.key
    return verdict.level, root, verdict.is_cause


def incidents_of(of_ranks: Sequence[JudgedRank]) -> list[Incident]:
    """Return the findings of ranks as incidents, those that are current first."""
    current = {s.rank: s.is_current for s in of_ranks}
    return incidents(
        ((s.rank, list(s.findings.values())) for s in of_ranks),
        lambda rank, finding: current[rank](finding),
    )


def skipped(skips: Mapping[SkipClass, int]) -> str:
    """Write how many steps were skipped, as in "7 steps skipped (6 calibrating, 1 probe)"."""
    total = sum(skips.values())
    return f"{plural(total, 'step')} skipped ({tally(skips)})" if total else "no step skipped"


def tally(skips: Mapping[SkipClass, int]) -> str:
    """Write skips per class, as in "6 calibrating, 1 probe"; empty for none."""
    return ", ".join(f"{number(n)} {c.label}" for c, n in skips.items() if n)


def _failure(judged_rank: JudgedRank) -> Failure:
    return Failure(judged_rank.rank, judged_rank.reason, judged_rank.last_s)


def _is_alarming(incident: Incident) -> bool:
    # What float16 flushes without a scaler may never be measured: such a run is not called healthy.
    is_reported = (
        incident.severity is not Severity.INFO or incident.finding.kind == FP16_WITHOUT_SCALER.slug
    )
    return incident.goes_on and is_reported


def _judged(judged_rank: JudgedRank, now_s: float, cause: Failure | None) -> Verdict:
    shown = incidents_of([judged_rank])
    verdict = replace(_of_incidents(judged_rank, shown, now_s, cause), incidents=shown)
    return replace(verdict, grounds=_grounds(judged_rank, verdict.subject))


def _grounds(judged_rank: JudgedRank, subject: Incident | None) -> Grounds:
    # Taken now: what a verdict is read from later may have gone on meanwhile.
    recent_skips, recent_steps = judged_rank.recent()
    return Grounds(
        rank=judged_rank.rank,
        reason=judged_rank.reason,
        started_s=judged_rank.started_s,
        last_s=judged_rank.last_s,
        since_s=None if subject is None else judged_rank.time_of(subject.finding.first_step),
        newest=judged_rank.newest,
        skips=dict(judged_rank.skips),
        recent_skips=dict(recent_skips),
        recent_steps=recent_steps,
        num_alarming=_num_alarming(judged_rank),
    )


def _of_incidents(
    judged_rank: JudgedRank, shown: Sequence[Incident], now_s: float, cause: Failure | None
) -> Verdict:
    root = next((incident for incident in shown if _is_alarming(incident)), None)
    if judged_rank.state is RunState.FAILED:
        return _failed(judged_rank, root, cause)
    if judged_rank.state is RunState.STALE:
        return _stale(judged_rank, root, now_s)
    if root is not None and root.severity is Severity.CRITICAL:
        return _broken(judged_rank, root)
    if judged_rank.state is RunState.FINISHED:
        return Verdict(Level.FINISHED, _finished(judged_rank, root), _advice(root), root)
    return _running(judged_rank, shown, root, now_s)


def _failed(judged_rank: JudgedRank, root: Incident | None, cause: Failure | None) -> Verdict:
    is_cause = cause is not None and cause.rank == judged_rank.rank
    reason = (judged_rank.reason or "ended with an error").rstrip(".")
    newest = judged_rank.newest
    last = "no step was finished" if newest is None else f"last step {number(newest.step)}"
    failure, ended_by = _failure(judged_rank), None
    if cause is not None and num_led_to(cause, [failure]):
        ended_by = cause
        reason = f"ended ({failure.error}) after rank {cause.rank} had"
    elif cause is None and failure.is_lost_connection:
        reason = f"ended ({failure.error}) when the connection to another rank was lost"
    sentence = f"{reason}; {last}"
    if root is not None:
        sentence = f"{_summary(root)}; then: {sentence}"
    return Verdict(
        Level.FAILED, sentence, _advice(root), root, is_cause=is_cause, ended_by=ended_by
    )


def _no_step_yet(judged_rank: JudgedRank, now_s: float) -> str:
    return f"no step yet, {time_span(now_s - judged_rank.started_s)} after the start"


def _stale(judged_rank: JudgedRank, root: Incident | None, now_s: float) -> Verdict:
    silent, newest = time_span(now_s - judged_rank.last_s), judged_rank.newest
    sentence = (
        _no_step_yet(judged_rank, now_s)
        if newest is None
        else f"no step for {silent}; the last was step {number(newest.step)}"
    )
    if root is not None:
        sentence = f"{sentence}; before: {_summary(root)}"
    return Verdict(Level.STALE, sentence, _advice(root), root)


def _broken(judged_rank: JudgedRank, root: Incident) -> Verdict:
    """Return the verdict on a rank with a critical finding that is current, or was at its end."""
    sentence, is_over = _summary(root), judged_rank.state is RunState.FINISHED
    if is_over:
        sentence = f"{sentence}; it was still so at the end, after {_steps(judged_rank)}"
    return Verdict(Level.BROKEN if is_over else Level.FAILING, sentence, _advice(root), root)


def _running(
    judged_rank: JudgedRank, shown: Sequence[Incident], root: Incident | None, now_s: float
) -> Verdict:
    if root is not None:
        return Verdict(Level.ATTENTION, _summary(root), _advice(root), root)
    # Weights may be broken though nothing new happens: what was critical is not forgotten quietly.
    # ``Verdict.subject`` is the same one.
    over = next((incident for incident in shown if incident.severity is Severity.CRITICAL), None)
    if over is not None:
        sentence, finding = _summary(over), over.finding
        # What says itself how long it lasted must not have another number of that behind it.
        if finding.is_gone or f"to step {finding.last_step}" not in sentence:
            sentence = f"{sentence}; {finding.last_seen}"
        return Verdict(Level.ATTENTION, sentence, _advice(over))
    newest = judged_rank.newest
    if newest is None:
        return Verdict(Level.STARTING, _no_step_yet(judged_rank, now_s))
    if newest.skip_class is SkipClass.CALIBRATING:
        return Verdict(Level.CALIBRATING, _calibration(judged_rank, newest))
    return Verdict(Level.HEALTHY, _health(judged_rank, newest))


def _summary(incident: Incident) -> str:
    return incident.finding.summary.rstrip(".")


def _advice(incident: Incident | None) -> str:
    return "" if incident is None else incident.finding.advice


def _scale(newest: StepRecord) -> str:
    if math.isnan(newest.loss_scale):
        return "no loss scaler"
    write = number if is_in_digits(newest.loss_scale) else scale
    return f"loss scale {write(newest.loss_scale)}"


def _num_alarming(judged_rank: JudgedRank) -> int:
    return sum(f.severity is not Severity.INFO for f in judged_rank.findings.values())


def _steps(judged_rank: JudgedRank) -> str:
    return plural(0 if judged_rank.newest is None else judged_rank.newest.step + 1, "step")


def _finished(judged_rank: JudgedRank, root: Incident | None) -> str:
    if judged_rank.newest is None:
        text = "no step was taken"
    else:
        text = f"{_steps(judged_rank)}, {skipped(judged_rank.skips)}, {_scale(judged_rank.newest)}"
    if root is not None:
        return f"{text}; at its end: {_summary(root)}"
    alarming = _num_alarming(judged_rank)
    return f"{text}; {plural(alarming, 'finding')} to read" if alarming else text


def _calibration(judged_rank: JudgedRank, newest: StepRecord) -> str:
    text = f"step {number(newest.step)}, finding a scale that fits"
    return f"{text}: {skipped(judged_rank.skips)} so far, {_scale(newest)}; normal at the start"


def _health(judged_rank: JudgedRank, newest: StepRecord) -> str:
    text = f"step {number(newest.step)}, {_scale(newest)}"
    if not math.isnan(newest.loss_scale):
        skips, steps = judged_rank.recent()
        text = f"{text}, {skipped(skips)} in the last {number(steps)}"
    past = _num_alarming(judged_rank)
    return f"{text}; {plural(past, 'warning')} from before" if past else text
