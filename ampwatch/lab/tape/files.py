"""Tapes as files: a mark, then records, each behind its length and checksum.

A run that is killed leaves a tape that ends within a record: all records before it are read. What is
read is bounded in size, and checked; nothing in it is executed or unpickled.
"""

from __future__ import annotations

import math
import os
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO

import msgspec

from ampwatch.errors import DiffError
from ampwatch.lab.tape.rows import (
    NUM_BUCKETS,
    VERSION,
    RowKind,
    TapeHead,
    TapeOutcome,
    TapeRecord,
    TapeRow,
    TapeStep,
)

SUFFIX = ".tape"
MARK = b"ampwatch tape\n"
MAX_FILE = 2**30
"""Bytes of a tape at most, written or read. Then recording ends, with a sentence."""

MAX_RECORD = 2**27
"""Bytes of one record at most."""

MAX_NAME = 64
_FRAME = struct.Struct("<II")
_STRANGE = re.compile(r"[^A-Za-z0-9._-]")
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(TapeRecord)


def tape_path(directory: Path, run: str, rank: int, started_ns: int) -> Path:
    """Return where the tape of a process is: ``<run>-<when it started>-rank<rank>.tape``."""
    tame = _STRANGE.sub("_", run)[:MAX_NAME].lstrip(".") or "_"
    began = datetime.fromtimestamp(started_ns // 1_000_000_000, tz=timezone.utc)
    micros = started_ns % 1_000_000_000 // 1000
    return directory / f"{tame}-{began:%Y%m%dT%H%M%S}.{micros:06d}Z-rank{rank}{SUFFIX}"


class TapeWriter:
    """Writes the tape of one process; ``nbytes`` are written so far.

    Raises:
        OSError: If the file is there already, or cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Names of modules and values of a training are its owner's business.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file: BinaryIO | None = os.fdopen(file, "wb", buffering=0)
        self._pid = os.getpid()
        self.nbytes = self._write(MARK)

    def put(self, record: TapeRecord) -> bool:
        """Append a record; return whether there was room for it.

        Raises:
            OSError: If the disk is full, or gone. What is there then ends within a record at most.
        """
        # A forked child would write into the file of its parent.
        if self._file is None or os.getpid() != self._pid:
            return True
        payload = _ENCODER.encode(record)
        if len(payload) > MAX_RECORD or self.nbytes + len(payload) + _FRAME.size > MAX_FILE:
            return False
        self.nbytes += self._write(_FRAME.pack(len(payload), zlib.crc32(payload)) + payload)
        return True

    def _write(self, data: bytes) -> int:
        rest = memoryview(data)
        while rest and self._file is not None:
            rest = rest[self._file.write(rest) :]
        return len(data)

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


@dataclass
class Tape:
    """A tape that was read."""

    path: Path
    head: TapeHead  # what is recorded once
    steps: dict[int, TapeStep] = field(default_factory=dict)  # the recorded steps, by index
    outcomes: dict[int, TapeOutcome] = field(default_factory=dict)  # what became of them
    is_cut: bool = False  # whether it ends within a record: the run was killed, or still writes


def find_tapes(asked: Path) -> dict[int, Path]:
    """Return the tapes that a path names, by rank: itself, or those of the newest run in a directory.

    Raises:
        DiffError: If there is none.

    Cost: of each file in the directory the first record is read.
    """
    if not asked.is_dir():
        return {read_head(asked).rank: asked}
    heads: list[tuple[TapeHead, Path]] = []
    refused: list[DiffError] = []
    for path in sorted(asked.glob(f"*{SUFFIX}")):
        try:
            heads.append((read_head(path), path))
        except DiffError as error:  # noqa: PERF203 - each file by itself
            refused.append(error)
    if refused and not heads:
        raise refused[0]
    if not heads:
        msg = (
            f"expected a tape (*{SUFFIX}) in {str(asked)!r}, found none; a run records one with"
            " ampwatch.monitor(..., record_dir=DIR) or AMPWATCH_RECORD_DIR=DIR"
        )
        raise DiffError(msg)
    heads.sort(key=lambda known: (-known[0].started_ns, known[0].rank))
    newest = heads[0][0]
    found: dict[int, Path] = {}
    for head, path in heads:
        if (head.run, head.world_size) != (newest.run, newest.world_size):
            continue
        if head.rank in found:  # of the run before
            break
        found[head.rank] = path
    return dict(sorted(found.items()))


def read_head(path: Path) -> TapeHead:
    """Return the first record of a tape.

    Raises:
        DiffError: If the file cannot be read, is no tape, or one of another version of ampwatch.
    """
    with _opened(path) as file:
        first = next(_records(path, file), None)
    if not isinstance(first, TapeHead):
        raise _without_step(path)
    return first


def read_tape(path: Path) -> Tape:
    """Return what a tape holds.

    Raises:
        DiffError: If the file cannot be read, is no tape, or one of another version of ampwatch.

    Cost: the file is read once; some 10 us a row.
    """
    tape: Tape | None = None
    with _opened(path) as file:
        for record in _records(path, file):
            if isinstance(record, TapeHead):
                tape = tape or Tape(path, record)
            elif tape is None:
                break
            elif isinstance(record, TapeStep):
                if not all(_is_sound(row, number) for number, row in enumerate(record.rows)):
                    msg = f"expected a tape, got {str(path)!r}, whose step {record.step} is damaged; record it again"
                    raise DiffError(msg)
                tape.steps[record.step] = record
            elif isinstance(record, TapeOutcome):
                tape.outcomes[record.step] = record
        if tape is None:
            raise _without_step(path)
        tape.is_cut = file.tell() < os.fstat(file.fileno()).st_size
    return tape


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Give a tape to read behind its mark, and say of what the system refuses which file it is.

    Raises:
        DiffError: If it cannot be read, or is no tape.
    """
    try:
        if path.stat().st_size > MAX_FILE + MAX_RECORD:
            msg = f"expected a tape of at most {MAX_FILE} bytes, got {str(path)!r}, which is larger"
            raise DiffError(msg)
        with path.open("rb") as file:
            if file.read(len(MARK)) != MARK:
                msg = (
                    f"expected a tape, got {str(path)!r}, which is another kind of file; a run records a tape"
                    " with ampwatch.monitor(..., record_dir=DIR)"
                )
                raise DiffError(msg)
            yield file
    except OSError as error:
        if isinstance(error, DiffError):
            raise
        msg = f"expected a tape, a file that a run records with record_dir=DIR, got {str(path)!r}: {error.strerror}"
        raise DiffError(msg) from None


def _without_step(path: Path) -> DiffError:
    return DiffError(
        f"expected a tape with a recorded step, got {str(path)!r} without; the run has ended"
        " before its first step, or has not come to it yet"
    )


def _records(path: Path, file: BinaryIO) -> Iterator[TapeRecord]:
    """Yield the records up to the first that is not whole, before which ``file`` is left."""
    is_first = True
    while True:
        begin = file.tell()
        frame = file.read(_FRAME.size)
        length, checksum = _FRAME.unpack(frame) if len(frame) == _FRAME.size else (0, 0)
        payload = file.read(length) if 0 < length <= MAX_RECORD else b""
        if not payload or len(payload) < length or zlib.crc32(payload) != checksum:
            file.seek(begin)
            return
        if is_first:
            _check_version(path, payload)
            is_first = False
        try:
            yield _DECODER.decode(payload)
        except (msgspec.DecodeError, ValueError, RecursionError):
            file.seek(begin)
            return


def _check_version(path: Path, payload: bytes) -> None:
    try:
        head = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return
    version = head.get("version") if isinstance(head, dict) else None
    if version != VERSION:
        writer = head.get("ampwatch", "another version") if isinstance(head, dict) else "nobody"
        msg = (
            f"expected a tape of layout {VERSION}, got {str(path)!r} of layout {version!r}, written by"
            f" ampwatch {str(writer)[:40]}; record it again, or read both with the version that wrote both"
        )
        raise DiffError(msg)


def _is_sound(row: TapeRow, number: int) -> bool:
    """Whether a row has a whole sketch, possible numbers, and refers to rows before it alone."""
    return (
        row.kind in _KINDS
        and len(row.sketch) == 8 * NUM_BUCKETS
        and all(map(math.isfinite, row.sums()))
        and 0.0 <= row.norm < math.inf
        and 0.0 < row.scale < math.inf
        and min(row.shape, default=0) >= 0
        and min(row.counts, default=0) >= 0
        and all(0 <= source < number for source in row.sources)
    )


_KINDS = frozenset(map(int, RowKind))
