"""The families in Prometheus' protobuf format, which alone has native histograms.

Source: ``io/prometheus/client/metrics.proto`` of prometheus/client_model, by which the fields are
numbered.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ampwatch.host.fleet.native import ZERO_THRESHOLD
from ampwatch.host.metrics.exposition import Family
from ampwatch.host.metrics.metric import Exemplified
from ampwatch.host.metrics.protobuf import (
    block,
    delimited,
    double,
    integer,
    packed_signed,
    signed,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ampwatch.host.fleet.histogram import Distribution
    from ampwatch.host.fleet.native import NativeBuckets
    from ampwatch.host.metrics.metric import Metric

MAX_COUNT = 2**63 - 1
"""Largest count whose differences a field can hold."""

MAX_PAIRS = 16384
"""Labels with their values that are remembered as bytes, some 0.2 KB each."""

_TYPES = {"counter": 0, "gauge": 1, "info": 1, "histogram": 4}
"""Values of the enum ``MetricType``. Like in the text format, an info is a gauge of 1."""


class _Messages(NamedTuple):
    """The messages of one member of a scope, one for each series.

    Attributes:
        samples: What they say, by the values of the labels that are not of the scope.
        content: The messages.
    """

    samples: tuple[tuple[tuple[str, ...], Any], ...]
    content: bytes


class MessageFamily(Family[_Messages]):
    """The message ``MetricFamily`` of one metric.

    Args:
        metric: The metric.
    """

    def __init__(self, metric: Metric) -> None:
        # One without series is left out: clients of Go never send one, so nobody has to read one.
        super().__init__(metric, _Messages((), b""), b"")
        self._header = text(1, metric.name) + text(2, metric.help) + integer(3, _TYPES[metric.type])
        self._unit = text(5, metric.unit) if metric.unit else b""

    def _block(self, values: tuple[str, ...], member: Any, held: _Messages) -> _Messages:
        samples = tuple(self._metric.reader.read(member))
        if samples == held.samples:
            return held
        names = self._metric.labels
        write = _WRITERS[self._metric.type]
        of_scope = b"".join([_pair(name, v) for name, v in zip(names, values, strict=False)])
        messages = []
        for more, value in samples:
            pairs = zip(names[len(values) :], more, strict=True)
            labels = of_scope + b"".join([_pair(name, v) for name, v in pairs])
            messages.append(block(4, labels + write(value)))
        return _Messages(samples, b"".join(messages))

    def _joined(self, blocks: Iterable[_Messages]) -> bytes:
        series = b"".join([messages.content for messages in blocks])
        return delimited(self._header + series + self._unit) if series else b""


# Remembered: all families of a rank have its labels.
@lru_cache(MAX_PAIRS)
def _pair(name: str, value: str) -> bytes:
    return block(1, text(1, name) + text(2, value))


def _gauge(value: float) -> bytes:
    return block(2, double(1, value))


def _info(_value: float) -> bytes:
    return _gauge(1.0)


def _counter(value: float | Exemplified) -> bytes:
    if isinstance(value, Exemplified):
        return block(3, double(1, value.value) + block(2, _exemplar(value)))
    return block(3, double(1, value))


def _exemplar(value: Exemplified) -> bytes:
    seconds = math.floor(value.time_s)
    nanoseconds = int((value.time_s - seconds) * 1e9)
    labels = b"".join([_pair(name, words) for name, words in value.labels.items()])
    return labels + double(2, 1.0) + block(3, integer(1, seconds) + integer(2, nanoseconds))


def _histogram(value: Distribution) -> bytes:
    # Readers take a sum that is missing for 0, which would be a number that nobody has counted.
    total = math.nan if value.sum is None else value.sum
    count = value.buckets[-1][1]
    fields = [integer(1, min(count, MAX_COUNT)), double(2, total)]
    for bound, upto in value.buckets:
        fields.append(block(3, integer(1, min(upto, MAX_COUNT)) + double(2, bound)))
    # A native histogram whose buckets do not add up is refused; elements of a ring that lies can.
    if count <= MAX_COUNT:
        fields += _native(value.native)
    return block(7, b"".join(fields))


def _native(native: NativeBuckets) -> list[bytes]:
    """Return the fields of a native histogram: spans of consecutive buckets, and their counts.

    A span begins with the gap to the one before, a count is the difference to the one before.
    """
    spans: list[tuple[int, int]] = []
    deltas: list[int] = []
    end = before = 0
    for index, count in sorted(native.counts.items()):
        if spans and index == end:
            offset, length = spans[-1]
            spans[-1] = (offset, length + 1)
        else:
            spans.append((index - end, 1))
        deltas.append(count - before)
        end, before = index + 1, count
    return [
        signed(5, native.schema),
        double(6, ZERO_THRESHOLD),
        integer(7, native.zero_count),
        *(block(12, signed(1, offset) + integer(2, length)) for offset, length in spans),
        packed_signed(13, deltas),
    ]


_WRITERS: dict[str, Callable[[Any], bytes]] = {
    "counter": _counter,
    "gauge": _gauge,
    "info": _info,
    "histogram": _histogram,
}
"""What writes a value, by the type of its metric."""
