"""A metric: its name, type, unit, labels and help, and the reader of its value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ampwatch.host.fleet.text import encodable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ampwatch.host.fleet import Fleet, RankView
    from ampwatch.host.fleet.gpus import Gpu
    from ampwatch.host.fleet.passes import CollectorPass

MetricType = Literal["counter", "gauge", "histogram", "info"]

Samples = Iterable[tuple[tuple[str, ...], Any]]
"""Label values, and the number that belongs to them; ``Exemplified`` with an example, and
``Distribution`` of a histogram."""


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


class ScrapeState:
    """The state that one scrape is read from.

    The lists are made once a scrape, since some forty metrics walk over each of them. They hold
    live views: make a state and read all of it while holding ``fleet.lock``.

    Attributes:
        fleet: The fleet.
        passes: The newest pass of each of the daemon's collectors, by name.
        ranks: The ranks that are exported, each with its values of ``run`` and ``rank``.
        gpus: The GPUs, each with its values of ``gpu`` and ``uuid``.
    """

    __slots__ = ("fleet", "gpus", "passes", "ranks")

    def __init__(self, fleet: Fleet, passes: Mapping[str, CollectorPass]) -> None:
        self.fleet = fleet
        self.passes = passes
        self.ranks: list[tuple[tuple[str, ...], RankView]] = [
            ((rank.run, str(rank.identity.rank)), rank) for rank in fleet.exported()
        ]
        self.gpus: list[tuple[tuple[str, ...], Gpu]] = [
            ((str(gpu.index), encodable(gpu.uuid)), gpu) for gpu in fleet.gpus.all()
        ]


class Reader(NamedTuple):
    """The source of the samples of a metric.

    Attributes:
        labels: Names of all labels, those of the scope first.
        samples: Returns the samples; the values of each are in the order of ``labels``.
    """

    labels: tuple[str, ...]
    samples: Callable[[ScrapeState], Samples]


@dataclass(frozen=True, slots=True)
class Metric:
    """One exported family.

    Attributes:
        name: As users query it: with ``_total`` for a counter, ``_info`` for an info.
        type: Prometheus type; an info is a gauge of value 1 in the text format.
        help: What one sample says, and where it comes from.
        reader: Labels and values of its samples, made by a scope (``scopes.py``).
        unit: Base unit that ends the name; empty without one.
    """

    name: str
    type: MetricType
    help: str
    reader: Reader
    unit: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of all labels, those that identify a rank or a GPU first."""
        return self.reader.labels

    @property
    def family(self) -> str:
        """The name of the family in OpenMetrics, without ``_total`` or ``_info``."""
        return self.name.removesuffix("_total").removesuffix("_info")
