"""The history of a run since its beginning, in bounded memory.

It is cut into spans of equally many steps, the stride. When there are too many of them
the stride doubles and neighbours are merged: the beginning is never forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

S = TypeVar("S", bound="Span")

_generations = count()
"""Numbers of the layouts of all histories of this process; a place fits one of them only."""


class Span(Protocol):
    """The events of some consecutive steps."""

    first_step: int
    last_step: int

    def merge(self, newer: Self, /) -> None:
        """Take in ``newer``, the span of steps after these."""


class HistoryPosition(NamedTuple):
    """The part of a history that somebody has seen."""

    generation: int
    num_added: int
    num_spans: int


@dataclass(frozen=True, slots=True)
class News(Generic[S]):
    """The news in a history.

    Attributes:
        place: Where to go on from next time.
        everything: The spans are all there are: throw away what you have.
        spans: New spans in order. Unless ``everything``, the first one may be a newer
            state of the last one seen: it has the same ``first_step`` and replaces it.
    """

    place: HistoryPosition
    everything: bool
    spans: list[S]


class SpanHistory(Generic[S]):
    """Spans of a run, thinned as it grows.

    Attributes:
        stride: Steps per span.
        spans: In order; the last one is still growing.

    Cost:
        ``max_spans`` spans. Adding is constant, but for a merge of all spans each time
        that the run has become twice as long.
    """

    def __init__(self, max_spans: int) -> None:
        self.stride = 1
        self.spans: list[S] = []
        self._max_spans = max_spans
        self._num_added = 0
        self._generation = next(_generations)

    def add(self, span: S) -> None:
        """Append ``span``, of one step."""
        self._num_added += 1
        # A step that does not follow the last one can only come from a damaged ring;
        # it must not break the order.
        if self.spans and span.first_step // self.stride <= self.spans[-1].last_step // self.stride:
            self.spans[-1].merge(span)
        else:
            self.spans.append(span)
        while len(self.spans) > self._max_spans:
            self._thin()

    def since(self, place: HistoryPosition | None) -> News[S]:
        """Return what is new since ``place`` of earlier news, or everything without one that still fits.

        Returns:
            The live spans, not copies: read them before the next ``add``.
        """
        now = HistoryPosition(self._generation, self._num_added, len(self.spans))
        if place is None or place.generation != self._generation:
            return News(now, everything=True, spans=list(self.spans))
        # From the last span seen on: it was still growing when it was seen.
        unseen = place.num_added < self._num_added
        spans = self.spans[max(place.num_spans - 1, 0) :] if unseen else []
        return News(now, everything=False, spans=spans)

    def _thin(self) -> None:
        """Double the stride and merge the spans that now belong together."""
        # A new generation, because places in the old list mean nothing in the thinned one.
        self.stride *= 2
        self._generation = next(_generations)
        thinned: list[S] = []
        for span in self.spans:
            if thinned and thinned[-1].first_step // self.stride == span.first_step // self.stride:
                thinned[-1].merge(span)
            else:
                thinned.append(span)
        self.spans = thinned
