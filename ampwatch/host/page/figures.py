"""The handful of figures that describe a rank right now, as text.

A figure has a value that is read at a glance and a note that explains it. Reads the
aggregate; no torch, no Prometheus, no HTML.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.host.fleet.text import whole_number
from ampwatch.report.op_shares import (
    casts_per_op,
    flops_by_dtype,
    low_precision_share,
    tensor_share,
)
from ampwatch.report.precision_words import band
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
from ampwatch.wire.records import (
    MEMORY_LIMIT,
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
        value: The number with its unit.
        note: What to know beside it; may be empty.
    """

    value: str
    note: str


NOT_KNOWN = Figure(
    "not known", "nothing but zeros was ever measured: flushed, or never any gradient"
)
"""Share of gradients that underflow where zeros do not say why they are zero."""


def figures(rank: RankView) -> dict[str, Figure]:
    """Return the figures of ``rank`` by their titles, in reading order; none before a step."""
    newest = rank.newest
    if newest is None:
        return {}
    shown = {"Step": _step(rank, newest), "Loss scale": _loss_scale(newest)}
    shown["Skipped"] = _skipped(rank)
    if rank.loss is not None:
        shown["Loss"] = _loss(rank.loss, newest)
    if rank.usual_step_seconds > 0:
        shown["Step time"] = _step_time(rank)
    if rank.ranges.format is not None:
        shown |= _of_gradients(rank, rank.ranges.format.name)
    shown |= _of_precision(rank)
    shown["Cost of watching"] = _cost(rank, newest)
    if (limit := whole_number(rank.facts.get(MEMORY_LIMIT, ""))) is not None:
        shown["Memory of watching"] = _memory(rank, limit)
    return shown


def _step(rank: RankView, newest: StepRecord) -> Figure:
    ran = time_span((newest.time_ns - rank.identity.started_ns) / 1e9)
    return Figure(number(newest.step), f"{ran} after the start")


def _loss_scale(newest: StepRecord) -> Figure:
    if math.isnan(newest.loss_scale):
        return Figure("none", "no enabled GradScaler")
    notes = [power_of_two(newest.loss_scale), plural(newest.total_growths, "growth")]
    notes.append(plural(newest.total_backoffs, "backoff"))
    if newest.total_set_by_hand:
        notes.append(f"{number(newest.total_set_by_hand)} by hand")
    return Figure(number(newest.loss_scale), ", ".join(filter(None, notes)))


def _skipped(rank: RankView) -> Figure:
    skips = rank.skips
    attempted = sum(record.total_steps for record in rank.optimizers.values())
    of_all = f"of {plural(attempted, 'optimizer step')}"
    return Figure(
        number(sum(skips.values())), f"{of_all}: {tally(skips)}" if any(skips.values()) else of_all
    )


def _loss(loss: float, newest: StepRecord) -> Figure:
    bad = newest.total_nonfinite_losses
    return Figure(number(loss), f"NaN or infinite in {plural(bad, 'step')}" if bad else "")


def _step_time(rank: RankView) -> Figure:
    seconds = rank.usual_step_seconds
    return Figure(step_time(seconds), f"{number(float(f'{1 / seconds:.3g}'))} steps per second")


def _of_gradients(rank: RankView, name: str) -> dict[str, Figure]:
    shown = {}
    room = _headroom(rank)
    newest = rank.ranges.newest(Topic.GRADIENT)
    if room is not None:
        finite = "finite " if newest is not None and newest.histogram.nonfinite else ""
        note = f"of the {finite}gradients in {name}"
        if newest is not None and newest.before is not None:
            note += f", as they were in step {number(newest.before_step)}"
        shown["Headroom"] = Figure(f"{room:.1f} bits", note)
    if newest is not None and newest.histogram.binned:
        lost = rank.ranges.lost_share(newest)
        known = Figure(percent(lost or 0.0), f"of the gradients in {name}")
        shown["Underflow"] = known if lost is not None else NOT_KNOWN
    return shown


def _of_precision(rank: RankView) -> dict[str, Figure]:
    shown = {}
    census, window = rank.precision.census, rank.precision.window
    if census is not None and (flops := flops_by_dtype(census)):
        casts = casts_per_op(census) or 0.0
        note = f"of the FLOPs in 16 bits or fewer, {casts:.2g} casts to a matmul"
        shown["Low precision"] = Figure(percent(low_precision_share(flops) or 0.0), note)
    share = None if window is None else tensor_share(window)
    if share is not None:
        shown["Tensor cores"] = Figure(band(share), "of the time of matmul kernels")
    return shown


def _headroom(rank: RankView) -> float | None:
    """Return the room above the newest gradients, at the loss scale of now. Unit: bits."""
    limit, measured, plain = rank.ranges.format, rank.ranges.measured, rank.ranges.whole
    if limit is None or measured is None or plain is None:
        return None
    scale = measured.loss_scale if rank.loss_scale is None else rank.loss_scale
    if not (0.0 < plain.amax < math.inf and 0.0 < scale < math.inf):
        return None
    return math.log2(limit.max) - math.log2(plain.amax) - math.log2(scale)


def _memory(rank: RankView, limit: int) -> Figure:
    held = {
        place: {
            part: whole_number(rank.facts.get(memory_fact(part, place), "")) or 0
            for part in MEMORY_PARTS
        }
        for place in MEMORY_PLACES
    }
    host, device = (sum(parts.values()) for parts in held.values())
    largest, most = max(held["host"].items(), key=lambda item: item[1])
    notes = [f"on the host, of at most {memory(limit)}"]
    notes += [f"{memory(most)} of it {largest}"] if most else []
    notes += [f"{memory(device)} on devices"] if device else []
    return Figure(memory(host), ", ".join(notes))


def _cost(rank: RankView, newest: StepRecord) -> Figure:
    elapsed_ns = newest.time_ns - rank.identity.started_ns
    share = 100 * newest.overhead_ns / elapsed_ns if elapsed_ns > 0 else 0.0
    notes = ["of the training thread's time"]
    missed = (
        (newest.total_observations_dropped, "step", " not observed"),
        (rank.ring_dropped, "record", " not written"),
        (rank.records_lost, "ring slot", " not read"),
        (newest.total_sensor_errors, "sensor error", ""),
    )
    notes += [f"{plural(total, noun)}{what}" for total, noun, what in missed if total]
    return Figure(f"{share:.2g} %", ", ".join(notes))
