"""How close measured values are to the ends of the format that they have to fit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.whatif import cast
from ampwatch.records import Topic

if TYPE_CHECKING:
    from ampwatch.numerics.formats import FloatFormat
    from ampwatch.records import RangeRecord

BROKEN = 2.0
"""The trouble of NaN and infinities: more than of any finite values."""

QUIET_HEADROOM = 256.0
"""A magnitude this many times below the largest number of its format is no trouble at all."""


def limit_of(record: RangeRecord, autocast: FloatFormat) -> FloatFormat | None:
    """Return the format that the values have to fit, ``None`` if it is not known.

    Gradients of parameters are mostly held in float32, where nothing can be seen of what
    was lost on the way: they are held against the format of autocast.

    Args:
        record: The ranges.
        autocast: The format of autocast.
    """
    return autocast if record.topic is Topic.GRADIENT else FORMATS.get(record.dtype)


def headroom(record: RangeRecord, autocast: FloatFormat) -> float | None:
    """Return how many times larger the largest magnitude could be; ``None`` if that is not known."""
    limit = limit_of(record, autocast)
    amax = record.histogram.amax
    return limit.max / amax if limit is not None and amax else None


def trouble(record: RangeRecord, autocast: FloatFormat) -> float:
    """Return how bad it is: 0 for nothing, 1 for as bad as finite values get, else ``BROKEN``.

    Finite values are in trouble, by topic: gradients by the share that underflows,
    activations by their closeness to the largest number (by its logarithm), updates by the
    share of elements that they leave as they were. A loss scale drives gradients to the
    upper end on purpose, so being there is no trouble of theirs.
    """
    histogram, limit = record.histogram, limit_of(record, autocast)
    if histogram.nonfinite:
        return BROKEN
    if record.topic is Topic.UPDATE:
        return histogram.zero_share
    if limit is None:
        return 0.0
    if record.topic is Topic.ACTIVATION:
        return _closeness(headroom(record, autocast))
    if record.topic in (Topic.GRADIENT, Topic.ACTIVATION_GRADIENT):
        return cast(histogram, limit).underflow_share
    return 0.0


def _closeness(room: float | None) -> float:
    if room is None or room >= QUIET_HEADROOM:
        return 0.0
    return 1.0 - math.log(max(room, 1.0), QUIET_HEADROOM)
