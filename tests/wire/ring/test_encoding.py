"""Records to bytes and back: nothing is changed on the way, and nothing strange comes out."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import asdict
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampwatch.wire.records import (
    EndRecord,
    FactsRecord,
    Finding,
    FindingRecord,
    OptimizerRecord,
    Record,
    RunState,
    SamplingRecord,
    Severity,
    SkipClass,
    StepRecord,
)
from ampwatch.wire.ring.encoding import decode, decode_identity, encode, encode_identity
from ampwatch.wire.ring.layout import Kind
from tests.wire.ring.samples import (
    END,
    FACTS,
    IDENTITY,
    NAN_STEP,
    changed,
    finding,
    optimizer,
    ranges,
    sampling,
    step,
)

LIMIT = 64 * 240
SMALLEST_LIMIT = 8 * 240

counts = st.integers(0, 2**63 - 1)
numbers = st.floats()
texts = st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs"]), max_size=60)
steps = st.builds(
    StepRecord,
    *(counts, counts, st.just(nan) | st.floats(0, 1e300), numbers, counts, numbers),
    *(st.integers(-1, 2**63 - 1), st.sampled_from(SkipClass), counts),
    *(st.booleans(), st.booleans(), st.booleans()),
    *(counts, counts, counts, counts, counts, counts, counts),
)
optimizers = st.builds(
    OptimizerRecord,
    *(counts, st.integers(0, 255), st.booleans(), counts),
    st.tuples(counts, counts, counts, counts),
)
looks = st.integers(-1, 2**63 - 1)
samplings = st.builds(
    SamplingRecord,
    *(counts, counts, st.tuples(counts, counts, counts, counts, counts, counts)),
    *(counts, counts, counts, counts, counts, counts, counts, counts, counts, looks, looks, counts),
)
facts = st.builds(FactsRecord, st.dictionaries(texts, texts, max_size=30))
findings = st.builds(
    FindingRecord,
    st.builds(
        Finding,
        *(texts, st.sampled_from(Severity), texts, texts, texts, texts, texts, texts),
        *(counts, counts, counts),
        st.dictionaries(texts, numbers, max_size=30),
        *(st.booleans(), texts, texts),
    ),
)
ends = st.builds(EndRecord, st.sampled_from([RunState.FINISHED, RunState.FAILED]), texts, counts)


@given(st.one_of(steps, optimizers, samplings, facts, findings, ends))
def test_every_record_comes_back_as_it_was(record: Record) -> None:
    """Extreme counts, NaN, infinities, negative zero and any alphabet included."""
    kind, payload = encode(record, LIMIT)

    assert len(payload) <= LIMIT
    assert repr(decode(kind, payload)) == repr(record)  # repr: NaN is not equal to itself


def test_the_identity_comes_back_as_it_was() -> None:
    """What the header says about the writer is all the reader knows of it."""
    assert decode_identity(encode_identity(IDENTITY)) == IDENTITY


def test_packed_records_stand_in_the_documented_order() -> None:
    """Fields of the dataclass, in order, without padding; a change needs a new layout."""
    record = step(9)
    expected = b""
    for value in asdict(record).values():
        kind = {bool: "?", float: "d", int: "q", SkipClass: "B"}[type(value)]
        expected += struct.pack("=" + kind, value)

    assert encode(record, LIMIT) == (Kind.STEP, expected)
    assert len(encode(optimizer(1), LIMIT)[1]) == 8 + 1 + 1 + 5 * 8


@given(
    st.builds(
        finding, where=st.text(max_size=3000), advice=st.text(max_size=30000), count=counts
    ).filter(lambda record: record.finding.last_step < 2**63),
    st.sampled_from([SMALLEST_LIMIT, LIMIT]),
)
def test_a_finding_of_any_length_is_cut_to_fit_and_can_be_read(
    record: FindingRecord, limit: int
) -> None:
    """Text loses its end, never the record; numbers stay."""
    kind, payload = encode(record, limit)

    read = decode(kind, payload)

    assert len(payload) <= limit
    assert isinstance(read, FindingRecord)
    assert (read.finding.kind, read.finding.count, read.finding.evidence) == (
        record.finding.kind[: len(read.finding.kind)],
        record.finding.count,
        record.finding.evidence,
    )


def test_the_worst_text_still_fits_into_the_smallest_message() -> None:
    """Ten texts and three hundred numbers, each character six bytes long in JSON."""
    worst = "\x01" * 50_000
    full = Finding(
        *(worst, Severity.CRITICAL, worst, worst, worst, worst, worst, worst),
        *(2**63 - 1, 2**63 - 1, 2**63 - 1),
        {f"{i}{worst}": -1.2345678901234567e-300 for i in range(300)},
        *(False, worst, worst),
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
    record = finding(where="m" * 900, advice="a" * 50_000)

    read = decode(*encode(record, LIMIT))

    assert isinstance(read, FindingRecord)
    assert read.finding.where == "m" * 900
    assert read.finding.advice == "a" * 4095 + "…"


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


def test_a_lone_surrogate_smuggled_in_as_an_escape_is_made_harmless() -> None:
    """What comes out can always be written to a socket as UTF-8."""
    payload = rb'{"state":"failed","reason":"\ud800","time_ns":1}'

    assert decode(Kind.END, payload) == EndRecord(RunState.FAILED, "\ufffd", 1)


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
    kind, payload = encode(wrong, LIMIT)

    with pytest.raises(ValueError, match=r"expected|is not a valid SkipClass"):
        decode(kind, payload)


def test_numbers_that_are_not_known_are_accepted() -> None:
    """NaN is how a record says: not known."""
    assert repr(decode(*encode(NAN_STEP, LIMIT))) == repr(NAN_STEP)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (Kind.FINDING, {"severity": "fatal"}),
        (Kind.FINDING, {"severity": ["info"]}),
        (Kind.FINDING, {"count": True}),
        (Kind.FINDING, {"count": 1.5}),
        (Kind.FINDING, {"count": -1}),
        (Kind.FINDING, {"count": 2**63}),
        (Kind.FINDING, {"root": 1}),
        (Kind.FINDING, {"where": None}),
        (Kind.FINDING, {"evidence": {"a": "1"}}),
        (Kind.FINDING, {"evidence": {"a": True}}),
        (Kind.FINDING, {"evidence": {"a": 10**400}}),
        (Kind.FINDING, {"evidence": [1.0]}),
        (Kind.FINDING, {"unknown": 1}),
        (Kind.FACTS, {"facts": {"a": 1}}),
        (Kind.FACTS, {"facts": "a"}),
        (Kind.END, {"state": "running"}),
        (Kind.END, {"state": {}}),
        (Kind.END, {"time_ns": "1"}),
    ],
)
def test_json_fields_of_another_type_are_refused(kind: Kind, change: dict[str, Any]) -> None:
    """One wrong field costs the record: half-checked values are worth nothing."""
    records: dict[Kind, Record] = {Kind.FINDING: finding(), Kind.FACTS: FACTS, Kind.END: END}
    value = json.loads(encode(records[kind], LIMIT)[1]) | change

    with pytest.raises(ValueError, match=r"expected|is not a valid Severity"):
        decode(kind, json.dumps(value).encode())


@pytest.mark.parametrize(
    "payload",
    [b"", b"null", b"[]", b"{}", b'"a"', b"[" * 15000, b"\xff\xfe", b'{"a":' * 3000, b"9" * 15000],
)
@pytest.mark.parametrize("kind", [*Kind, 0, 8, 255])
def test_payloads_of_no_form_are_refused_with_one_error(kind: int, payload: bytes) -> None:
    """Deep nesting, huge numbers, wrong lengths, unknown kinds: ``ValueError``, nothing else."""
    with pytest.raises(ValueError):  # noqa: PT011 - the messages are Python's own and differ
        decode(kind, payload)


@given(
    st.sampled_from([FACTS, finding(), END]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["facts", "reason", *asdict(finding().finding)]), inner, max_size=16
            )
        ),
    ),
)
def test_no_json_makes_decoding_raise_anything_but_value_error(
    record: Record, value: object
) -> None:
    """A hostile writer costs its own records, not the daemon."""
    kind, payload = encode(record, LIMIT)
    hostile = json.loads(payload) | value if isinstance(value, dict) else value
    try:
        read = decode(kind, json.dumps(hostile).encode())
    except ValueError:
        return
    assert type(read) is type(record)
    if isinstance(read, FindingRecord):
        _assert_types(read.finding)


def _assert_types(found: Finding) -> None:
    for name, kind in Finding.__annotations__.items():
        value = getattr(found, name)
        assert type(value).__name__ == kind.split("[")[0]
    assert all(type(v) is float for v in found.evidence.values())
    repr(found).encode()


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
        {"extra": 1},
    ],
)
def test_an_identity_that_could_harm_a_label_is_refused(change: dict[str, Any]) -> None:
    """Run, host and version become labels and file names: printable, short, typed."""
    value = asdict(IDENTITY) | change

    with pytest.raises(ValueError, match="expected"):
        decode_identity(json.dumps(value).encode())


def test_the_bytes_of_layout_2_never_change() -> None:
    """A change of any payload needs a new ``LAYOUT``, or old and new misread each other."""
    records = (step(9), optimizer(1), ranges(), sampling(1), FACTS, finding(), END)
    payloads = [encode(r, LIMIT)[1] for r in records]

    assert [zlib.crc32(payload) for payload in payloads] == [
        4268936519,
        279445739,
        3214179925,
        353034163,
        3231866149,
        2871490794,
        3600768615,
    ]
