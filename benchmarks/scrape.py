"""How long the daemon takes to answer a scrape: 8 ranks with 2 optimizers and 32 modules each.

Run it with ``python benchmarks/scrape.py``. What counts is the median: a scrape comes
every 15 s or so, and while it is rendered the daemon reads no rings.
"""

import math
import statistics
import time

from ampwatch.host.fleet import Fleet
from ampwatch.host.fleet.passes import CollectorPass
from ampwatch.host.metrics.prometheus import PrometheusExporter
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.settings import Settings
from ampwatch.wire.records import (
    ALL_MODULES,
    FactsRecord,
    Finding,
    FindingRecord,
    OptimizerRecord,
    RangeRecord,
    Record,
    RunIdentity,
    SamplingRecord,
    Severity,
    SkipClass,
    StepRecord,
    Topic,
)

NUM_RANKS = 8
NUM_OPTIMIZERS = 2
NUM_MODULES = 32
NUM_STEPS = 2000
NUM_REPEATS = 200
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
START_NS = 1_700_000_000_000_000_000


def step(index: int) -> StepRecord:
    """Return the record of a step in which nothing happens."""
    return StepRecord(
        step=index,
        time_ns=START_NS + index * 100_000_000,
        duration_s=0.1 if index else math.nan,
        loss=2.5,
        num_losses=1,
        loss_scale=65536.0,
        growth_tracker=index % 2000,
        skip_class=SkipClass.NONE,
        consecutive_skips=0,
        grew=False,
        backed_off=False,
        set_by_hand=False,
        total_growths=0,
        total_backoffs=0,
        total_set_by_hand=0,
        total_nonfinite_losses=0,
        total_observations_dropped=0,
        total_sensor_errors=0,
        overhead_ns=index * 50_000,
    )


def ranges(module: str, topic: Topic) -> RangeRecord:
    """Return the ranges of a module with sixteen million elements over 40 binades."""
    bell = tuple(math.ceil(1.6e6 * math.exp(-((i - 20) ** 2) / 32)) for i in range(40))
    exponents = ExponentHistogram(-30, bell, 1000, amax=1e3, amin=2.0**-30, numel=sum(bell) + 1000)
    return RangeRecord(NUM_STEPS, START_NS, topic, module, "float16", 2, 65536.0, 0, 0, exponents)


def sample() -> list[Record]:
    """Return what a rank writes after a sample of everything."""
    modules = [ALL_MODULES, *(f"encoder.layers.{i}.self_attn" for i in range(NUM_MODULES))]
    topics = (Topic.GRADIENT, Topic.ACTIVATION, Topic.ACTIVATION_GRADIENT, Topic.UPDATE)
    measured: list[Record] = [ranges(module, topic) for module in modules for topic in topics]
    return [*measured, SamplingRecord(NUM_STEPS, 50, (8, 8, 8, 8, 8, 8), *range(12))]


def records_of_a_run() -> list[Record]:
    """Return what one rank has written after ``NUM_STEPS`` steps."""
    records: list[Record] = [FactsRecord({"init_scale": "65536.0", "growth_interval": "2000"})]
    for index in range(NUM_STEPS):
        records.append(step(index))
        records += [
            OptimizerRecord(index, optimizer, False, index + 1, (0, 0, 0, 0))  # noqa: FBT003 - a field
            for optimizer in range(NUM_OPTIMIZERS)
        ]
    finding = Finding("headroom_low", Severity.WARNING, "layers.3", "summary", "advice")
    return [*records, FindingRecord(finding), *sample()]


def fleet_of_ranks(records: list[Record]) -> Fleet:
    """Return a fleet whose ranks have all written ``records``."""
    fleet = Fleet(Settings())
    for rank in range(NUM_RANKS):
        identity = RunIdentity("gpt", rank, rank, NUM_RANKS, 1, "node", START_NS, "0.0.0")
        fleet.apply(f"/{rank}.ring", identity, records, alive=True, lost=0, dropped=0)
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
    exporter = PrometheusExporter(fleet, {"rings": CollectorPass(True, 0.001)})  # noqa: FBT003 - a field
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
