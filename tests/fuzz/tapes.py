"""Recorded steps that are held against others: a tape is a file that somebody sends."""

from __future__ import annotations

import functools
import json
import struct
import zlib
from pathlib import Path

import msgspec

from ampwatch.errors import DiffError
from ampwatch.lab.difference.ranks import compare_runs
from ampwatch.lab.difference.words import difference_document, render_difference
from ampwatch.lab.tape.files import MARK, find_tapes
from ampwatch.lab.tape.rows import TapeOutcome, TapeRecord
from tests.fuzz.engine import scratch
from tests.workshop.tapes import HEAD, step, write_tape

RECORDS = [HEAD, step(0), TapeOutcome(0, 1.0, 1.0, skipped=False), step(5, 2.0)]
SEEDS = (msgspec.json.encode(RECORDS), *map(msgspec.msgpack.encode, RECORDS))
WORDS = (b'"kind"', b'"sources":[0,1,2]', b'"shape":[]', b'"scale":1e-320', b'"norm":0.0', b'"module":"\\u001b[2J"', b'"counts":[]', b"[" * 3000)  # fmt: skip


def _framed(payload: bytes) -> bytes:
    return struct.pack("<II", len(payload), zlib.crc32(payload)) + payload


def _tape(data: bytes) -> Path:
    """Write a tape of whole records: what is JSON as those that it says, other bytes as one of them."""
    try:
        payloads = [msgspec.msgpack.encode(r) for r in msgspec.json.decode(data, type=list[TapeRecord])]  # fmt: skip
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError):
        payloads = [msgspec.msgpack.encode(HEAD), data]
    path = scratch() / "x.tape"
    path.write_bytes(MARK + b"".join(map(_framed, payloads)))
    return path


@functools.cache
def _known() -> dict[int, Path]:
    return find_tapes(write_tape(scratch() / "known.tape", [step(0), step(5)]))


def one(data: bytes) -> object:
    way: list[object] = []
    try:
        tape = find_tapes(_tape(data))
        ranks = {**_known(), 1: next(iter(tape.values()))}
        for a, b in ((_known(), tape), (tape, _known()), (tape, tape), (ranks, ranks)):
            found = compare_runs(a, b)
            json.dumps(difference_document(found), allow_nan=False)
            lines = render_difference(found).splitlines()
            way += [len(found.lead.departures), found.is_same, len(lines)]
    except DiffError as error:
        way.append(str(error)[:40])
    return tuple(way)
