"""What is wrong with the ranges of a module, as one number to sort by and one reason to show.

Reasons come in an order, the worst first, and each has a severity from 0 to 1:

==========================  ========================================  =================
reason                      severity                                  notable above
==========================  ========================================  =================
``nonfinite``               1                                         0
``lost``                    share of the gradient that underflows     ``tolerated``
``activation_headroom``     closeness to the end of the format        ``NOTABLE_CLOSE``
``unchanged``               share of the weights an update misses     ``NOTABLE_MISSED``
==========================  ========================================  =================

The number is the place of the worst notable reason (4, 3, 2, 1), plus its severity; without
a notable one, the largest severity alone. How severe a record is, is ``aggregate.limits``'
to say, but for the zeros of gradients, which say nothing by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ampwatch.aggregate.limits import limit_of, trouble
from ampwatch.numerics.whatif import cast, flushed_zeros
from ampwatch.records import Topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ampwatch.numerics.formats import FloatFormat
    from ampwatch.records import RangeRecord

NOTABLE_CLOSE = 0.75
"""Less than two doublings from the largest number."""

NOTABLE_MISSED = 0.5

GRADIENTS = (Topic.GRADIENT, Topic.ACTIVATION_GRADIENT)


class Trouble(NamedTuple):
    """The trouble of a module.

    Attributes:
        score: What to sort by, 0 for none; see above.
        reason: The notable reason; empty if there is none.
    """

    score: float
    reason: str


def worst(topics: Mapping[Topic, RangeRecord], autocast: FloatFormat, tolerated: float) -> Trouble:
    """Return the worst trouble of a module.

    Args:
        topics: The newest record of each topic.
        autocast: The format of autocast.
        tolerated: Share of a gradient that may be lost.
    """
    lost = max((lost_share(topics[t], autocast) for t in GRADIENTS if t in topics), default=0.0)
    judged = (
        _place(4, "nonfinite", float(nonfinite(topics.values()) > 0), 0.0),
        _place(3, "lost", lost, tolerated),
        _place(2, "activation_headroom", _of(topics, Topic.ACTIVATION, autocast), NOTABLE_CLOSE),
        _place(1, "unchanged", _of(topics, Topic.UPDATE, autocast), NOTABLE_MISSED),
    )
    return max(judged, key=lambda one: one.score)


def lost_share(record: RangeRecord, autocast: FloatFormat) -> float:
    """Return the share of the elements of a gradient that are zero only for their format.

    Those are the ones that become zero when they are cast, and zeros that were flushed
    before they were measured. 0 also for nothing but zeros, which do not say why.
    """
    limit = limit_of(record, autocast)
    histogram = record.histogram
    if limit is None or not histogram.nonzero:
        return 0.0
    return (cast(histogram, limit).underflow + flushed_zeros(histogram, limit)) / histogram.binned


def nonfinite(records: Iterable[RangeRecord]) -> int:
    """Return how many elements are NaN or infinite."""
    return sum(record.histogram.nonfinite for record in records)


def _of(topics: Mapping[Topic, RangeRecord], topic: Topic, autocast: FloatFormat) -> float:
    """Return the severity of one topic, 0 where it is not known or not finite."""
    record = topics.get(topic)
    if record is None or record.histogram.nonfinite:
        return 0.0
    return trouble(record, autocast)


def _place(place: int, reason: str, severity: float, notable: float) -> Trouble:
    return Trouble(place + severity, reason) if severity > notable else Trouble(severity, "")
