"""Evidence of replicas: checksums of the weights of several ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ampwatch.wire.records import ChecksumRecord

GROUPS = 4
"""Groups that the weights of a check are summed in: where some have come apart, the others say
whether the ranks still train together."""


KEPT_CHECKS = 4
"""Newest checks of the weights of a rank that are compared with those of others."""


class CheckedWeights(NamedTuple):
    """The newest checks of the ranks of a machine.

    Attributes:
        step: The open iteration.
        checks: By rank, the oldest first; that of this rank among them.
    """

    step: int
    checks: Mapping[int, Sequence[ChecksumRecord]]
