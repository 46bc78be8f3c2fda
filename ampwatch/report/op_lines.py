"""The table of the newest op census as people want it: by op, by module, or by dtype."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ampwatch.numerics.units.ops import Fallback, OpKind
from ampwatch.wire.records import ALL_MODULES

if TYPE_CHECKING:
    from ampwatch.wire.records import CensusRecord, OpRow

By = Literal["op", "module", "dtype"]

GROUPINGS: tuple[By, ...] = ("op", "module", "dtype")


@dataclass(slots=True)
class OpLine:
    """Ops that stand in one line.

    Attributes:
        name: Base name of the op, qualified name of the module, or name of the dtype.
        ran_in: Of an op, what it computed in; of a cast, what from and to. Else empty.
        calls: How many ops, casts left out unless the line is one of casts.
        flops: Their floating-point operations.
        tensor_flops: Of those, in a dtype and with dimensions that tensor cores run at speed.
        bytes: Bytes they read and wrote.
        casts: Casts in the module, or to the dtype.
        cast_bytes: Bytes those read and wrote.
        mix: FLOPs by dtype.
        bytes_mix: Bytes by dtype.
        fallbacks: Calls in float32 although autocast is used, by reason.
        emulated: Calls that multiplied numbers of an FP8 format in a wider dtype, by that dtype.
    """

    name: str
    ran_in: str = ""
    calls: int = 0
    flops: int = 0
    tensor_flops: int = 0
    bytes: int = 0
    casts: int = 0
    cast_bytes: int = 0
    mix: Counter[str] = field(default_factory=Counter)
    bytes_mix: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[Fallback] = field(default_factory=Counter)
    emulated: Counter[str] = field(default_factory=Counter)

    def add(self, row: OpRow) -> None:
        """Add the ops of ``row``."""
        self.calls += row.calls
        self.flops += row.flops
        self.tensor_flops += row.tensor_flops
        self.bytes += row.bytes
        self.mix[row.dtype] += row.flops
        self.bytes_mix[row.dtype] += row.bytes
        if row.fallback is not Fallback.NONE:
            self.fallbacks[row.fallback] += row.calls
        if row.is_emulated:
            self.emulated[row.inputs] += row.calls


def op_lines(census: CensusRecord, by: By) -> list[OpLine]:
    """Return the lines of a table, those with the most FLOPs first, then those with the most bytes."""
    lines: dict[tuple[str, str], OpLine] = {}
    for row in census.rows:
        # Rows are of an op in all modules, or of a module.
        if (row.module == ALL_MODULES) is (by == "module"):
            continue
        is_cast = row.kind is OpKind.CAST
        key = _name_and_dtypes(row, by, is_cast=is_cast)
        line = lines.setdefault(key, OpLine(*key))
        if is_cast and by != "op":
            line.casts += row.calls
            line.cast_bytes += row.bytes
        else:
            line.add(row)
    return sorted(
        lines.values(), key=lambda line: (-line.flops, -line.bytes, line.name, line.ran_in)
    )


def _name_and_dtypes(row: OpRow, by: By, *, is_cast: bool) -> tuple[str, str]:
    if by == "op":
        return row.op, f"{row.dtype} -> {row.out_dtype}" if is_cast else row.dtype
    if by == "module":
        return row.module, ""
    return (row.out_dtype if is_cast else row.dtype), ""
