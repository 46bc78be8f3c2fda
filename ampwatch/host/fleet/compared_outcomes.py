"""Compares which ranks of a job skipped which step. No torch, no network.

All ranks of a job skip the same steps, as long as their gradients or ``found_inf`` are
reduced. Where one skips a step that another one takes, their weights and scales part for good.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.diagnosis.steps.kinds import RANK_FOUND_INF_MISMATCH
from ampwatch.numerics.written import scale_text
from ampwatch.wire.records import SkipClass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ampwatch.host.fleet.rank import RankView
    from ampwatch.wire.records import OptimizerRecord, StepRecord

FIRST_STEP_SHARE = 0.5
"""Part of a usual step by which the ends of the very first steps may differ: before it there is no
scale that shows that the ranks count alike."""

KEPT = 4096
"""Newest steps of a rank that are kept: between two passes of the daemon there are fewer. The first
step that ranks disagree on is the only one that they can be compared at."""


class StepOutcome(NamedTuple):
    """The outcome of one step of one rank.

    Attributes:
        before: Scale and growth tracker before it; ``None`` before the first, or if the step
            before was not seen. The tracker counts steps, so two ranks that agree on both count
            their steps alike.
        skipped: Whether a step of any optimizer was skipped.
        time_ns: Unix time at its end. Unit: ns.
    """

    before: tuple[float, int] | None
    skipped: bool
    time_ns: int


class StepOutcomes:
    """The outcomes of the newest steps of one rank.

    Attributes:
        newest: Index of the newest step; -1 before the first.
    """

    def __init__(self) -> None:
        self.newest = -1
        self._state: tuple[float, int] | None = None
        self._by_step: dict[int, StepOutcome] = {}
        self._order: deque[int] = deque()
        self._skipping: dict[int, int] = {}

    def put_step(self, record: StepRecord) -> None:
        """Take in a step; steps of a rank come in order."""
        # After a gap in the ring the state before the step is not known, and with it not whether
        # two ranks stand at the same point.
        follows = record.step == self.newest + 1
        if record.growth_tracker >= 0:
            skipped = record.skip_class is not SkipClass.NONE
            before = self._state if follows else None
            self._by_step[record.step] = StepOutcome(before, skipped, record.time_ns)
            self._order.append(record.step)
            self._state = record.loss_scale, record.growth_tracker
            if len(self._order) > KEPT:
                gone = self._order.popleft()
                self._by_step.pop(gone, None)
                self._skipping.pop(gone, None)
        self.newest = record.step

    def put_optimizer(self, record: OptimizerRecord) -> None:
        """Take in what one optimizer did in a step; comes after the step."""
        # Of several optimizers the first one that was skipped is the one to name.
        if record.skipped and record.step in self._by_step:
            self._skipping.setdefault(record.step, record.index)

    def of(self, step: int) -> StepOutcome | None:
        """Return the outcome of a step; ``None`` if it, or a record of it, may not be known yet."""
        return self._by_step.get(step) if step < self.newest else None

    def optimizer(self, step: int) -> int:
        """Return the first optimizer that was skipped in a step."""
        return self._skipping.get(step, 0)

    def after(self, step: int) -> Iterable[int]:
        """Return the steps after ``step`` whose outcomes are known."""
        return [s for s in self._order if step < s < self.newest]


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
