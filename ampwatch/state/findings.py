"""The findings of one rank: the newest state of each, and how many of which sort."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.state.text import encodable

if TYPE_CHECKING:
    from ampwatch.wire.records import Finding, Severity

MAX_FINDINGS = 256
"""Findings kept per rank; one per kind and place, so a broken large model has many."""


class Sort(NamedTuple):
    """The attributes that findings are counted by."""

    kind: str
    severity: Severity
    root: bool


@dataclass(slots=True)
class SortTotals:
    """The findings of one sort.

    Attributes:
        num_places: Places at which one was made.
        last_seen_ns: Unix time at which one was last seen. Unit: ns.
    """

    num_places: int
    last_seen_ns: int


class FindingSums(NamedTuple):
    """The findings of a rank, added up. Nothing changes it.

    Attributes:
        by_sort: The totals of each sort.
        steps_by_kind: In how many iterations a finding was seen, per kind, added up over its places.
        newest_by_kind: The finding of each kind that was seen last, and when in Unix time. Unit: ns.
    """

    by_sort: dict[Sort, SortTotals]
    steps_by_kind: Counter[str]
    newest_by_kind: dict[str, tuple[Finding, int]]


class Findings:
    """Findings by ``kind@where``.

    Attributes:
        by_key: The newest state of each finding, in the order in which they were made.
        left_out: Reports of findings that were not kept, because there were too many; the
            ring repeats them, and so does this count.
    """

    def __init__(self) -> None:
        self.by_key: dict[str, Finding] = {}
        self.left_out = 0
        self._last_seen_ns: dict[str, int] = {}
        self._sums: FindingSums | None = None

    def put(self, finding: Finding, time_ns: int) -> None:
        """Take in ``finding``, last seen at Unix time ``time_ns``.

        One that is as it was changes nothing: the ring repeats it for readers that come late. In the
        training process each finding is one object, which is updated in place: its totals and its time stay those
        of the first report there, and nobody reads them.
        """
        known = self.by_key.get(finding.key)
        if known is finding:
            return
        if not finding.kind.isascii():
            finding = replace(finding, kind=encodable(finding.kind))
        # As text, because evidence that is NaN does not equal itself.
        if known is not None and repr(finding) == repr(known):
            return
        self._sums = None
        # Known ones are still updated when there are too many: their counters must not stand still.
        # The first ones stay: root causes are found before what follows from them.
        if finding.key not in self.by_key and len(self.by_key) >= MAX_FINDINGS:
            self.left_out += 1
            return
        self.by_key[finding.key] = finding
        self._last_seen_ns[finding.key] = time_ns

    def last_seen_ns(self, key: str) -> int:
        """Return the Unix time at which the finding of ``key`` was last seen. Unit: ns.

        Raises:
            KeyError: If there is none.
        """
        return self._last_seen_ns[key]

    @property
    def sums(self) -> FindingSums:
        """The findings added up: the same object until there is something new."""
        if self._sums is None:
            self._sums = self._add_up()
        return self._sums

    def _add_up(self) -> FindingSums:
        sums = FindingSums({}, Counter(), {})
        for key, finding in self.by_key.items():
            seen_ns, kind = self._last_seen_ns[key], finding.kind
            total = sums.by_sort.setdefault(
                Sort(kind, finding.severity, finding.root), SortTotals(0, 0)
            )
            total.num_places += 1
            total.last_seen_ns = max(total.last_seen_ns, seen_ns)
            sums.steps_by_kind[kind] += finding.count
            if kind not in sums.newest_by_kind or seen_ns >= sums.newest_by_kind[kind][1]:
                sums.newest_by_kind[kind] = finding, seen_ns
        return sums
