"""What the ranks of one machine have said: of those that find the same, one says it.

Ranks of a run are started by one launcher, and share the directory of rings. A small file
there is theirs: each appends what it would say, and who is first to append that it says it now
does so. The kernel puts what is appended into an order, so nobody waits, and no rank asks another.
That order also says for whom it is said: for those that had appended it before.

A launcher may start the same job again, after a crash above all. Each line therefore names the
process that wrote it, and what was written by a process that had ended when a rank came is not
said: it was another start of the job. Who finds that all writers have ended removes the file. Only
there a lock is needed: between that and the first line of a rank that is just coming.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from ampwatch.runtime import private_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ampwatch.wire.records import RunIdentity

SUFFIX = ".said"

BOXES = ".boxes"
"""Suffix of the directory beside a file, in which its ranks leave what takes more than a line."""

MAX_BYTES = 2**20
"""Size from which a file is neither written nor read any more: each rank speaks for itself then."""

LOCK_SECONDS = 0.5
"""Patience with another rank that comes or goes; it holds the lock for a few system calls. Unit: s."""

LOCK_AGAIN_SECONDS = 0.005

_NOTE, _DRAFT = ".note", ".part"

_HERE, _GONE, _FOUND, _SAYS = "here", "gone", "found", "says"

_NAME = re.compile(
    r"(?P<machine>[0-9a-f]{16})-(?P<launcher>\d{1,9}-\d{1,20})-[0-9a-f]{16}\.said", re.ASCII
)
_LINE = re.compile(r"(here|gone|found|says) (\S+) (\d{1,9}) (\d{1,9}-\d{1,20})", re.ASCII)

_STARTS = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")
"""Variables that all ranks of one start of a job share, and the next start may not."""

_opened: Counter[tuple[str, str]] = Counter()
"""Files of each run and topic that this process has had so far: the ranks of a run have them in
one order."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the file.

    Attributes:
        verb: What its writer does.
        mark: Digest of what it is about.
        rank: The writer.
        process: The writer's process, as ``_process`` names it.
    """

    verb: str
    mark: str
    rank: int
    process: str


def join(directories: Sequence[Path], identity: RunIdentity, topic: str) -> Said | None:
    """Return this rank's end of the file that it shares with the other ranks of its machine.

    Args:
        directories: Where the file may be, the best place first; made if missing.
        identity: Who joins.
        topic: What the file is for. Each has a file of its own.

    Returns:
        ``None`` for the only rank of a run, which has nobody to agree with, and where no
        directory takes the file: each rank speaks for itself then.
    """
    if identity.world_size > 1:
        for directory in directories:
            # RingError of private_directory is one, too.
            with suppress(OSError):
                path = path_for(private_directory(directory), identity, topic)
                return Said(path, identity.rank)
    return None


def path_for(directory: Path, identity: RunIdentity, topic: str) -> Path:
    """Return the file of the ranks of one run that one launcher has started; removes stale ones.

    Raises:
        OSError: If the directory cannot be read.
    """
    _opened[identity.run, topic] += 1
    _remove_those_that_are_over(directory)
    start = [os.environ.get(name, "") for name in _STARTS]
    job = _digest(repr((identity.run, topic, start, _opened[identity.run, topic])))
    return directory / f"{_machine()}-{_process(os.getppid())}-{job}{SUFFIX}"


class Said:
    """One rank's end of the file. Every method may raise ``OSError``, and nothing else.

    Args:
        path: The file, in a directory that is this user's alone.
        rank: Who speaks.

    Raises:
        OSError: If the file cannot be made.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self.path = path
        self._rank = rank
        self._process = _process(os.getpid())
        self._predecessors: set[str] = set()
        # Of which file, up to which byte. One tuple: the log of findings asks from a thread of its own.
        self._known: tuple[int, int, list[_Line]] = (0, 0, [])
        self._come()
        writers = {line.process for line in _read(path)}
        self._predecessors = {writer for writer in writers if not _lives(writer)}

    def found(self, what: str) -> None:
        """Note that this rank would say ``what``."""
        self._append(_FOUND, _digest(what))

    def says(self, what: str) -> bool:
        """Return whether this rank is to say ``what``: the first one that asks."""
        mark = _digest(what)
        self._append(_SAYS, mark)
        return next((rank == self._rank for rank in self._ranks(_SAYS, mark)), True)

    def finders(self, what: str, said: str = "") -> list[int]:
        """Return the ranks that would have said ``what``, in order.

        Args:
            what: What they have found.
            said: Leave out who found it after somebody had said this.
        """
        found, end = _digest(what), _digest(said)
        ranks = set()
        for line in self._lines():
            if said and (line.verb, line.mark) == (_SAYS, end):
                break
            if (line.verb, line.mark) == (_FOUND, found):
                ranks.add(line.rank)
        return sorted(ranks)

    def is_said(self, what: str) -> bool:
        """Return whether a rank has said ``what``."""
        return bool(self._ranks(_SAYS, _digest(what)))

    def present(self) -> list[int]:
        """Return the ranks that have come, live and have not taken leave, in order."""
        return sorted({rank for rank, process in self._those_that_stay() if _lives(process)})

    def lost(self) -> list[int]:
        """Return the ranks that have come, and have ended without taking leave, in order."""
        dead = {rank for rank, process in self._those_that_stay() if not _lives(process)}
        return sorted(dead.difference(self.present()))

    def leave(self, note: bytes) -> None:
        """Leave a note for the other ranks, in the place of this rank's last one."""
        directory = private_directory(self.boxes)
        draft = directory / f"{self._rank}.{os.getpid()}{_DRAFT}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(descriptor, note)
        finally:
            os.close(descriptor)
        draft.replace(directory / f"{self._rank}{_NOTE}")

    def left(self) -> dict[int, bytes]:
        """Return the newest note of each rank that lives."""
        notes = {}
        for rank in self.present():
            with suppress(FileNotFoundError):
                descriptor = _open(self.boxes / f"{rank}{_NOTE}", os.O_RDONLY)
                try:
                    notes[rank] = os.read(descriptor, MAX_BYTES)
                finally:
                    os.close(descriptor)
        return notes

    @property
    def boxes(self) -> Path:
        """The directory for what takes more than a line; it goes with the file."""
        return self.path.with_suffix(BOXES)

    def finders_among(self, things: Iterable[str]) -> dict[str, list[int]]:
        """Return the ranks that have found each of several things, in order of rank.

        What no rank has found is left out.

        Cost: one read of what is new in the file, whatever their number.
        """
        marks = {_digest(what): what for what in things}
        found: dict[str, set[int]] = {}
        for line in self._lines():
            if line.verb == _FOUND and line.mark in marks:
                found.setdefault(marks[line.mark], set()).add(line.rank)
        return {what: sorted(ranks) for what, ranks in found.items()}

    def close(self) -> None:
        """Take leave; the last one that lives removes the file."""
        self._append(_GONE, "-")
        with suppress(FileNotFoundError):  # another rank was faster
            _remove_if_over(self.path, LOCK_SECONDS)

    def _those_that_stay(self) -> set[tuple[int, str]]:
        lines = self._lines()
        gone = {(line.rank, line.process) for line in lines if line.verb == _GONE}
        return {(line.rank, line.process) for line in lines} - gone

    def _come(self) -> None:
        """Append the first line, to a file that is not removed between its opening and that.

        From then on a writer of it lives, so nobody removes it.
        """
        is_written = False
        while not is_written:
            with _locked(self.path, fcntl.LOCK_SH, LOCK_SECONDS, os.O_CREAT) as descriptor:
                # What was removed before the lock was had has no name any more.
                is_written = os.fstat(descriptor).st_nlink > 0
                if is_written:
                    self._write(descriptor, _HERE, "-")

    def _append(self, verb: str, mark: str) -> None:
        descriptor = _open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            self._write(descriptor, verb, mark)
        finally:
            os.close(descriptor)

    def _write(self, descriptor: int, verb: str, mark: str) -> None:
        if os.fstat(descriptor).st_size < MAX_BYTES:
            os.write(descriptor, f"{verb} {mark} {self._rank} {self._process}\n".encode())

    def _ranks(self, verb: str, mark: str) -> list[int]:
        """Return who has written this in this start of the job, the first one first."""
        return [line.rank for line in self._lines() if (line.verb, line.mark) == (verb, mark)]

    def _lines(self) -> list[_Line]:
        """Return what was written in this start of the job, in its order.

        The file only grows, so what was read before is remembered: a full one takes 0.1 s to read.
        """
        file, begin, lines = self._known
        found, text = _text(self.path, file, begin)
        if found != file:
            file, begin, lines = found, 0, []
        # A line is appended whole; where that was cut short, the rest is waited for.
        end = text.rfind(b"\n") + 1
        if end:
            new = (line for line in _parsed(text[:end]) if line.process not in self._predecessors)
            lines = [*lines, *new]
            self._known = file, begin + end, lines
        return lines


def _open(path: Path, flags: int) -> int:
    # Whatever has the name of a file of ours: a link is not followed, a pipe not waited for.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)


@contextmanager
def _locked(path: Path, operation: int, patience: float, flags: int = 0) -> Iterator[int]:
    """Open a file for reading and appending, and hold its lock.

    Args:
        path: The file.
        operation: ``LOCK_SH`` or ``LOCK_EX`` of ``fcntl``.
        patience: How long to wait for the lock. Unit: s.
        flags: More flags of ``os.open``.

    Raises:
        OSError: If it cannot be opened or locked, or was locked for so long.
    """
    descriptor = _open(path, os.O_RDWR | os.O_APPEND | flags)
    try:
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # Never for longer: its holder may have been stopped.
                if time.monotonic() >= deadline:
                    raise
                time.sleep(LOCK_AGAIN_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)


def _read(path: Path) -> list[_Line]:
    """Return the lines of a file, without those that are not ours."""
    return _parsed(_text(path)[1])


def _text(path: Path, file: int = 0, begin: int = 0) -> tuple[int, bytes]:
    """Return the number of the file that has this path, and its text.

    Args:
        path: The path.
        file: The number of a file of which the beginning is known; of another one all is returned.
        begin: Where what is not known of it begins.
    """
    descriptor = _open(path, os.O_RDONLY)
    try:
        status = os.fstat(descriptor)
        begin = begin if status.st_ino == file else 0
        size = min(status.st_size, 2 * MAX_BYTES)
        return status.st_ino, os.pread(descriptor, max(size - begin, 0), begin)
    finally:
        os.close(descriptor)


def _parsed(text: bytes) -> list[_Line]:
    found = (_LINE.fullmatch(line) for line in text.decode("ascii", "replace").split("\n"))
    return [_Line(m[1], m[2], int(m[3]), m[4]) for m in found if m is not None]


def _is_over(lines: Iterable[_Line]) -> bool:
    """Return whether all that have come have taken leave, or have ended without."""
    writers = {(line.rank, line.process) for line in lines}
    gone = {(line.rank, line.process) for line in lines if line.verb == _GONE}
    return not any(_lives(process) for _, process in writers - gone)


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()


def _machine() -> str:
    """Return a name of where process ids mean the same: a host, or a container on it.

    A directory may be shared with others, and whether their processes live is not to be seen here.
    """
    namespace = ""
    with suppress(OSError):
        namespace = Path("/proc/self/ns/pid").readlink().name
    return _digest(f"{socket.gethostname()} {namespace}")


def _process(pid: int) -> str:
    """Name a process by its id and when it began, in ticks since boot; 0 where that is unknown."""
    with suppress(OSError, IndexError):
        # After the name, which may hold anything: the state, and the 20th field from there.
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        # A zombie has ended, though nobody has asked for its status.
        if state not in (b"Z", b"X"):
            return f"{pid}-{int(fields[18])}"
    return f"{pid}-0"


def _lives(process: str) -> bool:
    """Return whether a process has not ended; where that cannot be known, it has not."""
    return _process(int(process.partition("-")[0])) == process


def _remove_those_that_are_over(directory: Path) -> None:
    """Remove the files of ranks that were killed: nobody else will."""
    machine = _machine()
    for path in directory.iterdir():
        name = _NAME.fullmatch(path.name)
        if name is not None and name["machine"] == machine:
            # Somebody who comes or goes there just now has the lock, and is not waited for.
            with suppress(OSError):
                _remove_if_over(path, 0.0, name["launcher"])


def _remove_if_over(path: Path, patience: float, launcher: str = "") -> None:
    """Remove a file, and what belongs to it, if nobody writes to it any more.

    Args:
        path: The file.
        patience: How long to wait for its lock. Unit: s.
        launcher: Whose ranks it is for. One that is empty is of a rank that is just coming, if
            its launcher lives.
    """
    with _locked(path, fcntl.LOCK_EX, patience) as descriptor:
        if not os.fstat(descriptor).st_nlink:
            return  # the path may be that of another file by now
        lines = _read(path)
        if _is_over(lines) if lines else not (launcher and _lives(launcher)):
            shutil.rmtree(path.with_suffix(BOXES), ignore_errors=True)
            path.unlink(missing_ok=True)
