"""A ``CensusRecord`` and a ``WindowRecord`` in few bytes: a row of a table takes some thirty.

Every number is an integer as in ``packing.py``, of up to 126 bits: the FLOPs of a run are
more than 64 bits hold. ``drag`` alone is a float of 8 bytes, at the start. A *name* is the
integer ``n`` of the ``n``-th name of this record, from 1; or 0, and then the name itself:
its length in UTF-8 and its bytes. Enumerations are their values, a unit is its place in
``KERNEL_UNITS``. In this order:

Census: step, time_ns, source, iterations, rows_left_out; three tables, each as the number of
its rows and then their fields in the order of the named tuple (ops, casts, fallbacks); then
up to the end the rows.

Window: drag; the whole numbers from step to gemv_ns; the five of skipped; kernels_left_out;
the table of totals; then up to the end the kernels.

The tables that run up to the end are cut there until the record fits. Reading is strict.
"""

from __future__ import annotations

import struct
from dataclasses import fields
from math import inf, isnan
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from ampwatch.numerics.units.ops import Fallback, OpKind, Phase
from ampwatch.wire.records import (
    KERNEL_UNITS,
    CastTotal,
    CensusRecord,
    CensusSource,
    FallbackTotal,
    KernelRow,
    KernelTotal,
    OpRow,
    OpTotal,
    WindowRecord,
    WindowSkip,
)
from ampwatch.wire.ring.forms import refuse
from ampwatch.wire.ring.packing import MAX_MODULE_NAME, cut_name, pack_integers, read_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    T = TypeVar("T")

MAX_NAME = MAX_MODULE_NAME
"""Longest name of a module, an op or a kernel; of a longer one both ends are kept. Unit:
characters."""

_MAX_BITS = 126
_DRAG = struct.Struct("=d")
_NEW_NAME = 0

_OP_TOTAL, _CAST_TOTAL, _FALLBACK_TOTAL = "#n####", "nn##", "###"
_OP_ROW = "nn##nnn#####"
_KERNEL_TOTAL, _KERNEL_ROW = "#n#", "nn#nnn####"
"""The cells of a row in their order: names and numbers."""

_WINDOW_NUMBERS = tuple(f.name for f in fields(WindowRecord) if f.type == "int")[:-1]
_WINDOW_COUNTS = attrgetter(*_WINDOW_NUMBERS)


def pack_census(record: CensusRecord, limit: int) -> bytes:
    """Return the bytes of ``record``, names made short and printable, with the rows that fit.

    Args:
        record: The record.
        limit: Longest result. Unit: bytes.

    Cost: about 2 us a row, 1.2 ms for as many as a ring takes.

    Raises:
        struct.error, TypeError, ValueError, AttributeError: If a field is not what the
            record declares, a count is negative, or the totals alone do not fit.
    """
    r, names, totals = record, _Names(), bytearray()
    _pack_table(totals, names, _OP_TOTAL, r.ops)
    _pack_table(totals, names, _CAST_TOTAL, r.casts)
    _pack_table(totals, names, _FALLBACK_TOTAL, r.fallbacks)
    head = pack_integers((r.step, r.time_ns, r.source, r.iterations))
    rows = (names.pack(_OP_ROW, row) for row in r.rows)
    return _fitted(head, r.rows_left_out, totals, rows, len(r.rows), limit)


def unpack_census(payload: bytes) -> CensusRecord:
    """Return the record that ``pack_census`` made ``payload`` of.

    Raises:
        ValueError: If it is not of that form.
    """
    read = _Reader(payload)
    step, time_ns, source_number, iterations, left_out = read.integers(5)
    ops = read.table(lambda: OpTotal(OpKind(read.integer()), read.name(), *read.integers(4)))
    if any(total.kind is OpKind.CAST for total in ops):
        refuse("casts in the table of casts", ops)
    casts = read.table(lambda: CastTotal(read.name(), read.name(), *read.integers(2)))
    fallbacks = read.table(lambda: FallbackTotal(Fallback(read.integer()), *read.integers(2)))
    rows = read.rest(lambda: _read_op_row(read))
    source = CensusSource(source_number)
    return CensusRecord(step, time_ns, source, iterations, ops, casts, fallbacks, rows, left_out)


def pack_window(record: WindowRecord, limit: int) -> bytes:
    """Return the bytes of ``record``, names made short and printable, with the kernels that fit.

    Args:
        record: The record.
        limit: Longest result. Unit: bytes.

    Raises:
        struct.error, TypeError, ValueError, AttributeError: If a field is not what the
            record declares, a count is negative, or the totals alone do not fit.
    """
    r, names, totals = record, _Names(), bytearray()
    if len(r.skipped) != len(WindowSkip):
        refuse(f"a count for each of the {len(WindowSkip)} reasons to skip", r.skipped)
    _pack_table(totals, names, _KERNEL_TOTAL, [(_unit(t.unit), *t[1:]) for t in r.totals])
    head = _DRAG.pack(r.drag) + pack_integers((*_WINDOW_COUNTS(r), *r.skipped))
    kernels = (names.pack(_KERNEL_ROW, (*k[:2], _unit(k.unit), *k[3:])) for k in r.kernels)
    return _fitted(head, r.kernels_left_out, totals, kernels, len(r.kernels), limit)


def unpack_window(payload: bytes) -> WindowRecord:
    """Return the record that ``pack_window`` made ``payload`` of.

    Raises:
        ValueError, struct.error: If it is not of that form.
    """
    (drag,) = _DRAG.unpack_from(payload)
    if not (isnan(drag) or 0.0 <= drag < inf):
        refuse("a drag that is NaN, or finite and not negative", drag)
    read = _Reader(payload[_DRAG.size :])
    numbers = dict(zip(_WINDOW_NUMBERS, read.integers(len(_WINDOW_NUMBERS)), strict=True))
    profiler, capture, budget, of_drag, of_memory = read.integers(len(WindowSkip))
    return WindowRecord(
        **numbers,
        skipped=(profiler, capture, budget, of_drag, of_memory),
        drag=drag,
        kernels_left_out=read.integer(),
        totals=read.table(lambda: KernelTotal(read.unit(), read.name(), read.integer())),
        kernels=read.rest(lambda: _read_kernel(read)),
    )


class _Names:
    """The names that were written so far, by their number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def pack(self, form: str, row: Iterable[Any]) -> bytes:
        """Return the bytes of ``row``; the names in it count as written.

        Args:
            form: Which of its cells are names, and which numbers.
            row: Its cells.
        """
        packed, numbers = bytearray(), self._numbers
        append = packed.append
        for kind, cell in zip(form, row, strict=True):
            value = cell
            if kind == "n":
                value = numbers.get(cell)
                if value is None:
                    encoded = cut_name(cell, MAX_NAME).encode()
                    numbers[cell] = len(numbers) + 1
                    packed += pack_integers((_NEW_NAME, len(encoded))) + encoded
                    continue
            while value > 127:
                append(value & 127 | 128)
                value >>= 7
            append(value)
        return bytes(packed)


def _pack_table(
    packed: bytearray, names: _Names, form: str, rows: Collection[Iterable[Any]]
) -> None:
    packed += pack_integers((len(rows),))
    for row in rows:
        packed += names.pack(form, row)


def _fitted(
    head: bytes, left_out: int, totals: bytearray, rows: Iterable[bytes], num_rows: int, limit: int
) -> bytes:
    """Return head, the number of rows left out, totals and rows, in ``limit`` bytes at most.

    Raises:
        ValueError: If there is no room even without any row.
    """
    # What is left out is written in at most so many bytes, however many rows fit.
    room = limit - len(head) - len(pack_integers((left_out + num_rows,))) - len(totals)
    if room < 0:
        refuse(f"totals of at most {limit} bytes", bytes(totals))
    packed = bytearray()
    fitting = 0
    for row in rows:
        if len(packed) + len(row) > room:
            break
        packed += row
        fitting += 1
    return head + pack_integers((left_out + num_rows - fitting,)) + totals + packed


def _unit(unit: str) -> int:
    return KERNEL_UNITS.index(unit)


class _Reader:
    """Reads what the functions above have written.

    Every method raises ``ValueError`` if the bytes are of another form.
    """

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._place = 0
        self._names: list[str] = []

    def integer(self) -> int:
        value = 0
        for bits in range(0, _MAX_BITS, 7):
            byte = self._byte()
            value |= (byte & 127) << bits
            if byte < 128:
                return value
        return refuse(f"a count of at most {_MAX_BITS} bits", value)

    def _byte(self) -> int:
        if self._place >= len(self._payload):
            refuse("a whole number", self._payload[-8:])
        self._place += 1
        return self._payload[self._place - 1]

    def integers(self, count: int) -> list[int]:
        return [self.integer() for _ in range(count)]

    def name(self) -> str:
        number = self.integer()
        if number != _NEW_NAME:
            if number > len(self._names):
                refuse(f"one of the {len(self._names)} names so far", number)
            return self._names[number - 1]
        size = self.integer()
        encoded = self._payload[self._place : self._place + size]
        if len(encoded) < size:
            refuse(f"a name of {size} bytes", encoded)
        self._place += size
        self._names.append(read_name(encoded, MAX_NAME))
        return self._names[-1]

    def unit(self) -> str:
        number = self.integer()
        if number >= len(KERNEL_UNITS):
            refuse(f"one of the {len(KERNEL_UNITS)} units", number)
        return KERNEL_UNITS[number]

    def table(self, row: Callable[[], T]) -> tuple[T, ...]:
        count = self.integer()
        if count > len(self._payload):  # a row has a byte at least
            refuse("a table that is there", count)
        return tuple(row() for _ in range(count))

    def rest(self, row: Callable[[], T]) -> tuple[T, ...]:
        rows = []
        while self._place < len(self._payload):
            rows.append(row())
        return tuple(rows)


def _read_op_row(read: _Reader) -> OpRow:
    op, module = read.name(), read.name()
    kind, phase = OpKind(read.integer()), Phase(read.integer())
    inputs, dtype, out_dtype = read.name(), read.name(), read.name()
    fallback = Fallback(read.integer())
    calls, flops, tensor_flops, size = read.integers(4)
    return OpRow(
        *(op, module, kind, phase, inputs, dtype, out_dtype, fallback),
        *(calls, flops, tensor_flops, size),
    )


def _read_kernel(read: _Reader) -> KernelRow:
    name, op, unit, dtype = read.name(), read.name(), read.unit(), read.name()
    family, rule = read.name(), read.name()
    arch, align, calls, nanoseconds = read.integers(4)
    return KernelRow(
        *(name, op, unit, dtype, family, rule, arch, align, calls, nanoseconds),
    )
