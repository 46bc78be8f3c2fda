"""Measures how values lie in the format that they have to fit: room above, and what is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.whatif import cast, flushed_zeros
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from ampwatch.numerics.formats import FloatFormat
    from ampwatch.wire.records import RangeRecord

GRADIENTS = (Topic.GRADIENT, Topic.ACTIVATION_GRADIENT)
"""Topics whose small values are lost by a format."""


def limit_of(record: RangeRecord, autocast: FloatFormat | None) -> FloatFormat | None:
    """Return the format that the values have to fit, ``None`` if it is not known.

    Gradients of parameters are mostly held in float32, where nothing can be seen of what
    was lost on the way: they are held against the format of autocast, where there is one.

    Args:
        record: The ranges.
        autocast: The format of autocast; ``None`` if none was seen.
    """
    if record.topic is Topic.GRADIENT and autocast is not None:
        return autocast
    return FORMATS.get(record.dtype)


def finite_amax(record: RangeRecord) -> float | None:
    """Return the largest finite magnitude; ``None`` if nothing finite was counted."""
    histogram = record.histogram
    # An amax of 0 is a value where zeros were counted, and the absence of one where nothing was.
    return histogram.amax if histogram.amax or histogram.binned else None


def headroom(record: RangeRecord, autocast: FloatFormat | None) -> float | None:
    """Return how many times larger the largest magnitude could be; ``None`` if that is not known."""
    limit = limit_of(record, autocast)
    amax = record.histogram.amax
    return limit.max / amax if limit is not None and amax else None


def flushed(record: RangeRecord, fmt: FloatFormat, largest_of_all: float | None) -> int | None:
    """Return how many zeros of a gradient were none before ``fmt`` flushed them.

    ``None`` if there is nothing but zeros anywhere, which do not say why.

    Args:
        record: The gradient, scaled.
        fmt: The format that it came out of.
        largest_of_all: Largest finite gradient of all modules, at the same loss scale;
            ``None`` if it is not known.
    """
    histogram = record.histogram
    if not histogram.zeros:
        return 0
    if not histogram.nonzero and not largest_of_all:
        return None
    return flushed_zeros(histogram, fmt, largest_of_all or 0.0)


def lost_share(
    record: RangeRecord, fmt: FloatFormat | None, largest_of_all: float | None
) -> float | None:
    """Return the share of the elements of a gradient that are zero only for their format.

    Those are the non-zero ones that a cast would flush, and the zeros that were flushed before
    they were measured; of all binned elements. ``None`` if that is not known.

    Args:
        record: The gradient, scaled.
        fmt: The format that it has to fit (``limit_of``).
        largest_of_all: As for ``flushed``.
    """
    binned = record.histogram.binned
    if fmt is None or not binned:
        return None
    zeros = flushed(record, fmt, largest_of_all)
    return None if zeros is None else (cast(record.histogram, fmt).underflow + zeros) / binned
