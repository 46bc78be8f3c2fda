"""Records to write, a ring file made by hand, and programs that write rings."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ampwatch
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.numerics.units.ops import Fallback, OpKind, Phase
from ampwatch.wire.records import (
    ALL_MODULES,
    CastTotal,
    CensusRecord,
    CensusSource,
    EndRecord,
    FactsRecord,
    FallbackTotal,
    Finding,
    FindingRecord,
    KernelRow,
    KernelTotal,
    OpRow,
    OptimizerRecord,
    OpTotal,
    RangeRecord,
    RunIdentity,
    RunState,
    SamplingRecord,
    SensorFailureRecord,
    Severity,
    SkipClass,
    StepRecord,
    Topic,
    WindowRecord,
)
from ampwatch.wire.ring import layout
from ampwatch.wire.ring.encoding import encode, encode_identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ampwatch.wire.records import Record

IDENTITY = RunIdentity("resnet", 3, 1, 8, 4711, "node-a", 1_700_000_000_000_000_000, "0.1.0")
END = EndRecord(RunState.FINISHED, "", 1_700_000_001_000_000_000)
FACTS = FactsRecord({"torch": "2.13.0", "gpu": "H100"})

FAILURE = SensorFailureRecord("scale", 3, 41, "RuntimeError: no such attribute")


def step(index: int) -> StepRecord:
    """A step whose every number follows from its index, so that a mixture shows."""
    return StepRecord(
        step=index,
        time_ns=1_700_000_000_000_000_000 + index,
        duration_s=index / 8,
        loss=-index / 4,
        num_losses=1,
        loss_scale=65536.0 + index,
        growth_tracker=index - 1,
        skip_class=SkipClass(index % 5),
        consecutive_skips=index % 7,
        grew=index % 2 == 0,
        backed_off=index % 3 == 0,
        set_by_hand=index % 5 == 0,
        total_growths=index,
        total_backoffs=index + 1,
        total_set_by_hand=index + 2,
        total_nonfinite_losses=index + 3,
        total_observations_dropped=index + 4,
        total_sensor_errors=index + 5,
        overhead_ns=index + 6,
    )


def changed(record: Any, **change: Any) -> Any:
    """``record`` with fields that may be of any type, as a mistaken sensor would put it."""
    return replace(record, **change)


NAN_STEP: StepRecord = changed(
    step(0), duration_s=nan, loss=nan, loss_scale=nan, growth_tracker=-1, num_losses=0
)


def optimizer(index: int, steps: int = 1) -> OptimizerRecord:
    return OptimizerRecord(
        steps, index, skipped=False, total_steps=steps, total_skipped=(1, 2, 3, 4)
    )


def ranges(module: str = "encoder.0", counts: tuple[int, ...] = (1, 0, 300)) -> RangeRecord:
    """Gradients around 2**-20, with some of everything."""
    exponents = ExponentHistogram(
        *(-21, counts, 7, 1, 2, 3),
        *(2.0**-19, 2.0**-21, sum(counts) + 13),
    )
    return RangeRecord(
        step=7,
        time_ns=1_700_000_000_000_000_000,
        topic=Topic.GRADIENT,
        module=module,
        dtype="float32",
        num_tensors=2,
        loss_scale=65536.0,
        total_nans=4,
        total_infs=5,
        histogram=exponents,
    )


def sampling(index: int) -> SamplingRecord:
    """What sampling has seen, every number another one."""
    return SamplingRecord(
        index, index + 1, (2, 3, 4, 5, 6, 7), *(index + offset for offset in range(8, 20))
    )


def census(rows: int = 2) -> CensusRecord:
    """What a census of a training in bfloat16 says, every number another one."""
    table = [
        OpRow(
            *("addmm", ALL_MODULES, OpKind.MATMUL, Phase.FORWARD, "bfloat16+float32"),
            *("bfloat16", "bfloat16", Fallback.NONE, 11 + i, 12 + i, 13 + i, 14 + i),
        )
        for i in range(rows)
    ]
    return CensusRecord(
        step=40,
        time_ns=1_700_000_000_000_000_001,
        source=CensusSource.PROFILER,
        iterations=3,
        ops=(OpTotal(OpKind.MATMUL, "bfloat16", 4, 2**70, 6, 7),),
        casts=(CastTotal("float32", "bfloat16", 8, 9),),
        fallbacks=(FallbackTotal(Fallback.FP32_LIST, 10, 0),),
        rows=tuple(table),
        rows_left_out=5,
    )


def window(kernels: int = 2) -> WindowRecord:
    """What a profiler window says, every number another one."""
    table = [
        KernelRow(
            *(f"nvjet_hsh_{i}x8", "addmm", "tensor", "bfloat16", "nvjet", "nvjet"),
            *(90, 8, 20 + i, 30 + i),
        )
        for i in range(kernels)
    ]
    return WindowRecord(
        *(41, 1_700_000_000_000_000_002, 5, 1, 6, (1, 2, 3, 4, 5)),
        *(7, 8, 9, 10, 11, 1.5, 12, 13, 14, 15, 16, 17),
        totals=(KernelTotal("tensor", "bfloat16", 18), KernelTotal("cpu", "", 19)),
        kernels=tuple(table),
        kernels_left_out=7,
    )


def finding(
    where: str = "encoder.0", count: int = 1, advice: str = "use bfloat16"
) -> FindingRecord:
    return FindingRecord(
        Finding(
            kind="activation_overflow",
            severity=Severity.CRITICAL,
            where=where,
            summary="the output of encoder.0 is infinite since step 7",
            advice=advice,
            op="addmm",
            phase="forward",
            dtype="float16",
            first_step=7,
            last_step=7 + count,
            count=count,
            evidence={"amax": 65519.0, "share": 0.25},
            root=False,
            caused_by="float16_without_scaler@api",
            source="train.py:12",
        )
    )


def message(length: int) -> EndRecord:
    """A record of ``length`` slots that is not repeated."""
    reason = "x" * 240 * length
    while len(encode(EndRecord(RunState.FAILED, reason, 1), 10**6)[1]) > 240 * length:
        reason = reason[1:]
    return EndRecord(RunState.FAILED, reason, 1)


def slot_bytes(sequence: int, kind: int, payload: bytes, chunk: int = 0, chunks: int = 1) -> bytes:
    slot = bytearray(layout.SLOT_SIZE)
    layout.pack_slot_into(slot, sequence, layout.Slot(kind, chunk, chunks, payload))
    return bytes(slot)


def ring_bytes(head: int, slots: bytes, num_slots: int = 64) -> bytes:
    """A ring file whose first slots are ``slots``."""
    header = bytearray(layout.pack_header(num_slots, encode_identity(IDENTITY)))
    layout.COUNTERS.pack_into(header, layout.COUNTERS_OFFSET, head, 0, 0)
    return (bytes(header) + slots).ljust(layout.file_size(num_slots), b"\0")


def slots_of(records: Iterable[Record]) -> int:
    """How many slots the records took, counted by their payloads."""
    return sum(-(-len(encode(record, 64 * 240)[1]) // 240) for record in records)


PREAMBLE = """
import os, sys
from pathlib import Path
from ampwatch.wire.ring import RingReader, RingWriter
from tests.wire.ring.samples import END, FACTS, IDENTITY, finding, message, optimizer, step
def create(slots=64):
    return RingWriter.create([Path(sys.argv[1])], IDENTITY, slots=slots)
def say(word):
    os.write(1, f"{word}\\n".encode())  # one write: two processes may speak at once
"""


@contextmanager
def program(
    directory: Path, body: str, prefix: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """Run ``body`` in another process, by way of ``prefix``; it is killed at the end."""
    root = Path(ampwatch.__file__).parents[1]
    with subprocess.Popen(
        [*prefix, sys.executable, "-c", PREAMBLE + body, str(directory)],
        cwd=root,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def heard(process: subprocess.Popen[str]) -> str:
    """The next line that the program says."""
    assert process.stdout is not None
    return process.stdout.readline().strip()
