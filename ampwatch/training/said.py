"""What the ranks of one machine have said: of those that find the same, one says it.

Ranks of a run are started by one launcher, and share the directory of their rings. A small file
there is theirs: each appends what it would say, and who is first to append that it says it now
does so. Appending a line is atomic, so nothing is locked, nobody waits, and no rank asks another.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampwatch.wire.records import RunIdentity

SUFFIX = ".said"

MAX_BYTES = 2**20
"""Size from which a file is neither written nor read any more: each rank speaks for itself then."""

_HERE, _GONE, _FOUND, _SAYS = "here", "gone", "found", "says"

_opened: Counter[str] = Counter()
"""Monitors of each run in this process so far: the ranks of a run make them in one order."""


def path_for(directory: Path, identity: RunIdentity) -> Path:
    """Return the file of the ranks of one run that one launcher has started; removes stale ones."""
    _opened[identity.run] += 1
    launcher = f"{os.getppid()}-{_began(os.getppid())}"
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    _remove_those_of_dead_launchers(directory)
    name = _digest(f"{identity.run} {restart} {_opened[identity.run]}")
    return directory / f"{launcher}-{name}{SUFFIX}"


class Said:
    """One rank's end of the file. Every method may raise ``OSError``.

    Args:
        path: The file, in a directory that is this user's alone.
        rank: Who speaks.

    Raises:
        OSError: If the file cannot be made.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self.path = path
        self._rank = rank
        self._append(_HERE, "-")

    def found(self, what: str) -> None:
        """Note that this rank would say ``what``."""
        self._append(_FOUND, _digest(what))

    def says(self, what: str) -> bool:
        """Return whether this rank is to say ``what``: the first one that asks."""
        mark = _digest(what)
        self._append(_SAYS, mark)
        return next(
            (
                rank == self._rank
                for verb, key, rank in self._lines()
                if (verb, key) == (_SAYS, mark)
            ),
            True,
        )

    def finders(self, what: str) -> list[int]:
        """Return the ranks that would have said ``what`` as well, in order."""
        mark = _digest(what)
        found = {rank for verb, key, rank in self._lines() if (verb, key) == (_FOUND, mark)}
        return sorted(found | {self._rank})

    def close(self) -> None:
        """Take leave; the last one removes the file."""
        self._append(_GONE, "-")
        lines = list(self._lines())
        here, gone = ({rank for verb, _, rank in lines if verb == each} for each in (_HERE, _GONE))
        if here <= gone:
            self.path.unlink(missing_ok=True)

    def _append(self, verb: str, mark: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o600)
        try:
            if os.fstat(descriptor).st_size < MAX_BYTES:
                os.write(descriptor, f"{verb} {mark} {self._rank}\n".encode())
        finally:
            os.close(descriptor)

    def _lines(self) -> list[tuple[str, str, int]]:
        lines = (line.split() for line in self.path.read_text(errors="replace").splitlines())
        return [(e[0], e[1], int(e[2])) for e in lines if len(e) == 3 and e[2].isdigit()]


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _began(pid: int) -> str:
    """Return when a process began, in ticks since boot; 0 where that cannot be known."""
    with suppress(OSError, IndexError):
        # After the name, which may hold anything: the 20th field from there.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return "0"


def _remove_those_of_dead_launchers(directory: Path) -> None:
    """Remove the files of runs that were killed: nobody else will."""
    for path in directory.glob(f"*{SUFFIX}"):
        pid, began, *_ = path.name.split("-")
        if not (pid.isdigit() and _began(int(pid)) == began):
            with suppress(OSError):
                path.unlink()
