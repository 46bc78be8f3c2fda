"""The newest ranges of each module of one rank, and which modules get series of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ampwatch.host.fleet.trouble import Trouble
    from ampwatch.wire.records import RangeRecord, Topic

MAX_MODULES = 512
"""Modules kept per rank; of more, those that were measured longest ago are let go."""

MAX_NAMES = 4096
"""Names of modules remembered per rank, of those that were let go as well."""


class Modules:
    """Modules by name, in the order in which they were last measured.

    A series in Prometheus cannot move from module to module, so what is chosen stays.
    While there are no more modules than series, all are chosen; of more, those with the
    most trouble at the time, and half of the series are held back for modules whose trouble
    becomes notable later.

    Attributes:
        by_name: Qualified name to the newest record of each topic.
        measured: Names of those that were measured at any time.
        tracked: Names of those chosen to have series of their own, in the order of choice.
        troubles: What was notable of each of those at any time (``trouble.notable``).
        spoken_for: Names of those whose series another rank exports instead (``exported.py``).

    Args:
        max_series: Modules that may have series of their own.

    Cost:
        Constant for each record, a few microseconds for each once a sample is complete. About
        2 KB a record of an ordinary tensor, one per module and topic: 5 MB for 512 modules.
    """

    def __init__(self, max_series: int) -> None:
        self.by_name: dict[str, dict[Topic, RangeRecord]] = {}
        self.measured: set[str] = set()
        self.tracked: list[str] = []
        self.troubles: dict[str, set[str]] = {}
        self.spoken_for: frozenset[str] = frozenset()
        self._max_series = max_series
        self._chosen: set[str] = set()
        self._fresh: dict[str, None] = {}
        self._sampled: set[str] = set()

    @property
    def exported(self) -> list[str]:
        """Names of those that this rank exports series of."""
        return [name for name in self.tracked if name not in self.spoken_for]

    @property
    def num_untracked(self) -> int:
        """Modules of which this rank exports no series."""
        return len(self.by_name) - len(self.exported)

    def put(self, record: RangeRecord) -> None:
        """Take in the newest ranges of a module."""
        # Taken out and put in again, so that the dictionary is ordered by the newest measurement.
        topics = self.by_name.pop(record.module, {})
        topics[record.topic] = record
        self.by_name[record.module] = topics
        if len(self.measured) < MAX_NAMES:
            self.measured.add(record.module)
        self._sampled.add(record.module)
        if record.module not in self._chosen:
            self._fresh[record.module] = None
        if len(self.by_name) > MAX_MODULES:
            # Never a chosen one: its series would end.
            oldest = next(name for name in self.by_name if name not in self._chosen)
            del self.by_name[oldest]
            self._fresh.pop(oldest, None)
            self._sampled.discard(oldest)

    def choose(self, judge: Callable[[Mapping[Topic, RangeRecord]], Trouble]) -> None:
        """Give away series that are free to modules of the newest sample; call it after each.

        Args:
            judge: Returns the trouble of a module, given its newest record of each topic.
        """
        fresh, self._fresh = self._fresh, {}
        free = self._max_series - len(self.tracked)
        if free <= 0:
            return
        troubles = {name: judge(self.by_name[name]) for name in fresh}
        # Of equal trouble the order of measurement decides, for the sort is stable.
        names = sorted(troubles, key=lambda name: -troubles[name].score)
        if len(self.by_name) > self._max_series:
            at_once = max(0, free - self._max_series // 2)
            late = [name for name in names[at_once:] if troubles[name].reason]
            names = names[:at_once] + late
        self.tracked += names[:free]
        self._chosen.update(self.tracked)

    def remember(self, notable: Callable[[Mapping[Topic, RangeRecord]], set[str]]) -> None:
        """Remember what was notable of the newest sample; call it after ``choose``.

        Args:
            notable: Returns what is notable of a module, given its newest record of each topic.
        """
        sampled, self._sampled = self._sampled, set()
        for name in sampled & self._chosen:
            self.troubles.setdefault(name, set()).update(notable(self.by_name[name]))
