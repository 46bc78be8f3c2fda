"""The lines and notes that the ranks of a machine leave one another: another program may have the file's name."""

from __future__ import annotations

from contextlib import suppress

from ampwatch.training.outlet import from_note
from ampwatch.training.said import Said
from tests.fuzz.engine import scratch

ME = b"here - 0 1-0\n"
SEEDS = (
    ME + b"here - 1 2-5\nfound 0123456789abcdef 1 2-5\nsays 0123456789abcdef 0 1-0\ngone - 1 2-5\n",
    b"here - 3 99999-12345678901234567890\n",
    b'[["optimizer:0",3,12,[1.0,2.0]]]',
    b"[[257,0,281474976710655]]",
)
WORDS = (b"here", b"found", b"says", b"gone", b" - ", b"\n", b"[" * 3000)


def one(data: bytes) -> object:
    path = scratch() / "x.said"
    path.write_bytes(data)
    checks = from_note(data)
    with suppress(OSError):
        said = Said(path, 0)
        assert said.says("what") in (True, False)
        said.found("what")
        said.leave(data)
        # This rank lives, and has come; whatever stands there besides takes neither from it.
        assert 0 in said.present()
        assert said.left()[0] == data[: 1 << 20]
        way = (len(checks), said.finders("what", said="what") != [], len(said.lost()) > 0)
        said.finders_among(["what", "else"])
        said.close()
        return way
    return None
