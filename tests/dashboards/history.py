"""A quarter of an hour of a machine on which everything is exported that ampwatch and dcgm-exporter have."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from ampwatch.daemon.gpu.synthetic import SyntheticSource
from ampwatch.exporters.prometheus import PrometheusExporter
from ampwatch.exporters.samples import CollectorPass
from tests.aggregate.made_up import (
    FACTS,
    PRECISION,
    RANGES,
    START,
    Clock,
    finding,
    identity,
    made_up_fleet,
    optimizer,
    step,
)
from tests.services import require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ampwatch.aggregate import Fleet

GIB = 1 << 30
MINUTES = 15
SCRAPE_SECONDS = 15
PIDS = (4711, 4712)
AMPWATCH = 'job="ampwatch",instance="node1:10917"'
GONE = 'job="ampwatch",instance="node2:10917"'
"""A daemon that went down half way."""

DCGM = {
    "DCGM_FI_DEV_GPU_UTIL": 97.0,
    "DCGM_FI_DEV_POWER_USAGE": 512.0,
    "DCGM_FI_DEV_GPU_TEMP": 61.0,
    "DCGM_FI_DEV_SM_CLOCK": 1755.0,
    "DCGM_FI_DEV_FB_USED": 61440.0,
    "DCGM_FI_DEV_FB_FREE": 20480.0,
    "DCGM_FI_DEV_XID_ERRORS": 31.0,
}
"""What every dcgm-exporter exports, as it does by default."""

DCGM_PROFILING = {
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO"): 0.41,
    ("DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE", "DCGM_FI_PROF_HMMA_UTIL_RATIO"): 0.4,
    ("DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_DRAM_UTIL_RATIO"): 0.3,
    ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO"): 0.8,
}
"""By their names before and since DCGM 4.6."""


def full_fleet() -> Fleet:
    """The made-up fleet with a second rank that is measured as well, and GPUs under both."""
    fleet = made_up_fleet()
    second = [
        FACTS,
        *(step(i, duration_s=1.5, loss=1.0 + i) for i in range(5)),
        optimizer(0, total_steps=5, total_skipped=(1, 1, 1, 1)),
        finding("grad_underflow", "param:head.weight", count=3, first_step=1, last_step=3),
        *RANGES,
        *PRECISION,
    ]
    clock = Clock(START)
    source = SyntheticSource(lambda uuid, code: fleet.gpus.xids(uuid).add(code, clock()), clock)
    clock.now += 660
    found = source.read()
    for rank, records in enumerate(([], second)):
        found.gpus[rank].processes = {PIDS[rank]: (12 + rank) * GIB}
        who = identity(rank=rank, local_rank=rank, pid=PIDS[rank])
        key = f"/gpt-{rank}.ring"
        fleet.apply(key, who, records, alive=True, lost=0, dropped=0, pid=PIDS[rank])
    fleet.gpus.apply(found)
    fleet.compare_views()
    return fleet


def history(fleet: Fleet, now: float) -> str:
    """Return OpenMetrics of the quarter of an hour before ``now``, at the end of which ``fleet`` is.

    Every counter rises from 0 to what it is, every moment is as long ago as it is there.
    """
    passes = {
        name: CollectorPass(success=True, duration_seconds=0.002) for name in ("rings", "gpu")
    }
    text = PrometheusExporter(fleet, passes).render()[0].decode()
    series = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    labelled = [(_with(name, AMPWATCH), float(value)) for name, value in series]
    return "\n".join([*_lines(labelled, now), *_others(now), "# EOF\n"])


def _with(name: str, labels: str) -> str:
    head, brace, rest = name.partition("{")
    return f"{head}{{{labels},{rest}" if brace else f"{head}{{{labels}}}"


def _lines(series: list[tuple[str, float]], now: float) -> Iterator[str]:
    then = START + 20  # what the clock of the made-up fleet says
    for at, share in _times(now):
        for name, value in series:
            family = name.partition("{")[0]
            here = value
            if family.endswith(("_total", "_sum", "_count", "_bucket")):
                here = value * share
            elif family.endswith("_timestamp_seconds"):
                here = value - then + at
            yield f"{name} {here!r} {at:.3f}"


def _times(now: float) -> Iterator[tuple[float, float]]:
    points = MINUTES * 60 // SCRAPE_SECONDS
    for i in range(points + 1):
        yield now - SCRAPE_SECONDS * (points - i), i / points


def _others(now: float) -> Iterator[str]:
    """Yield what Prometheus adds to a scrape, a daemon that is gone, and two dcgm-exporters."""
    for at, share in _times(now):
        alive = float(share < 0.5)
        yield f"up{{{AMPWATCH}}} 1 {at:.3f}"
        yield f"scrape_duration_seconds{{{AMPWATCH}}} 0.004 {at:.3f}"
        yield f"scrape_samples_scraped{{{AMPWATCH}}} 900 {at:.3f}"
        yield f"up{{{GONE}}} {alive} {at:.3f}"
        if alive:
            yield f'ampwatch_build_info{{{GONE},version="0.0.0"}} 1 {at:.3f}'
        for new, host in enumerate(("Hostname", "hostname")):
            labels = (
                f'job="dcgm",instance="node{new + 1}:9400",gpu="0",UUID="GPU-{new}",'
                f'pci_bus_id="00000000:01:00.0",device="nvidia0",modelName="NVIDIA H100",{host}="node{new + 1}"'
            )
            yield f'up{{job="dcgm",instance="node{new + 1}:9400"}} 1 {at:.3f}'
            profiling = {names[new]: value for names, value in DCGM_PROFILING.items()}
            for name, value in (DCGM | profiling).items():
                yield f"{name}{{{labels}}} {value!r} {at:.3f}"


def backfill(directory: Path, text: str) -> None:
    """Make ``directory / "data"`` that of a Prometheus which has scraped ``text``."""
    file = directory / "history.txt"
    file.write_text(text, encoding="utf-8")
    command = [require("promtool"), "tsdb", "create-blocks-from", "openmetrics"]
    subprocess.run([*command, str(file), str(directory / "data")], check=True, capture_output=True)
