"""The handful of figures that describe a rank right now, as text.

A figure has a value that is read at a glance and a note that explains it. Reads the
aggregate; no torch, no Prometheus, no HTML.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.host.fleet.watching import Phase
from ampwatch.numerics.written import is_in_digits
from ampwatch.report.op_shares import (
    casts_per_op,
    flops_by_dtype,
    low_precision_share,
    tensor_share,
)
from ampwatch.report.precision_words import band
from ampwatch.report.step_times import three_digits
from ampwatch.report.verdict import tally
from ampwatch.report.words import (
    memory,
    number,
    percent,
    plural,
    power_of_two,
    step_time,
    time_span,
)
from ampwatch.state.text import whole_number
from ampwatch.wire.records import (
    MEMORY_PARTS,
    MEMORY_PLACES,
    Topic,
    memory_fact,
)

if TYPE_CHECKING:
    from ampwatch.host.fleet import RankView
    from ampwatch.wire.records import StepRecord


class Figure(NamedTuple):
    """One figure.

    Attributes:
        value: The number with its unit; a word where there is none.
        note: What to know beside it; without a number what would be there, and why it is not.
        is_known: Whether there is a number.
    """

    value: str
    note: str
    is_known: bool = True


_COSTS = {
    Phase.STEADY: "in ordinary steps",
    Phase.OPENING: "in the first steps",
    Phase.FAILURE: "around failures",
}
"""Phases in which watching costs differently, in the order in which they are shown."""


def _none_yet(note: str, word: str = "not yet") -> Figure:
    return Figure(word, note, is_known=False)


NOT_KNOWN = _none_yet("only zeros were measured: flushed, or no gradient", "not known")
"""Share of gradients that underflow where zeros do not say why they are zero."""


def figures(rank: RankView) -> dict[str, Figure]:
    """Return the figures of ``rank`` by their titles, in reading order.

    They are always the same ones, so that each keeps its place whatever the state.
    """
    return {
        "Loss scale": _loss_scale(rank.newest),
        "Skipped": _skipped(rank),
        "Loss": _loss(rank),
        "Step": _step(rank),
        "Step time": _step_time(rank),
        "Headroom": _headroom_figure(rank),
        "Underflow share": _underflow(rank),
        "Low precision": _low_precision(rank),
        "Tensor cores": _tensor_cores(rank),
        "Cost of ampwatch": _cost(rank),
    }


def _step(rank: RankView) -> Figure:
    if rank.newest is None:
        return _none_yet("the newest step, as soon as one has ended")
    ran = time_span((rank.newest.time_ns - rank.identity.started_ns) / 1e9)
    return Figure(number(rank.newest.step), f"{ran} after the start")


def _loss_scale(newest: StepRecord | None) -> Figure:
    if newest is None:
        return _none_yet("the scale of the loss after the newest step")
    if math.isnan(newest.loss_scale):
        return _none_yet("no enabled GradScaler", "none")
    power = power_of_two(newest.loss_scale)
    is_readable = power and is_in_digits(newest.loss_scale)
    notes = [number(newest.loss_scale)] if is_readable else []
    notes.append(plural(newest.total_growths, "growth"))
    notes.append(plural(newest.total_backoffs, "backoff"))
    if newest.total_set_by_hand:
        notes.append(f"{number(newest.total_set_by_hand)} by hand")
    return Figure(power or number(newest.loss_scale), ", ".join(notes))


def _skipped(rank: RankView) -> Figure:
    if rank.newest is None:
        return _none_yet("the steps that the scaler skips, by class")
    skips = rank.skips
    of_all = f"of {plural(rank.attempted, 'optimizer step')}"
    return Figure(
        number(sum(skips.values())), f"{of_all}: {tally(skips)}" if any(skips.values()) else of_all
    )


def _loss(rank: RankView) -> Figure:
    if rank.newest is None or rank.loss is None:
        return _none_yet("the newest loss, where scaler.scale() is given one", "not seen")
    bad = rank.newest.total_nonfinite_losses
    return Figure(number(rank.loss), f"NaN or infinite in {plural(bad, 'step')}" if bad else "")


def _step_time(rank: RankView) -> Figure:
    seconds = rank.usual_step_seconds
    if seconds <= 0:
        return _none_yet("the median of the newest steps, from the second one on")
    each = [f"{three_digits(1 / seconds)} steps", *rank.phase_times.rates.words]
    return Figure(step_time(seconds), f"{', '.join(each)} per second")


def _headroom_figure(rank: RankView) -> Figure:
    what = "room from the largest gradient to the end of its format"
    if rank.ranges.format is None:
        return _none_yet(f"{what}; nothing in 16 bits was seen", "not known")
    room, name = _headroom(rank), rank.ranges.format.name
    newest = rank.ranges.newest(Topic.GRADIENT)
    if room is None:
        why = "after the first sample" if newest is None else "none that is finite was measured"
        return _none_yet(f"{what}; {why}")
    finite = "finite " if newest is not None and newest.histogram.nonfinite else ""
    note = f"of the {finite}gradients in {name}"
    if newest is not None and newest.before is not None:
        note += f", as they were in step {number(newest.before_step)}"
    return Figure(f"{room:.1f} bits", note)


def _underflow(rank: RankView) -> Figure:
    what = "share of the gradients that become zero"
    if rank.ranges.format is None:
        return _none_yet(f"{what}; nothing in 16 bits was seen", "not known")
    newest = rank.ranges.newest(Topic.GRADIENT)
    if newest is None or not newest.histogram.binned:
        return _none_yet(f"{what}; after the first sample")
    lost = rank.ranges.lost_share(newest)
    if lost is None:
        return NOT_KNOWN
    return Figure(percent(lost), f"of the gradients in {rank.ranges.format.name}")


def _low_precision(rank: RankView) -> Figure:
    census = rank.precision.census
    flops = None if census is None else flops_by_dtype(census)
    if census is None or not flops:
        return _none_yet("share of the FLOPs in 16 bits or fewer; after the first count of ops")
    casts = casts_per_op(census) or 0.0
    note = f"of the FLOPs in 16 bits or fewer, {casts:.2g} casts for each matrix product"
    return Figure(percent(low_precision_share(flops) or 0.0), note)


def _tensor_cores(rank: RankView) -> Figure:
    window = rank.precision.window
    share = None if window is None else tensor_share(window)
    if share is None:
        return _none_yet("share of the time of matmul kernels; after a profiled window on a GPU")
    return Figure(band(share), "of the time of matmul kernels")


def _headroom(rank: RankView) -> float | None:
    """Return the room above the newest gradients, at the loss scale of now. Unit: bits."""
    limit, measured, plain = rank.ranges.format, rank.ranges.measured, rank.ranges.whole
    if limit is None or measured is None or plain is None:
        return None
    scale = measured.loss_scale if rank.loss_scale is None else rank.loss_scale
    if not (0.0 < plain.amax < math.inf and 0.0 < scale < math.inf):
        return None
    return math.log2(limit.max) - math.log2(plain.amax) - math.log2(scale)


def _cost(rank: RankView) -> Figure:
    newest, cost = rank.newest, rank.watching
    if newest is None:
        return _none_yet(
            "share of the training thread's time: in ordinary steps, in the first, around failures"
        )
    shares = {phase: share for phase in _COSTS if (share := cost.share(phase)) is not None}
    missed = (
        (newest.total_observations_dropped, "step", " not observed"),
        (rank.ring_dropped, "record", " not written"),
        (rank.records_lost, "ring slot", " not read"),
        (newest.total_sensor_errors, "sensor error", ""),
    )
    notes = [f"{plural(total, noun)}{what}" for total, noun, what in missed if total]
    held = {place: _held(rank, place) for place in MEMORY_PLACES}
    notes[:0] = [f"{memory(nbytes)} on the {place}" for place, nbytes in held.items() if nbytes]
    if not shares:
        return _none_yet(", ".join(["share of the time of steps that were read", *notes]))
    # Steady steps first, which are most of a run; the other phases beside them.
    first, *others = ((f"{100 * share:.2g} %", _COSTS[phase]) for phase, share in shares.items())
    words = [f"of the training thread's time {first[1]}", *map(" ".join, others)]
    if Phase.STEADY not in shares and newest.step < cost.steady_from:
        words.append(f"ordinary from step {cost.steady_from} on")
    return Figure(first[0], ", ".join([*words, *notes]))


def _held(rank: RankView, place: str) -> int:
    """Return what ampwatch holds in the training process. Unit: bytes."""
    facts = (rank.facts.get(memory_fact(part, place), "") for part in MEMORY_PARTS)
    return sum(whole_number(fact) or 0 for fact in facts)
