"""A metric: its name, type, unit, labels and help, and the reader of its value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ampwatch.state.text import encodable

if TYPE_CHECKING:
    from ampwatch.host.fleet import Fleet, RankView
    from ampwatch.host.fleet.gpus import Gpu

    Walk = Callable[["ScrapeState"], Iterable[tuple[tuple[str, ...], Any]]]

MetricType = Literal["counter", "gauge", "histogram", "info"]

_TYPES: dict[str, MetricType] = {"total": "counter", "info": "info"}

UNITS = {
    "seconds": "s",
    "bytes": "By",
    "ratio": "1",
    "decibels": "dB",
    "watts": "W",
    "joules": "J",
    "hertz": "Hz",
    "celsius": "Cel",
}
"""UCUM, in which OpenTelemetry writes units, by the base unit that ends a name of Prometheus."""

Samples = Iterable[tuple[tuple[str, ...], Any]]
"""Label values, and the number that belongs to them; ``Exemplified`` with an example, and
``Distribution`` of a histogram."""


Members = list[tuple[tuple[str, ...], Any]]
"""Members of a scope, each with the values of the labels that identify it."""


class Exemplified(NamedTuple):
    """A value with an example of what it counts; OpenMetrics carries it, the text format does not.

    Attributes:
        labels: What identifies the example.
        time_s: Unix time of the example. Unit: s.
    """

    value: float
    labels: dict[str, str]
    time_s: float


class ScrapeState:
    """The state that one scrape is read from.

    The lists are made once a scrape, since up to forty metrics walk over each of them. They hold
    live views: make a state and read all of it while holding ``fleet.lock``.

    Attributes:
        ranks: The ranks that are exported, each with its values of ``run`` and ``rank``.
        gpus: The GPUs, each with its values of ``gpu`` and ``uuid``.
    """

    __slots__ = ("_members", "fleet", "gpus", "ranks")

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.ranks: list[tuple[tuple[str, ...], RankView]] = [
            ((rank.run, str(rank.identity.rank)), rank) for rank in fleet.exported()
        ]
        self.gpus: list[tuple[tuple[str, ...], Gpu]] = [
            ((str(gpu.index), encodable(gpu.uuid)), gpu) for gpu in fleet.gpus.all()
        ]
        self._members: dict[Walk, Members] = {}

    def members(self, walk: Walk) -> Members:
        """Return what ``walk`` yields, which is walked once for all metrics that share it."""
        members = self._members.get(walk)
        if members is None:
            members = self._members[walk] = list(walk(self))
        return members


class Reader(NamedTuple):
    """The source of the samples of a metric.

    Attributes:
        labels: Names of all labels, those of the scope first.
        walk: Yields the members of the scope, each with the values of the labels of the scope.
        read: Returns the samples of a member, under the values of the other labels.
        is_histogram: Whether each of them is a ``Distribution``.
    """

    labels: tuple[str, ...]
    walk: Walk
    read: Callable[[Any], Samples]
    is_histogram: bool = False

    def samples(self, state: ScrapeState) -> Samples:
        """Yield the samples; the values of each are in the order of ``labels``."""
        for values, member in state.members(self.walk):
            for more, value in self.read(member):
                yield (*values, *more), value


Rows = Mapping[str, tuple[str, Reader]]
"""Metrics by their names: the help and the reader of each."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One exported family. What Prometheus' conventions have a name end in is read from it.

    Attributes:
        name: As users query it: with ``_total`` for a counter, ``_info`` for an info, and before
            that with its base unit, if it has one.
        help: What one sample says, and where it comes from.
        reader: Labels and values of its samples, made by a scope (``scopes.py``).
    """

    name: str
    help: str
    reader: Reader

    @property
    def type(self) -> MetricType:
        """Prometheus type; an info is a gauge of value 1 in the text format."""
        if self.reader.is_histogram:
            return "histogram"
        return _TYPES.get(self.name.rpartition("_")[2], "gauge")

    @property
    def unit(self) -> str:
        """Base unit that ends the name; empty without one."""
        last = self.family.rpartition("_")[2]
        return last if last in UNITS else ""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of all labels, those that identify a rank or a GPU first."""
        return self.reader.labels

    @property
    def family(self) -> str:
        """The name of the family in OpenMetrics, without ``_total`` or ``_info``."""
        return self.name.removesuffix("_total").removesuffix("_info")
