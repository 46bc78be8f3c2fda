"""GPUs that do not exist, so that the page and dashboards can be tried without one.

Every series of theirs says so: the uuids begin with ``SYNTHETIC-``, which no GPU's does,
and ``ampwatch_gpu_info`` has ``synthetic="true"``.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from ampwatch.host.fleet.gpus import TENSOR_PIPES, Feature, Gpu, Instance, MigDevice, Pass, Reason
from ampwatch.host.gpu import gpm

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.host.fleet.gpus import Answer, Answers
    from ampwatch.host.gpu.xid import Report

GIB = float(1 << 30)
CAPACITY = 80 * GIB
SM_HERTZ = 1.98e9
SMS = 132
IDLE_WATTS, FULL_WATTS = 110.0, 700.0
PERIOD_SECONDS = 240.0
"""Length of the waves in which work comes and goes, a quarter of one later on each GPU. Unit: s."""

XID_SECONDS = 600.0
APPLICATION_XID = 31
SHARES = {"any": 1.0, "hmma": 0.92, "imma": 0.05, "dmma": 0.0, "dfma": 0.0}
"""Share of the work of the tensor pipes that each of them does."""


class SyntheticSource:
    """Four GPUs: two that train, one in MIG mode, one of an older kind without GPM.

    The second one has an XID now and then. The clock is of Unix time, in s.
    """

    def __init__(self, report: Report, clock: Callable[[], float] = time.time) -> None:
        self._report = report
        self._clock = clock
        self._began = clock()
        self._reported = 0

    def read(self) -> Pass:
        """Return the readings that they are made to have now."""
        age = self._clock() - self._began
        due = int(age // XID_SECONDS)
        # One at a time, however long nobody has read: a burst would look like a fault of its own.
        if due > self._reported:
            self._reported = due
            self._report(_uuid(1), APPLICATION_XID)
        gpus = [_gpu(index, age) for index in range(4)]
        gpus[2].answers |= gpm.nothing(Reason.NOT_SUPPORTED) | {
            Feature.UTILIZATION: {"": Reason.NOT_SUPPORTED},
            Feature.MIG: {"": 1.0},
        }
        gpus[2].instances = [_instance(number, age) for number in (1, 2)]
        gpus[3].answers |= gpm.nothing(Reason.NOT_SUPPORTED)
        return Pass(Reason.SWITCHED_OFF, gpus)  # NVML is, and no series may say that it is read

    def close(self) -> bool:
        """Return at once: nothing is held."""
        return True


def _uuid(index: int) -> str:
    return f"SYNTHETIC-{index}"


def _load(index: float, age: float) -> float:
    """Return how busy a GPU is, from 0.1 to 0.9."""
    return 0.5 - 0.4 * math.cos(math.tau * (age / PERIOD_SECONDS - index / 4))


def _work(index: float, age: float) -> float:
    """Return the busy seconds since the beginning: the integral of the load. Unit: s."""
    phase = math.tau * index / 4
    swing = math.sin(math.tau * age / PERIOD_SECONDS - phase) + math.sin(phase)
    return 0.5 * age - 0.4 * PERIOD_SECONDS / math.tau * swing


def _gpu(index: int, age: float) -> Gpu:
    load = _load(index, age)
    work = _work(index, age)
    power = IDLE_WATTS + (FULL_WATTS - IDLE_WATTS) * load
    hot = max(0.0, load - 0.8)
    zero: Answer = 0.0
    answers: Answers = {
        Feature.UTILIZATION: {"": min(1.0, 1.1 * load)},
        Feature.MEMORY: {"used": 62 * GIB, "reserved": 0.6 * GIB, "capacity": CAPACITY},
        Feature.POWER: {"": power},
        Feature.POWER_LIMIT: {"": FULL_WATTS},
        Feature.TEMPERATURE: {"gpu": 34 + 40 * load, "memory": 40 + 45 * load},
        Feature.CLOCK: {"sm": SM_HERTZ * (1 - hot), "memory": 2.6e9},
        Feature.CLOCK_MAX: {"sm": SM_HERTZ, "memory": 2.6e9},
        Feature.THROTTLE: {
            **dict.fromkeys(("sync_boost", "board_limit", "reliability"), zero),
            **dict.fromkeys(("sw_thermal", "hw_thermal", "hw_power_brake"), zero),
            "sw_power_cap": 0.04 * work,
        },
        Feature.ECC: {"corrected": float(age // 900) if index == 1 else 0.0, "uncorrected": 0.0},
        Feature.REMAPPED_ROWS: dict.fromkeys(("pending", "failure"), zero),
        Feature.PROCESSES: {"": 1.0},
        Feature.XID: {"": Reason.OK},
        Feature.MIG: {"": 0.0},
        **_activity(load, work, age, SMS),
    }
    return Gpu(index, _uuid(index), _facts(index), answers)


def _activity(load: float, work: float, age: float, sms: int) -> Answers:
    cycles = SM_HERTZ * sms
    return {
        Feature.TENSOR_ACTIVE: {pipe: 0.6 * load * SHARES[pipe] for pipe in TENSOR_PIPES},
        Feature.SM_ACTIVE: {"": 0.95 * load},
        Feature.SM_CYCLES: {"": cycles * age},
        Feature.TENSOR_CYCLES: {pipe: 0.6 * cycles * work * SHARES[pipe] for pipe in TENSOR_PIPES},
    }


def _instance(number: int, age: float) -> Instance:
    load = _load(number, age)
    work = _work(number, age)
    answers: Answers = {
        Feature.MEMORY: {"used": 24 * GIB, "reserved": 0.1 * GIB, "capacity": 39 * GIB},
        **_activity(load, work, age, 60),
    }
    return Instance(number, (MigDevice(f"SYNTHETIC-MIG-{number}", 0, "3g.40gb"),), answers)


def _facts(index: int) -> dict[str, str]:
    return {
        "name": "Synthetic GPU",
        "pci_bus_id": f"synthetic:{index}",
        "compute_capability": "8.0" if index == 3 else "9.0",
        "driver_version": "synthetic",
        "cuda_version": "synthetic",
        "synthetic": "true",
    }
