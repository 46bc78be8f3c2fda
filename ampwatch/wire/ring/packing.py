"""A ``RangeRecord`` in few bytes: most of them fit into one slot.

In this order::

    size  field
       8  time_ns
       1  topic
       1  length of the dtype
       2  length of the module
       8  loss_scale
       8  amax of the histogram
       8  amin of the histogram
       .  dtype and module in UTF-8
       .  integers up to the end: step, num_tensors, total_nans, total_infs, numel, zeros,
          nans, positive_infs, negative_infs, first bin, counts. Each is cut into groups of
          7 bits, the lowest first, one a byte; the top bit says that another one follows

The first bin counts from the first one there is, 0 without any counts. Reading is strict:
what comes out is a histogram as ``numerics.exponents`` describes it.
"""

from __future__ import annotations

import struct
from math import inf
from typing import TYPE_CHECKING

from ampwatch.numerics.exponents import (
    MAX_EXPONENT,
    MIN_EXPONENT,
    NUM_BINS,
    ExponentHistogram,
)
from ampwatch.wire.records import RangeRecord, Topic
from ampwatch.wire.ring.forms import refuse

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_MODULE_NAME = 200
"""Longest name of a module; of a longer one both ends are kept. Unit: characters."""

MAX_DTYPE_NAME = 32
"""Longest name of a dtype. Unit: characters."""

_MIN_SCALE, _MAX_SCALE = 2.0**-149, 2.0**128
"""The loss scale is a float32 tensor; one that has halved itself too often is 0."""

_FIXED = struct.Struct("=qBBHddd")
_NUM_INTEGERS = 10
_MAX_BITS = 63


def pack_range(record: RangeRecord) -> bytes:
    """Return the bytes of ``record``, the names made short and printable.

    Cost: about 9 us with 40 bins.

    Raises:
        struct.error, TypeError, ValueError, AttributeError: If a field is not what the
            record declares, or a count is negative.
    """
    r, h = record, record.histogram
    dtype, module = (
        cut_name(r.dtype, MAX_DTYPE_NAME).encode(),
        cut_name(r.module, MAX_MODULE_NAME).encode(),
    )
    fixed = _FIXED.pack(r.time_ns, r.topic, len(dtype), len(module), r.loss_scale, h.amax, h.amin)
    first = h.first - MIN_EXPONENT if h.counts else 0
    totals = (r.step, r.num_tensors, r.total_nans, r.total_infs)
    elements = (h.numel, h.zeros, h.nans, h.positive_infs, h.negative_infs)
    return fixed + dtype + module + pack_integers((*totals, *elements, first, *h.counts))


def unpack_range(payload: bytes) -> RangeRecord:
    """Return the record that ``pack_range`` made ``payload`` of.

    Raises:
        ValueError, struct.error: If it is not of that form.
    """
    time_ns, topic, dtype_size, module_size, scale, amax, amin = _FIXED.unpack_from(payload)
    text, integers = _FIXED.size + dtype_size, _FIXED.size + dtype_size + module_size
    dtype = read_name(payload[_FIXED.size : text], MAX_DTYPE_NAME)
    module = read_name(payload[text:integers], MAX_MODULE_NAME)
    values = _unpack_integers(payload[integers:])
    if time_ns < 0 or not (scale == 0.0 or _MIN_SCALE <= scale <= _MAX_SCALE):
        refuse("a time that is not negative and a loss scale of float32", (time_ns, scale))
    step, num_tensors, total_nans, total_infs, numel, zeros, nans, more, less, first, *counts = (
        values
    )
    histogram = ExponentHistogram(
        first + MIN_EXPONENT if counts else 0,
        tuple(counts),
        *(zeros, nans, more, less, amax, amin, numel),
    )
    _check(histogram)
    return RangeRecord(
        *(step, time_ns, Topic(topic), module, dtype, num_tensors, scale),
        *(total_nans, total_infs, histogram),
    )


def cut_name(name: str, length: int) -> str:
    """Return ``name`` without what cannot be printed, and without its middle if it is long."""
    if len(name) > length:
        half = length // 2
        name = f"{name[:half]}…{name[1 - half :]}"
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)


def read_name(encoded: bytes, length: int) -> str:
    """Return a name as ``cut_name`` leaves it.

    Raises:
        ValueError: If it is longer, not printable, or no UTF-8.
    """
    name = encoded.decode()
    if len(name) > length or not name.isprintable():
        refuse(f"at most {length} printable characters", name)
    return name


def pack_integers(values: Iterable[int]) -> bytes:
    """Return whole numbers in groups of 7 bits, as the docstring above says.

    Raises:
        TypeError, ValueError: If one is negative, or no whole number.
    """
    packed = bytearray()
    append = packed.append
    for value in values:
        while value > 127:
            append(value & 127 | 128)
            value >>= 7  # noqa: PLW2901 - a count is used up as it is written
        append(value)
    return bytes(packed)


def _unpack_integers(packed: bytes) -> list[int]:
    """Return at least ``_NUM_INTEGERS`` numbers of at most ``_MAX_BITS`` bits.

    Raises:
        ValueError: If it is anything else, or there are more than a histogram can have.
    """
    values = []
    value = bits = 0
    for byte in packed:
        value |= (byte & 127) << bits
        bits += 7
        if byte < 128:
            values.append(value)
            value = bits = 0
        elif bits >= _MAX_BITS:
            refuse(f"a count of at most {_MAX_BITS} bits", packed)
    if bits or not _NUM_INTEGERS <= len(values) <= _NUM_INTEGERS + NUM_BINS:
        refuse(f"{_NUM_INTEGERS} whole counts, and those of the bins", packed)
    return values


def _check(histogram: ExponentHistogram) -> None:
    """Refuse what no measurement gives.

    Raises:
        ValueError: If the numbers contradict one another.
    """
    h = histogram
    if h.counts and not (h.counts[0] and h.counts[-1]):
        refuse("counts without empty bins at the ends", h)
    if h.first + len(h.counts) - 1 > MAX_EXPONENT:
        refuse(f"exponents from {MIN_EXPONENT} to {MAX_EXPONENT}", h)
    if h.binned + h.nonfinite > h.numel:
        refuse("no more elements in the bins than there are", h)
    extremes = 0.0 < h.amin <= h.amax < inf if h.counts else h.amin == inf and 0.0 <= h.amax < inf
    if not extremes:
        refuse("extremes that are finite and in order", h)
