"""Findings about sums and averages in half precision that additions have no effect on any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.kinds.advice import ADVICE
from ampwatch.numerics.formats import FORMATS
from ampwatch.wire.records import Finding, Severity

if TYPE_CHECKING:
    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.evidence.rounding import (
        GradientSum,
        OpSite,
        StuckAverage,
        StuckSum,
    )

ADDITIONS = 8
"""Additions in a row without effect, after which a sum has stopped growing."""

ADDITIONS_UNGROWN = 32
"""The same for a sum that nobody has seen grow: it may only be a large number."""

UPDATES = 5
"""Updates of an average in a row without effect, where its rounding forbids any."""

MIN_DIFFERING = 0.05
"""Share of the elements that must differ from the weights."""

FARTHEST_ULPS = 4.0
"""Mean distance to the weights, in units of ``eps``, where rounding alone does not forbid to move."""

GRADIENTS = 8
"""Gradients in a sum, at least."""

ERROR = 0.05
"""Error of a sum of gradients that no training should have to live with; 256 of them of random
signs make one of 0.015 in bfloat16."""

ERROR_OF_LOST = 0.01
LOST_SHARE = 0.5
"""Less of an error is enough where most elements of a gradient are lost: it grows from there on."""


class Accumulation:
    """Looks for sums and averages that have stopped.

    Args:
        book: Where findings go.
    """

    def __init__(self, book: FindingBook) -> None:
        self._book = book

    def look_at_sum(self, stuck: StuckSum) -> None:
        """Take in an addition to a running sum that had no effect."""
        needed = ADDITIONS if stuck.grown >= 2 else ADDITIONS_UNGROWN
        if stuck.additions < needed:
            return
        place = "outside of the model" if stuck.site.where == "loss" else f"in {stuck.site.where!r}"
        self._make(
            "metric_accum_rounding",
            stuck.site,
            stuck.dtype,
            f"A running sum in {stuck.dtype} {place} has stopped growing: at {stuck.total:.6g} the"
            f" last {stuck.additions} additions, the newest of {stuck.addend:.4g}, had no effect; one"
            f" 2^{FORMATS[stuck.dtype].mantissa_bits + 2} times smaller than the sum always vanishes",
            {
                "total": stuck.total,
                "addend": stuck.addend,
                "additions_without_effect": float(stuck.additions),
            },
        )

    def look_at_average(self, stuck: StuckAverage) -> None:
        """Take in an update of an average of weights that had no effect."""
        eps = FORMATS[stuck.dtype].eps
        if stuck.differing < MIN_DIFFERING * stuck.compared:
            return
        # Half a spacing is a quarter of eps or more: with a share below eps the weights have to
        # change by a quarter of themselves before the average follows at all.
        is_certain = stuck.weight <= eps
        is_far = stuck.distance >= FARTHEST_ULPS * eps
        slow = stuck.updates >= UPDATES + 1.0 / stuck.weight and is_far
        if stuck.updates < UPDATES or not (is_certain or slow):
            return
        self._make(
            "ema_rounding",
            stuck.site,
            stuck.dtype,
            f"The moving average of {stuck.site.where} is kept in {stuck.dtype} and does not move:"
            f" in each of the last {stuck.updates} updates up to step {stuck.site.step}"
            f" {stuck.unchanged / stuck.differing:.1%} of the elements that differ from the weights"
            f" stayed as they were. An update adds {stuck.weight:.3g} of the difference, which is"
            f" less than half of the distance to the next {stuck.dtype} number",
            {
                "unchanged_share": stuck.unchanged / stuck.differing,
                "differing_share": stuck.differing / stuck.compared,
                "weight_of_new": stuck.weight,
                "updates": float(stuck.updates),
                "relative_distance": stuck.distance,
            },
        )

    def look_at_gradients(self, summed: GradientSum) -> None:
        """Take in a sum of gradients beside the one in float32."""
        is_lost = summed.lost_share >= LOST_SHARE and summed.error >= ERROR_OF_LOST
        if summed.additions < GRADIENTS or not (summed.error >= ERROR or is_lost):
            return
        self._make(
            "grad_accum_rounding",
            summed.site,
            summed.dtype,
            f"The gradient of {summed.site.where} is added up in {summed.dtype}: after"
            f" {summed.additions} backward passes in step {summed.site.step} it is off by"
            f" {summed.error:.1%} of its norm, and {summed.lost_share:.1%} of the elements of the"
            " newest one were lost",
            {
                "relative_error": summed.error,
                "lost_share": summed.lost_share,
                "additions": float(summed.additions),
            },
        )

    def _make(
        self, kind: str, site: OpSite, dtype: str, summary: str, evidence: dict[str, float]
    ) -> None:
        made = self._book.of_kind(kind)
        if made:
            # Other sums of the same training stop as well: one incident, counted once a step.
            if made[-1].last_step != site.step:
                own = evidence if made[-1].where == site.where else {}
                self._book.again(kind, made[-1].where, site.step, **own)
            return
        self._book.make(
            Finding(
                kind=kind,
                severity=Severity.WARNING,
                where=site.where,
                summary=summary,
                advice=ADVICE[kind],
                op=site.op,
                phase=site.phase,
                dtype=dtype,
                first_step=site.step,
                last_step=site.step,
                evidence=evidence,
                source=site.source,
            )
        )
