"""Findings about autocast that is on for somebody else than the code it was meant for, and about its old casts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ampwatch.diagnosis.autocast.kinds import (
    AUTOCAST_INACTIVE,
    COMPILE_BACKWARD_AUTOCAST,
    STALE_AUTOCAST_CACHE,
)
from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.scaler import CompiledGradients, StaleCast
from ampwatch.diagnosis.performance import op_shares as shares
from ampwatch.numerics.units.ops import Fallback
from ampwatch.numerics.written import counted
from ampwatch.wire.records import Severity, SkipClass, in_words

if TYPE_CHECKING:
    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.evidence.ops import LoneForward, Machine, OpCensus, OpKey, OpTally
    from ampwatch.diagnosis.steps.steps import StepVerdict


MIN_CENSUSES = 3
"""Censuses in a row without a single FLOP in low precision before it is reported."""

USUAL_SHARE = 0.5
"""Share of the FLOPs of the largest census before that such a census must have: it may have seen
only a part of the iteration."""

MAX_SHARE_ELSEWHERE = 0.5
"""Share of the FLOPs of the forward pass from which a region that does not apply is a mistake."""

REGION_ELSEWHERE = {
    Fallback.OTHER_THREAD: "autocast is on in another thread only; each thread has to enter it",
    Fallback.DEVICE_TYPE: "the autocast region is for another type of device than the tensors are on",
}


LONE = {
    **REGION_ELSEWHERE,
    Fallback.OUTSIDE_REGION: (
        "it is computed again in backward, outside of the region that its forward ran in. Its outputs are in"
        " float32 there, and its gradients are those of another function: enter the region of the forward again,"
        " as torch.utils.checkpoint does"
    ),
}
"""What is reported about a module that was called without autocast, by the reason."""


class AutocastState:
    """Detects forward passes without the autocast that was expected.

    Args:
        book: Where findings go.
        machine: What it runs on.
    """

    def __init__(self, book: FindingBook, machine: Machine) -> None:
        self._book = book
        self._has_gpu = machine.capability is not None
        self._usual_flops = 0
        self._idle = 0

    def detect(self, census: OpCensus, *, is_scaled: bool) -> None:
        """Take in one census.

        Args:
            census: The census.
            is_scaled: Whether the loss of its iteration was scaled by an enabled scaler.
        """
        if census.lone_forwards:
            self._say_lone(census, max(census.lone_forwards, key=lambda lone: lone.calls))
        else:
            self._check_regions_elsewhere(census)
        self._check_none(census, is_scaled=is_scaled)

    def _say_lone(self, census: OpCensus, lone: LoneForward) -> None:
        calls = sum(other.calls for other in census.lone_forwards)
        region = f"the region is for {lone.device_type} and asks for {lone.dtype}"
        # A region for a device that is not there is off, and may have been meant to be:
        # autocast("cuda", enabled=torch.cuda.is_available()).
        is_meant = lone.reason is not Fallback.DEVICE_TYPE
        applies = is_meant or lone.device_type == "cpu" or self._has_gpu
        self._say(
            census,
            Severity.WARNING if applies else Severity.INFO,
            lone.module,
            f"{in_words(lone.module) if lone.module else 'the model'} was called without autocast"
            f" {'once' if calls == 1 else f'{calls} times'}: {LONE[lone.reason]}"
            f" ({region})",
            {"calls": float(calls)},
            phase="backward" if lone.reason is Fallback.OUTSIDE_REGION else "forward",
        )

    def _check_regions_elsewhere(self, census: OpCensus) -> None:
        totals = shares.by_module(census, shares.FORWARD, shares.flops_of)
        reasons: Counter[Fallback] = Counter()
        for key, tally in shares.ops_in(census, shares.FORWARD):
            if key.fallback in REGION_ELSEWHERE:
                reasons[key.fallback] += shares.flops_of(key, tally)
        if not reasons.total() > MAX_SHARE_ELSEWHERE * totals.total():
            return
        reason = reasons.most_common(1)[0][0]

        def amount(key: OpKey, tally: OpTally) -> int:
            return shares.flops_of(key, tally) if key.fallback is reason else 0

        share = reasons[reason] / totals.total()
        where = shares.place(shares.by_module(census, shares.FORWARD, amount), totals)
        self._say(
            census,
            Severity.WARNING,
            where,
            f"{share:.0%} of the FLOPs of the forward pass ran without autocast, in"
            f" {in_words(where)}: {REGION_ELSEWHERE[reason]}",
            {"float32_share": share},
        )

    def _check_none(self, census: OpCensus, *, is_scaled: bool) -> None:
        totals = shares.by_module(census, shares.TRAINING, shares.flops_of)
        flops = totals.total()
        if census.autocast_dtypes or shares.by_module(census, shares.TRAINING, shares.low_flops_of):
            self._usual_flops = max(self._usual_flops, flops)
            self._idle = 0
            return
        if not flops or flops < USUAL_SHARE * self._usual_flops:
            return
        self._idle += 1
        if self._idle < MIN_CENSUSES or not (is_scaled or self._usual_flops):
            return
        expected = []
        if is_scaled:
            expected.append("an enabled GradScaler scales the loss")
        if self._usual_flops:
            expected.append("it ran in low precision before")
        # Either alone may be meant: a scaler that stays where autocast is switched off, or
        # a phase of the training in float32.
        severity = Severity.WARNING if is_scaled and self._usual_flops else Severity.INFO
        self._say(
            census,
            severity,
            shares.place(totals, totals),
            f"no matmul ran in low precision and no autocast region was entered in"
            f" {self._idle} checks in a row, although {' and '.join(expected)}",
            {"looks": float(self._idle), "float32_flops": float(flops)},
        )

    def _say(
        self,
        census: OpCensus,
        severity: Severity,
        where: str,
        what: str,
        evidence: dict[str, float],
        *,
        phase: str = "forward",
    ) -> None:
        self._book.report(
            AUTOCAST_INACTIVE,
            where,
            census.step,
            summary=f"Autocast did nothing at step {census.step}: {what}",
            severity=severity,
            phase=phase,
            dtype="float32",
            evidence=evidence,
            is_once=True,
        )


SEARCHES = (SkipClass.CALIBRATING, SkipClass.PROBE)
"""Skips by which the scaler finds its scale: there gradients are not finite either way."""


class CompiledBackward(Detector):
    """Says which gradients of a protected region were lost.

    Without a scaler at once. With one only when its iteration is no search for a scale.

    Args:
        shared: What the detectors have in common.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._waiting: dict[int, CompiledGradients] = {}

    @takes(CompiledGradients)
    def observe(self, seen: CompiledGradients) -> None:
        """Take in non-finite gradients of a region that autocast was switched off in."""
        if seen.is_scaled:
            self._waiting[seen.step] = seen
        else:
            self._say(seen)

    def detect(self, iteration: Iteration, verdict: StepVerdict) -> None:
        """Take in one judged iteration, after the other families have."""
        if not self._waiting:
            return
        seen = self._waiting.get(iteration.step)
        # Also those of iterations that never came.
        self._waiting = {s: c for s, c in self._waiting.items() if s > iteration.step}
        if seen is not None and verdict.skip_class not in SEARCHES and not verdict.nonfinite_loss:
            self._say(seen)

    @property
    def is_at_rest(self) -> bool:
        """Whether a quiet iteration would be nothing to it."""
        return not self._waiting

    def _say(self, seen: CompiledGradients) -> None:
        where = f"param:{seen.parameter}" if seen.parameter else ""
        self._book.report(
            COMPILE_BACKWARD_AUTOCAST,
            where,
            seen.step,
            summary=(
                f"The gradient of {in_words(where) if where else 'a parameter'} is not finite after the backward of"
                f" step {seen.step}: its module is kept out of autocast, but torch.compile has"
                f" traced the backward under the autocast of the forward, in {seen.dtype}"
            ),
            op=seen.op,
            phase="backward",
            dtype=seen.dtype,
            evidence={"nonfinite": float(seen.nonfinite), "parameters": float(seen.parameters)},
            is_once=True,
        )


class StaleCasts(Detector):
    """Says what the sensor has proven."""

    @takes(StaleCast)
    def observe(self, seen: StaleCast) -> None:
        """Take in a forward with casts from before the last step."""
        first = (
            f", the first of them {in_words(f'param:{seen.parameter}')}" if seen.parameter else ""
        )
        where = f"param:{seen.parameter}" if seen.parameter else "api"
        if any(f.last_step == seen.step for f in self._book.of_kind(STALE_AUTOCAST_CACHE.slug)):
            return  # another sensor has seen it in the same iteration
        self._book.report(
            STALE_AUTOCAST_CACHE,
            where,
            seen.step,
            summary=(
                f"A forward in step {seen.step} used {counted(seen.casts, 'weight')} as before the"
                f" last change{first}: the autocast region was"
                f" not left in between, and keeps what it has cast to {seen.dtype}. The model"
                f" does not see its updates"
            ),
            phase="forward",
            dtype=seen.dtype,
            evidence={"stale_casts": float(seen.casts)},
            is_once=True,
        )
