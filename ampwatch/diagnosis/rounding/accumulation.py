"""Findings about sums and averages in half precision that additions have no effect on any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ampwatch.diagnosis.detector import Detector, takes
from ampwatch.diagnosis.evidence.rounding import Stuck, What
from ampwatch.diagnosis.rounding.kinds import (
    EMA_ROUNDING,
    GRAD_ACCUM_ROUNDING,
    METRIC_ACCUM_ROUNDING,
)
from ampwatch.numerics.formats import FORMATS
from ampwatch.wire.records import in_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.diagnosis.kinds.kind import Kind


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
"""Share from which on it is reported of the whole average."""

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


class _Loss(NamedTuple):
    """What a finding says of additions that were lost."""

    kind: Kind
    summary: str
    evidence: dict[str, float]


class Accumulation(Detector):
    """Detects sums and averages that have stopped."""

    @takes(Stuck)
    def observe(self, stuck: Stuck) -> None:
        """Take in what was lost of the additions to a tensor; those to weights are updates."""
        row, site = _ROWS.get(stuck.what), stuck.site
        loss = None if row is None else row(stuck)
        if loss is None:
            return
        made = self._book.of_kind(loss.kind.slug)
        if made and made[-1].last_step == site.step:
            return  # other sums of the same training stop as well
        self._book.report(
            loss.kind,
            site.where,
            site.step,
            summary=loss.summary,
            is_once=True,
            op=site.op,
            phase=site.phase,
            dtype=stuck.dtype,
            source=site.source,
            evidence=loss.evidence,
        )


def _of_running_sum(sum_: Stuck) -> _Loss | None:
    needed = ADDITIONS if sum_.grown >= 2 else ADDITIONS_UNGROWN
    if sum_.additions < needed:
        return None
    return _Loss(
        METRIC_ACCUM_ROUNDING,
        f"A running sum in {sum_.dtype} {_place(sum_, 'in')} has stopped growing: at {sum_.total:.6g} the"
        f" last {sum_.additions} additions, the newest of {sum_.addend:.4g}, had no effect; one"
        f" 2^{FORMATS[sum_.dtype].mantissa_bits + 2} times smaller than the sum always vanishes",
        {
            "total": sum_.total,
            "addend": sum_.addend,
            "additions_without_effect": float(sum_.additions),
        },
    )


def _of_loop(sum_: Stuck) -> _Loss | None:
    if sum_.additions < TERMS or sum_.error < LOOP_ERROR:
        return None
    left = "" if abs(sum_.total - 1.0) < 0.01 else f", {sum_.total:.3g} times as much"
    return _Loss(
        METRIC_ACCUM_ROUNDING,
        f"A sum in {sum_.dtype} {_place(sum_, 'in')} is off by {sum_.error:.1%} of its norm after"
        f" {sum_.additions} additions in step {sum_.site.step}, against what float32 makes of"
        f" the same{left}, since what is"
        f" 2^{FORMATS[sum_.dtype].mantissa_bits + 2} times smaller than the sum vanishes",
        {
            "relative_error": sum_.error,
            "additions": float(sum_.additions),
            "share_of_float32": sum_.total,
        },
    )


def _of_gradient(sum_: Stuck) -> _Loss | None:
    is_lost = sum_.lost >= LOST_SHARE and sum_.error >= ERROR_OF_LOST
    if sum_.additions < GRADIENTS or not (sum_.error >= ERROR or is_lost):
        return None
    return _Loss(
        GRAD_ACCUM_ROUNDING,
        f"The gradient of {in_words(sum_.site.where)} is added up in {sum_.dtype}: after"
        f" {sum_.additions} backward passes in step"
        f" {sum_.site.step} it is off by {sum_.error:.1%} of its norm, and"
        f" {sum_.lost:.1%} of the elements of the newest one were lost",
        {"relative_error": sum_.error, "lost_share": sum_.lost, "additions": float(sum_.additions)},
    )


def _of_weights(average: Stuck) -> _Loss | None:
    eps = FORMATS[average.dtype].eps
    # Half a spacing is a quarter of eps or more: with a share below eps the weights have to
    # change by a quarter of themselves before the average follows at all.
    is_certain = average.weight <= eps
    is_far = average.error >= FARTHEST_ULPS * eps
    slow = is_far and average.additions >= UPDATES + 1.0 / average.weight
    is_reported = average.additions >= UPDATES and (is_certain or slow)
    if average.changing < MIN_DIFFERING or not is_reported:
        return None
    return _Loss(
        EMA_ROUNDING,
        f"The moving average {_place(average, 'of')} is kept in {average.dtype} and does not move:"
        f" in each of the last {average.additions} updates up to step {average.site.step}"
        f" {average.lost:.1%} of the elements that differ from the weights"
        f" stayed as they were. {_update(average)}",
        {
            "unchanged_share": average.lost,
            "differing_share": average.changing,
            "weight_of_new": average.weight,
            "updates": float(average.additions),
            "relative_distance": average.error,
        },
    )


def _of_data(average: Stuck) -> _Loss | None:
    if average.lost < STUCK_SHARE:
        return None
    return _Loss(
        EMA_ROUNDING,
        f"The moving average {_place(average, 'of')} is kept in {average.dtype} and"
        f" {'does not move' if average.lost >= MIN_WHOLE_SHARE else 'moves in part only'}:"
        f" {average.lost:.1%} of its elements have stayed as they were for up to"
        f" {average.additions} updates until step {average.site.step}, in which float32 would have"
        f" taken them {average.error:.2%} further. {_update(average)}",
        {
            "stuck_share": average.lost,
            "weight_of_new": average.weight,
            "updates": float(average.additions),
            "relative_distance": average.error,
        },
    )


_ROWS: dict[What, Callable[[Stuck], _Loss | None]] = {
    What.RUNNING_SUM: _of_running_sum,
    What.LOOP_SUM: _of_loop,
    What.GRADIENT_SUM: _of_gradient,
    What.WEIGHT_AVERAGE: _of_weights,
    What.DATA_AVERAGE: _of_data,
}


def _place(stuck: Stuck, preposition: str) -> str:
    where = stuck.site.where
    return "outside of the model" if where == "loss" else f"{preposition} {in_words(where)}"


def _update(average: Stuck) -> str:
    return (
        f"An update adds {average.weight:.3g} of the difference, which is less than half of the"
        f" distance to the next {average.dtype} number"
    )
