"""Measures how values lie in the format that they have to fit: room above, and what is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.numerics.formats import FORMATS, format_of_gradient
from ampwatch.numerics.whatif import num_flushed
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from ampwatch.numerics.formats import FloatFormat
    from ampwatch.wire.records import RangeRecord


def limit_of(record: RangeRecord, autocast: FloatFormat | None) -> FloatFormat | None:
    """Return the format that the values have to fit, ``None`` if it is not known.

    Args:
        record: The ranges.
        autocast: The format of autocast; ``None`` if none was seen.
    """
    if record.topic is Topic.GRADIENT:
        return format_of_gradient(record.dtype, autocast)
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


def lost_share(record: RangeRecord, fmt: FloatFormat | None) -> float | None:
    """Return the share of the elements of a gradient that are zero only for their format.

    Those are the non-zero ones that a cast would flush, and the zeros that were flushed before
    they were measured; of all binned elements. ``None`` if that is not known.

    Args:
        record: The gradient, scaled.
        fmt: The format that it has to fit (``limit_of``).
    """
    binned = record.histogram.binned
    if fmt is None or not binned or record.flushed < 0:
        return None
    return (num_flushed(record.histogram, fmt) + record.flushed) / binned


def zero_share(record: RangeRecord) -> float | None:
    """Return the share of finite measured elements that are zero; ``None`` if none was finite."""
    return record.histogram.zero_share if record.histogram.binned else None
