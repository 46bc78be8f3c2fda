"""Op censuses and profiler windows to a few bytes and back, cut to what fits; and requests beside a ring."""

from __future__ import annotations

import json
import math
import random
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack
from msgspec.structs import replace

from ampwatch.numerics.units.ops import Fallback, OpKind, Phase
from ampwatch.wire.records import (
    KERNEL_UNITS,
    MAX_PLANNED,
    CastTotal,
    CensusRecord,
    FallbackTotal,
    KernelTotal,
    OpTotal,
    WindowRecord,
)
from ampwatch.wire.records.fields import MAX_NAME
from ampwatch.wire.ring.encoding import decode, encode
from ampwatch.wire.ring.layout import MAX_CHUNKS, PAYLOAD_SIZE, RecordKind
from ampwatch.wire.ring.requests import (
    FOLLOW,
    LAYERS,
    Request,
    answer_path,
    read_answer,
    read_request,
    request_path,
    withdraw,
    write_request,
)
from tests.wire.ring.samples import census, window
from tests.workshop.records import op_row, planned

LIMIT = MAX_CHUNKS * PAYLOAD_SIZE
SMALLEST_LIMIT = 8 * PAYLOAD_SIZE

MOST = 2**63 - 1
WORDS = "Grüße 梯度 🙂"


def round_trip(record: CensusRecord | WindowRecord, limit: int = LIMIT) -> Any:
    kind, payload = encode(record, limit)
    assert len(payload) <= limit
    return decode(kind, payload)


@pytest.mark.parametrize("kind", OpKind)
def test_a_census_comes_back_as_it_was(kind: OpKind) -> None:
    """Every kind, any alphabet, FLOPs of more than 64 bits."""
    rows = [
        op_row(WORDS, "", kind, WORDS, phase=phase, fallback=fallback, flops=2**120, calls=MOST)
        for phase in Phase
        for fallback in Fallback
    ]
    record = replace(
        census(),
        step=MOST,
        ops=(OpTotal(kind, "tf32", MOST, 2**120, 0, 1),) if kind is not OpKind.CAST else (),
        casts=(CastTotal("", "float8_e4m3fn", MOST, 2**120),),
        fallbacks=tuple(FallbackTotal(fallback, MOST, 0) for fallback in Fallback),
        rows=tuple(rows),
    )

    assert round_trip(record) == record


@pytest.mark.parametrize("unit", KERNEL_UNITS)
@pytest.mark.parametrize("drag", [math.nan, 0.0, 1e9])
def test_a_window_comes_back_as_it_was(unit: str, drag: float) -> None:
    """With and without a drag that is known."""
    kernel = window().kernels[0]._replace(name=WORDS, unit=unit, nanoseconds=MOST)
    record = replace(window(), totals=(KernelTotal(unit, "", MOST),), kernels=(kernel,), drag=drag)

    assert repr(round_trip(record)) == repr(record)


@pytest.mark.parametrize("limit", [8, 20, 40, 100, 1000])
def test_rows_that_do_not_fit_are_cut_from_the_tail_and_counted(limit: int) -> None:
    """The first rows are what matters most; totals are never cut."""
    record = census(12)
    read = round_trip(record, len(encode(replace(record, rows=()), LIMIT)[1]) + limit)

    kept = len(read.rows)
    assert read.rows == record.rows[:kept]
    assert read.rows_left_out == record.rows_left_out + len(record.rows) - kept
    assert (read.ops, read.casts, read.fallbacks) == (record.ops, record.casts, record.fallbacks)


def test_kernels_that_do_not_fit_are_cut_from_the_tail_and_counted() -> None:
    """Kernels are cut as rows are, in the smallest ring."""
    record = window(500)

    read = round_trip(record, SMALLEST_LIMIT)

    assert 20 < len(read.kernels) < 500
    assert read.kernels == record.kernels[: len(read.kernels)]
    assert read.kernels_left_out == 7 + 500 - len(read.kernels)
    assert read.totals == record.totals


def test_a_record_is_cut_no_more_than_it_must_be() -> None:
    """One byte less, and one row less; the row that was cut would not have fitted."""
    record = census(40)
    whole = len(encode(record, LIMIT)[1])

    assert len(round_trip(record, whole).rows) == 40
    assert len(round_trip(record, whole - 1).rows) == 39


def test_a_table_beyond_the_reader_s_memory_is_refused() -> None:
    """A few KB may unpack to GB; it is never unpacked further than the bound."""
    bomb = zlib.compress(b" " * (64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="expected a compressed table of at most"):
            decode(RecordKind.CENSUS, bomb)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 16 << 20


def test_what_follows_a_table_is_refused() -> None:
    """A payload is one table, whole."""
    kind, payload = encode(census(), LIMIT)

    for wrong in (payload + b"x", payload[:-1], payload[:-5]):
        with pytest.raises(ValueError, match=r"expected a compressed table|decompressing"):
            decode(kind, wrong)


def test_a_name_of_any_kind_becomes_short_and_printable() -> None:
    """Names of kernels and modules are what compilers and users make of them, as in a range record."""
    name, read = (
        "gemm<\x1b[2J>" + "a" * 150 + "b" * 150,
        "gemm<\ufffd[2J>" + "a" * 90 + "…" + "b" * 99,
    )
    kernel = window().kernels[0]._replace(name=name)
    row = census().rows[0]._replace(module=name)

    assert round_trip(replace(window(), kernels=(kernel,))).kernels[0].name == read
    assert round_trip(replace(census(), rows=(row,))).rows[0].module == read


@pytest.mark.parametrize(
    ("record", "change"),
    [
        (census(), {"step": -1}),
        (census(), {"iterations": 1.5}),
        (census(), {"ops": (OpTotal(OpKind.MATMUL, "float16", -1, 0, 0, 0),)}),
        (census(), {"ops": (OpTotal(OpKind.MATMUL, None, 1, 0, 0, 0),)}),  # type: ignore[arg-type]
        (census(), {"casts": None}),
        (census(), {"rows": (census().rows[0]._replace(flops=-1),)}),
        (window(), {"skipped": (1, 2, 3, 4)}),
        (window(), {"totals": (KernelTotal("gpu", "", 1),)}),
        (window(), {"busy_ns": -1}),
        (window(), {"drag": "slow"}),
        (window(), {"kernels": (window().kernels[0]._replace(unit="gpu"),)}),
    ],
)
def test_a_mistaken_sensor_costs_its_record_only(record: Any, change: dict[str, Any]) -> None:
    """The writer knows these errors; anything else would reach the training step."""
    with pytest.raises((struct.error, TypeError, ValueError, AttributeError)):
        encode(replace(record, **change), LIMIT)


@pytest.mark.parametrize("drag", [-0.5, math.inf])
def test_a_drag_that_cannot_be_is_refused(drag: float) -> None:
    """Later code may divide and compare without checking."""
    with pytest.raises(ValueError, match="expected a drag"):
        decode(*encode(replace(window(), drag=drag), LIMIT))


def test_casts_have_a_table_of_their_own() -> None:
    """Among the ops they would be counted twice."""
    record = replace(census(), ops=(OpTotal(OpKind.CAST, "float16", 1, 0, 0, 0),))

    with pytest.raises(ValueError, match="expected casts in the table of casts"):
        decode(*encode(record, LIMIT))


def test_totals_that_do_not_fit_are_not_written() -> None:
    """Half of the totals would be a lie."""
    chance = random.Random(1)
    many = tuple(
        OpTotal(OpKind.MATMUL, f"dtype{i}", *(chance.getrandbits(60) for _ in range(4)))
        for i in range(200)
    )

    with pytest.raises(ValueError, match="expected totals of at most"):
        encode(replace(census(), ops=many), SMALLEST_LIMIT)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, -1),
        (0, 1.5),
        (2, 3),
        (4, [[4, "tf32", -1, 2, 3, 4]]),
        (4, [[4, "tf32", 1, 2, 3]]),
        (4, [[99, "tf32", 1, 2, 3, 4]]),
        (4, [[4, "a\x1bb", 1, 2, 3, 4]]),
        (4, [[4, "a" * 201, 1, 2, 3, 4]]),
        (4, [[4, "tf32", 1, 2**127, 3, 4]]),
        (4, [[4, "tf32", 1, 10**400, 3, 4]]),
        (5, {}),
        (7, [[1]]),
        (8, 2**63),
    ],
)
def test_what_is_not_of_the_form_is_refused(place: int, value: object) -> None:
    """Negative, cut off, of an unknown kind, a control character, too long, more than a float."""
    kind, payload = encode(census(), LIMIT)
    values = json.loads(zlib.decompress(payload))
    values[place] = value

    with pytest.raises(ValueError, match=r"[Ee]xpected|Invalid enum value"):
        decode(kind, zlib.compress(json.dumps(values).encode()))


@pytest.mark.nightly
@given(st.sampled_from([census(12), window(10)]), st.data())
def test_no_bytes_make_decoding_raise_anything_but_value_error(
    record: CensusRecord | WindowRecord, data: st.DataObject
) -> None:
    """A hostile writer costs its own records, not the daemon."""
    kind, payload = encode(record, 10 * LIMIT)
    hostile = bytearray(zlib.decompress(payload))
    for place in data.draw(st.lists(st.integers(0, len(hostile) - 1), min_size=1, max_size=4)):
        hostile[place] = data.draw(st.integers(0, 255))
    try:
        read = decode(kind, zlib.compress(hostile))
    except ValueError:
        return
    assert isinstance(read, (CensusRecord, WindowRecord))
    rows = read.rows if isinstance(read, CensusRecord) else read.kernels
    texts = [cell for row in rows for cell in row if isinstance(cell, str)]
    assert all(text.isprintable() and len(text) <= MAX_NAME for text in texts)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\x91" * 65536, b"\x81\xa4mood" * 7000, b"\xff", b"\xc0"),
        msgpack.encode({"token": "a", "pid": True, "step": True}),
    ],
)
def test_what_is_no_request_is_refused_and_ends_no_sensor(content: bytes, tmp_path: Path) -> None:
    """The training looks at it in the middle of a run, and takes ValueError and OSError alone."""
    ring = tmp_path / "a.ring"
    for path in (request_path(ring), answer_path(ring)):
        path.write_bytes(content)
        path.chmod(0o600)

    with pytest.raises(ValueError, match=r"."):
        read_request(ring)
    with pytest.raises(ValueError, match=r"."):
        read_answer(ring)

    withdraw(ring)
    assert not list(tmp_path.glob("a.*"))


def test_a_plan_of_many_layers_arrives_as_it_was_made(tmp_path: Path) -> None:
    """As many as a training knows, each with its names and reasons."""
    ring = tmp_path / "a.ring"
    plan = tuple(planned(f"blocks.{n}.mlp.up", n, limit_db=21.0) for n in range(MAX_PLANNED))
    request = Request("t", 1, tmp_path / "plan.json", 1, FOLLOW, plan=plan)
    write_request(ring, request)

    assert read_request(ring) == request


def test_a_plan_of_more_layers_than_a_training_knows_is_refused(tmp_path: Path) -> None:
    """Each would be taken, and all of them be followed."""
    ring = tmp_path / "a.ring"
    plan = tuple(planned("b", n) for n in range(MAX_PLANNED + 1))
    write_request(ring, Request("t", 1, tmp_path / "plan.json", 1, FOLLOW, plan=plan))

    with pytest.raises(ValueError, match=r"1 to 512 rows.* got '513 rows'"):
        read_request(ring)


@pytest.mark.parametrize("plan", [[], [7], ["!"], [{}], {}, None, "kQ=="])
def test_what_is_no_plan_is_refused(plan: object, tmp_path: Path) -> None:
    """By an error that the training expects."""
    ring = tmp_path / "a.ring"
    write_request(ring, Request("t", 1, tmp_path / "plan.json", 1, FOLLOW))
    content = msgpack.decode(request_path(ring).read_bytes())
    request_path(ring).write_bytes(msgpack.encode(content | {"plan": plan}))

    with pytest.raises(ValueError, match=r"layer of a plan|Expected|missing required"):
        read_request(ring)


def test_a_plan_beside_another_request_is_passed_over(tmp_path: Path) -> None:
    """It is read where it is meant."""
    ring = tmp_path / "a.ring"
    write_request(ring, Request("t", 1, tmp_path / "x", 1, LAYERS, plan=(planned(),)))

    assert read_request(ring).plan == ()
