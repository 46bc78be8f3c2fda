"""The table of the newest op census as people want it: by op, by module, or by dtype."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ampwatch.numerics.units.ops import Fallback, OpKind
from ampwatch.wire.records import ALL_MODULES

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

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

    def add_casts(self, row: OpRow) -> None:
        """Add the casts of ``row`` to what is cast here."""
        self.casts += row.calls
        self.cast_bytes += row.bytes


def op_lines(census: CensusRecord, by: By) -> list[OpLine]:
    """Return the lines of a table, those with the most FLOPs first, then those with the most bytes."""
    lines = {"op": _by_op, "module": _by_module, "dtype": _by_dtype}[by](census)
    return sorted(lines, key=lambda line: (-line.flops, -line.bytes, line.name, line.ran_in))


def _by_op(census: CensusRecord) -> Iterable[OpLine]:
    def name_and_dtypes(row: OpRow) -> tuple[str, str]:
        is_cast = row.kind is OpKind.CAST
        return row.op, f"{row.dtype} -> {row.out_dtype}" if is_cast else row.dtype

    lines: dict[Hashable, OpLine] = {}
    for row in _op_rows(census):
        key = name_and_dtypes(row)
        lines.setdefault(key, OpLine(*key)).add(row)
    return lines.values()


def _by_module(census: CensusRecord) -> Iterable[OpLine]:
    rows = [row for row in census.rows if row.module != ALL_MODULES]
    return _grouped(rows, lambda row: row.module, lambda row: row.module)


def _by_dtype(census: CensusRecord) -> Iterable[OpLine]:
    return _grouped(_op_rows(census), lambda row: row.dtype, lambda row: row.out_dtype)


def _op_rows(census: CensusRecord) -> list[OpRow]:
    return [row for row in census.rows if row.module == ALL_MODULES]


def _grouped(
    rows: Iterable[OpRow], key: Callable[[OpRow], str], key_of_cast: Callable[[OpRow], str]
) -> Iterable[OpLine]:
    lines: dict[str, OpLine] = {}
    for row in rows:
        is_cast = row.kind is OpKind.CAST
        name = key_of_cast(row) if is_cast else key(row)
        line = lines.setdefault(name, OpLine(name))
        if is_cast:
            line.add_casts(row)
        else:
            line.add(row)
    return lines.values()
