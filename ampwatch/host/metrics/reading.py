"""What the tables of samples are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ampwatch.host.fleet import RankView

Samples = Iterable[tuple[tuple[str, ...], Any]]
"""Values of further labels, and the number or histogram that belongs to them."""


class Exemplified(NamedTuple):
    """A value with an example of what it counts; OpenMetrics carries it, the text format does not.

    Attributes:
        value: The value.
        labels: What identifies the example.
        time_s: Unix time of the example. Unit: s.
    """

    value: float
    labels: dict[str, str]
    time_s: float


OfRank = Callable[[RankView], Samples]
"""Gives the samples of one family of one rank."""


def one(read: Callable[[RankView], Any]) -> OfRank:
    """Return the samples of a family with one value per rank, absent when ``read`` gives ``None``."""

    def samples(rank: RankView) -> Samples:
        value = read(rank)
        return () if value is None else (((), value),)

    return samples
