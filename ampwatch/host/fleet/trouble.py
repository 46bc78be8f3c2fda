"""The trouble with the ranges of a module, as one number to sort by and one reason to show.

Reasons come in an order, the worst first, and each has a severity from 0 to 1:

==========================  ========================================  =================
reason                      severity                                  notable above
==========================  ========================================  =================
``nonfinite``               1                                         0
``lost``                    share of the gradient that is lost        ``TOLERATED``
``activation_headroom``     closeness to the end of the format        ``NOTABLE_CLOSE``
``unchanged``               share of the weights an update misses     ``NOTABLE_MISSED``
==========================  ========================================  =================

The number is the place of the worst notable reason (4, 3, 2, 1), plus its severity; without
a notable one, the largest severity alone. A loss scale drives gradients to the upper end on
purpose, so being there is no trouble of theirs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.numerics.whatif import TOLERATED
from ampwatch.state.limits import headroom
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ampwatch.wire.records import RangeRecord

QUIET_HEADROOM = 256.0
"""A magnitude this many times below the largest number of its format is no trouble at all."""

NOTABLE_CLOSE = 0.75
"""Less than two doublings from the largest number."""

NOTABLE_MISSED = 0.5

REASONS = ("nonfinite", "lost", "activation_headroom", "unchanged")
"""Reasons for trouble, the worst first."""


class Trouble(NamedTuple):
    """The trouble of a module.

    Attributes:
        score: What to sort by, 0 for none; see above.
        reason: The notable reason; empty if there is none.
    """

    score: float
    reason: str

    @property
    def severity(self) -> float:
        """Severity of the reason, from 0 to 1."""
        return self.score - (len(REASONS) - REASONS.index(self.reason) if self.reason else 0)


def notable(topics: Mapping[Topic, RangeRecord], troubles: Iterable[Trouble]) -> set[str]:
    """Return all that is notable of a module, to compare ranks by: reasons, and where from.

    Gradients are infinite on every rank now and then, while the scale is sought; outputs and
    weights are not. So what is not finite is kept by topic.
    """
    reasons = {one.reason for one in troubles if one.reason}
    return reasons | {f"nonfinite {topic.name}" for topic in topics if nonfinite((topics[topic],))}


def judged(topics: Mapping[Topic, RangeRecord], lost: float) -> tuple[Trouble, ...]:
    """Return one trouble for each of ``REASONS``, given the share that is lost (``limits.lost_share``)."""
    update = topics.get(Topic.UPDATE)
    missed = 0.0 if update is None else update.histogram.zero_share
    return (
        _place(4, "nonfinite", float(nonfinite(topics.values()) > 0), 0.0),
        _place(3, "lost", lost, TOLERATED),
        _place(2, "activation_headroom", _closeness(topics.get(Topic.ACTIVATION)), NOTABLE_CLOSE),
        _place(1, "unchanged", missed, NOTABLE_MISSED),
    )


def nonfinite(records: Iterable[RangeRecord]) -> int:
    """Return how many elements are NaN or infinite."""
    return sum(record.histogram.nonfinite for record in records)


def _closeness(activation: RangeRecord | None) -> float:
    """Return how close the largest magnitude is to the largest number, by its logarithm."""
    room = None if activation is None else headroom(activation, None)
    if room is None or room >= QUIET_HEADROOM:
        return 0.0
    return 1.0 - math.log(max(room, 1.0), QUIET_HEADROOM)


def _place(place: int, reason: str, severity: float, notable: float) -> Trouble:
    return Trouble(place + severity, reason) if severity > notable else Trouble(severity, "")
