"""What would become of measured gradients in another format, at another loss scale: the what-if panel.

It is asked for by itself (``/whatif.json``), for one choice of format and scale at a time; what the newest blocks
that were measured would lose in block-scaled formats, where no loss scale matters, comes with it. What was lost
before it was measured leaves no promise about that end. No torch, no network.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ampwatch import laboratory
from ampwatch.host.fleet.gradients import unscaled
from ampwatch.host.page.range_state import UNKNOWN_FORMAT, group_of, offered
from ampwatch.numerics.exponents import nearest_exponent
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.whatif import (
    FATES,
    TOLERATED,
    Fit,
    ScaleWindow,
    cast,
    fates,
    fit,
    limits_of,
    scale_window,
)
from ampwatch.report.words import number, percent, power
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ampwatch.host.fleet import Fleet, RankView
    from ampwatch.host.page.rows import State
    from ampwatch.numerics.exponents import ExponentHistogram
    from ampwatch.numerics.formats import FloatFormat
    from ampwatch.wire.records import RangeRecord

BELOW = 14
"""Exponents of the picture below the point where values are flushed to zero."""

ABOVE = 5
"""And above the largest number of the format."""

FARTHEST = 400
"""Exponent of the largest scale that may be asked for, and of its inverse."""

FIT_WORDS = {
    Fit.FITS.value: "✓ fits as it is",
    Fit.FITS_SCALED.value: "◐ fits with {scales}",
    Fit.TOO_WIDE.value: "✖ too narrow",
    "cut": "? cut off: unknown",
    "overflowed": "? overflowed: unknown",
    "nonfinite": "\N{EN DASH} nothing finite to fit",
    "nothing": "\N{EN DASH} only zeros to fit",
}
"""What a format promises, with a sign of it."""

FATE_WORDS = ("flushed to zero", "subnormal", "normal", "overflow")


class Asked(NamedTuple):
    """A choice.

    Attributes:
        run: Name of the run.
        rank: Its rank.
        module: Name of a module; ``None`` for all gradients.
        format: Name of the format; another than those on offer is that of autocast.
        exponent: That of the loss scale; ``None`` for the scale as it is.
    """

    run: str
    rank: str
    module: str | None = None
    format: str = ""
    exponent: int | None = None


class _Subject(NamedTuple):
    """Gradients that were measured.

    Attributes:
        histogram: Without the loss scale; what was flushed as it was before, where that is known.
        record: The measurement.
        measured_in: Format of the values.
        loss_scale: That of now; ``None`` without one.
    """

    histogram: ExponentHistogram
    record: RangeRecord
    measured_in: FloatFormat
    loss_scale: float | None

    @property
    def measured_at(self) -> int:
        """Exponent of the loss scale at that time."""
        return nearest_exponent(self.record.loss_scale)

    @property
    def flushed(self) -> int | None:
        """How many of the zeros were values; ``None`` if that is not known."""
        return None if self.record.flushed < 0 else self.record.flushed

    @property
    def is_cut_below(self) -> bool:
        """Whether elements were flushed of which it is not known what they were."""
        return bool(self.flushed) and self.record.before is None

    @property
    def is_cut_above(self) -> bool:
        """Whether elements are missing at the high end: how large they would have been, nobody knows."""
        return self.histogram.nonfinite > 0

    @property
    def whole(self) -> str:
        """What shares are of."""
        is_whole = not (self.is_cut_below or self.is_cut_above)
        return "the non-zero elements" if is_whole else "what is left"

    def hides_loss_in(self, fmt: FloatFormat) -> bool:
        """Return whether elements are missing at the low end that a format would not keep either."""
        return self.is_cut_below and fmt.min_subnormal >= self.measured_in.min_subnormal

    def window(self, fmt: FloatFormat) -> ScaleWindow:
        """Return the scales between which nothing is known to be lost; no limit where that is not known."""
        found = scale_window(self.histogram, fmt)
        highs = [] if found.high is None else [found.high]
        if self.is_cut_above:
            highs.append(self.measured_at - 1)
        return ScaleWindow(None if self.hides_loss_in(fmt) else found.low, min(highs, default=None))

    def fit(self, fmt: FloatFormat) -> str:
        """Return whether a format would do, or why that is not known: a key of ``FIT_WORDS``.

        What is missing can only make a format too narrow that is not so for the rest.
        """
        histogram = self.histogram
        if not histogram.amax and self.is_cut_above:
            return "overflowed" if histogram.zeros else "nonfinite"
        known = fit(histogram, fmt)
        if known is Fit.TOO_WIDE:
            return str(known.value)
        if self.is_cut_above:
            return "overflowed"
        if self.hides_loss_in(fmt):
            return "cut"
        return str(known.value) if histogram.amax else "nothing"

    def at(self, exponent: int) -> str:
        """Say at which scale."""
        is_none = self.loss_scale is None and exponent == 0
        return "without a loss scale" if is_none else f"at scale {power(exponent)}"


class WhatIfs:
    """Answers what would become of the gradients of ranks. For one thread.

    Args:
        fleet: Whose they are.

    Cost:
        Half a millisecond, without the fleet's lock; where blocks were measured, 20 ms for those of another
        sample than the answer before was about.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._losses: Callable[[RangeRecord], list[State]] = laboratory.load(
            "page.block_state"
        ).losses
        self._blocked: tuple[RangeRecord | None, list[State]] = (None, [])

    def of(self, asked: Asked) -> State | None:
        """Return what the panel shows; an empty state before the first sample, ``None`` if there is no such rank."""
        with self._fleet.lock:
            view = self._fleet.rank(asked.run, asked.rank)
            if view is None:
                return None
            own = _of_module(view, asked.module)
            record = view.ranges.measured if own is None else own
            blocked = None if record is None else view.ranges.blocked.get(record.module)
            measured_in = view.ranges.format or FORMATS[UNKNOWN_FORMAT]
            loss_scale = view.loss_scale
        plain = None if record is None else unscaled(record)
        if record is None or plain is None:
            return {}
        if loss_scale is not None and not 0.0 < loss_scale < math.inf:
            loss_scale = None
        shown = plain if record.before is None else record.before
        subject = _Subject(shown, record, measured_in, loss_scale)
        state = _state(subject, asked, _name(asked.module, own))
        return {"own": own is not None, **state, "blocked": self._of_blocks(blocked)}

    def _of_blocks(self, record: RangeRecord | None) -> list[State]:
        if record is not self._blocked[0]:
            self._blocked = record, [] if record is None else self._losses(record)
        return self._blocked[1]


def _of_module(view: RankView, module: str | None) -> RangeRecord | None:
    """Return the gradients of a module; ``None`` if it has none."""
    topics = {} if module is None else view.ranges.modules.by_name.get(module, {})
    record = topics.get(Topic.GRADIENT)
    return None if record is None or unscaled(record) is None else record


def _name(module: str | None, own: RangeRecord | None) -> tuple[str, str]:
    """Return whose gradients these are, and whose they are not."""
    label = module or "(root module)"
    if own is not None:
        return f"gradient of {label}", ""
    return "all gradients", "" if module is None else f"; {label} has none of its own"


def _state(subject: _Subject, asked: Asked, name: tuple[str, str]) -> State:
    histogram = subject.histogram
    formats = offered()
    fmt = formats.get(asked.format, subject.measured_in)
    scale = subject.loss_scale
    now = 0 if scale is None else nearest_exponent(scale)
    exponent = now if asked.exponent is None else asked.exponent
    window = subject.window(fmt)
    return {
        "of": f"{name[0]}, step {number(subject.record.step)}{name[1]}",
        "format": fmt.name,
        "formats": [_card(subject, one) for one in formats.values()],
        "exponent": exponent,
        "now": now,
        "low": window.low,
        "high": window.high,
        "window": _mark(subject, window),
        "cut": " ".join(_warnings(subject)),
        "outcome": _outcome(subject, fmt, exponent),
        "notes": " ".join(_notes(subject, fmt)),
        "has_scale": scale is not None,
        "whole": subject.whole,
        "picture": _picture(histogram, fmt, exponent, now) if histogram.amax else None,
    }


def _card(subject: _Subject, fmt: FloatFormat) -> State:
    key = subject.fit(fmt)
    words = FIT_WORDS[key].format(scales=_window_words(subject.window(fmt)))
    return {"name": fmt.name, "group": group_of(fmt), "fits": key, "words": words}


def _mark(subject: _Subject, window: ScaleWindow) -> str:
    """Say which scales are usable, or where they end if it is not known where they begin; nothing without any."""
    low, high = window.low, window.high
    if high is None or subject.is_cut_above or (low is not None and low > high):
        return ""
    if low is None:
        return f"overflow above {power(high)}"
    return f"{power(low)} to {power(high)} keep both ends"


def _picture(histogram: ExponentHistogram, fmt: FloatFormat, exponent: int, now: int) -> State:
    """Return bars by exponent after scaling; what is beyond the picture is counted at its edges."""
    limits = limits_of(fmt)
    first, last = histogram.first + now, histogram.first + len(histogram.counts) - 1 + now
    left, right = min(limits[0] - BELOW, first - 2), max(limits[2] + ABOVE, last + 1)
    bars: dict[tuple[int, str], int] = {}
    totals = dict.fromkeys(FATES, 0)
    for bin_, (fate, count) in enumerate(fates(histogram, fmt, exponent), histogram.first):
        totals[fate] += count
        if count:
            place = max(left + 1, min(right, bin_ + exponent))
            bars[place, fate] = bars.get((place, fate), 0) + count
    whole = histogram.nonzero
    return {
        "limits": limits,
        "range": [left, right],
        "bars": [
            [
                place,
                fate,
                count / whole,
                _bar_words(place, left + 1, right),
                f"{number(count)} elements, {percent(count / whole)}",
            ]
            for (place, fate), count in bars.items()
        ],
        "fates": [
            [fate, words, percent(count / whole), count > 0]
            for (fate, count), words in zip(totals.items(), FATE_WORDS, strict=True)
        ],
    }


def _bar_words(exponent: int, lowest: int, highest: int) -> str:
    if exponent == lowest:
        return f"{power(exponent)} and less"
    if exponent == highest:
        return f"above {power(exponent - 1)}"
    return f"{power(exponent - 1)} to {power(exponent)}"


def _warnings(subject: _Subject) -> Iterator[str]:
    """Yield what was lost before it was measured: it cannot be counted, only warned of."""
    histogram, record = subject.histogram, subject.record
    finite = histogram.zeros + histogram.nonzero
    share = percent(record.flushed / finite) if record.flushed > 0 and finite else ""
    notes = []
    if share and record.before is not None:
        notes.append(
            f"About {share} of the elements are zero now, flushed by the format: shown is what they were when"
            f" they were measured at step {number(record.before_step)}, before that."
        )
    if subject.is_cut_below:
        more = (
            "scale the loss in the training"
            if subject.loss_scale is None
            else "raise the scale in the training"
        )
        notes.append(
            f"About {share} of the elements were zero before they were measured, flushed by the format: {more},"
            " and look again."
        )
    if subject.is_cut_above:
        parts = ((histogram.nans, "NaN"), (histogram.infs, "infinite"))
        those = " and ".join(f"{number(count)} {what}" for count, what in parts if count)
        notes.append(
            f"{those} elements: overflowed before it was measured, {subject.at(subject.measured_at)}."
        )
    if subject.whole == "what is left" and histogram.amax:
        notes.append("All this is about the elements that are left.")
    if notes:
        yield "▲"
        yield from notes


def _outcome(subject: _Subject, fmt: FloatFormat, exponent: int) -> str:
    """Say what a cast would do."""
    outcome = cast(subject.histogram, fmt, exponent)
    if not outcome.nonzero:
        return _none_words(subject)
    those = subject.whole
    none = f"none of {those}" if those == "what is left" else "nothing"
    low = f"{percent(outcome.underflow_share)} of {those}" if outcome.underflow else none
    if not outcome.overflow_high:
        bits = math.log2(outcome.headroom)
        is_known = not subject.is_cut_above and math.isfinite(bits)
        room = f" (headroom {bits:.1f} bits)" if is_known else ""
        high = f"{none} would overflow{room}"
    else:
        least, most = (
            percent(outcome.overflow_low / outcome.nonzero),
            percent(outcome.overflow_share),
        )
        share = most if outcome.overflow_low == outcome.overflow_high else f"{least} to {most}"
        high = f"{share} of {those} would overflow"
    return f"In {fmt.name} {subject.at(exponent)}, {low} would be flushed to zero, and {high}."


def _none_words(subject: _Subject) -> str:
    if subject.flushed:
        return "No non-zero elements are left: which scale would have kept them is not known."
    if subject.flushed is None:
        return (
            "Nothing but zeros was ever measured: whether the format has flushed them, or there never was a"
            " gradient, is not known. A larger scale in the training would show it."
        )
    if not subject.is_cut_above:
        return "There are no non-zero elements: no scale would change anything."
    zeros = " but zeros" if subject.histogram.zeros else ""
    return f"Nothing finite was measured{zeros}."


def _notes(subject: _Subject, fmt: FloatFormat) -> Iterator[str]:
    """Yield which scales would do, and what is not in the picture."""
    histogram = subject.histogram
    if histogram.amax:
        yield _scales_words(subject, fmt)
    if histogram.zeros and (subject.flushed == 0 or subject.record.before is not None):
        share = percent(histogram.zeros / (histogram.zeros + histogram.nonzero))
        yield f"{share} of all finite elements are zero already and not in the picture."


def _scales_words(subject: _Subject, fmt: FloatFormat) -> str:
    window, whole = subject.window(fmt), subject.whole
    low, high = window.low, window.high
    flush = f"flush at most {percent(TOLERATED)} of {whole} to zero"
    if subject.is_cut_above:
        bound = f"The scale must be below {power(subject.measured_at)}, how far is not known"
        return f"{bound}." if low is None else f"{bound}; {power(low)} and above {flush}."
    if high is None:
        return ""
    if low is None:
        return (
            f"At {power(high)} and below, none of {whole} overflows; from which scale on enough of what was"
            " flushed would be kept is not known."
        )
    if low <= high:
        return f"{_window_words(window)} {flush}, and nothing overflows."
    return (
        f"No scale keeps both ends: at {power(high)} and below the largest fit, at {power(low)} and above the"
        f" smallest; {fmt.name} is too narrow for these values."
    )


def _window_words(window: ScaleWindow) -> str:
    low, high = window.low, window.high
    if low is None or high is None:
        return "any scale"
    return power(low) if low == high else f"{power(low)} to {power(high)}"
