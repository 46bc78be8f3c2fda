"""The health of a run, in one word and one sentence.

Reads the aggregate and puts it into words; nothing is measured here. No torch, no
Prometheus, no HTML: the page, the terminal and reports say the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ampwatch.report.words import number, plural, time_span
from ampwatch.wire.records import SKIP_CLASSES, Finding, RunState, Severity, SkipClass, StepRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ampwatch.host.fleet import History, RankView

RECENT_STEPS = 1000
"""Steps back that "now" reaches: skips are counted over them, and a finding not seen for
longer may be over. Half of GradScaler's growth interval, so that a healthy run shows at most
one probe."""

RECENT_NS = 120 * 1_000_000_000
"""Time back that "now" reaches: twice the minute after which a finding that lasts is reported
again, where that is more than ``RECENT_STEPS``. Unit: ns."""

_SEVERITIES = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)


class Level(str, Enum):
    """The state of a run in a word, the worst first."""

    FAILING = "failing"
    FAILED = "failed"
    STALE = "stale"
    ATTENTION = "needs attention"
    CALIBRATING = "calibrating"
    STARTING = "starting"
    HEALTHY = "healthy"
    FINISHED = "finished"


_BADNESS = {level: place for place, level in enumerate(Level)}


@dataclass(frozen=True, slots=True)
class Health:
    """The answer to a user who wants to know how it goes.

    Attributes:
        level: The state in a word.
        sentence: What happened, with the numbers; without the state word and the run's name.
        advice: What to change, where a finding says so; else empty.
    """

    level: Level
    sentence: str
    advice: str = ""


def rank_health(rank: RankView, now: float) -> Health:
    """Say what ``rank`` is doing.

    Args:
        rank: The state of one rank.
        now: Unix time. Unit: s.
    """
    newest = rank.newest
    if newest is None:
        return _without_a_step(rank, now)
    return _not_running(rank, newest, now) or _alarm(rank) or _no_alarm(rank, newest)


def run_health(of_ranks: Sequence[tuple[RankView, Health]]) -> tuple[int, Health]:
    """Return the rank that speaks for the run, and the health of the run.

    The worst rank speaks, and of equals the lowest. A finished rank never speaks for those
    still running.

    Args:
        of_ranks: Every rank of one run with its health; at least one.
    """
    rank, health = min(of_ranks, key=lambda pair: (_BADNESS[pair[1].level], pair[0].identity.rank))
    speaker = rank.identity.rank
    if len(of_ranks) == 1:
        return speaker, health
    alike = sum(other.level is health.level for _, other in of_ranks)
    if alike == len(of_ranks):
        sentence = f"{health.sentence}; {alike} ranks alike"
    else:
        sentence = f"rank {speaker}: {health.sentence}"
    return speaker, Health(health.level, sentence, health.advice)


def worst_finding(rank: RankView) -> Finding | None:
    """Return the alarming finding to speak of first: current, severe, a root, the earliest."""
    return min(
        (f for f in rank.findings.values() if f.severity is not Severity.INFO),
        key=lambda f: (
            not is_current(f, rank),
            _SEVERITIES.index(f.severity),
            not f.root,
            f.first_step,
            f.key,
        ),
        default=None,
    )


def is_current(finding: Finding, rank: RankView) -> bool:
    """Return whether ``finding`` still holds at the newest step of ``rank``.

    What is wrong in the code or the environment is seen once and stays wrong; what happens
    in steps is over when it was not seen for ``RECENT_STEPS`` and ``RECENT_NS``.
    """
    newest = rank.newest
    if finding.phase == "config" or finding.where in ("api", "env") or newest is None:
        return True
    if newest.step - finding.last_step <= RECENT_STEPS:
        return True
    return newest.time_ns - rank.finding_totals.last_seen_ns(finding.key) <= RECENT_NS


def skips_by_class(rank: RankView) -> dict[SkipClass, int]:
    """Return how many optimizer steps ``rank`` has skipped since it began, per class."""
    totals = [record.total_skipped for record in rank.optimizers.values()]
    return {c: sum(t[i] for t in totals) for i, c in enumerate(SKIP_CLASSES)}


def recent_skips(history: History) -> tuple[dict[SkipClass, int], int]:
    """Return how many of the newest iterations were skipped, per class, and how many those are.

    At least ``RECENT_STEPS`` if the run has them; more where the history has thinned them.
    """
    skips: dict[SkipClass, int] = dict.fromkeys(SKIP_CLASSES, 0)
    steps = 0
    for bucket in reversed(history.buckets):
        if steps >= RECENT_STEPS:
            break
        steps += bucket.num_steps
        for skip_class, count in zip(SKIP_CLASSES, bucket.skips, strict=True):
            skips[skip_class] += count
    return skips, steps


def tally(skips: Mapping[SkipClass, int]) -> str:
    """Write skips per class, as in "6 calibrating, 1 probe"; empty for none."""
    return ", ".join(f"{number(n)} {c.label}" for c, n in skips.items() if n)


def _not_running(rank: RankView, newest: StepRecord, now: float) -> Health | None:
    worst = worst_finding(rank)
    advice = worst.advice if worst else ""
    last = f"step {number(newest.step)}"
    if rank.state is RunState.FAILED:
        return Health(Level.FAILED, f"{_reason(rank)}; last {last}", advice)
    if rank.state is RunState.FINISHED:
        return Health(Level.FINISHED, _finished(rank, newest), advice)
    if rank.state is RunState.STALE:
        silent = time_span(now - rank.last_record_ns / 1e9)
        return Health(Level.STALE, f"no step for {silent}; the last was {last}", advice)
    return None


def _alarm(rank: RankView) -> Health | None:
    worst = worst_finding(rank)
    if worst is None:
        return None
    sentence = worst.summary.rstrip(".")
    critical = worst.severity is Severity.CRITICAL
    if is_current(worst, rank):
        return Health(Level.FAILING if critical else Level.ATTENTION, sentence, worst.advice)
    if not critical:
        return None
    seen = f"last reported at step {number(worst.last_step)}"
    return Health(Level.ATTENTION, f"{sentence}; {seen}", worst.advice)


def _no_alarm(rank: RankView, newest: StepRecord) -> Health:
    if newest.skip_class is SkipClass.CALIBRATING:
        return Health(Level.CALIBRATING, _calibration(rank, newest))
    return Health(Level.HEALTHY, _health(rank, newest))


def _without_a_step(rank: RankView, now: float) -> Health:
    if rank.state is RunState.FAILED:
        return Health(Level.FAILED, f"{_reason(rank)}; no step was finished")
    if rank.state is RunState.FINISHED:
        return Health(Level.FINISHED, "no step was taken")
    waited = time_span(now - rank.identity.started_ns / 1e9)
    level = Level.STALE if rank.state is RunState.STALE else Level.STARTING
    return Health(level, f"no step yet, {waited} after the start")


def _reason(rank: RankView) -> str:
    return rank.end_reason or "ended with an error"


def _scale(newest: StepRecord) -> str:
    if math.isnan(newest.loss_scale):
        return "no loss scaler"
    return f"loss scale {number(newest.loss_scale)}"


def _skipped(skips: Mapping[SkipClass, int]) -> str:
    total = sum(skips.values())
    return f"{plural(total, 'step')} skipped ({tally(skips)})" if total else "no step skipped"


def _finished(rank: RankView, newest: StepRecord) -> str:
    skipped = _skipped(skips_by_class(rank))
    text = f"{plural(newest.step + 1, 'step')}, {skipped}, {_scale(newest)}"
    alarming = sum(f.severity is not Severity.INFO for f in rank.findings.values())
    return f"{text}; {plural(alarming, 'finding')} to read" if alarming else text


def _calibration(rank: RankView, newest: StepRecord) -> str:
    text = f"step {number(newest.step)}, finding a scale that fits"
    skipped = _skipped(skips_by_class(rank))
    return f"{text}: {skipped} so far, {_scale(newest)}; normal at the start"


def _health(rank: RankView, newest: StepRecord) -> str:
    text = f"step {number(newest.step)}, {_scale(newest)}"
    if not math.isnan(newest.loss_scale):
        skips, steps = recent_skips(rank.history)
        text = f"{text}, {_skipped(skips)} in the last {number(steps)}"
    past = sum(f.severity is not Severity.INFO for f in rank.findings.values())
    return f"{text}; {plural(past, 'warning')} from before" if past else text
