"""The verdict on a run from the reports that its ranks have left."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from ampwatch.report import accounts
from ampwatch.report.verdict import RECENT_STEPS, JudgedRank, judge
from ampwatch.report.words import plain
from ampwatch.state.rank import RankState
from ampwatch.wire.blackbox.document import to_json
from ampwatch.wire.records import SKIP_CLASSES, FactsRecord, FindingRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ampwatch.report.verdict import RunVerdict
    from ampwatch.wire.blackbox import Box
    from ampwatch.wire.records import Finding, SkipClass


def judge_boxes(boxes: Sequence[Box]) -> RunVerdict:
    """Pass the verdict on a run as it was when its reports were written.

    Args:
        boxes: Those of its ranks; at least one.
    """
    world_size = max(box.identity.world_size for box in boxes)
    now_s = max(max(box.written_ns, box.last_ns) for box in boxes) / 1e9
    return judge([judged_rank(box) for box in boxes], world_size, now_s)


def render_json(boxes: Sequence[Box]) -> str:
    """Return the report of a run for programs: the verdict, and all that is known of its ranks.

    Args:
        boxes: Those of its ranks; at least one, all of one run.
    """
    verdict = judge_boxes(boxes)
    document: dict[str, object] = {
        "level": verdict.level.value,
        "sentence": plain(verdict.sentence),
        "advice": verdict.advice,
        "rank": verdict.shown_rank,
    }
    if verdict.root is not None:
        finding = verdict.root.finding
        document["root"] = {
            "kind": finding.kind,
            "severity": verdict.root.severity.value,
            "where": finding.where,
            "place": accounts.place(finding),
            "op": finding.op,
            "first_step": finding.first_step,
            "ranks": sorted(verdict.root.ranks),
        }
    if verdict.cause is not None:
        document["cause"] = {"rank": verdict.cause.rank, "error": verdict.cause.error}
    return to_json(boxes, verdict=document)


def judged_rank(box: Box) -> JudgedRank:
    """Return what is known of a rank by its report."""

    def seen_s(finding: Finding) -> float:
        # A report has only some of the steps: the first one that is kept after it was seen.
        place = bisect_left(box.steps, finding.last_step, key=lambda step: step.step)
        return (box.steps[place].time_ns if place < len(box.steps) else box.last_ns) / 1e9

    def time_of(step: int) -> float | None:
        if not box.steps or step < box.steps[0].step:
            return None  # a report has the newest steps only
        place = bisect_left(box.steps, step, key=lambda record: record.step)
        return box.steps[place].time_ns / 1e9 if place < len(box.steps) else None

    def recent() -> tuple[Mapping[SkipClass, int], int]:
        newest = box.steps[-RECENT_STEPS:]
        return {c: sum(s.skip_class is c for s in newest) for c in SKIP_CLASSES}, len(newest)

    return JudgedRank(
        rank=box.identity.rank,
        state=box.state,
        reason=box.reason,
        started_s=box.identity.started_ns / 1e9,
        last_s=box.last_ns / 1e9,
        newest=box.steps[-1] if box.steps else None,
        findings={finding.key: finding for finding in box.findings},
        seen_s=seen_s,
        skips=state_of(box).skips,
        recent=recent,
        time_of=time_of,
    )


def state_of(box: Box) -> RankState:
    """Return the state of a rank that the records in its report add up to."""
    state = RankState(box.identity)
    state.apply(FactsRecord(box.facts), *box.steps, *box.optimizers, *box.ranges)
    state.apply(*filter(None, [box.sampling]), *map(FindingRecord, box.findings))
    return state
