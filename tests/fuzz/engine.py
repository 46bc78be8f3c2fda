"""Mutation of bytes, and the search for a defect: seeded, without coverage, by what becomes of each input.

A target that knows its format better has a ``mutate`` of its own, which makes half of the mutants.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import pkgutil
import random
import re
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import tests.fuzz

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
NO_TARGETS = {"__main__", "engine", "test_fuzz"}

MAX_INPUT = 1 << 16
"""Bytes of a mutant."""

MAX_CPU_SECONDS = 5.0
"""Time of a processor that an input may take."""

MAX_GROWTH = 256 << 10
"""Memory by which an input may raise the most that the process has had. Unit: KiB."""

MAX_POOL = 2000
MAX_SHRINKS = 400

NUMBERS = ("0", "-1", "1", "255", "65536", "2147483648", "9223372036854775807", "18446744073709551616", "1e999", "-0.0", "NaN", "9" * 30, "9" * 5000)  # fmt: skip
BYTES = (b"\0", b"\xff", b"\n", b"\r\n", b"\x1b[2J", b"\xed\xa0\x80", "\u202e".encode(), b'"', b"{", b"[", b"null", b"true", b"{}", b"[]", b'""')  # fmt: skip

_TOKEN = re.compile(rb"[A-Za-z_]+|-?\d+(?:\.\d+)?|.", re.DOTALL)


class TooMuchError(Exception):
    """An input took more time or memory than any may."""


@dataclass
class Finding:
    """A defect.

    Attributes:
        where: Type of the error, and the line of ampwatch that raised it.
        error: The traceback.
        data: The smallest input that was found to raise it.
    """

    where: str
    error: str
    data: bytes


@dataclass
class Outcome:
    """Result of a run of one target."""

    target: str
    executions: int = 0
    seconds: float = 0.0
    ways: int = 0
    findings: dict[str, Finding] = field(default_factory=dict)


def targets() -> list[str]:
    """Return the names of the targets that are there."""
    names = {module.name for module in pkgutil.iter_modules(tests.fuzz.__path__)}
    return sorted(names - NO_TARGETS)


def load(name: str) -> ModuleType:
    """Return the module of a target."""
    return importlib.import_module(f"tests.fuzz.{name}")


def corpus(name: str) -> list[Path]:
    """Return the files of a target that are replayed."""
    directory = CORPUS / name
    return sorted(p for p in directory.iterdir() if p.is_file()) if directory.is_dir() else []


@functools.cache
def scratch() -> Path:
    """Return a directory of this process that is in memory, if there is such a place."""
    place = Path("/dev/shm")
    where = tempfile.mkdtemp(prefix="ampwatch-fuzz-", dir=place if place.is_dir() else None)
    atexit.register(shutil.rmtree, where, ignore_errors=True)
    return Path(where)


def attempt(module: ModuleType, data: bytes) -> tuple[object, Finding | None]:
    """Return how an input was taken, and the defect that it shows."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with _bounded():
            way = module.one(data)
        if (grown := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) > MAX_GROWTH:
            msg = f"expected an input of {len(data)} bytes to take {MAX_GROWTH} KiB at most, got {grown}"
            raise TooMuchError(msg)  # noqa: TRY301 - reported like what the target raises
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return None, Finding(_where(error), traceback.format_exc(limit=-12), data)
    return way, None


@contextmanager
def _bounded() -> Iterator[None]:
    """End what takes too long; by the time of a processor, so that a busy machine does not matter."""

    def end(_number: int, _frame: FrameType | None) -> None:
        msg = f"expected an input to take {MAX_CPU_SECONDS} s of a processor at most, got more"
        raise TooMuchError(msg)

    # Not SIGALRM: the time-out of a test has that one.
    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    # A recursion may end at any of its frames: where it began, is the same each time.
    ours = [f for f in frames if Path(f.filename).is_relative_to(ROOT / "ampwatch")]
    frame = (ours[0] if isinstance(error, RecursionError) else ours[-1]) if ours else frames[-1]
    path = Path(frame.filename)
    # Said alike in every checkout, because results are kept.
    place = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    return f"{type(error).__name__} at {place}:{frame.name}"


def search(name: str, *, seed: int = 0, executions: int = 0, seconds: float = 0.0) -> Outcome:
    """Look for defects of a target.

    Args:
        name: The target.
        seed: Of the mutants.
        executions: Inputs to try; as many as there is time for if 0.
        seconds: Time to take; as much as the inputs need if 0.
    """
    module = load(name)
    chance = random.Random(f"{name} {seed}")
    words = [*BYTES, *getattr(module, "WORDS", ())]
    pool = [*module.SEEDS, *(path.read_bytes() for path in corpus(name))]
    own = getattr(module, "mutate", None)
    outcome = Outcome(name)
    ways: set[object] = set()
    begun = time.monotonic()
    while (not executions or outcome.executions < executions) and (
        not seconds or time.monotonic() - begun < seconds
    ):
        number = outcome.executions
        if number < len(pool):
            data = pool[number]
        elif own is not None and chance.random() < 0.5:
            data = own(chance.choice(pool), chance)
        else:
            data = mutant(chance, pool, words)
        way, finding = attempt(module, data)
        outcome.executions += 1
        if finding is not None and finding.where not in outcome.findings:
            outcome.findings[finding.where] = shrunk(module, finding)
        elif way is not None and way not in ways and len(ways) < MAX_POOL:
            ways.add(way)
            if number >= len(module.SEEDS):
                pool.append(data)
    outcome.seconds = time.monotonic() - begun
    outcome.ways = len(ways)
    return outcome


def mutant(chance: random.Random, pool: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """Return one of ``pool``, changed in a few places."""
    data = bytearray(chance.choice(pool))
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        change = chance.choice(_CHANGES)
        change(chance, data, pool, words)
    return bytes(data[:MAX_INPUT])


def _flip(chance: random.Random, data: bytearray, *_: Any) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _set(chance: random.Random, data: bytearray, *_: Any) -> None:
    if data:
        begin = chance.randrange(len(data))
        value = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
        for place in range(begin, min(begin + chance.choice((1, 1, 2, 4, 8)), len(data))):
            data[place] = value


def _cut(chance: random.Random, data: bytearray, *_: Any) -> None:
    begin = chance.randrange(len(data) + 1)
    del data[begin : begin + chance.choice((1, 2, 8, 64, len(data)))]


def _repeat(chance: random.Random, data: bytearray, *_: Any) -> None:
    begin = chance.randrange(len(data) + 1)
    piece = data[begin : begin + chance.choice((1, 1, 2, 8, 64))]
    times = chance.choice((1, 2, 16, 300, 5000))
    data[begin:begin] = (piece * times)[:MAX_INPUT]


def _insert(chance: random.Random, data: bytearray, _: Any, words: Sequence[bytes]) -> None:
    begin = chance.randrange(len(data) + 1)
    end = begin + chance.choice((0, 0, 1, 4))
    data[begin:end] = chance.choice(words)


def _splice(chance: random.Random, data: bytearray, pool: Sequence[bytes], _: Any) -> None:
    other = chance.choice(pool)
    begin, take = chance.randrange(len(data) + 1), chance.randrange(len(other) + 1)
    data[begin:] = other[take:]


def _exchange(chance: random.Random, data: bytearray, pool: Sequence[bytes], words: Sequence[bytes]) -> None:  # fmt: skip
    """Put a number, a word or a piece of another input in the place of a number or a word."""
    tokens = _tokens(bytes(data))
    if not tokens:
        return
    begin, end = chance.choice(tokens)
    given = bytes(data[begin:end])
    if given.lstrip(b"-")[:1].isdigit() and chance.random() < 0.7:
        new = chance.choice(NUMBERS).encode()
    elif chance.random() < 0.5:
        new = chance.choice(words)
    else:
        other = chance.choice(pool)
        new = other[slice(*chance.choice(_tokens(other) or [(0, 0)]))]
    data[begin:end] = new


@functools.lru_cache(maxsize=4096)
def _tokens(data: bytes) -> list[tuple[int, int]]:
    return [match.span() for match in _TOKEN.finditer(data[:8192])]


_CHANGES = (_flip, _set, _cut, _repeat, _insert, _splice, _exchange, _exchange, _exchange)


def shrunk(module: ModuleType, finding: Finding) -> Finding:
    """Return the same defect with less of an input, if less of it shows it."""
    left, size = MAX_SHRINKS, max(len(finding.data) // 2, 1)
    while size and left:
        begin = 0
        while begin < len(finding.data) and left:
            left -= 1
            less = finding.data[:begin] + finding.data[begin + size :]
            _, again = attempt(module, less)
            if again is not None and again.where == finding.where:
                finding = again
            else:
                begin += size
        size //= 2
    return finding


def keep(name: str, finding: Finding) -> Path:
    """Write what shows a defect to the corpus; return the file."""
    path = CORPUS / name / sha256(finding.data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(finding.data)
    return path
