"""Made-up tapes: a model of two layers, without torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ampwatch.lab.tape.files import TapeWriter
from ampwatch.lab.tape.rows import (
    NUM_BUCKETS,
    VERSION,
    RowKind,
    TapeHead,
    TapeOutcome,
    TapeRow,
    TapeStep,
    pack_sums,
)

HEAD = TapeHead(
    version=VERSION,
    run="made-up",
    rank=0,
    world_size=1,
    started_ns=0,
    ampwatch="0.1.0",
    first=2,
    every=0,
    facts={"torch": "2.13.0", "device": "cpu"},
    modules=[],
    optimizers=[],
)


def row(kind: RowKind, name: str, values: float = 1.0, **fields: Any) -> TapeRow:
    """Return a row of ``NUM_BUCKETS`` equal elements."""
    made = TapeRow(
        kind=int(kind),
        name=name,
        module=name.rpartition(".")[0],
        phase=0,
        index=0,
        dtype="float32",
        shape=[NUM_BUCKETS],
        norm=abs(values) * NUM_BUCKETS**0.5,
        amax=abs(values),
        zeros=0,
        nans=0,
        infs=0,
        first=0,
        counts=[NUM_BUCKETS],
        sketch=pack_sums([values] * NUM_BUCKETS),
    )
    return replace(made, **fields) if fields else made


def step(number: int, values: float = 1.0) -> TapeStep:
    """Return a step with a weight, a batch, an op that has read both, and an output."""
    rows = [
        row(RowKind.WEIGHT, "first.weight"),
        row(RowKind.INPUT, ""),
        row(RowKind.OP, "addmm", values, module="first", sources=[0, 1], inputs=["float32"]),
        row(RowKind.OUTPUT, "first", values, module="first", sources=[2], inputs=["float32"]),
    ]
    return TapeStep(number, rows)


def write_tape(path: Path, steps: Iterable[TapeStep], head: TapeHead = HEAD) -> Path:
    """Write a tape."""
    writer = TapeWriter(path)
    writer.put(head)
    for one in steps:
        writer.put(one)
        writer.put(TapeOutcome(one.step, 1.0, 1.0, skipped=False))
    writer.close()
    return path
