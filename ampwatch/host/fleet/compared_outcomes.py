"""Compares which ranks of a job skipped which step. No torch, no network.

All ranks of a job skip the same steps, as long as their gradients or ``found_inf`` are
reduced. Where one skips a step that another one takes, their weights and scales part for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.steps.kinds import RANK_FOUND_INF_MISMATCH
from ampwatch.numerics.written import scale_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.host.fleet.rank import RankView
    from ampwatch.host.fleet.step_outcomes import StepOutcome

FIRST_STEP_SHARE = 0.5
"""Part of a usual step by which the ends of the very first steps may differ: before it there is no
scale that shows that the ranks count alike."""


class RankComparison:
    """Compares the outcomes of the steps of the ranks of each job, step by step."""

    def __init__(self) -> None:
        self._compared: dict[str, int] = {}
        self._members: dict[str, tuple[int, ...]] = {}

    def compare(self, ranks: Sequence[RankView]) -> None:
        """Compare the newest steps; enter a mismatch into the findings of a rank that skips.

        Cost: some 1 us a rank and step.
        """
        jobs: dict[str, list[RankView]] = {}
        for rank in ranks:
            if rank.identity.world_size > 1:
                jobs.setdefault(rank.run, []).append(rank)
        self._compared = {run: s for run, s in self._compared.items() if run in jobs}
        for run, members in jobs.items():
            if len(members) > 1:
                self._compare_job(run, members)

    def _compare_job(self, run: str, members: list[RankView]) -> None:
        # Views, not ranks: a rank that was restarted is a new view and counts its steps from 0.
        who = tuple(id(rank) for rank in members)
        if self._members.get(run) != who:
            # Another rank has come, or the job is another one: begin where all of them are known.
            self._members[run] = who
            self._compared[run] = -1
        # The slowest rank decides: what it has not written yet cannot be compared.
        ready = min(rank.outcomes.newest for rank in members)
        for step in members[0].outcomes.after(self._compared[run]):
            if step >= ready:
                break
            self._compared[run] = step
            outcomes = [rank.outcomes.of(step) for rank in members]
            known = [(r, o) for r, o in zip(members, outcomes, strict=True) if o is not None]
            self._judge(step, known)

    def _judge(self, step: int, known: list[tuple[RankView, StepOutcome]]) -> None:
        skipping = [(r, o) for r, o in known if o.skipped]
        for rank, outcome in skipping:
            taking = [r for r, o in known if not o.skipped and _alike(step, r, o, rank, outcome)]
            if taking:
                _say(step, rank, taking, skips=len(skipping), scale=outcome.before)
                return


def _alike(step: int, a: RankView, v: StepOutcome, b: RankView, w: StepOutcome) -> bool:
    """Return whether two ranks stood at the same point before a step."""
    if v.before is not None and w.before is not None:
        return v.before == w.before
    if step or v.before is not w.before:
        return False
    usual = min(a.usual_step_seconds, b.usual_step_seconds)
    return abs(v.time_ns - w.time_ns) / 1e9 < FIRST_STEP_SHARE * usual


def _say(
    step: int,
    rank: RankView,
    taking: Sequence[RankView],
    *,
    skips: int,
    scale: tuple[float, int] | None,
) -> None:
    where = f"optimizer:{rank.outcomes.optimizer(step)}"
    if f"{RANK_FOUND_INF_MISMATCH.slug}@{where}" in rank.findings:
        return
    others = ", ".join(str(r.identity.rank) for r in taking[:8])
    at = "" if scale is None else f" at a loss scale of {scale_text(scale[0])}"
    evidence = {
        "rank": float(rank.identity.rank),
        "ranks_skipping": float(skips),
        "ranks_taking": float(len(taking)),
    }
    if scale is not None:
        evidence["loss_scale"] = scale[0]
    rank.find(
        RANK_FOUND_INF_MISMATCH.finding(
            where,
            step,
            summary=(
                f"Rank {rank.identity.rank} skips step {step}{at}, which rank {others} takes: from"
                f" here on the ranks have different weights and scales"
            ),
            phase="optimizer",
            evidence=evidence,
        )
    )
