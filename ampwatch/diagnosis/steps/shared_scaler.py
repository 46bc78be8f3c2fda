"""Findings about optimizers that share a scaler, or replicas in one process, that are not skipped alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.scaler import ReplicaVerdicts
from ampwatch.diagnosis.scale.falls import alarm_rate
from ampwatch.diagnosis.steps.kinds import RANK_FOUND_INF_MISMATCH, SHARED_SCALER_DESYNC
from ampwatch.numerics.written import counted, scale_text
from ampwatch.wire.records import OTHER_OPTIMIZERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.steps.steps import StepVerdict


RELAPSES = 5
"""Skips below a scale at which the optimizer has already stepped that are of no search of the scaler,
since it was first seen or the scale set by hand. Gradients that vary around the limit make one or two of
them, those that grow at the start of a training another one or two."""

RATE = 0.25
"""Share of its steps that an optimizer is skipped in, from which it is no noise."""

RATE_OF_DEEP = 0.08
"""Share of its steps for an optimizer that has been skipped far below a scale that fitted."""

RATE_RATIO = 3.0
"""Share of its steps, in multiples of the rate that growth just makes up for."""

FAR_BELOW = 2.0**-4
"""Skips this far below a scale at which the optimizer has stepped are no search of the scaler,
however often that grows."""

MIN_DEEP = 3
"""Skips far below a scale that fitted that are no accident."""

MAX_SHARE_OF_OTHER = 0.25
"""Share of an optimizer's skips or relapses that another one, which is well, may have."""

NEVER = 8
"""Attempts, all skipped, of an optimizer that has never stepped: below a scale of 1, or with a loss
that is not finite, no scale is being searched for."""

FORGET_AFTER = 200
"""Steps of an optimizer in a row that end what was held against it. Unit: steps."""


class _Account(Struct):
    """Account of what happened to one optimizer."""

    attempts: int = 0  # steps attempted
    skips: int = 0  # of those, skipped
    # of those, below a scale at which it had stepped, and of no search of the scaler
    relapses: int = 0
    deep: int = 0  # of those, far below one
    nonfinite: int = 0  # of the skips since it last stepped, those with a loss that was not finite
    largest: float = 0.0  # the largest scale that it has stepped with; 0 before
    since: int = -1  # the first skip that is compared with it
    since_attempts: int = 0  # how many attempts there had been before that
    streak: int = 0  # steps taken in a row
    longest: int = 0  # the most of them that have ended in a skip

    @property
    def is_stuck(self) -> bool:
        """Whether it has never stepped, though it should have found its scale."""
        return self.attempts >= NEVER and self.skips == self.attempts

    def take(self, step: int, scale: float, *, skipped: bool, nonfinite_loss: bool) -> None:
        if not skipped:
            self.take_applied(scale, 1)
            return
        self.attempts += 1
        self.skips += 1
        self.nonfinite += nonfinite_loss
        # At the largest scale that it has stepped with gradients may vary. Below it the scaler
        # searches again because they have grown: skips in a row are one search, unless they go on
        # far below, and a growth that slows down lets more steps pass before each search.
        is_deep = scale <= FAR_BELOW * self.largest
        held = self.streak <= self.longest if self.streak else is_deep
        self.relapses += held and scale < self.largest
        self.deep += held and is_deep
        self.longest = max(self.longest, self.streak)
        self.streak = 0
        if self.since < 0 and (self.relapses or not self.largest):
            self.since, self.since_attempts = step, self.attempts - 1

    def take_applied(self, scale: float, times: int) -> None:
        """Take in steps in a row that were taken at one scale."""
        self.attempts += times
        self.streak += times
        self.nonfinite = 0
        self.largest = max(self.largest, scale)
        # The largest scale is lowered as well: gradients grow in a training, and a scale that
        # fitted early on says nothing of what fits now.
        if self.streak >= FORGET_AFTER:
            self.relapses, self.deep, self.since, self.largest = 0, 0, -1, scale

    @property
    def rate(self) -> float:
        """Share of the attempts since the first skip held against it that it relapsed in."""
        return self.relapses / max(1, self.attempts - self.since_attempts)


class SharedScaler(Detector):
    """Compares the optimizers of one scaler.

    One that keeps being skipped falls behind the other, and drags the scale of both down.

    Args:
        shared: What the detectors have in common.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._accounts: dict[int, _Account] = {}

    def detect(self, iteration: Iteration, verdict: StepVerdict) -> None:
        """Take in one judged iteration."""
        if iteration.scaler is None or not iteration.scaler.knows_growth:
            return
        if verdict.set_by_hand:
            self._accounts.clear()
        scale = iteration.scale_before
        for index, found_inf in iteration.found_inf.items():
            self._accounts.setdefault(index, _Account()).take(
                iteration.step, scale, skipped=found_inf, nonfinite_loss=verdict.nonfinite_loss
            )
        if len(self._accounts) > 1:
            for index, found_inf in iteration.found_inf.items():
                if found_inf and index != OTHER_OPTIMIZERS:
                    self._compare(index, iteration)

    def count(self, quiet: Sequence[Iteration]) -> None:
        """Take in quiet iterations in a row."""
        like = quiet[-1]
        if like.scaler is not None and like.scaler.knows_growth:
            for index in like.found_inf:
                self._accounts[index].take_applied(like.scale_before, len(quiet))

    def _compare(self, index: int, iteration: Iteration) -> None:
        account = self._accounts[index]
        lost = account.is_stuck and (account.nonfinite >= NEVER or iteration.scale_before < 1.0)
        if not lost and not _keeps_relapsing(account, iteration):
            return
        others = [a for i, a in self._accounts.items() if i != index]
        # What hits all of them alike is not a matter of sharing.
        if not any(_is_well(other, account) for other in others):
            return
        if any(not _is_well(other, account) and other.skips >= account.skips for other in others):
            return
        self._say(index, iteration, account, others)

    def _say(
        self, index: int, iteration: Iteration, account: _Account, others: list[_Account]
    ) -> None:
        where, step = f"optimizer:{index}", iteration.step
        evidence = {
            "skipped": float(account.skips),
            "attempted": float(account.attempts),
            "skipped_of_other": float(min(a.skips for a in others)),
            "loss_scale": iteration.loss_scale,
        }
        says = _summary(index, step, account, others)
        first = step if account.since < 0 else account.since
        self._book.report(
            SHARED_SCALER_DESYNC,
            where,
            step,
            summary=says,
            first_step=first,
            phase="optimizer",
            count=account.skips,
            evidence=evidence,
        )


def _summary(index: int, step: int, account: _Account, others: list[_Account]) -> str:
    return (
        f"Optimizers share a GradScaler, and optimizer {index} is skipped far more often:"
        f" {account.skips} of its {counted(account.attempts, 'step')}, of those of another"
        f" {min(a.skips for a in others)}, as of step {step}; it falls behind, and its"
        f" overflows lower the scale of all of them"
    )


def _keeps_relapsing(account: _Account, iteration: Iteration) -> bool:
    """Whether an optimizer is skipped at scales that fitted, and more often than a search would."""
    if account.relapses < RELAPSES or iteration.scaler is None:
        return False
    if account.deep >= RELAPSES and account.rate >= RATE:
        return True
    least = RATE if account.deep < MIN_DEEP else RATE_OF_DEEP
    # Above the rate that growth makes up for: below it the scaler holds its scale by skipping.
    return account.rate >= max(least, RATE_RATIO * alarm_rate(iteration.scaler))


def _is_well(other: _Account, account: _Account) -> bool:
    """Whether an optimizer has really stepped all the while, and was hardly skipped."""
    if other.attempts - other.skips < RELAPSES:
        return False
    if account.is_stuck:
        return other.skips <= MAX_SHARE_OF_OTHER * account.skips
    return other.relapses <= MAX_SHARE_OF_OTHER * account.relapses


class Replicas(Detector):
    """Reports that replicas part."""

    @takes(ReplicaVerdicts)
    def observe(self, seen: ReplicaVerdicts) -> None:
        """Take in that one of several replicas skips a step that another one takes."""
        here = "skips it" if seen.here else "takes it"
        self._book.report(
            RANK_FOUND_INF_MISMATCH,
            f"optimizer:{seen.optimizer}",
            seen.step,
            summary=(
                f"{seen.skipping} of {seen.replicas} replicas skip step {seen.step} at a loss"
                f" scale of {scale_text(seen.loss_scale)} (this one {here}), after"
                f" {counted(seen.common_steps, 'step')} together: from here on their weights and scales are different"
            ),
            phase="optimizer",
            evidence={
                "replicas": float(seen.replicas),
                "skipping": float(seen.skipping),
                "common_steps": float(seen.common_steps),
                "loss_scale": seen.loss_scale,
            },
            is_once=True,
        )
