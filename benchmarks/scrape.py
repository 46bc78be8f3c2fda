"""How long the daemon takes to answer a scrape: 8 ranks with 2 optimizers and 32 modules each.

Run it with ``python benchmarks/scrape.py``. What counts is the median: a scrape comes
every 15 s or so, and while it is rendered the daemon reads no rings.
"""

import math
import statistics
import time

from ampwatch.host.fleet import Fleet
from ampwatch.host.fleet.fleet import CollectorPass
from ampwatch.host.metrics.prometheus import PrometheusExporter
from ampwatch.settings import Settings
from ampwatch.wire.records import ALL_MODULES, RangeRecord, Record, Severity, StepRecord, Topic
from tests.workshop.records import (
    facts,
    finding,
    histogram,
    identity,
    optimizer,
    ranges,
    sampling,
    step,
)

NUM_RANKS = 8
NUM_OPTIMIZERS = 2
NUM_MODULES = 32
NUM_STEPS = 2000
NUM_REPEATS = 200
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
START_NS = 1_700_000_000_000_000_000


BELL = tuple(math.ceil(1.6e6 * math.exp(-((i - 20) ** 2) / 32)) for i in range(40))
"""Sixteen million elements over 40 binades."""


def quiet_step(index: int) -> StepRecord:
    """Return the record of a step in which nothing happens."""
    return step(
        index,
        time_ns=START_NS + index * 100_000_000,
        duration_s=0.1 if index else math.nan,
        loss=2.5,
        growth_tracker=index % 2000,
        overhead_ns=index * 50_000,
    )


def measured(module: str, topic: Topic) -> RangeRecord:
    """Return the ranges of a module."""
    return ranges(
        module,
        topic,
        histogram(-30, *BELL, zeros=1000, amax=1e3),
        step=NUM_STEPS,
        time_ns=START_NS,
        dtype="float16",
        loss_scale=65536.0,
    )


def sample() -> list[Record]:
    """Return what a rank writes after a sample of everything."""
    modules = [ALL_MODULES, *(f"encoder.layers.{i}.self_attn" for i in range(NUM_MODULES))]
    topics = (Topic.GRADIENT, Topic.ACTIVATION, Topic.ACTIVATION_GRADIENT, Topic.UPDATE)
    records: list[Record] = [measured(module, topic) for module in modules for topic in topics]
    return [
        *records,
        sampling(
            step=NUM_STEPS,
            interval=50,
            samples=(8, 8, 8, 8, 8, 8),
            gradient_elements=10**9,
            parameter_nonfinite=0,
            buffer_nonfinite=0,
        ),
    ]


def records_of_a_run() -> list[Record]:
    """Return what one rank has written after ``NUM_STEPS`` steps."""
    records: list[Record] = [facts(init_scale="65536.0", growth_interval="2000")]
    for index in range(NUM_STEPS):
        records.append(quiet_step(index))
        records += [
            optimizer(number, step=index, total_steps=index + 1) for number in range(NUM_OPTIMIZERS)
        ]
    records.append(
        finding(
            "headroom_low",
            "layers.3",
            severity=Severity.WARNING,
            summary="summary",
            kind_advice="advice",
        )
    )
    return [*records, *sample()]


def fleet_of_ranks(records: list[Record]) -> Fleet:
    """Return a fleet whose ranks have all written ``records``."""
    fleet = Fleet(Settings())
    for rank in range(NUM_RANKS):
        who = identity(rank=rank, local_rank=rank, world_size=NUM_RANKS)
        fleet.apply(f"/{rank}.ring", who, records, alive=True, lost=0, dropped=0)
    return fleet


def report(label: str, milliseconds: list[float], more: str) -> None:
    """Print one line: median, smallest and largest."""
    middle = statistics.median(milliseconds)
    print(
        f"{label:12} {middle:6.2f} ms  (min {min(milliseconds):.2f}, max {max(milliseconds):.2f})  {more}"
    )


def main() -> None:
    """Time folding and both formats, the formats interleaved."""
    records = records_of_a_run()
    begin = time.perf_counter()
    fleet = fleet_of_ranks(records)
    folded = time.perf_counter() - begin
    fleet.passes["rings"] = CollectorPass(True, 0.001)  # noqa: FBT003 - a field
    exporter = PrometheusExporter(fleet)
    times: dict[str, list[float]] = {"": [], OPENMETRICS: []}
    for _ in range(NUM_REPEATS):
        for accept, taken in times.items():
            begin = time.perf_counter()
            exporter.render(accept)
            taken.append((time.perf_counter() - begin) * 1e3)
    body, _ = exporter.render()
    series = sum(not line.startswith(b"#") for line in body.splitlines())
    print(
        f"{NUM_RANKS} ranks, {NUM_OPTIMIZERS} optimizers and {NUM_MODULES} modules each:"
        f" {series} series, {len(body)} bytes"
    )
    report("text", times[""], "")
    report("OpenMetrics", times[OPENMETRICS], "")
    print(f"folding      {folded / NUM_RANKS / len(records) * 1e6:6.2f} us a record")


if __name__ == "__main__":
    main()
