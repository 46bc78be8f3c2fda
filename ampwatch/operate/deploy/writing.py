"""Writes a deployment, and leaves alone the files that somebody has changed.

Beside the files lies a record of what was written. A file that is as it was written is
replaced or removed; one that is not, or that was not written here, is somebody's.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePath

import msgspec

from ampwatch import __version__
from ampwatch.errors import DeployError

RECORD = ".ampwatch-deploy.json"

FILE_MODE = 0o644
DIRECTORY_MODE = 0o755
"""Readable by the users of the containers, whatever the umask; DIR itself can be closed."""


class Record(msgspec.Struct):
    """What was written."""

    version: str = ""  # the version that wrote it, empty if none did
    files: dict[str, str] = {}  # digest by path


class FileChange(Enum):
    """Outcome of a write for one file."""

    NEW = "new"
    UPDATED = "updated"
    SAME = "same"
    REMOVED = "removed"
    THEIRS = "changed by hand"
    LEFT = "left"
    """Theirs, and no longer part of a deployment."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan for a directory: what is written, removed and left alone."""

    directory: Path  # where
    files: Mapping[str, str]  # text by path, of the whole deployment
    changes: Mapping[str, FileChange]  # what becomes of each file, by path
    version: str = ""  # the version that wrote the directory, empty if none did

    def paths(self, change: FileChange) -> list[str]:
        """Return the paths that ``change`` is for, in order."""
        return sorted(path for path, what in self.changes.items() if what is change)


def plan(directory: Path, files: Mapping[str, str]) -> Plan:
    """Compare a directory, which need not exist, with what it is to be: texts by path.

    Raises:
        DeployError: If it is no directory, cannot be read, or was written by a newer version.
    """
    if os.path.lexists(directory) and not directory.is_dir():
        msg = f"expected a directory, new or old, got {str(directory)!r}, which is something else; name another one"
        raise DeployError(msg)
    try:
        record = _record(_read(directory / RECORD))
        there = {path: _read(directory / path) for path in {*files, *record.files}}
    except OSError as error:
        raise _refused(directory, error) from error
    except ValueError as error:
        msg = f"expected {str(directory / RECORD)!r} as `ampwatch deploy` wrote it, got something else; remove it, then every file that differs counts as changed by hand"
        raise DeployError(msg) from error
    if _order(record.version) > _order(__version__):
        msg = f"expected a directory that ampwatch {__version__} or an older one wrote, got {str(directory)!r} of ampwatch {record.version}; use that version, or name another directory"
        raise DeployError(msg)
    changes = {}
    for path, content in there.items():
        wanted = files[path].encode() if path in files else None
        if content is not None or wanted is not None:
            changes[path] = _change(content, wanted, record.files.get(path, ""))
    return Plan(directory, files, changes, record.version)


class Theirs(Enum):
    """Treatment of files that somebody has changed: write nothing, write the others, or write all."""

    REFUSE = "refuse"
    KEEP = "keep"
    OVERWRITE = "overwrite"


def write(todo: Plan, *, theirs: Theirs = Theirs.REFUSE) -> None:
    """Do what was planned.

    Each file is whole, the old or the new one, whenever this is interrupted.

    Raises:
        DeployError: If something was changed by hand and is neither to be kept nor overwritten,
            before anything is written; or if a file cannot be written.
    """
    changed = todo.paths(FileChange.THEIRS)
    if changed and theirs is Theirs.REFUSE:
        listed = "".join(f"\n  {path}" for path in changed)
        msg = f"expected files in {str(todo.directory)!r} as `ampwatch deploy` wrote them, found {len(changed)} that were changed or added by hand:{listed}\nNothing was written. Add --keep to leave them as they are and write the rest, or --force to overwrite them."
        raise DeployError(msg)
    kept = set(changed) if theirs is Theirs.KEEP else set[str]()
    ours = {path: text for path, text in todo.files.items() if path not in kept}
    try:
        _make(todo.directory)
        for path, text in ours.items():
            if todo.changes[path] is not FileChange.SAME:
                _make((todo.directory / path).parent)
                _replace(todo.directory / path, text)
        for path in todo.paths(FileChange.REMOVED):
            (todo.directory / path).unlink()
        record = Record(__version__, {path: _digest(text.encode()) for path, text in ours.items()})
        content = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
        if _read(todo.directory / RECORD) != content:
            _replace(todo.directory / RECORD, content.decode())
    except OSError as error:
        raise _refused(todo.directory, error) from error


def _change(content: bytes | None, wanted: bytes | None, written: str) -> FileChange:
    if content is None:
        return FileChange.NEW
    if content == wanted:
        return FileChange.SAME
    is_ours = written == _digest(content)
    if wanted is None:
        return FileChange.REMOVED if is_ours else FileChange.LEFT
    return FileChange.UPDATED if is_ours else FileChange.THEIRS


def _order(version: str) -> tuple[int, ...]:
    """Return what orders versions by their numbers; nothing is before all others."""
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def _record(content: bytes | None) -> Record:
    """Return the record of what was written.

    Raises:
        ValueError: If it is none, or a path of it leads out of the directory: files are removed by it.
    """
    record = Record() if content is None else msgspec.json.decode(content, type=Record)
    if any(not path or path[0] == "/" or ".." in PurePath(path).parts for path in record.files):
        raise ValueError
    return record


def _read(path: Path) -> bytes | None:
    """Return the content of a file; ``None`` if there is none, nothing of ours for a link."""
    if path.is_symlink():
        return b"\0a link"
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _make(directory: Path) -> None:
    for place in reversed([directory, *directory.parents]):
        if not place.exists():
            place.mkdir()
            place.chmod(DIRECTORY_MODE)


def _replace(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".ampwatch-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        Path(name).chmod(FILE_MODE)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _refused(directory: Path, error: OSError) -> DeployError:
    place = error.filename or directory
    return DeployError(
        f"expected to read and write {str(place)!r}, got: {error.strerror or error}; name a directory that is yours"
    )
