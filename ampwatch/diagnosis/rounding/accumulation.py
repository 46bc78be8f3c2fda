"""Findings about sums and averages in half precision that additions have no effect on any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.detector import Detector, takes
from ampwatch.diagnosis.evidence.rounding import (
    GradientSum,
    LoopSum,
    StillAverage,
    StuckAverage,
    StuckSum,
)
from ampwatch.diagnosis.kinds.kind import Kind, KindFamily, certain, very_likely
from ampwatch.diagnosis.places import in_words
from ampwatch.numerics.formats import FORMATS
from ampwatch.wire.records import Severity

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.rounding import (
        OpSite,
    )

METRIC_ACCUM_ROUNDING = Kind(
    slug="metric_accum_rounding",
    number=24,
    family=KindFamily.FORWARD_SMALL_NUMBERS,
    meaning="a running sum that has stopped growing",
    severities=(Severity.WARNING,),
    certainty=certain(
        "the sum was seen to be the same before and after something that is not zero was added"
    ),
    advice=(
        "Add metrics up in float32 or as Python floats: total = torch.zeros((), dtype=torch.float32)"
        " and total += loss.detach().float(), or total += loss.item() where a sync does not hurt. A"
        " sum within forward: collect the terms and use torch.stack(terms).sum(0, dtype=torch.float32)."
    ),
)

EMA_ROUNDING = Kind(
    slug="ema_rounding",
    number=23,
    family=KindFamily.UPDATE_PRECISION,
    meaning="an average, of weights or of data, that never moves",
    severities=(Severity.WARNING,),
    certainty=certain("the average was seen to be the same after it was updated"),
    advice=(
        "Keep the average in float32: torch.optim.swa_utils.AveragedModel(model.float(), ...), or"
        " copy.deepcopy(model).float() and ema.lerp_(p.float(), 1 - decay); cast it to half only"
        " where it is used. Statistics of norms: norm.float() after model.half(), with the input in"
        " half, or torch.autocast over a float32 model."
    ),
)

GRAD_ACCUM_ROUNDING = Kind(
    slug="grad_accum_rounding",
    number=22,
    family=KindFamily.UPDATE_PRECISION,
    meaning="micro-batches that are lost when gradients are added up",
    severities=(Severity.WARNING,),
    certainty=very_likely(
        "the gradients are kept in 16 bits, and what a micro-batch adds was measured against them"
    ),
    advice=(
        "Add gradients up in float32: keep float32 parameters and use torch.autocast, reduce in"
        " float32 (fully_shard's MixedPrecisionPolicy(reduce_dtype=torch.float32)), or add p.grad to"
        " a float32 buffer after each backward. Fewer, larger micro-batches lose less."
    ),
)


ADDITIONS = 8
"""Additions in a row without effect, after which a sum has stopped growing."""

ADDITIONS_UNGROWN = 16
"""Additions in a row for a sum that nobody has seen grow: it may only be a large number."""

UPDATES = 5
"""Updates of an average in a row without effect, where its rounding forbids any."""

MIN_DIFFERING = 0.05
"""Share of the elements that must differ from the weights."""

FARTHEST_ULPS = 4.0
"""Mean distance to the weights, in units of ``eps``, where rounding alone does not forbid to move."""

STUCK_SHARE = 0.25
"""Share of the elements of an average that must have stayed where they are not to be. What is compared is averaged
in float32 since an element moved last, so that rounding alone does not add up to a number of the dtype."""

MIN_WHOLE_SHARE = 0.5
"""Share from which on it is said of the whole average."""

TERMS = 32
"""Tensors in a sum that a module adds up, at least."""

LOOP_ERROR = 0.05
"""Error of a sum that a module adds up; 64 roundings in bfloat16 make one of 0.01."""

GRADIENTS = 8
"""Gradients in a sum, at least."""

ERROR = 0.05
"""Error of a sum of gradients that no training should have to live with; 256 of them of random
signs make one of 0.015 in bfloat16."""

ERROR_OF_LOST = 0.01
LOST_SHARE = 0.5
"""Error that is enough where this share of a gradient's elements is lost: it grows from there on."""


class Accumulation(Detector):
    """Detects sums and averages that have stopped."""

    @takes(StuckSum)
    def observe_sum(self, stuck: StuckSum) -> None:
        """Take in an addition to a running sum that had no effect."""
        needed = ADDITIONS if stuck.grown >= 2 else ADDITIONS_UNGROWN
        if stuck.additions < needed:
            return
        where = stuck.site.where
        place = "outside of the model" if where == "loss" else f"in {in_words(where)}"
        self._make(
            METRIC_ACCUM_ROUNDING,
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

    @takes(LoopSum)
    def observe_loop(self, summed: LoopSum) -> None:
        """Take in a sum that a module adds up in a loop, beside the one in float32."""
        if summed.additions < TERMS or summed.error < LOOP_ERROR:
            return
        where = summed.site.where
        place = "outside of the model" if where == "loss" else f"in {in_words(where)}"
        self._make(
            METRIC_ACCUM_ROUNDING,
            summed.site,
            summed.dtype,
            f"A sum in {summed.dtype} {place} is off by {summed.error:.1%} of its norm after"
            f" {summed.additions} additions in step {summed.site.step}, against what float32 makes of"
            f" the same{_times(summed.share)}, since what is"
            f" 2^{FORMATS[summed.dtype].mantissa_bits + 2} times smaller than the sum vanishes",
            {
                "relative_error": summed.error,
                "additions": float(summed.additions),
                "share_of_float32": summed.share,
            },
        )

    @takes(StuckAverage)
    def observe_average(self, stuck: StuckAverage) -> None:
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
            EMA_ROUNDING,
            stuck.site,
            stuck.dtype,
            f"The moving average of {in_words(stuck.site.where)} is kept in {stuck.dtype} and does not move:"
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

    @takes(StillAverage)
    def observe_still(self, still: StillAverage) -> None:
        """Take in an update of an average of data that had no effect."""
        if still.stuck < STUCK_SHARE * still.compared:
            return
        share = still.stuck / still.compared
        place = (
            "outside of the model"
            if still.site.where == "loss"
            else f"of {in_words(still.site.where)}"
        )
        self._make(
            EMA_ROUNDING,
            still.site,
            still.dtype,
            f"The moving average {place} is kept in {still.dtype} and"
            f" {'does not move' if share >= MIN_WHOLE_SHARE else 'moves in part only'}: {share:.1%} of"
            f" its elements have stayed as they were for up to {still.updates} updates until step"
            f" {still.site.step}, in which float32 would have taken them {still.distance:.2%} further."
            f" An update adds {still.weight:.3g} of the difference, which is less than half of the"
            f" distance to the next {still.dtype} number",
            {
                "stuck_share": share,
                "weight_of_new": still.weight,
                "updates": float(still.updates),
                "relative_distance": still.distance,
            },
        )

    @takes(GradientSum)
    def observe_gradients(self, summed: GradientSum) -> None:
        """Take in a sum of gradients beside the one in float32."""
        is_lost = summed.lost_share >= LOST_SHARE and summed.error >= ERROR_OF_LOST
        if summed.additions < GRADIENTS or not (summed.error >= ERROR or is_lost):
            return
        place = in_words(summed.site.where)
        if summed.site.where.startswith("param:"):
            what, adds = f"The gradient of {place}", "backward passes"
        else:
            what, adds = f"A gradient in a custom backward of {place}", "additions"
        self._make(
            GRAD_ACCUM_ROUNDING,
            summed.site,
            summed.dtype,
            f"{what} is added up in {summed.dtype}: after {summed.additions} {adds} in step"
            f" {summed.site.step} it is off by {summed.error:.1%} of its norm, and"
            f" {summed.lost_share:.1%} of the elements of the newest one were lost",
            {
                "relative_error": summed.error,
                "lost_share": summed.lost_share,
                "additions": float(summed.additions),
            },
        )

    def _make(
        self, kind: Kind, site: OpSite, dtype: str, summary: str, evidence: dict[str, float]
    ) -> None:
        made = self._book.of_kind(kind.slug)
        if made and made[-1].last_step == site.step:
            return  # other sums of the same training stop as well
        self._book.report(
            kind,
            site.where,
            site.step,
            summary=summary,
            is_once=True,
            op=site.op,
            phase=site.phase,
            dtype=dtype,
            source=site.source,
            evidence=evidence,
        )


def _times(share: float) -> str:
    """Return how much is left of a sum, in words; empty where that is nearly all of it."""
    return "" if abs(share - 1.0) < 0.01 else f", {share:.3g} times as much"
