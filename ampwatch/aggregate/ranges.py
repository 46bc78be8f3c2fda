"""What the measured ranges of one rank say, folded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampwatch.aggregate.gradients import GradientHistory, unscaled
from ampwatch.aggregate.histogram import Histogram
from ampwatch.aggregate.limits import headroom
from ampwatch.aggregate.modules import Modules
from ampwatch.aggregate.peak import Peak
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.whatif import Fit, ScaleWindow, fit, flushed_zeros, scale_window
from ampwatch.records import ALL_MODULES, RangeRecord, SamplingRecord, Topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.numerics.exponents import ExponentHistogram
    from ampwatch.numerics.formats import FloatFormat
    from ampwatch.settings import Settings

MAGNITUDE_BOUNDS = tuple(math.ldexp(1.0, e) for e in range(-48, 17, 4))
"""Upper bounds for magnitudes of gradients: powers of two, so that each bin of exponents lies
in one bucket. From what only a loss scale of 2**24 brings into float16, to its largest number."""

CANDIDATES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Formats that are held against the gradients."""

_BY_PREFERENCE = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What the newest gradients would need.

    Attributes:
        window: Loss scales that bring them into the format of autocast. Without a lower end
            where gradients were flushed before they were measured.
        fits: Whether they fit each of ``CANDIDATES``; empty in that case.
    """

    window: ScaleWindow
    fits: dict[str, Fit]


class Ranges:
    """The ranges of one rank.

    Attributes:
        totals: What sampling has looked at so far; ``None`` before the first sample.
        modules: The newest ranges of each module.
        gradients: The course of the gradients of all modules, without the loss scale.
        epsilon: Share of the non-zero gradients that a recommended loss scale may flush to zero.
        magnitude: Their finite magnitudes above zero, without the loss scale, since
            ``counted_from_ns``; there is no sum.

    Args:
        settings: ``module_series`` and ``window_epsilon`` are used.
        counted_from_ns: Unix time before which nothing goes into ``magnitude``: what a
            predecessor of this daemon has counted. Unit: ns.
    """

    def __init__(self, settings: Settings, counted_from_ns: int) -> None:
        self.totals: SamplingRecord | None = None
        self.modules = Modules(settings.module_series)
        self.gradients = GradientHistory()
        self.magnitude = Histogram(MAGNITUDE_BOUNDS, summed=False)
        self.epsilon = settings.window_epsilon
        self._counted_from_ns = counted_from_ns
        self._autocast_dtype = ""
        self._all: dict[Topic, RangeRecord] = {}
        self._unscaled: ExponentHistogram | None = None
        self._recommended: Recommendation | None = None
        self._amax_max = Peak(max)

    def put(self, record: RangeRecord | SamplingRecord) -> None:
        """Take in a record; they must come in the order in which they were written."""
        if isinstance(record, SamplingRecord):
            self.totals = record
            self.modules.choose(self.autocast)
        elif record.module != ALL_MODULES:
            self.modules.put(record)
        else:
            self._all[record.topic] = record
            if record.topic is Topic.GRADIENT:
                self._put_gradients(record)

    def know_dtypes(self, names: Sequence[str]) -> None:
        """Take in the dtypes of autocast; of several the one with the smallest range counts."""
        known = [name for name in _BY_PREFERENCE if name in names]
        self._autocast_dtype = known[0] if known else ""
        self._recommended = None

    @property
    def autocast_dtype(self) -> str:
        """``float16``, ``bfloat16``, or empty when neither was seen."""
        return self._autocast_dtype

    @property
    def autocast(self) -> FloatFormat:
        """The format of autocast; float16 if it is not known, as that is what scaling is for."""
        return FORMATS[self._autocast_dtype or "float16"]

    def newest(self, topic: Topic, module: str = ALL_MODULES) -> RangeRecord | None:
        """Return the newest ranges of a module; ``None`` if there are none."""
        topics = self._all if module == ALL_MODULES else self.modules.by_name.get(module, {})
        return topics.get(topic)

    def trouble(self, module: str) -> float:
        """Return the worst trouble of a module (``limits.trouble``); 0 for one that is not known."""
        return self.modules.trouble(module, self.autocast)

    def headroom(self, record: RangeRecord) -> float | None:
        """Return how many times larger its largest magnitude could be; ``None`` if not known."""
        return headroom(record, self.autocast)

    @property
    def unscaled(self) -> ExponentHistogram | None:
        """The newest gradients of all modules, without the loss scale."""
        return self._unscaled

    @property
    def recommendation(self) -> Recommendation | None:
        """What the newest gradients would need; ``None`` before the first non-zero ones."""
        newest = self.newest(Topic.GRADIENT)
        if (
            self._recommended is None
            and newest is not None
            and self._unscaled is not None
            and self._unscaled.amax
        ):
            self._recommended = self._recommend(newest.histogram, self._unscaled)
        return self._recommended

    def _recommend(self, scaled: ExponentHistogram, unscaled: ExponentHistogram) -> Recommendation:
        window = scale_window(unscaled, self.autocast, self.epsilon)
        if flushed_zeros(scaled, self.autocast) > self.epsilon * scaled.binned:
            # What is missing would ask for more: from what is left nobody can tell how much.
            return Recommendation(ScaleWindow(None, window.high), {})
        fits = {name: fit(unscaled, FORMATS[name], self.epsilon) for name in CANDIDATES}
        return Recommendation(window, fits)

    def smallest_headroom(self) -> tuple[str, float] | None:
        """Return the module whose activations are closest to the end of their dtype, and how close."""
        rooms = (
            (module, self.headroom(topics[Topic.ACTIVATION]))
            for module, topics in self.modules.by_name.items()
            if Topic.ACTIVATION in topics
        )
        known = [(module, room) for module, room in rooms if room is not None]
        return min(known, key=lambda item: item[1]) if known else None

    def scaled_amax_max(self, now_ns: int) -> float | None:
        """Return the largest scaled gradient of the last one to two hold windows."""
        newest = self.newest(Topic.GRADIENT)
        return None if newest is None else self._amax_max.read(newest.histogram.amax, now_ns)

    def _put_gradients(self, record: RangeRecord) -> None:
        self._amax_max.put(record.histogram.amax, record.time_ns)
        histogram = unscaled(record)
        if histogram is None:
            return
        self._unscaled, self._recommended = histogram, None
        self.gradients.put(record, histogram)
        if record.time_ns >= self._counted_from_ns:
            for exponent, count in histogram.by_exponent().items():
                # Any value within the bin: it falls into the bucket of the bin.
                self.magnitude.observe(math.ldexp(0.75, exponent), count)
