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
from ampwatch.report.stories import Story, stories
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
class Standing:
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
        stories: The findings that it rests on, in the order in which they are shown.
        grounds: The numbers that it rests on; of a run those of the rank that speaks.
    """

    level: Level
    sentence: str
    advice: str = ""
    root: Story | None = None
    is_cause: bool = False
    ended_by: Failure | None = None
    stories: Sequence[Story] = ()
    grounds: Grounds = field(default_factory=Grounds)

    @property
    def subject(self) -> Story | None:
        """Return the story that the verdict is about: the root, or what was critical and is over."""
        if self.root is not None or self.level is not Level.ATTENTION:
            return self.root
        return next((s for s in self.stories if s.severity is Severity.CRITICAL), None)


@dataclass(frozen=True, slots=True)
class RunVerdict(Verdict):
    """The verdict on a run, and on each of its ranks.

    Attributes:
        speaker: Rank that the sentence is about.
        by_rank: The verdict on each rank.
        cause: The failure that made the ranks end; ``None`` if none failed, or it is not known.
        world_size: Ranks of the run, those that are not known included.
    """

    speaker: int = 0
    by_rank: Mapping[int, Verdict] = field(default_factory=dict)
    cause: Failure | None = None
    world_size: int = 1


def judge(of_ranks: Sequence[Standing], world_size: int, now_s: float) -> RunVerdict:
    """Pass the verdict on a run.

    The worst rank speaks; of equals the one whose failure is the cause, then the one with the worst
    story, then the lowest. A finished rank never speaks for those still running.

    Args:
        of_ranks: What is known of its ranks; at least one.
        world_size: Ranks of the run, those that are not known included.
        now_s: Unix time. Unit: s.

    Cost: some 40 us a rank with a handful of findings, 1 ms with 256, which are all that are kept.
    """
    failures = [_failure(s) for s in of_ranks if s.state is RunState.FAILED]
    cause = cause_of(failures, is_whole_job=len(of_ranks) >= world_size)
    by_rank = {s.rank: _judged(s, now_s, cause) for s in of_ranks}
    shown = stories_of(of_ranks)
    # A finding that one rank has as a root may be explained by what only another one has.
    place = {m.finding.key: i for i, story in enumerate(shown) for m in story.members}

    def badness(rank: int) -> tuple[int, bool, int, int]:
        verdict = by_rank[rank]
        story = len(shown) if verdict.root is None else place[verdict.root.finding.key]
        return verdict.level.badness, not verdict.is_cause, story, rank

    speaker = min(by_rank, key=badness)
    said = by_rank[speaker]
    sentence = said.sentence
    if len(of_ranks) > 1:
        alike = sum(_reason(other) == _reason(said) for other in by_rank.values())
        others = num_led_to(cause, failures)
        if said.is_cause and others:
            who = plural(others, "other rank")
            sentence = f"rank {speaker}: {sentence}; {who} ended because of it"
        elif alike == len(of_ranks):
            sentence = f"{sentence}; {alike} ranks alike"
            if world_size > alike:
                sentence = f"{sentence}, {world_size - alike} not known here"
        else:
            sentence = f"rank {speaker}: {sentence}"
    verdict = RunVerdict(
        said.level,
        sentence,
        said.advice,
        None if said.root is None else shown[place[said.root.finding.key]],
        is_cause=said.is_cause,
        stories=shown,
        grounds=said.grounds,
        speaker=speaker,
        by_rank=by_rank,
        cause=cause,
        world_size=max(world_size, len(of_ranks)),
    )
    if verdict.subject is None:
        return verdict
    # Another rank may have seen it first.
    speaking = next(standing for standing in of_ranks if standing.rank == speaker)
    began = speaking.time_of(verdict.subject.finding.first_step)
    return replace(verdict, grounds=replace(said.grounds, since_s=began))


def _reason(verdict: Verdict) -> tuple[Level, str, bool]:
    """Return the state of a rank and what it is due to: ranks that have all in common are alike."""
    root = "" if verdict.root is None else verdict.root.finding.key
    return verdict.level, root, verdict.is_cause


def stories_of(of_ranks: Sequence[Standing]) -> list[Story]:
    """Return the findings of ranks as stories, those that are current first."""
    current = {s.rank: s.is_current for s in of_ranks}
    return stories(
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


def _failure(standing: Standing) -> Failure:
    return Failure(standing.rank, standing.reason, standing.last_s)


def _is_alarming(story: Story) -> bool:
    # What float16 flushes without a scaler may never be measured: such a run is not called healthy.
    is_told = story.severity is not Severity.INFO or story.finding.kind == FP16_WITHOUT_SCALER.slug
    return story.goes_on and is_told


def _judged(standing: Standing, now_s: float, cause: Failure | None) -> Verdict:
    shown = stories_of([standing])
    verdict = replace(_of_stories(standing, shown, now_s, cause), stories=shown)
    return replace(verdict, grounds=_grounds(standing, verdict.subject))


def _grounds(standing: Standing, subject: Story | None) -> Grounds:
    # Taken now: what a verdict is read from later may have gone on meanwhile.
    recent_skips, recent_steps = standing.recent()
    return Grounds(
        rank=standing.rank,
        reason=standing.reason,
        started_s=standing.started_s,
        last_s=standing.last_s,
        since_s=None if subject is None else standing.time_of(subject.finding.first_step),
        newest=standing.newest,
        skips=dict(standing.skips),
        recent_skips=dict(recent_skips),
        recent_steps=recent_steps,
        num_alarming=_num_alarming(standing),
    )


def _of_stories(
    standing: Standing, shown: Sequence[Story], now_s: float, cause: Failure | None
) -> Verdict:
    root = next((story for story in shown if _is_alarming(story)), None)
    if standing.state is RunState.FAILED:
        return _failed(standing, root, cause)
    if standing.state is RunState.STALE:
        return _stale(standing, root, now_s)
    if root is not None and root.severity is Severity.CRITICAL:
        return _broken(standing, root)
    if standing.state is RunState.FINISHED:
        return Verdict(Level.FINISHED, _finished(standing, root), _advice(root), root)
    return _running(standing, shown, root, now_s)


def _failed(standing: Standing, root: Story | None, cause: Failure | None) -> Verdict:
    is_cause = cause is not None and cause.rank == standing.rank
    reason = (standing.reason or "ended with an error").rstrip(".")
    newest = standing.newest
    last = "no step was finished" if newest is None else f"last step {number(newest.step)}"
    failure, ended_by = _failure(standing), None
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


def _no_step_yet(standing: Standing, now_s: float) -> str:
    return f"no step yet, {time_span(now_s - standing.started_s)} after the start"


def _stale(standing: Standing, root: Story | None, now_s: float) -> Verdict:
    silent, newest = time_span(now_s - standing.last_s), standing.newest
    sentence = (
        _no_step_yet(standing, now_s)
        if newest is None
        else f"no step for {silent}; the last was step {number(newest.step)}"
    )
    if root is not None:
        sentence = f"{sentence}; before: {_summary(root)}"
    return Verdict(Level.STALE, sentence, _advice(root), root)


def _broken(standing: Standing, root: Story) -> Verdict:
    """Return the verdict on a rank with a critical finding that is current, or was at its end."""
    sentence, is_over = _summary(root), standing.state is RunState.FINISHED
    if is_over:
        sentence = f"{sentence}; it was still so at the end, after {_steps(standing)}"
    return Verdict(Level.BROKEN if is_over else Level.FAILING, sentence, _advice(root), root)


def _running(
    standing: Standing, shown: Sequence[Story], root: Story | None, now_s: float
) -> Verdict:
    if root is not None:
        return Verdict(Level.ATTENTION, _summary(root), _advice(root), root)
    # Weights may be broken though nothing new happens: what was critical is not forgotten quietly.
    # ``Verdict.subject`` is the same one.
    over = next((story for story in shown if story.severity is Severity.CRITICAL), None)
    if over is not None:
        sentence, finding = _summary(over), over.finding
        # What says itself how long it lasted must not have another number of that behind it.
        if finding.is_gone or f"to step {finding.last_step}" not in sentence:
            sentence = f"{sentence}; {finding.last_seen}"
        return Verdict(Level.ATTENTION, sentence, _advice(over))
    newest = standing.newest
    if newest is None:
        return Verdict(Level.STARTING, _no_step_yet(standing, now_s))
    if newest.skip_class is SkipClass.CALIBRATING:
        return Verdict(Level.CALIBRATING, _calibration(standing, newest))
    return Verdict(Level.HEALTHY, _health(standing, newest))


def _summary(story: Story) -> str:
    return story.finding.summary.rstrip(".")


def _advice(story: Story | None) -> str:
    return "" if story is None else story.finding.advice


def _scale(newest: StepRecord) -> str:
    if math.isnan(newest.loss_scale):
        return "no loss scaler"
    write = number if is_in_digits(newest.loss_scale) else scale
    return f"loss scale {write(newest.loss_scale)}"


def _num_alarming(standing: Standing) -> int:
    return sum(f.severity is not Severity.INFO for f in standing.findings.values())


def _steps(standing: Standing) -> str:
    return plural(0 if standing.newest is None else standing.newest.step + 1, "step")


def _finished(standing: Standing, root: Story | None) -> str:
    if standing.newest is None:
        text = "no step was taken"
    else:
        text = f"{_steps(standing)}, {skipped(standing.skips)}, {_scale(standing.newest)}"
    if root is not None:
        return f"{text}; at its end: {_summary(root)}"
    alarming = _num_alarming(standing)
    return f"{text}; {plural(alarming, 'finding')} to read" if alarming else text


def _calibration(standing: Standing, newest: StepRecord) -> str:
    text = f"step {number(newest.step)}, finding a scale that fits"
    return f"{text}: {skipped(standing.skips)} so far, {_scale(newest)}; normal at the start"


def _health(standing: Standing, newest: StepRecord) -> str:
    text = f"step {number(newest.step)}, {_scale(newest)}"
    if not math.isnan(newest.loss_scale):
        skips, steps = standing.recent()
        text = f"{text}, {skipped(skips)} in the last {number(steps)}"
    past = _num_alarming(standing)
    return f"{text}; {plural(past, 'warning')} from before" if past else text
