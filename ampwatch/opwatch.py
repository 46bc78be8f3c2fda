"""What ran in which dtype: the op census, wired together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.sensors.census import OpCensusSensor
from ampwatch.sensors.compiling import may_compile
from ampwatch.sensors.guard import Guard
from ampwatch.sensors.names import Names
from ampwatch.sensors.regions import Regions
from ampwatch.sensors.sampling import Look

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.attaching import Targets
    from ampwatch.diagnosis.op_evidence import OpCensus, Window
    from ampwatch.sensors.base import Sensor
    from ampwatch.sensors.guard import Account
    from ampwatch.sensors.sampling import Sampler


class OpWatch:
    """Counts ops in the iterations that the governor chooses, and opens profiler windows.

    Implements ``iteration.Ops``. Nothing in here raises.

    Args:
        targets: What is watched.
        sampler: Says which iterations are counted.
        account: Where the time of all of them is counted.

    Attributes:
        guards: The guards of the sensors.
    """

    def __init__(self, targets: Targets, sampler: Sampler, account: Account) -> None:
        regions, census = Guard("regions", account), Guard("census", account)
        self.guards = [regions, census]
        self._sampler = sampler
        self._guard = census
        self._regions = Regions(regions)
        self._census = OpCensusSensor(Names(targets.models), self._regions, account, census)
        self._is_counting = False

    @property
    def sensors(self) -> Sequence[Sensor]:
        """The sensors, in the order in which they are installed."""
        return self._regions, self._census

    def closed(self, step: int, duration_s: float) -> tuple[OpCensus | None, Window | None]:
        """An iteration has ended; return what was seen of its ops and kernels."""
        return self._count(step, duration_s), None

    def _count(self, step: int, duration_s: float) -> OpCensus | None:
        if not self._is_counting:
            return None
        self._is_counting = False
        return self._guard.run(self._census.end, step, duration_s)

    def unfinished(self, step: int) -> OpCensus | None:
        """Return what was seen of the ops of the open iteration, which will not end."""
        return self._count(step, float("nan"))

    def opened(self) -> None:
        """The next iteration begins; the sampler has decided what is looked at."""
        if Look.OPS in self._sampler.wanted:
            self._is_counting = bool(self._guard.run(self._census.begin))

    def not_seen(self) -> list[str]:
        """Return, in sentences, what could not be counted."""
        sentences = []
        if may_compile():
            sentences.append(
                "ops are not counted one by one: torch.compile was called in this process, and"
                " compiled code would run otherwise; profiler windows count them"
            )
        return sentences
