"""Records to bytes and back: nothing is changed on the way, nothing strange comes out, and slots are as documented."""

from __future__ import annotations

import json
import struct
from math import inf, nan
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
from msgspec import msgpack
from msgspec.structs import asdict, astuple

from ampwatch.wire.records import (
    EndRecord,
    FactsRecord,
    Finding,
    FindingRecord,
    Record,
    RunState,
    Severity,
    SkipClass,
)
from ampwatch.wire.ring import layout
from ampwatch.wire.ring.encoding import decode, decode_identity, encode, encode_identity
from ampwatch.wire.ring.layout import RecordKind
from tests.wire.ring.samples import (
    CHECKSUM,
    END,
    FACTS,
    FAILURE,
    IDENTITY,
    NAN_STEP,
    TRIED,
    changed,
    finding,
    optimizer,
    sampling,
    slot_bytes,
    step,
)
from tests.workshop.records import budgeted, culprit, memory, planned

LIMIT = 64 * 240
SMALLEST_LIMIT = 8 * 240

MOST = 2**63 - 1
WORDS = "Grüße 梯度 🙂"


@pytest.mark.parametrize(
    "record",
    [
        changed(
            step(1),
            step=MOST,
            time_ns=MOST,
            duration_s=1e300,
            loss=-inf,
            loss_scale=-0.0,
            skip_class=SkipClass.STORM,
            overhead_ns=MOST,
        ),
        NAN_STEP,
        changed(optimizer(255), skipped=True, total_steps=MOST, total_skipped=(MOST,) * 4),
        changed(sampling(0), samples=(MOST,) * 6, parameter_nonfinite=-1, device_ns=MOST),
        FactsRecord({}),
        FactsRecord({"": "", WORDS: WORDS}),
        FindingRecord(
            Finding(
                *("", Severity.INFO, *[WORDS] * 6, MOST, MOST, MOST),
                evidence={"": 5e-324, WORDS: nan, "b": -inf, "c": -0.0},
                root=False,
                caused_by=WORDS,
                source=WORDS,
                tried=(TRIED[0]._replace(module=WORDS, step=MOST, then_module=WORDS),),
            )
        ),
        changed(FAILURE, sensor=WORDS, errors=MOST, step=MOST, message=""),
        CHECKSUM,
        culprit(MOST, "µ" * 200),
        memory(),
        planned(sqnr_db=(nan, inf, -inf), formats=("", WORDS, ""), step=MOST),
        budgeted(total=nan, contribution=-inf, error=nan, module=WORDS),
        EndRecord(RunState.FAILED, WORDS, MOST),
    ],
    ids=lambda record: type(record).__name__,
)
def test_every_record_comes_back_as_it_was(record: Record) -> None:
    """Extreme counts, NaN, infinities, negative zero and any alphabet included."""
    kind, payload = encode(record, LIMIT)

    assert len(payload) <= LIMIT
    assert repr(decode(kind, payload)) == repr(record)  # repr: NaN is not equal to itself


def test_the_identity_comes_back_as_it_was() -> None:
    """The header is all that the reader knows of the writer."""
    assert decode_identity(encode_identity(IDENTITY)) == IDENTITY


@pytest.mark.parametrize("bits", [0x7FF8000000000001, 0xFFF80000DEADBEEF, 1 << 63, 0xFFF << 52])
def test_floats_come_back_bit_for_bit(bits: int) -> None:
    """NaN of any payload and sign, negative zero, infinities, in MessagePack and in a struct."""
    (value,) = struct.unpack("=d", struct.pack("=Q", bits))
    found = changed(finding().finding, evidence={"amax": value})

    for record, read_back in (
        (changed(step(1), loss=value), attrgetter("loss")),
        (FindingRecord(found), lambda record: record.finding.evidence["amax"]),
    ):
        read = read_back(decode(*encode(record, LIMIT)))

        assert struct.pack("=d", read) == struct.pack("=Q", bits)


def test_numbers_of_other_libraries_are_written_as_numbers() -> None:
    """A tensor, or a scalar of NumPy, that a sensor has not made a number of."""
    record = changed(sampling(1), step=np.int64(5))
    found = changed(finding().finding, evidence={"amax": np.float32(0.5)})

    assert decode(*encode(record, LIMIT)) == changed(sampling(1), step=5)
    assert decode(*encode(FindingRecord(found), LIMIT)) == FindingRecord(
        changed(found, evidence={"amax": 0.5})
    )


def test_the_worst_text_still_fits_into_the_smallest_message() -> None:
    """Texts, three hundred numbers and as many remedies as are tried, each character six bytes long in JSON."""
    worst = "\x01" * 50_000
    full = Finding(
        worst,
        Severity.CRITICAL,
        worst,
        worst,
        worst,
        worst,
        worst,
        worst,
        2**63 - 1,
        2**63 - 1,
        2**63 - 1,
        {f"{i}{worst}": -1.2345678901234567e-300 for i in range(300)},
        root=False,
        caused_by=worst,
        source=worst,
        tried=(TRIED[0]._replace(module=worst, then_op=worst, then_module=worst),) * 3,
    )

    for record in (
        FindingRecord(full),
        FactsRecord({f"{i}{worst}": worst for i in range(300)}),
        EndRecord(RunState.FAILED, worst, 2**63 - 1),
    ):
        kind, payload = encode(record, SMALLEST_LIMIT)

        assert len(payload) <= SMALLEST_LIMIT
        assert type(decode(kind, payload)) is type(record)


def test_text_is_cut_no_more_than_needed_and_marked() -> None:
    """A long advice does not cost the name of the module."""
    record = finding(where="m" * 900, kind_advice="a" * 50_000)

    read = decode(*encode(record, LIMIT))

    assert isinstance(read, FindingRecord)
    assert read.finding.where == "m" * 900
    assert read.finding.kind_advice == "a" * 4095 + "…"
    assert read.finding.evidence == record.finding.evidence


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("a\x1b[31mred\r\x00", "a\ufffd[31mred\ufffd\ufffd"),
        ("line\n\tline", "line\n\tline"),
        ("\u202egpj.exe", "\ufffdgpj.exe"),
        ("caf\udce9.py", "caf?.py"),
        ("Grüße 梯度 🙂", "Grüße 梯度 🙂"),
    ],
)
def test_text_that_a_terminal_would_obey_is_made_harmless(written: str, read: str) -> None:
    """Control and direction characters become replacement characters, not a lost record."""
    kind, payload = encode(EndRecord(RunState.FAILED, written, 1), LIMIT)

    assert decode(kind, payload) == EndRecord(RunState.FAILED, read, 1)
    found = changed(finding().finding, tried=(TRIED[1]._replace(module=written),))
    came = decode(*encode(FindingRecord(found), LIMIT))
    assert came.finding.tried == (TRIED[1]._replace(module=read),)  # type: ignore[union-attr]


def test_a_lone_surrogate_smuggled_in_as_bytes_is_refused() -> None:
    """Text that comes out can always be written to a socket as UTF-8."""
    payload = msgpack.encode(("failed", "surrogate", 1))
    payload = payload.replace(b"\xa9surrogate", b"\xa3\xed\xa0\x80")

    with pytest.raises(ValueError, match=r"(?i)utf-8"):
        decode(RecordKind.END, payload)


@pytest.mark.parametrize(
    "wrong",
    [
        changed(step(1), step=-1),
        changed(step(1), total_growths=-1),
        changed(step(1), overhead_ns=-1),
        changed(step(1), growth_tracker=-2),
        changed(step(1), duration_s=-0.5),
        changed(step(1), duration_s=inf),
        changed(step(1), skip_class=5),
        changed(optimizer(1), total_steps=-1),
        changed(optimizer(1), total_skipped=(0, 0, -1, 0)),
        changed(sampling(1), interval=-1),
        changed(sampling(1), samples=(0, 0, 0, 0, 0, -1)),
        changed(sampling(1), gradient_infs=-1),
        changed(sampling(1), parameter_nonfinite=-2),
        changed(sampling(1), buffer_nonfinite=-2),
        changed(sampling(1), device_ns=-1),
    ],
)
def test_packed_numbers_that_no_writer_means_are_refused(wrong: Record) -> None:
    """Later code may add, index and format without checking."""
    with pytest.raises(ValueError, match=r"[Ee]xpected|Invalid enum value"):
        decode(*encode(wrong, LIMIT))


@pytest.mark.parametrize(
    ("record", "change"),
    [
        (finding().finding, {"severity": "fatal"}),
        (finding().finding, {"count": True}),
        (finding().finding, {"count": -1}),
        (finding().finding, {"count": 2**63}),
        (finding().finding, {"root": 1}),
        (finding().finding, {"where": None}),
        (finding().finding, {"evidence": {"a": True}}),
        (finding().finding, {"evidence": [1.0]}),
        (finding().finding, {"tried": [("magic", "", 0, True)]}),
        (finding().finding, {"tried": [("bfloat16", "", -1, True)]}),
        (finding().finding, {"tried": [("bfloat16", "", 0, 1)]}),
        (FACTS, {"facts": {"a": 1}}),
        (END, {"state": "running"}),
        (FAILURE, {"sensor": ""}),
        (FAILURE, {"sensor": "a\nb"}),
        (FAILURE, {"sensor": "s" * 256}),
        (FAILURE, {"errors": -1}),
    ],
)
def test_fields_of_another_type_are_refused(record: Any, change: dict[str, Any]) -> None:
    """One wrong field costs the record: half-checked values are worth nothing."""
    kind = {
        "Finding": RecordKind.FINDING,
        "FactsRecord": RecordKind.FACTS,
        "EndRecord": RecordKind.END,
    }.get(type(record).__name__, RecordKind.FAILURE)
    values = {name: getattr(record, name) for name in type(record).__match_args__} | change

    with pytest.raises(ValueError, match=r"[Ee]xpected|Invalid enum value"):
        decode(kind, msgpack.encode(list(values.values())))


def test_more_or_fewer_fields_are_refused() -> None:
    """Of another version under the same layout number."""
    values = list(astuple(END))

    for wrong in (values[:-1], [*values, 1], dict(enumerate(values))):
        with pytest.raises(ValueError, match=r"[Ee]xpected"):
            decode(RecordKind.END, msgpack.encode(wrong))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc0",
        b"\x80",
        b"[]",
        b"x\x9c",
        b"\x91" * 15000,
        b"\x81\xa1a" * 3000,
        b"\xdd\xff\xff\xff\xff",
        b"\x93\xdb\xff\xff\xff\xff",
        b"\xc7\xff\x01",
        b"\xc1",
    ],
)
def test_payloads_of_no_form_are_refused_with_one_error(payload: bytes) -> None:
    """Deep nesting, lengths beyond the end, wrong types, unknown kinds: ``ValueError``, nothing else."""
    for kind in (*RecordKind, 0, 12, 255):
        with pytest.raises(ValueError):  # noqa: PT011 - the messages are Python's own and differ
            decode(kind, payload)


@pytest.mark.parametrize(
    "change",
    [
        {"run": ""},
        {"run": "r" * 256},
        {"run": "a\nb"},
        {"run": "\x1b[2J"},
        {"host": "\ud800"},
        {"rank": -1},
        {"rank": 1.0},
        {"pid": 2**63},
        {"version": None},
    ],
)
def test_an_identity_that_could_harm_a_label_is_refused(change: dict[str, Any]) -> None:
    """Run, host and version become labels and file names: printable, short, typed."""
    value = asdict(IDENTITY) | change

    with pytest.raises(ValueError, match=r"[Ee]xpected|Invalid|surrogate"):
        decode_identity(json.dumps(value).encode())


def test_packing_a_slot_leaves_nothing_of_the_one_before() -> None:
    """The buffer is used again and again; zeros follow a short payload."""
    slot = bytearray(b"\xff" * 256)

    layout.pack_slot_into(slot, 9, 1, 0, 1, b"abc")

    assert bytes(slot) == slot_bytes(9, 1, b"abc")
    assert slot[16:] == b"abc" + bytes(237)


def test_a_slot_is_only_the_slot_of_its_own_sequence() -> None:
    """A slot of an earlier or later lap in the place is not taken for the one sought."""
    slot = slot_bytes(70, 1, b"abc")

    assert layout.unpack_slot(slot, 70) == (1, 0, 1, b"abc")
    assert layout.unpack_slot(slot, 6) is None
    assert layout.unpack_slot(slot, 134) is None


def test_a_slot_that_was_never_written_is_no_slot() -> None:
    """Sequence 0 of a fresh file is not a record of zeros."""
    assert layout.unpack_slot(bytes(256), 0) is None


@pytest.mark.parametrize(("chunk", "chunks"), [(0, 0), (1, 1), (0, 65), (200, 255)])
def test_a_slot_with_impossible_chunks_is_no_slot(chunk: int, chunks: int) -> None:
    """A valid checksum does not make a chunk beyond the last one."""
    assert layout.unpack_slot(slot_bytes(0, 1, b"abc", chunk, chunks), 0) is None
