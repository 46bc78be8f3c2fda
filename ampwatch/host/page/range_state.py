"""The ranges of a rank for the page: columns of the heatmap, rows of the table, a histogram.

Rows are lists whose cells the ``*_COLUMNS`` name. A row is the same object for as long as
what it says holds, so that a change of state names new rows only. No torch, no network.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ampwatch.diagnosis.gradients.lost_gradients import GRADIENTS
from ampwatch.host.fleet.gradients import unscaled
from ampwatch.host.fleet.trouble import nonfinite
from ampwatch.host.page.as_json import digits
from ampwatch.numerics.formats import FORMATS, FormatFamily
from ampwatch.report.words import number, plural
from ampwatch.state.limits import finite_amax
from ampwatch.wire.blackbox.culprit import module_of
from ampwatch.wire.records import ALL_MODULES, Topic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from ampwatch.host.fleet import RankView
    from ampwatch.host.fleet.gradients import GradientColumn
    from ampwatch.host.fleet.ranges import Ranges
    from ampwatch.host.fleet.span_history import HistoryPosition
    from ampwatch.host.page.rows import State
    from ampwatch.numerics.formats import FloatFormat
    from ampwatch.report.incidents import Incident
    from ampwatch.wire.records import RangeRecord, Severity

Row = list[Any]

EXACT = 17
"""Digits of a number of which nothing is lost."""

EXPONENT_COLUMNS = (
    "last_step",
    "scale_low",
    "scale_high",
    "amax",
    "lowest",
    "counts",
    "zeros",
    "nans",
    "infs",
)
"""Cells of a column of the heatmap of unscaled gradients; its first step is its key."""

MODULE_COLUMNS = (
    "trouble",
    "why",
    "nonfinite",
    "lost",
    "gradient_amax",
    "gradient_headroom",
    "activation_amax",
    "activation_headroom",
    "unchanged",
    "step",
    "older",
    "culprit",
)
"""Cells of the row of a module; null where it was not measured. Gradients are unscaled, but
for their headroom, which is that of the scaled ones at the scale of their time. Headroom is in
bits. ``lost`` is a share of all elements; ``step`` is that of the newest measurement, and ``older``
has the steps of the cells that were measured before it, by name. ``culprit`` is the severity of the
finding that the verdict names, where that is about the module; else null."""

_TOPICS: dict[str, Collection[Topic]] = {
    "nonfinite": tuple(Topic),
    "lost": GRADIENTS,
    "gradient_amax": (Topic.GRADIENT,),
    "gradient_headroom": (Topic.GRADIENT,),
    "activation_amax": (Topic.ACTIVATION,),
    "activation_headroom": (Topic.ACTIVATION,),
    "unchanged": (Topic.UPDATE,),
}
"""Topics whose measurements a cell is made of."""

CULPRIT_SCORE = 6.0
"""Trouble of the module that the verdict names: above that of any measurement."""

UNKNOWN_FORMAT = "float16"
"""Format that is drawn where no narrow one is known: the one that needs scaling."""

NOTHING_YET = (
    'Nothing was measured yet: level="standard" measures every few steps, "deep" more often,'
    ' "light" and "off" never measure.'
)


def formats() -> State:
    """Return limits of the formats that values may be cast to, by name of the format."""
    limits = ("max", "overflow_from", "min_normal", "min_subnormal")
    return {
        name: {limit: getattr(fmt, limit) for limit in limits} for name, fmt in offered().items()
    }


def offered() -> dict[str, FloatFormat]:
    """Return the formats that values may be cast to, by name, that with the largest numbers first."""
    formats = (fmt for fmt in FORMATS.values() if fmt.is_offered)
    return {fmt.name: fmt for fmt in sorted(formats, key=lambda fmt: fmt.max, reverse=True)}


def group_of(fmt: FloatFormat) -> str:
    """Return the heading under which a format stands: what shares a scale, and how wide its elements are."""
    if fmt.block is not None:
        kind = "MX" if not fmt.block.scale.sign_bits else "NVFP4"
        return f"{kind}: a scale for {fmt.block.elements} elements"
    return (
        "FP8: a scale for the tensor" if fmt.family is FormatFamily.FLOAT8 else f"{fmt.bits} bits"
    )


class _Seen(NamedTuple):
    """The row of a module, and what it was made from."""

    records: tuple[RangeRecord, ...]
    limits: tuple[object, ...]
    row: Row


class RangeState:
    """The ranges of one rank, kept ready for the page.

    Cost:
        Of JSON: about 200 bytes a column of the heatmap and 400 bytes a module. A sample
        replaces the rows of its modules and one column; between samples nothing is made
        or sent, and the check for news takes a microsecond a module.
    """

    def __init__(self) -> None:
        self._place: HistoryPosition | None = None
        self._columns: dict[str, Row] = {}
        self._modules: dict[str, _Seen] = {}

    def of(self, rank: RankView) -> State:
        """Return what the page shows of the ranges of ``rank``, always the same one."""
        ranges, loss_scale = rank.ranges, rank.loss_scale
        state: State = {
            "sentence": sentence(rank),
            "format": UNKNOWN_FORMAT if ranges.format is None else ranges.format.name,
            "format_known": ranges.format is not None,
            "columns": self._columns_of(ranges),
            "modules": self._modules_of(
                ranges, None if rank.verdict is None else rank.verdict.root
            ),
        }
        if loss_scale is not None and 0.0 < loss_scale < math.inf:
            state["loss_scale"] = loss_scale
        else:
            # As the figure of the loss scale has it: a scale of 0 is another thing than none.
            state["no_scale"] = (
                "none" if loss_scale is None else f"none, for it is {number(loss_scale)} now"
            )
        if ranges.measured is not None and ranges.unscaled is not None:
            state["sampled"] = ranges.measured.step
        return state

    def _columns_of(self, ranges: Ranges) -> dict[str, Row]:
        news = ranges.gradients.since(self._place)
        fresh = {str(span.first_step): _column(span) for span in news.spans}
        self._place = news.place
        # A new dictionary only where something is new: the old one is in states of clients.
        if news.everything or fresh:
            self._columns = fresh if news.everything else {**self._columns, **fresh}
        return self._columns

    def _modules_of(self, ranges: Ranges, root: Incident | None) -> dict[str, Row]:
        culprit = ALL_MODULES if root is None else module_of(root.finding.where)
        by_name = ranges.modules.by_name
        if by_name and culprit != ALL_MODULES and culprit not in by_name:
            # Not measured, but at the root of it all: it has its row, without a number.
            by_name = {**by_name, culprit: {}}
        seen: dict[str, _Seen] = {}
        for name, topics in by_name.items():
            severity = root.severity if root is not None and name == culprit else None
            limits = (ranges.autocast, ranges.format, severity)
            # By identity: a record is never changed, a newer one is another object.
            records = tuple(topics.values())
            old = self._modules.get(name)
            if old is None or not (_same(old.limits, limits) and _same(old.records, records)):
                old = _Seen(records, limits, _module(ranges, topics, severity))
            seen[name] = old
        self._modules = seen
        return {name: seen[name].row for name in sorted(seen)}


def sentence(rank: RankView) -> str:
    """Say how often samples are taken, and what is missing in them."""
    totals, interval = rank.totals, rank.sampling_interval
    if totals is None or interval is None:
        return NOTHING_YET
    often = "every step" if interval == 1 else f"every {number(interval)} steps"
    parts = [f"Sampled {often}" if interval else "Not sampled any more"]
    parts.append(f"{plural(totals.samples[Topic.GRADIENT], 'sample')} of gradients so far")
    missing = (
        (totals.samples_dropped, "sample", " dropped"),
        (totals.modules_left_out, "module", " left out of the newest"),
        (totals.tensors_refused, "tensor", " that cannot be measured"),
    )
    parts += [f"{plural(total, noun)}{what}" for total, noun, what in missing if total]
    return ", ".join(parts)


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    """Return whether both hold the same objects; comparing what is in them takes longer."""
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _column(span: GradientColumn) -> Row:
    h = span.histogram
    return [
        span.last_step,
        digits(span.scale_low, EXACT),
        digits(span.scale_high, EXACT),
        digits(span.amax, EXACT),
        h.first,
        list(h.counts),
        h.zeros,
        h.nans,
        h.infs,
    ]


def _module(ranges: Ranges, topics: Mapping[Topic, RangeRecord], culprit: Severity | None) -> Row:
    trouble = ranges.trouble(topics)
    lost = ranges.lost(topics)
    newest = max((record.step for record in topics.values()), default=None)
    gradient = topics.get(Topic.GRADIENT)
    activation = topics.get(Topic.ACTIVATION)
    update = topics.get(Topic.UPDATE)
    plain = None if gradient is None else unscaled(gradient)
    return [
        digits(trouble.score) if culprit is None else CULPRIT_SCORE,
        trouble.reason,
        nonfinite(topics.values()) if topics else None,
        None if lost is None else digits(lost, 4),
        None if gradient is None or plain is None else _amax(gradient, plain.amax),
        None if ranges.format is None else _headroom(ranges, gradient),
        None if activation is None else _amax(activation, activation.histogram.amax),
        _headroom(ranges, activation),
        None if update is None else digits(update.histogram.zero_share, 4),
        newest,
        {cell: step for cell, step in _steps(topics) if step != newest},
        culprit,
    ]


def _steps(topics: Mapping[Topic, RangeRecord]) -> Iterator[tuple[str, int]]:
    """Yield the step of each number of a module: where it is of several measurements, of the oldest."""
    for cell, of in _TOPICS.items():
        records = [record for topic, record in topics.items() if topic in of]
        if cell == "nonfinite":
            records = [record for record in records if nonfinite((record,))] or records
        if records:
            yield cell, min(record.step for record in records)


def _amax(record: RangeRecord, amax: float) -> float | str | None:
    """Return ``amax`` if anything finite of ``record`` was counted."""
    return None if finite_amax(record) is None else digits(amax, 4)


def _headroom(ranges: Ranges, record: RangeRecord | None) -> float | str | None:
    room = None if record is None else ranges.headroom(record)
    return digits(math.log2(room), 4) if room and math.isfinite(room) else None
