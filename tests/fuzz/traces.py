"""The two files by which ``ampwatch trace`` and a training speak: whoever can write there may have left anything."""

from __future__ import annotations

from msgspec import msgpack

from ampwatch.cli.trace import summary
from ampwatch.wire.records import KernelTotal
from ampwatch.wire.ring.requests import (
    FOLLOW,
    Answer,
    Request,
    answer_path,
    read_answer,
    read_request,
    request_path,
    withdraw,
    write_answer,
    write_request,
)
from tests.fuzz.engine import scratch
from tests.workshop.records import planned


def _seeds() -> tuple[bytes, ...]:
    ring = scratch() / "x.ring"
    totals = (KernelTotal("tensor", "float16", 12), KernelTotal("cpu", "", 5))
    write_request(ring, Request("abc", 12, scratch() / "out.json", 2))
    write_answer(ring, Answer("abc", "", 7, 2, 1000, 500, totals))
    found = (request_path(ring).read_bytes(), answer_path(ring).read_bytes())
    withdraw(ring)
    write_request(ring, Request("abc", 12, scratch() / "plan.json", 1, FOLLOW, plan=(planned(),)))
    found += (request_path(ring).read_bytes(),)
    withdraw(ring)
    return found


SEEDS = (*_seeds(), msgpack.encode({"token": "a", "why_not": "no", "totals": []}))
WORDS = (b"\xa6totals", msgpack.encode(["cpu", "", 3]), b"\x91" * 3000, b"\x81\xa1a" * 3000)


def one(data: bytes) -> object:
    ring = scratch() / "x.ring"
    way = []
    for path, read in ((request_path(ring), read_request), (answer_path(ring), read_answer)):
        path.write_bytes(data)
        path.chmod(0o600)
        try:
            found = read(ring)
        except (OSError, ValueError) as error:
            way.append(str(error)[:30])
        else:
            if isinstance(found, Answer):
                assert summary(found).replace("\n", "").isprintable()
            way.append(type(found).__name__)
    return tuple(way)
