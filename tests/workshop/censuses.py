"""Censuses and machines made of plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.detector import Known, Shared
from ampwatch.diagnosis.evidence.ops import LayerShape, Machine, OpCensus, OpKey, OpTally
from ampwatch.diagnosis.performance.performance import Performance
from ampwatch.numerics.units.ops import Fallback, OpKind, Phase
from ampwatch.wire.records import Finding

CPU = Machine(device_type="cpu", cpu_dtypes=frozenset({"float16", "bfloat16"}))

HOPPER = Machine(
    device_type="cuda",
    device_name="NVIDIA H100",
    capability=(9, 0),
    cudnn_benchmark=True,
    peak_flops={"float32": 60e12, "tf32": 500e12, "bfloat16": 1000e12, "float16": 1000e12},
    memory_bandwidth=3e12,
)

Op = tuple[OpKey, OpTally]


def matmul(
    module: str, flops: int, dtype: str = "bfloat16", fallback: Fallback = Fallback.NONE, **of: Any
) -> Op:
    """Return matmuls of one module; ``of``: more of ``OpKey`` and ``OpTally``."""
    return op("addmm", OpKind.MATMUL, module, dtype, flops=flops, fallback=fallback, **of)


def convolution(module: str, flops: int, dtype: str = "bfloat16", **of: Any) -> Op:
    """Return convolutions of one module."""
    return op("convolution", OpKind.CONVOLUTION, module, dtype, flops=flops, **of)


def cast(module: str, calls: int, dtype: str, out_dtype: str, **of: Any) -> Op:
    """Return casts of one module."""
    return op("_to_copy", OpKind.CAST, module, dtype, out_dtype=out_dtype, calls=calls, **of)


def op(
    name: str,
    kind: OpKind,
    module: str,
    dtype: str,
    *,
    out_dtype: str = "",
    phase: Phase = Phase.FORWARD,
    fallback: Fallback = Fallback.NONE,
    calls: int = 1,
    **of: Any,
) -> Op:
    """Return ops with one key."""
    key = OpKey(name, kind, module, phase, (dtype,), dtype, out_dtype or dtype, fallback)
    return key, OpTally(calls=calls, **of)


class Watched:
    """Hands censuses to the diagnosis of performance, one iteration after the other."""

    def __init__(
        self,
        machine: Machine = CPU,
        layers: Sequence[LayerShape] = (),
        dtypes: Sequence[str] = ("bfloat16",),
    ) -> None:
        self.book = FindingBook(lambda _news: None)
        self.dtypes = list(dtypes)
        self.device = machine.device_type
        known = Known(self.dtypes, machine=machine, layers=layers)
        self.performance = Performance(Shared(self.book, known=known))
        self.step = -1

    def take(self, *ops: Op, scaled: bool = False, num_losses: int = 0, **census: Any) -> Watched:
        """Take a census of ``ops``; ``census``: more of ``OpCensus``."""
        self.step += 1
        census.setdefault("autocast_dtypes", tuple(self.dtypes))
        census.setdefault("device_types", frozenset({self.device}))
        assert len(dict(ops)) == len(ops), "two tallies of one key"
        taken = OpCensus(self.step, tallies=dict(ops), **census)
        self.performance.check_census(taken, is_scaled=scaled, num_losses=num_losses)
        return self

    @property
    def named(self) -> list[tuple[str, str]]:
        """Kind and place of each finding."""
        return [(f.kind, f.where) for f in self.book.findings]

    def only(self, kind: str) -> Finding:
        """Return the one finding of a kind."""
        (finding,) = self.book.of_kind(kind)
        return finding
