"""Which GPUs a daemon reads: none, those of the machine, or some that do not exist."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from ampwatch.host.fleet.gpus import Reason
from ampwatch.host.gpu.collector import GpuCollector
from ampwatch.host.gpu.source import open_source
from ampwatch.host.gpu.synthetic import SyntheticSource

if TYPE_CHECKING:
    from ampwatch.host.fleet import Fleet
    from ampwatch.host.fleet.passes import CollectorPass
    from ampwatch.settings import Settings


def gpu_collector(
    fleet: Fleet, passes: dict[str, CollectorPass], settings: Settings
) -> GpuCollector | None:
    """Return what reads the GPUs, ``None`` if nothing is to."""
    if settings.gpu == "off":
        fleet.gpus.host = Reason.SWITCHED_OFF
        return None

    def count(uuid: str, code: int) -> None:
        with fleet.lock:
            fleet.gpus.xids(uuid).add(code, time.time())

    if settings.gpu == "demo":
        return GpuCollector(
            fleet, passes, partial(SyntheticSource, count), settings.gpu_poll_seconds
        )
    throughput = settings.gpu_link_throughput == "on"
    opener = partial(open_source, count, link_throughput=throughput)
    return GpuCollector(fleet, passes, opener, settings.gpu_poll_seconds)
