"""The GPUs of the first machine of the made-up history: those of the daemon, and dcgm-exporter's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ampwatch.host.metrics.prometheus import PrometheusExporter
from tests.workshop.fleets import fleet_with_gpus

if TYPE_CHECKING:
    from collections.abc import Iterator

DCGM_JOB = "dcgm"
DCGM_INSTANCES = ("node-0:9400", "node-1:9400")
"""An exporter with the old names of metrics and labels, and one with the new ones."""

BLANK = 140737488355328.0
"""What DCGM says where it has no value."""

_SAMPLE = re.compile(r"^(ampwatch_(?:gpu|mig)_\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_OLD = {
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.5,
    "DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE": 0.4,
    "DCGM_FI_PROF_DRAM_ACTIVE": BLANK,
}
_NEW = {
    "DCGM_FI_PROF_TENSOR_UTIL_RATIO": 0.25,
    "DCGM_FI_PROF_HMMA_UTIL_RATIO": 0.2,
    "DCGM_FI_PROF_DRAM_ACTIVE": 0.3,
}
_BOTH = {
    "DCGM_FI_DEV_GPU_UTIL": 97.0,
    "DCGM_FI_DEV_POWER_USAGE": 500.0,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 600e6,
    "DCGM_FI_DEV_FB_USED": 1024.0,
    "DCGM_FI_DEV_SM_CLOCK": 1980.0,
    "DCGM_FI_DEV_GPU_TEMP": 61.0,
    "DCGM_FI_DEV_XID_ERRORS": 0.0,
}


def gpu_samples(instance: str) -> Iterator[tuple[str, str, float]]:
    """Name, labels and newest value of each series of the synthetic GPUs, rank 0 on the second."""
    body, _ = PrometheusExporter(fleet_with_gpus(), {}).render()
    for name, labels, value in _SAMPLE.findall(body.decode()):
        yield name, f'{labels},instance="{instance}"', float(value)


def dcgm_samples() -> Iterator[tuple[str, str, float]]:
    """The same of dcgm-exporter, of the first two GPUs, with the job as a label."""
    named = zip(DCGM_INSTANCES, (_OLD, _NEW), ("Hostname", "hostname"), strict=True)
    for instance, values, host in named:
        at = f'job="{DCGM_JOB}",instance="{instance}",{host}="{instance.partition(":")[0]}"'
        for gpu in (0, 1):
            who = f'{at},gpu="{gpu}",UUID="SYNTHETIC-{gpu}",modelName="Synthetic GPU"'
            for name, value in {**values, **_BOTH}.items():
                yield name, who, value
