"""The trouble of every module over the history of a run: one byte for each kind of it.

A sample is a column. Where there are too many columns, neighbours are merged (``span_history.py``), and
of each kind the worst stays. A byte that is 0 was not measured; of two bytes the larger one is
worse, so that merging is the maximum of both.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from ampwatch.diagnosis.gradients.lost_gradients import GRADIENTS
from ampwatch.host.fleet.span_history import SpanHistory
from ampwatch.host.fleet.trouble import NOTABLE_CLOSE, NOTABLE_MISSED, REASONS, nonfinite
from ampwatch.wire.records import SkipClass, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ampwatch.host.fleet.trouble import Trouble
    from ampwatch.numerics.exponents import ExponentHistogram
    from ampwatch.wire.records import RangeRecord, StepRecord

MAX_COLUMNS = 96
"""Columns kept per rank: as many as can be distinguished on a page."""

MAX_MAPPED = 2048
"""Modules that are mapped per rank; of more, those that come later are counted."""

MAX_SAMPLED = 2 * MAX_MAPPED
"""Modules of a sample that are kept until it is complete: some may have taken the place of others."""

UNKNOWN, QUIET, EXPECTED, NOTABLE = 0, 1, 2, 3
"""Bytes of a kind of trouble: not measured; nothing notable; gradients that are not finite in a step
that was skipped for its loss scale alone; the first of the notable ones, up to 255."""

OCTAVES = 32
"""Halvings of a share that the notable bytes tell apart."""

LOW_SHARE = 0.01
"""Share of the non-zero elements that lie below the lower end of what is drawn of a module: the
smallest element of all says little."""

_SPAN = 255 - NOTABLE

_LINEAR_FROM = {"activation_headroom": NOTABLE_CLOSE, "unchanged": NOTABLE_MISSED}
"""Least notable amounts of reasons on a linear scale; the others are on one of octaves."""

_SOUGHT = (SkipClass.CALIBRATING, SkipClass.PROBE)
"""Skips that belong to the search for a loss scale."""

MAX_SOUGHT = 256
"""Newest of these skips that are remembered: a sample is read some steps after its step at most."""

MAP_REASONS = ("nonfinite", "nonfinite_gradient", *REASONS[1:])
"""Reasons that are distinguished, the worst first. Gradients are apart from all else that is not
finite: one output that overflows makes every gradient before it NaN."""

_MEASURED_BY = {
    "nonfinite": frozenset(Topic) - GRADIENTS,
    "nonfinite_gradient": GRADIENTS,
    "lost": GRADIENTS,
    "activation_headroom": frozenset({Topic.ACTIVATION}),
    "unchanged": frozenset({Topic.UPDATE}),
}
"""Topics of which one at least has to be in a sample for it to say something of a reason."""

_OF_GRADIENTS = MAP_REASONS.index("nonfinite_gradient")

_ZERO = 128
"""Byte of the exponent 0; what is beyond the bytes is drawn at their end."""

_MIRROR = 256

OUTPUT_ENDS = len(MAP_REASONS)
"""Place of the ends of the exponents of outputs: the lower one, then the upper one."""

GRADIENT_ENDS = OUTPUT_ENDS + 2
"""Place of the ends of the exponents of gradients, as they were measured: with the loss scale."""

NUM_PLANES = GRADIENT_ENDS + 2

_ENDS = {Topic.ACTIVATION: OUTPUT_ENDS, Topic.GRADIENT: GRADIENT_ENDS}


@dataclass(slots=True)
class MapColumn:
    """The modules in the samples of some consecutive iterations.

    Attributes:
        planes: A byte of each module, by kind: those of ``MAP_REASONS``, then the
            ends of exponents. Modules beyond the end of one were not measured. Never changed,
            only replaced.
    """

    first_step: int
    last_step: int
    planes: tuple[bytes, ...]

    def merge(self, newer: MapColumn, /) -> None:
        """Take in ``newer``, the column of samples after these."""
        self.last_step = max(self.last_step, newer.last_step)
        self.planes = tuple(map(_larger, self.planes, newer.planes))


class ModuleMap(SpanHistory[MapColumn]):
    """The map of one rank.

    Attributes:
        dtypes: Newest dtype of the outputs and of the gradients of each module, by its name, in the
            order in which modules were first measured; that is their number in a plane.
        called: Names of those with outputs, in the order in which these were first measured.
        left_out: Modules of the newest sample that have no place.

    Cost:
        Nine bytes a module and column: 0.1 MB for 128 modules, 1.8 MB at the most. About 15 us
        for each record, and 1 ms where 2000 modules are merged.
    """

    def __init__(self) -> None:
        super().__init__(MAX_COLUMNS)
        self.dtypes: dict[str, dict[Topic, str]] = {}
        self.called: dict[str, int] = {}
        self.left_out = 0
        self._numbers: dict[str, int] = {}
        self._sample: dict[str, dict[Topic, RangeRecord]] = {}
        self._num_beyond = 0
        self._closed: tuple[int, dict[str, list[int]]] | None = None
        self._newest_step = -1
        self._sought: deque[int] = deque(maxlen=MAX_SOUGHT)

    def put(self, record: RangeRecord) -> None:
        """Take in the ranges of a module in the sample that is being written."""
        topics = self._sample.get(record.module)
        if topics is None:
            # A ring that is damaged, or made to harm, may begin samples and end none.
            if len(self._sample) >= MAX_SAMPLED:
                self._num_beyond += 1
                return
            topics = self._sample[record.module] = {}
        topics[record.topic] = record

    def close(
        self, step: int, judge: Callable[[Mapping[Topic, RangeRecord]], Sequence[Trouble]]
    ) -> None:
        """Take in that the sample of ``step`` is complete; ``judge`` returns a trouble for each of ``REASONS``."""
        sample, self._sample = self._sample, {}
        self._settle()
        known = {name: topics for name, topics in sample.items() if self._has_place(name)}
        self.left_out = len(sample) - len(known) + self._num_beyond
        self._num_beyond = 0
        for name, topics in known.items():
            self._remember(name, topics)
        if known:
            self._closed = step, {n: _sampled(t, judge(t)) for n, t in known.items()}
        if step <= self._newest_step:
            self._settle()

    def put_step(self, record: StepRecord) -> None:
        """Take in how a step ended; it is written before its sample or after it."""
        self._newest_step = record.step
        if record.skip_class in _SOUGHT:
            self._sought.append(record.step)
        if self._closed is not None and record.step >= self._closed[0]:
            self._settle()

    def _has_place(self, name: str) -> bool:
        if name not in self._numbers and len(self._numbers) < MAX_MAPPED:
            self._numbers[name] = len(self._numbers)
        return name in self._numbers

    def _remember(self, name: str, topics: Mapping[Topic, RangeRecord]) -> None:
        dtypes = self.dtypes.setdefault(name, {})
        for topic in _ENDS:
            if topic in topics:
                dtypes[topic] = topics[topic].dtype
        if Topic.ACTIVATION in topics:
            self.called.setdefault(name, len(self.called))

    def _settle(self) -> None:
        """Make a column of the sample that is complete, if there is one."""
        if self._closed is None:
            return
        (step, sample), self._closed = self._closed, None
        expected = step in self._sought
        planes = [bytearray(len(self._numbers)) for _ in range(NUM_PLANES)]
        for name, sampled in sample.items():
            number = self._numbers[name]
            for plane, byte in zip(planes, sampled, strict=True):
                plane[number] = byte
            if expected and sampled[_OF_GRADIENTS] >= NOTABLE:
                planes[_OF_GRADIENTS][number] = EXPECTED
        self.add(MapColumn(step, step, tuple(map(bytes, planes))))


def byte_of(reason: str, amount: float) -> int:
    """Return the byte of trouble that is notable, the larger the worse.

    The amount is the severity, as ``trouble.py`` has it; of what is not finite the share.
    """
    return NOTABLE + round(_SPAN * min(max(_place(reason, amount), 0.0), 1.0))


def amount_of(reason: str, byte: int) -> float:
    """Return the amount that a notable byte stands for, within 5 % of a share."""
    place, least = (byte - NOTABLE) / _SPAN, _LINEAR_FROM.get(reason)
    if least is None:
        return math.pow(2.0, OCTAVES * (place - 1.0))
    return least + place * (1.0 - least)


def ends_of(low: int, high: int) -> tuple[int, int] | None:
    """Return the exponents that the bytes of two ends stand for; ``None`` if nothing is known."""
    return (_MIRROR - low - _ZERO, high - _ZERO) if low and high else None


def _place(reason: str, amount: float) -> float:
    """Return where an amount lies between just notable, 0, and the worst, 1."""
    least = _LINEAR_FROM.get(reason)
    if least is None:
        return 1.0 + math.log2(amount) / OCTAVES
    return (amount - least) / (1.0 - least)


def _sampled(topics: Mapping[Topic, RangeRecord], troubles: Sequence[Trouble]) -> list[int]:
    """Return the bytes of one module in one sample."""
    planes = [UNKNOWN] * NUM_PLANES
    judged = dict(zip(REASONS, troubles, strict=True))
    for plane, reason in enumerate(MAP_REASONS):
        measured = [record for topic, record in topics.items() if topic in _MEASURED_BY[reason]]
        if not measured:
            continue
        trouble = judged.get(reason)
        if plane <= _OF_GRADIENTS:
            amount = max(nonfinite((r,)) / max(1, r.histogram.numel) for r in measured)
            planes[plane] = byte_of(reason, amount) if amount else QUIET
        elif trouble is not None:
            planes[plane] = byte_of(reason, trouble.severity) if trouble.reason else QUIET
    for topic, place in _ENDS.items():
        if topic in topics and topics[topic].histogram.counts:
            planes[place : place + 2] = _end_bytes(topics[topic].histogram)
    return planes


def _end_bytes(histogram: ExponentHistogram) -> tuple[int, int]:
    """Return the bytes of the ends; the lower one is mirrored: there the smaller is the worse."""
    below = list(accumulate(histogram.counts))
    low = histogram.first + bisect_left(below, LOW_SHARE * below[-1])
    high = histogram.first + len(histogram.counts) - 1
    if histogram.amax:
        # Of a subsample the largest of all is known nevertheless. A power of two ends its bin.
        mantissa, exponent = math.frexp(histogram.amax)
        high = max(high, exponent - (mantissa == 0.5))
    return _MIRROR - _end_byte(low), _end_byte(high)


def _end_byte(exponent: int) -> int:
    return min(max(exponent + _ZERO, 1), 255)


def _larger(one: bytes, other: bytes) -> bytes:
    """Return the larger byte of each pair; what is missing at the end of one is 0."""
    if one == other:
        return one
    size = max(len(one), len(other))
    return bytes(map(max, one.ljust(size, b"\0"), other.ljust(size, b"\0")))
