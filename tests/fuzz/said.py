"""The lines and notes that the ranks of a machine leave one another: another program may have the file's name."""

from __future__ import annotations

from contextlib import suppress

from ampwatch.diagnosis.evidence.replicas import WeightCheck
from ampwatch.training.outlet import from_note, to_note
from ampwatch.training.said import Said, _digest, _process
from tests.fuzz.engine import scratch

ME = b"here - 0 1-0\n"
ALIVE = _process(1).encode()
"""A process that outlives this one, so that what it says counts."""

SEEDS = (
    ME + b"here - 1 2-5\nfound 0123456789abcdef 1 2-5\nsays 0123456789abcdef 0 1-0\ngone - 1 2-5\n",
    b"here - 3 99999-12345678901234567890\n",
    b"here - 7 %s\nfound %s 7 %s\n" % (ALIVE, _digest("else").encode(), ALIVE),
    to_note([WeightCheck(257, 12345, 0, 2, (("a.weight", "b.bias"),), (1 << 48,), (7,))] * 2),
)
WORDS = (b"here", b"found", b"says", b"gone", b" - ", b"\n", b"[" * 3000)


def one(data: bytes) -> object:
    path = scratch() / "x.said"
    path.write_bytes(data)
    checks = from_note(data)
    with suppress(OSError):
        said = Said(path, 0)
        with path.open("ab") as file:
            file.write(
                data
            )  # what was there before is of an earlier start, unless its writer lives
        assert said.says("what") in (True, False)
        said.found("what")
        said.leave(data)
        # This rank lives, and has come; whatever stands there besides takes neither from it.
        assert 0 in said.present()
        assert said.left()[0] == data[: 1 << 20]
        way = (len(checks), len(said.finders("else")), len(said.lost()))
        said.finders_among(["what", "else"])
        said.close()
        return way
    return None
