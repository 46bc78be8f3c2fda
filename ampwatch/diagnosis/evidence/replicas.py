"""Evidence of replicas: checksums of the weights of several ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GROUPS = 4
"""Groups that the weights of a check are summed in: where some have come apart, the others say
whether the ranks still train together."""


class WeightCheck(NamedTuple):
    """Checksums that one rank has made of a part of its weights.

    Attributes:
        step: The first of two iterations that follow one another.
        layout: Digest of names, shapes and dtypes of all its weights.
        part: Which part of them was summed.
        parts: Of how many.
        places: First and last parameter of each group.
        first: Checksum of each group at the end of that iteration.
        then: Checksum of each group at the end of the next one.
    """

    step: int
    layout: int
    part: int
    parts: int
    places: tuple[tuple[str, str], ...]
    first: tuple[int, ...] = ()
    then: tuple[int, ...] = ()


class CheckedWeights(NamedTuple):
    """The newest checks of the ranks of a machine.

    Attributes:
        step: The open iteration.
        checks: By rank, the oldest first; that of this rank among them.
    """

    step: int
    checks: Mapping[int, Sequence[WeightCheck]]
