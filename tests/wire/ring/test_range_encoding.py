"""Ranges to a few bytes and back: nothing is changed, and nothing strange comes out."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from msgspec import msgpack
from msgspec.structs import replace

from ampwatch.numerics.exponents import MAX_EXPONENT, MIN_EXPONENT, NUM_BINS, ExponentHistogram
from ampwatch.wire.records import RangeRecord, Topic
from ampwatch.wire.records.fields import MAX_NAME
from ampwatch.wire.ring.encoding import decode, encode
from ampwatch.wire.ring.layout import PAYLOAD_SIZE, RecordKind
from tests.wire.ring.samples import ranges
from tests.workshop import records as workshop
from tests.workshop.records import histogram as exponents

SMALLEST_LIMIT = 8 * 240
LIMIT = 64 * 240


@pytest.mark.parametrize("topic", Topic)
@pytest.mark.parametrize(
    "histogram",
    [
        ExponentHistogram(),
        exponents(MIN_EXPONENT, *[1] * NUM_BINS, amax=1e308, amin=5e-324),
        exponents(MAX_EXPONENT, 2**40, zeros=2**40, nans=1, amax=1.5, amin=1.0),
        ExponentHistogram(-3, (1, 0, 2), amax=0.5, amin=0.125, numel=2**50),
    ],
    ids=["empty", "wide", "one bin", "a subsample"],
)
def test_ranges_come_back_as_they_were(topic: Topic, histogram: ExponentHistogram) -> None:
    """Every topic, any alphabet, the smallest and the largest number."""
    for scale in (0.0, 2.0**-149, 2.0**128):
        record = workshop.ranges(
            "Grüße 梯度 🙂",
            topic,
            histogram,
            step=2**63 - 1,
            time_ns=2**63 - 1,
            loss_scale=scale,
            total_nans=2**63 - 1,
            before_step=2**63 - 1,
            before=histogram,
        )
        assert decode(*encode(record, LIMIT)) == record


def test_ranges_of_an_ordinary_module_fit_into_one_slot() -> None:
    """Sixteen million elements over 40 binades, and a name of 36 characters."""
    bell = tuple(math.ceil(1.6e6 * math.exp(-((i - 20) ** 2) / 32)) for i in range(40))

    # Blocks are measured every few seconds at most, and take two slots more.
    _, payload = encode(replace(ranges("m" * 36, bell), blocks=()), LIMIT)

    assert len(payload) <= PAYLOAD_SIZE


def test_what_was_before_may_be_beyond_what_is_measured() -> None:
    """The smallest gradients of float32, without the largest scale; it costs a slot or two more."""
    smallest = replace(ranges().histogram, first=MIN_EXPONENT - 128)
    record = replace(ranges(), blocks=(), flushed=7, before_step=3, before=smallest)
    kind, payload = encode(record, LIMIT)

    assert decode(kind, payload) == record
    assert len(payload) <= PAYLOAD_SIZE


@pytest.mark.parametrize("width", range(1, 8))
def test_counts_take_the_bytes_that_the_largest_needs(width: int) -> None:
    """One byte for every bin of a small tensor; the smallest and the largest count of a width."""
    counts = (1, 2 ** (8 * width) - 1, 2 ** (8 * width - 8))
    record = ranges("m", counts)

    _, payload = encode(record, LIMIT)

    num_counts, planes = msgpack.decode(payload)[14]
    assert (num_counts, len(planes)) == (3, 3 * width)
    assert decode(RecordKind.RANGE, payload) == record


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("", ""),
        ("m" * MAX_NAME, "m" * MAX_NAME),
        ("a" * 150 + "b" * 150, "a" * 100 + "…" + "b" * 99),
        ("block\n0\x1b", "block\ufffd0\ufffd"),
        ("caf\udce9", "caf\ufffd"),
        ("层.0", "层.0"),
    ],
)
def test_a_name_of_any_kind_becomes_short_and_printable(name: str, read: str) -> None:
    """It never costs the record, and both ends of a long one stay."""
    record = decode(*encode(ranges(name), LIMIT))

    assert isinstance(record, RangeRecord)
    assert record.module == read


@pytest.mark.parametrize(
    "change",
    [
        {"time_ns": -1},
        {"loss_scale": math.nan},
        {"loss_scale": -1.0},
        {"loss_scale": 2.0**129},
        {"loss_scale": 2.0**-150},
        {"topic": 6},
        {"flushed": -2},
        {"flushed": 8},
        {"before_step": -2},
        {"before": replace(ranges().histogram, numel=3)},
        {"before": replace(ranges().histogram, first=MAX_EXPONENT + 149)},
    ],
)
def test_what_no_sensor_says_is_refused(change: dict[str, Any]) -> None:
    """Later code may look up, divide and take logarithms without checking."""
    with pytest.raises(ValueError, match=r"[Ee]xpected|Invalid enum value"):
        decode(*encode(replace(ranges(), **change), LIMIT))


@pytest.mark.parametrize(
    "change",
    [
        {"counts": (0, 1)},
        {"counts": (1, 0)},
        {"first": MAX_EXPONENT},
        {"numel": 3},
        {"amax": math.inf},
        {"amax": math.nan},
        {"amax": -1.0},
        {"amin": math.nan},
        {"amin": 0.0},
        {"amin": 1.0},
        {"counts": (), "amax": 1.0, "amin": 0.5},
        {"counts": (), "amax": math.inf, "amin": math.inf},
    ],
)
def test_a_histogram_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    """The histogram that comes out is what ``ExponentHistogram`` says it is."""
    record = replace(ranges(), histogram=replace(ranges().histogram, **change))

    with pytest.raises(ValueError, match=r"[Ee]xpected"):
        decode(*encode(record, LIMIT))


@pytest.mark.parametrize(
    "change",
    [
        {"total_nans": -1},
        {"total_nans": 1.5},
        {"loss_scale": "high"},
        {"module": None},
        {"time_ns": 2**63},
        {"histogram": None},
        {"histogram": ExponentHistogram(MIN_EXPONENT - 1, (1,), amax=1.0, amin=1.0, numel=1)},
        {"histogram": ExponentHistogram(0, tuple([2**62] * NUM_BINS))},
    ],
)
def test_a_mistaken_sensor_costs_its_record_only(change: dict[str, Any]) -> None:
    """The writer knows these errors; anything else would reach the training step."""
    with pytest.raises((struct.error, TypeError, ValueError, AttributeError)):
        encode(replace(ranges(), **change), SMALLEST_LIMIT)


@pytest.mark.parametrize(
    "counts",
    [
        [3, b"\1\1"],
        [3, b"\1" * 27],
        [0, b"\1"],
        [1, b""],
        [-1, b""],
        [2**60, b""],
        [NUM_BINS + 1, b"\1" * (NUM_BINS + 1)],
        [1, b"\1", 1],
        [1, "x"],
        [1, 2, 3],
        b"\1",
    ],
)
def test_counts_of_another_number_or_size_are_refused(counts: object) -> None:
    """Bytes that are no whole counts, counts of 72 bits, none and some, more than a histogram has."""
    payload = msgpack.decode(encode(ranges(), LIMIT)[1])
    payload[13] = counts

    with pytest.raises(ValueError, match=r"[Ee]xpected"):
        decode(RecordKind.RANGE, msgpack.encode(payload))
