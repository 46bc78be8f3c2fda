"""Cost of a record: microseconds a ``put`` in the training process, slots a second in the daemon.

Run ``python benchmarks/ring.py``. Rounds of every kind take turns, so that a change of
the machine's speed meets all of them; the table gives the median round, and the worst.
"""

from __future__ import annotations

import tempfile
import time
from math import ceil, exp, nan
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from ampwatch.runtime import SHARED_MEMORY
from ampwatch.wire.records import Severity
from ampwatch.wire.ring import RingReader, RingWriter
from tests.workshop.records import end, finding, histogram, identity, optimizer, ranges, step

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.wire.records import Record

ROUNDS = 101
CALLS = 250
SLOTS = 8192

IDENTITY = identity(
    run="benchmark", world_size=1, pid=0, host="localhost", started_ns=time.time_ns()
)
END = end(time_ns=0)
STEP = step(
    1000,
    time_ns=time.time_ns(),
    duration_s=0.25,
    loss=nan,
    growth_tracker=1000,
    total_backoffs=1,
    overhead_ns=123456,
)
OPTIMIZER = optimizer(step=1000, total_steps=1000, total_skipped=(1, 0, 0, 0))
BELL = tuple(ceil(1.6e6 * exp(-((i - 20) ** 2) / 32)) for i in range(40))
"""Sixteen million elements over 40 binades."""

RANGES = ranges(
    "transformer.encoder.layers.11.self_attn",
    exponents=histogram(-30, *BELL, zeros=1000, amax=1e3),
    step=1000,
    time_ns=time.time_ns(),
    loss_scale=65536.0,
)
FINDING = finding(
    "activation_overflow",
    "encoder.layers.11.mlp",
    summary="the output of encoder.layers.11.mlp is infinite since step 1000",
    kind_advice="run this module under torch.autocast('cuda', enabled=False), or use bfloat16",
    evidence={"amax": 65519.0, "share": 0.001},
)


TOGETHER = 64
"""Records of a batch: those of 32 iterations."""


def nothing(_: Record) -> None:
    """Do nothing: what the loop and the call cost by themselves."""


def microseconds(call: Callable[[Record], None], record: Record) -> float:
    """Return the mean time of one call over one round. Unit: us."""
    begin = time.perf_counter()
    for _ in range(CALLS):
        call(record)
    return (time.perf_counter() - begin) / CALLS * 1e6


def slots_per_second(path: Path) -> float:
    """Return how fast a reader that comes late reads a full ring."""
    reader = RingReader(path)
    begin = time.perf_counter()
    reader.poll()
    seconds = time.perf_counter() - begin
    reader.close()
    return SLOTS / seconds


def main() -> None:
    """Measure in shared memory and print two small tables."""
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as place:
        directory = Path(place)
        crowded = RingWriter.create([directory], IDENTITY, slots=SLOTS)
        for index in range(64):
            where = f"encoder.layers.{index}"
            crowded.put(finding("overflow", where, severity=Severity.INFO))
        writer = RingWriter.create([directory], IDENTITY, slots=SLOTS)
        batch = [STEP, OPTIMIZER] * (TOGETHER // 2)

        def put_together(_: Record) -> None:
            writer.put(*batch)

        cases: dict[str, tuple[Callable[[Record], None], Record]] = {
            "no-op call": (nothing, STEP),
            "put(StepRecord)": (writer.put, STEP),
            "put(OptimizerRecord)": (writer.put, OPTIMIZER),
            "put(RangeRecord), 40 bins": (writer.put, RANGES),
            "put(FindingRecord)": (writer.put, FINDING),
            "put(StepRecord), 64 findings to repeat": (crowded.put, STEP),
            f"put of {TOGETHER} records together": (put_together, STEP),
        }
        times: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(ROUNDS):
            for name, (call, record) in cases.items():
                times[name].append(microseconds(call, record))
        writer.put(STEP)
        rates = [slots_per_second(crowded.path) for _ in range(11)]
        for ring in (writer, crowded):
            ring.close(END, keep=False)
    baseline = median(times["no-op call"])
    print(f"{'':40} {'median':>8} {'net':>8} {'worst':>8}  us a call, {ROUNDS} rounds of {CALLS}")
    for name, rounds in times.items():
        middle = median(rounds)
        print(f"{name:40} {middle:8.2f} {middle - baseline:8.2f} {max(rounds):8.2f}")
    print(f"{'reader':40} {median(rates):8.0f} slots a second")


if __name__ == "__main__":
    main()
