"""Scopes that metrics are measured of: the daemon, each rank, each module of a rank, each GPU ...

A scope knows the labels that identify its members and walks over those that are there now, so
that a metric only says what it reads of one of them. A value that is ``None`` is not known, and
its sample is absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from ampwatch.host.metrics.metric import Exemplified, Reader
from ampwatch.wire.records import OTHER_OPTIMIZERS, OptimizerRecord, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ampwatch.host.fleet import RankView
    from ampwatch.host.fleet.gpus import Gpu, Instance
    from ampwatch.host.fleet.histogram import Distribution
    from ampwatch.host.metrics.metric import Samples, ScrapeState
    from ampwatch.wire.records import (
        CensusRecord,
        RangeRecord,
        SamplingRecord,
        StepRecord,
        WindowRecord,
    )

    Value = float | Exemplified | Distribution
    Table = Iterable[tuple[tuple[str, ...], Value]]

T = TypeVar("T")

ROOT_MODULE = "(root)"
"""Value of the label ``module`` for the model itself, whose qualified name is empty: to
Prometheus an empty label is no label. No attribute name made by ordinary code looks like it."""

_UNUSED_OPTIMIZER = OptimizerRecord(
    step=0, index=0, skipped=False, total_steps=0, total_skipped=(0, 0, 0, 0)
)


class Scope(Generic[T]):
    """Members that the same things are read of.

    Attributes:
        labels: Names of the labels that identify the members.

    Args:
        labels: As the attribute.
        walk: Yields the values of these labels and the member, for each there is.
    """

    def __init__(
        self,
        labels: tuple[str, ...],
        walk: Callable[[ScrapeState], Iterable[tuple[tuple[str, ...], T]]],
    ) -> None:
        self.labels = labels
        self._walk = walk

    def one(self, read: Callable[[T], Value | None]) -> Reader:
        """Return a reader of one value per member.

        Args:
            read: Returns the value; ``None`` if it is not known.
        """

        def samples(state: ScrapeState) -> Samples:
            for values, member in self._walk(state):
                value = read(member)
                if value is not None:
                    yield values, value

        return Reader(self.labels, samples)

    def by(self, *labels: str, read: Callable[[T], Table]) -> Reader:
        """Return a reader of several values per member, under further labels.

        Args:
            labels: Names of these labels.
            read: Returns their values, in the same order, and the number, for each sample. No
                two have the same label values: Prometheus refuses a scrape in which they have.
        """

        def samples(state: ScrapeState) -> Samples:
            for values, member in self._walk(state):
                for more, value in read(member):
                    yield (*values, *more), value

        return Reader((*self.labels, *labels), samples)


class NewestRecord(Generic[T]):
    """The newest record of one type of each rank.

    Args:
        find: Returns the record of a rank; ``None`` before the first.
    """

    def __init__(self, find: Callable[[RankView], T | None]) -> None:
        self._find = find

    def count(self, read: Callable[[T], float]) -> Reader:
        """Return a reader of a count per rank that is 0 before the first record.

        A counter that appeared with its first value would hide it from ``increase()``, which
        needs a sample before.
        """
        return PER_RANK.one(lambda rank: 0 if (r := self._find(rank)) is None else read(r))

    def one(self, read: Callable[[T], float | None]) -> Reader:
        """Return a reader of a value per rank that is absent before the first record."""
        return PER_RANK.one(lambda rank: None if (r := self._find(rank)) is None else read(r))

    def by(self, *labels: str, read: Callable[[T], Table]) -> Reader:
        """Return a reader of values under ``labels``, absent before the first record."""
        return PER_RANK.by(
            *labels, read=lambda rank: () if (r := self._find(rank)) is None else read(r)
        )


def each(values: Mapping[str, float]) -> Table:
    """Yield the values of a table with one label."""
    for name, value in values.items():
        yield (name,), value


def summed(samples: Iterable[tuple[tuple[str, ...], float]]) -> Table:
    """Return one sample for all samples of the same label values.

    Several dtypes share the label ``other``: two samples of it would make Prometheus refuse the
    whole scrape.
    """
    totals: dict[tuple[str, ...], float] = {}
    for values, number in samples:
        totals[values] = totals.get(values, 0) + number
    return totals.items()


def _optimizers(state: ScrapeState) -> Iterator[tuple[tuple[str, ...], OptimizerRecord]]:
    """Yield the optimizers; before one was seen the first, so that its counters are born at 0."""
    for values, rank in state.ranks:
        known = rank.optimizers or {0: _UNUSED_OPTIMIZER}
        # In a ring an index is any number; the view has taken those beyond the limit together.
        for index in sorted(known):
            yield (*values, "other" if index == OTHER_OPTIMIZERS else str(index)), known[index]


def per_module(topic: Topic) -> Scope[RangeRecord]:
    """Return the modules that a rank exports series of and that have ranges of ``topic``."""

    def walk(state: ScrapeState) -> Iterator[tuple[tuple[str, ...], RangeRecord]]:
        for values, rank in state.ranks:
            for module in rank.ranges.modules.exported:
                record = rank.ranges.newest(topic, module)
                if record is not None:
                    yield (*values, module or ROOT_MODULE), record

    return Scope((*_RANK, "module"), walk)


def _instances(state: ScrapeState) -> Iterator[tuple[tuple[str, ...], Instance]]:
    for values, gpu in state.gpus:
        for instance in gpu.instances:
            yield (*values, str(instance.number)), instance


_RANK = ("run", "rank")
GPU_LABELS = ("gpu", "uuid")

ONCE: Scope[ScrapeState] = Scope((), lambda state: [((), state)])
"""Whatever there is one of on a machine: the daemon. Its member is the whole state."""

PER_RANK: Scope[RankView] = Scope(_RANK, lambda state: state.ranks)
PER_OPTIMIZER: Scope[OptimizerRecord] = Scope((*_RANK, "optimizer"), _optimizers)

PER_GPU: Scope[Gpu] = Scope(GPU_LABELS, lambda state: state.gpus)
"""The GPUs that were ever seen; one that has gone has no readings."""

PER_INSTANCE: Scope[Instance] = Scope((*GPU_LABELS, "gpu_instance"), _instances)
"""The GPU instances of GPUs in MIG mode."""

STEP: NewestRecord[StepRecord] = NewestRecord(lambda rank: rank.newest)
"""The newest step."""

TOTALS: NewestRecord[SamplingRecord] = NewestRecord(lambda rank: rank.ranges.totals)
"""The newest totals of sampling."""

CENSUS: NewestRecord[CensusRecord] = NewestRecord(lambda rank: rank.precision.census)
"""The newest op census."""

WINDOW: NewestRecord[WindowRecord] = NewestRecord(lambda rank: rank.precision.window)
"""The newest profiler window; its numbers are totals of all windows so far."""
