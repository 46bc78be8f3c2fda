"""The measured ranges of one rank, folded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampwatch.diagnosis.gradients.lost_gradients import GRADIENTS
from ampwatch.host.fleet.gradients import GradientHistory, unscaled
from ampwatch.host.fleet.histogram import Histogram, Peak
from ampwatch.host.fleet.module_map import ModuleMap
from ampwatch.host.fleet.modules import Modules
from ampwatch.host.fleet.trouble import Trouble, judged, notable
from ampwatch.numerics.block_casts import cast_to_all
from ampwatch.numerics.formats import FORMATS, MAX_LOW_BITS
from ampwatch.numerics.whatif import TOLERATED, Fit, ScaleWindow, fit, scale_window
from ampwatch.state.limits import finite_amax, headroom, limit_of, lost_share
from ampwatch.wire.records import ALL_MODULES, RangeRecord, Topic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ampwatch.numerics.block_casts import BlockOutcome
    from ampwatch.numerics.exponents import ExponentHistogram
    from ampwatch.numerics.formats import FloatFormat
    from ampwatch.settings import Settings

MAGNITUDE_BOUNDS = tuple(math.ldexp(1.0, e) for e in range(-48, 17, 4))
"""Upper bounds for magnitudes of gradients: powers of two, so that each bin of exponents lies
in one bucket. From what only a loss scale of 2**24 brings into float16, to its largest number."""

MAX_BLOCKED = 512
"""Modules whose newest blocks are kept."""

CANDIDATES = tuple(fmt.name for fmt in FORMATS.values() if fmt.is_candidate)
"""Formats that are held against the gradients."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The loss scales and formats that the newest gradients would need.

    Attributes:
        window: Loss scales that bring them into ``Ranges.format``; without ends if there is
            none. Without a lower end where gradients were flushed before they were measured and
            it is not known what they were; the upper one is below the scale at which some
            overflowed.
        fits: Whether they fit each of ``CANDIDATES``; empty where values were flushed, have
            overflowed or become NaN before they were measured, and what they were is unknown.
    """

    window: ScaleWindow
    fits: dict[str, Fit]


class Ranges:
    """The ranges of one rank.

    Attributes:
        autocast: The format of autocast, float16 or bfloat16; ``None`` when neither was seen.
        unscaled: The newest gradients of all modules, without the loss scale; ``None`` before.
        measured: The record that ``unscaled`` was made of.
        blocked: The newest gradients whose blocks were measured, by module.
        magnitude: Their finite magnitudes above zero, without the loss scale, since
            ``counted_from_ns``; there is no sum.

    Args:
        settings: ``module_series`` is used.
        counted_from_ns: Unix time before which nothing goes into ``magnitude``: what a
            predecessor of this daemon has counted. Unit: ns.
    """

    def __init__(self, settings: Settings, counted_from_ns: int) -> None:
        self.modules = Modules(settings.module_series)
        self.map = ModuleMap()
        self.gradients = GradientHistory()
        self.magnitude = Histogram(MAGNITUDE_BOUNDS, summed=False)
        self._counted_from_ns = counted_from_ns
        self.autocast: FloatFormat | None = None
        self.blocked: dict[str, RangeRecord] = {}
        self._all: dict[Topic, RangeRecord] = {}
        self._sampled_ns: dict[Topic, int] = {}
        self.measured: RangeRecord | None = None
        self.unscaled: ExponentHistogram | None = None
        self._recommended: Recommendation | None = None
        self._cast: tuple[RangeRecord, dict[str, BlockOutcome]] | None = None
        self._amax_max = Peak(max)

    def close_sample(self, step: int) -> None:
        """Judge the modules: the totals come after all ranges of their sample, that of ``step``."""
        self.modules.choose(self.trouble)
        self.modules.remember(lambda topics: notable(topics, self._judged(topics)))
        self.map.close(step, self._judged)

    def put(self, record: RangeRecord) -> None:
        """Take in a record; they must come in the order in which they were written."""
        self._sampled_ns[record.topic] = record.time_ns
        if record.topic is Topic.GRADIENT and record.blocks:
            self._put_blocks(record)
        if record.module != ALL_MODULES:
            self.modules.put(record)
            self.map.put(record)
        else:
            self._all[record.topic] = record
            if record.topic is Topic.GRADIENT:
                self._put_gradients(record)

    def know_autocast(self, autocast: FloatFormat | None) -> None:
        """Take in the format of autocast, which decides what gradients have to fit."""
        self.autocast, self._recommended = autocast, None

    @property
    def format(self) -> FloatFormat | None:
        """The narrow format that the gradients have to fit; ``None`` if there is none.

        It is that of autocast, or their own in a model that is in a narrow format as a whole.
        """
        newest = self.newest(Topic.GRADIENT)
        limit = self.autocast if newest is None else limit_of(newest, self.autocast)
        return limit if limit is not None and limit.bits <= MAX_LOW_BITS else None

    def newest(self, topic: Topic, module: str = ALL_MODULES) -> RangeRecord | None:
        """Return the newest ranges of a module; ``None`` if there are none."""
        topics = self._all if module == ALL_MODULES else self.modules.by_name.get(module, {})
        return topics.get(topic)

    def sampled_ns(self, topic: Topic) -> int | None:
        """Return the Unix time of the newest record of ``topic``; ``None`` before. Unit: ns."""
        return self._sampled_ns.get(topic)

    def trouble(self, topics: Mapping[Topic, RangeRecord]) -> Trouble:
        """Return the worst trouble of a module, given its newest record of each topic."""
        return max(self._judged(topics), key=lambda one: one.score)

    def _judged(self, topics: Mapping[Topic, RangeRecord]) -> tuple[Trouble, ...]:
        return judged(topics, self.lost(topics) or 0.0)

    def headroom(self, record: RangeRecord) -> float | None:
        """Return how many times larger its largest magnitude could be; ``None`` if not known."""
        return headroom(record, self.autocast)

    def lost(self, topics: Mapping[Topic, RangeRecord]) -> float | None:
        """Return the largest share that gradients of a module lose; ``None`` if not known."""
        shares = (self.lost_share(topics[topic]) for topic in GRADIENTS if topic in topics)
        return max((share for share in shares if share is not None), default=None)

    def lost_share(self, record: RangeRecord) -> float | None:
        """Return the share of a gradient that is lost (``limits.lost_share``)."""
        return lost_share(record, limit_of(record, self.autocast))

    @property
    def whole(self) -> ExponentHistogram | None:
        """The newest gradients of all modules, without the loss scale, as if nothing was flushed.

        Equal to ``unscaled`` where it is not known what was.
        """
        measured = self.measured
        return self.unscaled if measured is None or measured.before is None else measured.before

    @property
    def recommendation(self) -> Recommendation | None:
        """The needs of the newest gradients; ``None`` before the first non-zero ones."""
        measured, plain = self.measured, self.whole
        if measured is None or plain is None or not (plain.amax or plain.infs):
            return None
        if self._recommended is None:
            self._recommended = self._recommend(measured, plain)
        return self._recommended

    @property
    def block_outcomes(self) -> dict[str, BlockOutcome]:
        """What the newest gradients whose blocks were measured would lose, by block-scaled format.

        Cost: some 20 ms once for each measurement.
        """
        record = self.blocked.get(ALL_MODULES)
        if record is None:
            return {}
        if self._cast is None or self._cast[0] is not record:
            self._cast = record, cast_to_all(record.blocks, record.histogram)
        return self._cast[1]

    def _recommend(self, measured: RangeRecord, plain: ExponentHistogram) -> Recommendation:
        window = ScaleWindow(None, None)
        if self.format is not None:
            window = scale_window(plain, self.format, TOLERATED)
        if plain.infs and self.format is not None:
            # What overflowed may be any larger than what is left.
            below = math.ceil(math.log2(measured.loss_scale)) - 1
            window = ScaleWindow(
                window.low, below if window.high is None else min(window.high, below)
            )
        is_cut = measured.before is None and measured.flushed > TOLERATED * plain.binned
        if is_cut:
            # What is missing would ask for more: what is left does not say how much.
            return Recommendation(ScaleWindow(None, window.high), {})
        if plain.nonfinite:
            return Recommendation(window, {})
        fits = {name: fit(plain, FORMATS[name], TOLERATED) for name in CANDIDATES}
        return Recommendation(window, fits)

    def scaled_amax_max(self, now_ns: int) -> float | None:
        """Return the largest scaled gradient of the last one to two hold windows.

        That of the newest sample if it is older; ``None`` if nothing finite was in any of them.
        """
        newest = self.newest(Topic.GRADIENT)
        if newest is None:
            return None
        found = finite_amax(newest)
        held = self._amax_max.read(-math.inf if found is None else found, now_ns)
        return held if held >= 0.0 else None

    def _put_blocks(self, record: RangeRecord) -> None:
        # Those of now last: of more modules than are kept, the ones not seen for longest go.
        self.blocked.pop(record.module, None)
        self.blocked[record.module] = record
        if len(self.blocked) > MAX_BLOCKED:
            del self.blocked[next(iter(self.blocked))]

    def _put_gradients(self, record: RangeRecord) -> None:
        found = finite_amax(record)
        if found is not None:
            self._amax_max.put(found, record.time_ns)
        histogram = unscaled(record)
        if histogram is None:
            return
        self.measured, self.unscaled, self._recommended = record, histogram, None
        self.gradients.put(record, histogram)
        if record.time_ns >= self._counted_from_ns:
            for exponent, count in histogram.by_exponent().items():
                # Any value within the bin: it falls into the bucket of the bin.
                self.magnitude.observe(math.ldexp(0.75, exponent), count)
