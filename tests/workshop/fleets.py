"""A fleet with GPUs that do not exist, one of them used by a rank."""

from __future__ import annotations

from ampwatch.host.fleet import Fleet
from ampwatch.host.fleet.gpus import Pass, Reason
from ampwatch.host.gpu.synthetic import SyntheticSource
from ampwatch.settings import Settings
from tests.workshop.records import START, Clock, identity

GIB = 1 << 30
PID = 4711


def fleet_with_gpus(age: float = 660.0) -> Fleet:
    """The four synthetic GPUs after ``age`` seconds, and a rank on the second one."""
    clock = Clock(START)
    fleet = Fleet(Settings(), clock)
    source = SyntheticSource(lambda uuid, code: fleet.gpus.xids(uuid).add(code, clock()), clock)
    clock.now += age
    found = source.read()
    found.gpus[1].processes = {PID: 12 * GIB, 1: GIB}
    fleet.gpus.apply(found)
    who = identity(world_size=1)
    fleet.apply("/a.ring", who, [], alive=True, lost=0, dropped=0, pid=PID)
    return fleet


def without_nvml(fleet: Fleet) -> Fleet:
    """Say that this machine has no NVIDIA driver."""
    fleet.gpus.apply(Pass(Reason.LIBRARY_NOT_FOUND))
    return fleet
