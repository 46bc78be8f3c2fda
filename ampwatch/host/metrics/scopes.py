"""Scopes that metrics are measured of: the daemon, each rank, each module of a rank, each GPU ...

A scope knows the labels that identify its members and walks over those that are there now, so
that a metric only says what it reads of one of them. A value that is ``None`` is not known, and
its sample is absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Generic, TypeVar

from ampwatch.host.metrics.metric import Exemplified, Reader
from ampwatch.numerics.formats import FORMATS, PLAIN
from ampwatch.wire import records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ampwatch.host.fleet import RankView
    from ampwatch.host.fleet.gpus import Gpu, Instance
    from ampwatch.host.fleet.histogram import Distribution
    from ampwatch.host.metrics.metric import Rows, ScrapeState
    from ampwatch.state.facts import Fact

    Value = float | Exemplified | Distribution
    Table = Iterable[tuple[tuple[str, ...], Value]]


T = TypeVar("T")

ROOT_MODULE = "(root)"
"""Value of the label ``module`` for the model itself, whose qualified name is empty: to
Prometheus an empty label is no label. No attribute name made by ordinary code looks like it."""

_OF_OPS = [fmt.name for fmt in PLAIN]
_OF_KERNELS = [fmt.kernel_label for fmt in FORMATS.values()]

DTYPES = (*dict.fromkeys([*_OF_OPS, *_OF_KERNELS]), "int8")
"""Values of the label ``dtype``; ``OTHER_DTYPE`` stands for every other one."""

OTHER_DTYPE = "other"

NO_DTYPE = "unknown"
"""Value for a kernel whose name says no dtype: to Prometheus an empty label is no label."""

_UNUSED_OPTIMIZER = records.OptimizerRecord(
    step=0, index=0, skipped=False, total_steps=0, total_skipped=(0, 0, 0, 0)
)


@dataclass(frozen=True)
class Scope(Generic[T]):
    """Members that the same things are read of.

    Attributes:
        labels: Names of the labels that identify the members.
        walk: Yields the values of these labels and the member, for each there is.
    """

    labels: tuple[str, ...]
    walk: Callable[[ScrapeState], Iterable[tuple[tuple[str, ...], T]]]

    def one(self, read: Callable[[T], Value | None]) -> Reader:
        """Return a reader of one value per member; ``None`` is not known, and absent."""

        def table(member: T) -> Table:
            value = read(member)
            return () if value is None else (((), value),)

        return self.by(read=table)

    def by(self, *labels: str, read: Callable[[T], Table]) -> Reader:
        """Return a reader of several values per member, under further labels.

        Args:
            labels: Names of these labels.
            read: Returns their values, in the same order, and the number, for each sample. No
                two have the same label values: Prometheus refuses a scrape in which they have.
        """
        return Reader((*self.labels, *labels), self.walk, read)

    def histogram(
        self, *labels: str, read: Callable[[T], Iterable[tuple[tuple[str, ...], Distribution]]]
    ) -> Reader:
        """Return a reader of histograms, as ``by``."""
        return self.by(*labels, read=read)._replace(is_histogram=True)


def part(find: Callable[[RankView], T]) -> Scope[T]:
    """Return a part of each rank as a scope."""

    def walk(state: ScrapeState) -> list[tuple[tuple[str, ...], T]]:
        return [(values, find(rank)) for values, rank in state.ranks]

    return Scope(_RANK, walk)


class NewestRecord(Generic[T]):
    """The newest record of one type of each rank.

    Attributes:
        or_none: The record of each rank, ``None`` before the first.
    """

    def __init__(self, find: Callable[[RankView], T | None]) -> None:
        self.or_none: Scope[T | None] = part(find)

    def count(self, read: Callable[[T], float]) -> Reader:
        """Return a reader of a count per rank that is 0 before the first record.

        A counter that appeared with its first value would hide it from ``increase()``, which
        needs a sample before.
        """
        return self.or_none.one(lambda record: 0 if record is None else read(record))

    def counts(
        self, label: str, values: Iterable[str], read: Callable[[T], Iterable[float]]
    ) -> Reader:
        """Return a reader of such a count for each of ``values``, in whose order they are read."""

        def table(record: T | None) -> Table:
            found = repeat(0.0) if record is None else read(record)
            return [((value,), number) for value, number in zip(values, found, strict=False)]

        return self.or_none.by(label, read=table)

    def one(self, read: Callable[[T], float | None]) -> Reader:
        """Return a reader of a value per rank that is absent before the first record."""
        return self.or_none.one(lambda record: None if record is None else read(record))

    def by(self, *labels: str, read: Callable[[T], Table]) -> Reader:
        """Return a reader of values under ``labels``, absent before the first record."""
        return self.or_none.by(*labels, read=lambda record: () if record is None else read(record))


def exported(rows: Iterable[Fact]) -> Rows:
    """Return the metrics of those numbers of a rank that have a name in Prometheus."""
    return {fact.name: (fact.says, PER_RANK.one(fact.read)) for fact in rows if fact.name}


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


def _optimizers(state: ScrapeState) -> Iterator[tuple[tuple[str, ...], records.OptimizerRecord]]:
    """Yield the optimizers; before one was seen the first, so that its counters start at 0."""
    for values, rank in state.ranks:
        known = rank.optimizers or {0: _UNUSED_OPTIMIZER}
        # In a ring an index is any number; the view has taken those beyond the limit together.
        for index in sorted(known):
            label = "other" if index == records.OTHER_OPTIMIZERS else str(index)
            yield (*values, label), known[index]


def per_module(topic: records.Topic) -> Scope[records.RangeRecord]:
    """Return the modules that a rank exports series of and that have ranges of ``topic``."""

    def walk(state: ScrapeState) -> Iterator[tuple[tuple[str, ...], records.RangeRecord]]:
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
PER_OPTIMIZER: Scope[records.OptimizerRecord] = Scope((*_RANK, "optimizer"), _optimizers)

PER_GPU: Scope[Gpu] = Scope(GPU_LABELS, lambda state: state.gpus)
"""The GPUs that were ever seen; one that has gone has no readings."""

PER_INSTANCE: Scope[Instance] = Scope((*GPU_LABELS, "gpu_instance"), _instances)
"""The GPU instances of GPUs in MIG mode."""

TOTALS: NewestRecord[records.SamplingRecord] = NewestRecord(lambda rank: rank.totals)
"""The newest totals of sampling."""

CENSUS: NewestRecord[records.CensusRecord] = NewestRecord(lambda rank: rank.precision.census)
"""The newest op census."""

WINDOW: NewestRecord[records.WindowRecord] = NewestRecord(lambda rank: rank.precision.window)
"""The newest profiler window; its numbers are totals of all windows so far."""


def dtype_label(dtype: str) -> str:
    """Return a dtype as one of the few words of its label."""
    if not dtype:
        return NO_DTYPE
    return dtype if dtype in DTYPES else OTHER_DTYPE
