"""What a record costs: microseconds a ``put`` in the training process, slots a second in the daemon.

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

from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.runtime import SHARED_MEMORY
from ampwatch.wire.records import (
    EndRecord,
    Finding,
    FindingRecord,
    OptimizerRecord,
    RangeRecord,
    RunIdentity,
    RunState,
    Severity,
    SkipClass,
    StepRecord,
    Topic,
)
from ampwatch.wire.ring import RingReader, RingWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.wire.records import Record

ROUNDS = 101
CALLS = 1000
SLOTS = 8192

IDENTITY = RunIdentity("benchmark", 0, 0, 1, 0, "localhost", time.time_ns(), "0")
END = EndRecord(RunState.FINISHED, "", 0)
STEP = StepRecord(
    step=1000,
    time_ns=time.time_ns(),
    duration_s=0.25,
    loss=nan,
    num_losses=1,
    loss_scale=65536.0,
    growth_tracker=1000,
    skip_class=SkipClass.NONE,
    consecutive_skips=0,
    grew=False,
    backed_off=False,
    set_by_hand=False,
    total_growths=0,
    total_backoffs=1,
    total_set_by_hand=0,
    total_nonfinite_losses=0,
    total_observations_dropped=0,
    total_sensor_errors=0,
    overhead_ns=123456,
)
OPTIMIZER = OptimizerRecord(1000, 0, skipped=False, total_steps=1000, total_skipped=(1, 0, 0, 0))
BELL = tuple(ceil(1.6e6 * exp(-((i - 20) ** 2) / 32)) for i in range(40))
"""Sixteen million elements over 40 binades."""

RANGES = RangeRecord(
    step=1000,
    time_ns=time.time_ns(),
    topic=Topic.GRADIENT,
    module="transformer.encoder.layers.11.self_attn",
    dtype="float32",
    num_tensors=2,
    loss_scale=65536.0,
    total_nans=0,
    total_infs=0,
    histogram=ExponentHistogram(-30, BELL, 1000, amax=1e3, amin=2.0**-30, numel=sum(BELL) + 1000),
)
FINDING = FindingRecord(
    Finding(
        kind="activation_overflow",
        severity=Severity.CRITICAL,
        where="encoder.layers.11.mlp",
        summary="the output of encoder.layers.11.mlp is infinite since step 1000",
        advice="run this module under torch.autocast('cuda', enabled=False), or use bfloat16",
        evidence={"amax": 65519.0, "share": 0.001},
    )
)


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
            crowded.put(FindingRecord(Finding("overflow", Severity.INFO, where, "", "")))
        writer = RingWriter.create([directory], IDENTITY, slots=SLOTS)
        cases: dict[str, tuple[Callable[[Record], None], Record]] = {
            "no-op call": (nothing, STEP),
            "put(StepRecord)": (writer.put, STEP),
            "put(OptimizerRecord)": (writer.put, OPTIMIZER),
            "put(RangeRecord), 40 bins": (writer.put, RANGES),
            "put(FindingRecord)": (writer.put, FINDING),
            "put(StepRecord), 64 findings to repeat": (crowded.put, STEP),
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
