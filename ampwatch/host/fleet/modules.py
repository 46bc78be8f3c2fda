"""The newest ranges of each module of one rank, and which modules get series of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ampwatch.host.fleet.trouble import Trouble
    from ampwatch.wire.records import RangeRecord

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
        counted: By topic, of each of those that have a record of it, how many elements that was
            made of; 0 where it was all of them.
        measured: Names of those that were measured at any time.
        tracked: Names of those chosen to have series of their own, in the order of choice.
        troubles: What was notable of those at any time (``trouble.notable``), where anything was.
        exported: Names of those that this rank exports series of, in the order of choice.

    Args:
        max_series: Modules that may have series of their own.

    Cost:
        Constant for each record, a few microseconds for each once a sample is complete. About
        2 KB a record of an ordinary tensor, one per module and topic: 5 MB for 512 modules.
    """

    def __init__(self, max_series: int) -> None:
        self.by_name: dict[str, dict[Topic, RangeRecord]] = {}
        self.counted: dict[Topic, dict[str, int]] = {}
        self.measured: set[str] = set()
        self.tracked: list[str] = []
        self.troubles: dict[str, set[str]] = {}
        self.exported: tuple[str, ...] = ()
        self._spoken_for: frozenset[str] = frozenset()
        self._max_series = max_series
        self._chosen: set[str] = set()
        self._fresh: dict[str, None] = {}
        self._sampled: set[str] = set()

    @property
    def spoken_for(self) -> frozenset[str]:
        """Names of those whose series another rank exports instead (``share_modules``)."""
        return self._spoken_for

    @spoken_for.setter
    def spoken_for(self, names: frozenset[str]) -> None:
        self._spoken_for = names
        # Made here: it is asked for with every family of every scrape, and is seldom another one.
        self.exported = tuple(name for name in self.tracked if name not in names)

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
        self.counted.setdefault(record.topic, {})[record.module] = _counted(record)
        if len(self.measured) < MAX_NAMES:
            self.measured.add(record.module)
        self._sampled.add(record.module)
        if record.module not in self._chosen:
            self._fresh[record.module] = None
        if len(self.by_name) > MAX_MODULES:
            # Never a chosen one: its series would end.
            oldest = next(name for name in self.by_name if name not in self._chosen)
            for topic in self.by_name.pop(oldest):
                del self.counted[topic][oldest]
            self._fresh.pop(oldest, None)
            self._sampled.discard(oldest)

    def choose(self, judge: Callable[[Mapping[Topic, RangeRecord]], Trouble]) -> None:
        """Give away series that are free to modules of the newest sample; call it after each."""
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
        self.spoken_for = self._spoken_for

    def remember(self, notable: Callable[[Mapping[Topic, RangeRecord]], set[str]]) -> None:
        """Remember what was notable of the newest sample; call it after ``choose``."""
        sampled, self._sampled = self._sampled, set()
        for name in sampled & self._chosen:
            if found := notable(self.by_name[name]):
                self.troubles.setdefault(name, set()).update(found)


def _counted(record: RangeRecord) -> int:
    """Return how many elements the shares of a record rest on; 0 if that is all there are."""
    histogram = record.histogram
    binned = histogram.binned
    # Of updates the sensor compares a subsample to begin with, so that the histogram, which holds
    # all of that, does not know that it is one.
    if record.topic is Topic.UPDATE or binned < histogram.numel - histogram.nonfinite:
        return binned
    return 0
