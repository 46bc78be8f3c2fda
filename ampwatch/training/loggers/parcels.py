"""What is handed to a logger: plain values, made on the training thread and never changed after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from ampwatch.wire.records import Severity


class Exponents(Struct, frozen=True):
    """How many gradient elements have which magnitude, without the loss scale.

    Attributes:
        key: Under which a logger has them.
        step: Iteration in which they were measured.
        first: Exponent of the first bin; bin ``e`` has the magnitudes above ``2**(e - 1)``, up to
            ``2**e``.
        counts: Elements per bin, consecutive exponents.
    """

    key: str
    step: int
    first: int
    counts: tuple[int, ...]

    @property
    def edges(self) -> tuple[int, ...]:
        """The exponents between which the bins are, one more than bins."""
        return tuple(range(self.first - 1, self.first + len(self.counts)))


class Point(Struct, frozen=True):
    """The numbers of one iteration.

    Attributes:
        step: Index of the iteration.
        time_s: Unix time at which they were taken. Unit: s.
        values: The numbers by key.
        exponents: Those of gradients, where they are newer than those of the point before: of all
            together, and of each module if they were asked for.
    """

    step: int
    time_s: float
    values: dict[str, float]
    exponents: tuple[Exponents, ...]


class Note(Struct, frozen=True):
    """A finding as it stood.

    Attributes:
        key: Identity of the finding within its run.
        kind: Slug of its kind.
        severity: How bad it is.
        step: Iteration in which it was last seen.
        time_s: Unix time. Unit: s.
        text: What happened, in one line.
        advice: What to change.
    """

    key: str
    kind: str
    severity: Severity
    step: int
    time_s: float
    text: str
    advice: str


class Summary(Struct, frozen=True):
    """The numbers at the end of the run.

    Attributes:
        step: Index of the last iteration; -1 if there was none.
        time_s: Unix time. Unit: s.
        values: The numbers by key.
    """

    step: int
    time_s: float
    values: dict[str, float]
