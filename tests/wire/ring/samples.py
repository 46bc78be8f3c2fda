"""Records to write, a ring file made by hand, and programs that write rings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import nan
from pathlib import Path
from typing import Any

import ampwatch
from ampwatch.numerics.blocks import BlockHistogram, BlockLevel
from ampwatch.numerics.units.ops import Fallback, OpKind
from ampwatch.wire.records import (
    CastTotal,
    CensusRecord,
    CensusSource,
    EndRecord,
    FallbackTotal,
    FindingRecord,
    KernelTotal,
    Measure,
    OptimizerRecord,
    OpTotal,
    RangeRecord,
    Record,
    RunState,
    SamplingRecord,
    SkipClass,
    StepRecord,
    Tried,
    WindowRecord,
)
from ampwatch.wire.ring import layout
from ampwatch.wire.ring.encoding import encode, encode_identity
from tests.workshop import records as workshop

IDENTITY = workshop.identity(
    run="resnet",
    rank=3,
    local_rank=1,
    world_size=8,
    pid=4711,
    host="node-a",
    started_ns=1_700_000_000_000_000_000,
    version="0.1.0",
)
END = workshop.end(time_ns=1_700_000_001_000_000_000)
FACTS = workshop.facts(torch="2.13.0", gpu="H100")

CHECKSUM = workshop.checksum()
FAILURE = workshop.failure("scale", 3, 41, "RuntimeError: no such attribute")


def step(index: int) -> StepRecord:
    """A step whose every number follows from its index, so that a mixture shows."""
    return workshop.step(
        index,
        time_ns=1_700_000_000_000_000_000 + index,
        duration_s=index / 8,
        loss=-index / 4,
        num_losses=1,
        loss_scale=65536.0 + index,
        growth_tracker=index - 1,
        skip_class=SkipClass(index % 5),
        consecutive_skips=index % 7,
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
    names = type(record).__match_args__
    return type(record)(**{name: getattr(record, name) for name in names} | change)


NAN_STEP: StepRecord = changed(
    step(0), duration_s=nan, loss=nan, loss_scale=nan, growth_tracker=-1, num_losses=0
)


def optimizer(index: int, steps: int = 1) -> OptimizerRecord:
    return workshop.optimizer(index, step=steps, total_steps=steps, total_skipped=(1, 2, 3, 4))


def ranges(module: str = "encoder.0", counts: tuple[int, ...] = (1, 0, 300)) -> RangeRecord:
    """Gradients around 2**-20, with some of everything."""
    exponents = workshop.histogram(
        -21, *counts, zeros=7, nans=1, positive_infs=2, negative_infs=3, amax=2.0**-19
    )
    return workshop.ranges(
        module,
        exponents=exponents,
        step=7,
        time_ns=1_700_000_000_000_000_000,
        loss_scale=65536.0,
        total_nans=4,
        total_infs=5,
        norm=0.25,
        blocks=(_blocks(16), _blocks(32)),
    )


def _blocks(size: int) -> BlockHistogram:
    """A block in the first level, and 300 in the last one, whose elements are all alike."""
    loud = BlockLevel((1, *[0] * 31), (0, 1, *[0] * 14))
    quiet = BlockLevel((0, 300 * size, *[0] * 30), (300, *[0] * 15))
    return BlockHistogram(size, -20, (loud, BlockLevel(), BlockLevel(), quiet), zero_blocks=3)


def sampling(index: int) -> SamplingRecord:
    """A record of sampling, every number another one."""
    return workshop.sampling(
        step=index,
        interval=index + 1,
        samples=(2, 3, 4, 5, 6, 7),
        samples_dropped=index + 8,
        tensors_refused=index + 9,
        modules_left_out=index + 10,
        gradient_elements=index + 11,
        gradient_zeros=index + 12,
        gradient_underflow=index + 13,
        gradient_subnormal=index + 14,
        gradient_nans=index + 15,
        gradient_infs=index + 16,
        parameter_nonfinite=index + 17,
        buffer_nonfinite=index + 18,
        device_ns=index + 19,
    )


def census(rows: int = 2) -> CensusRecord:
    """A census of a training in bfloat16, every number another one."""
    table = [
        workshop.op_row(
            "addmm",
            "bfloat16",
            inputs="bfloat16+float32",
            calls=11 + i,
            flops=12 + i,
            tensor_flops=13 + i,
            bytes=14 + i,
        )
        for i in range(rows)
    ]
    return workshop.census(
        *table,
        step=40,
        time_ns=1_700_000_000_000_000_001,
        source=CensusSource.PROFILER,
        iterations=3,
        ops=(OpTotal(OpKind.MATMUL, "bfloat16", 4, 2**70, 6, 7),),
        casts=(CastTotal("float32", "bfloat16", 8, 9),),
        fallbacks=(FallbackTotal(Fallback.FP32_LIST, 10, 0),),
        rows_left_out=5,
    )


def window(kernels: int = 2) -> WindowRecord:
    """A profiler window, every number another one."""
    table = [
        workshop.kernel(
            f"nvjet_hsh_{i}x8",
            op="addmm",
            dtype="bfloat16",
            family="nvjet",
            rule="nvjet",
            calls=20 + i,
            nanoseconds=30 + i,
        )
        for i in range(kernels)
    ]
    return workshop.window(
        KernelTotal("tensor", "bfloat16", 18),
        KernelTotal("cpu", "", 19),
        step=41,
        windows=5,
        invalid=1,
        iterations=6,
        skipped=(1, 2, 3, 4, 5),
        start_ns=7,
        run_ns=8,
        stop_ns=9,
        walk_ns=10,
        first_ns=11,
        drag=1.5,
        memory_bytes=12,
        busy_ns=13,
        wall_ns=14,
        misaligned_ns=15,
        lagging_ns=16,
        gemv_ns=17,
        kernels=tuple(table),
        kernels_left_out=7,
    )


TRIED = (
    Tried(Measure.MODULE_IN_FLOAT32, "a", 7, cures=False, then_op="mm"),
    Tried(Measure.BFLOAT16, "", 7, cures=True),
)


def finding(
    where: str = "encoder.0", count: int = 1, kind_advice: str = "use bfloat16"
) -> FindingRecord:
    return workshop.finding(
        "activation_overflow",
        where,
        summary="the output of encoder.0 is infinite since step 7",
        kind_advice=kind_advice,
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
        tried=TRIED,
    )


def message(length: int) -> EndRecord:
    """A record of ``length`` slots that is not repeated."""
    reason = "x" * 240 * length
    while len(encode(workshop.end(RunState.FAILED, reason, time_ns=1), 10**6)[1]) > 240 * length:
        reason = reason[1:]
    return workshop.end(RunState.FAILED, reason, time_ns=1)


def slot_bytes(sequence: int, kind: int, payload: bytes, chunk: int = 0, chunks: int = 1) -> bytes:
    slot = bytearray(layout.SLOT_SIZE)
    layout.pack_slot_into(slot, sequence, kind, chunk, chunks, payload)
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
