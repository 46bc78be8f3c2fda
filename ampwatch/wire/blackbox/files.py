"""Files of boxes: their places, and writing them whole or not at all, even if the power fails."""

from __future__ import annotations

import os
import re
import secrets
import stat
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ampwatch.errors import ReportError, RingError
from ampwatch.guard import Suppress
from ampwatch.runtime import private_directory
from ampwatch.wire.blackbox.document import MAX_BYTES, from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ampwatch.wire.blackbox.box import Box
    from ampwatch.wire.records import RunIdentity

SUFFIX = ".json"
CALM = f".calm{SUFFIX}"
"""Suffix of the boxes of runs that ended without findings. They take the place of no others."""

CALM_SECONDS = 30 * 86400.0
"""Age at which these are removed. Unit: s."""

DRAFT = ".part"
DRAFT_SECONDS = 3600.0
"""A draft so old is of a process that died while it wrote."""

_STRANGE = re.compile(r"[^A-Za-z0-9._-]")


def report_directory(configured: str = "") -> Path:
    """Return the directory of all boxes of this user; nothing is created.

    In this order: ``configured``, ``$XDG_STATE_HOME/ampwatch/runs``,
    ``~/.local/state/ampwatch/runs``.

    Args:
        configured: The setting ``report_dir``, empty for the default.

    Raises:
        ReportError: If there is no home directory either.
    """
    if configured:
        return Path(configured)
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if state.is_absolute():  # the specification: a relative path is to be ignored
        return state / "ampwatch" / "runs"
    try:
        return Path.home() / ".local" / "state" / "ampwatch" / "runs"
    except RuntimeError:
        msg = "expected a home directory for reports, got none; set AMPWATCH_REPORT_DIR to a writable directory"
        raise ReportError(msg) from None


def box_path(directory: Path, identity: RunIdentity) -> Path:
    """Return where the box of a process is: the same whoever writes it.

    ``<run>/<when it started>-rank<rank>-<host>-<pid>.json``; names sort by time.
    """
    began = datetime.fromtimestamp(identity.started_ns // 1_000_000_000, tz=timezone.utc)
    when = f"{began:%Y%m%dT%H%M%S}.{identity.started_ns % 1_000_000_000 // 1000:06d}Z"
    name = f"{when}-rank{identity.rank}-{_tame(identity.host)}-{identity.pid}{SUFFIX}"
    return run_directory(directory, identity.run) / name


def run_directory(directory: Path, run: str) -> Path:
    """Return the directory of the boxes of one run."""
    return directory / _tame(run)


def _tame(text: str) -> str:
    """Return ``text`` as a part of a file name that can lead nowhere else."""
    return _STRANGE.sub("_", text)[:64].lstrip(".") or "_"


def write(directory: Path, box: Box, most: int, *, is_calm: bool = False) -> Path:
    """Write the box of a process, replacing an older one of the same process.

    The file appears at once, whole, and has reached the disk when this returns. Directories
    are 0700, the file 0600.

    Args:
        directory: ``report_directory``.
        box: The box.
        most: Boxes of one run to keep; the oldest others are removed.
        is_calm: The run has ended without findings: its box is kept for ``CALM_SECONDS``.

    Returns:
        The file.

    Raises:
        OSError: If it cannot be written; the older one is still there then.

    Cost:
        Some 3 ms to put into words, and what two ``fsync`` take: a few ms on a local disk.
    """
    path = box_path(directory, box.identity)
    if is_calm:
        path = path.with_suffix(CALM)
    try:
        home = private_directory(path.parent)
    except RingError as error:
        raise ReportError(
            str(error).replace("AMPWATCH_RUNTIME_DIR", "AMPWATCH_REPORT_DIR")
        ) from None
    data = to_json([box]).encode()
    # Not by pid: daemon and training may have the same one, in namespaces of their own.
    draft = home / f".{secrets.token_hex(4)}{DRAFT}"
    try:
        # In this order: content on the disk, then the name, then the directory on the disk. The
        # other way round a power cut may leave the name with an empty file.
        _fill(draft, data)
        draft.replace(path)
    except OSError:
        with Suppress(OSError):
            draft.unlink()
        raise
    _sync(home)
    _prune(home, path, most)
    if is_calm:
        _forget_calm(directory)
    return path


def remove(directory: Path, identity: RunIdentity) -> None:
    """Remove the box of a process, if it is there, and the directory if it is the last one."""
    path = box_path(directory, identity)
    with Suppress(OSError):
        path.unlink()
        path.parent.rmdir()


def read(path: Path, max_bytes: int = MAX_BYTES) -> list[Box]:
    """Return the boxes in a file.

    Args:
        path: The file.
        max_bytes: Size from which on it is refused.

    Raises:
        ReportError: If it cannot be read, or is no report.
    """
    try:
        # O_NONBLOCK: a FIFO of that name must not stop the reader. Links are followed: users may
        # keep reports elsewhere.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                msg = f"expected a file at {str(path)!r}, got {stat.filemode(status.st_mode)}"
                raise ReportError(msg)
            data = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, ReportError):
            raise
        msg = (
            f"expected a report at {str(path)!r}, got: {getattr(error, 'strerror', None) or error}"
        )
        raise ReportError(msg) from None
    if len(data) > max_bytes:
        msg = f"expected a report of at most {max_bytes} bytes at {str(path)!r}, got more"
        raise ReportError(msg)
    return from_json(data, repr(str(path)))


def paths(directory: Path) -> Iterator[Path]:
    """Yield the boxes in ``directory``, of every run."""
    with Suppress(OSError):
        for run in sorted(directory.iterdir()):
            yield from boxes_in(run)


def boxes_in(run: Path) -> list[Path]:
    """Return the boxes in the directory of a run, the oldest first."""
    with Suppress(OSError):
        return sorted(p for p in run.iterdir() if p.suffix == SUFFIX and not p.name.startswith("."))
    return []


def _fill(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        view = memoryview(data)
        while view:  # a write may take less than all, as on a nearly full disk
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync(directory: Path) -> None:
    """Make the new name of a file last."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _prune(run: Path, mine: Path, most: int) -> None:
    """Remove the oldest boxes of a run beyond ``most``, never the one just written, and old drafts."""
    is_calm = mine.name.endswith(CALM)
    others = [p for p in boxes_in(run) if p != mine and p.name.endswith(CALM) is is_calm]
    for path in others[: max(0, len(others) + 1 - most)]:
        with Suppress(OSError):  # another rank was faster
            path.unlink()
    for draft in run.glob(f".*{DRAFT}"):
        with Suppress(OSError):
            if time.time() - draft.stat().st_mtime > DRAFT_SECONDS:
                draft.unlink()


def _forget_calm(directory: Path) -> None:
    """Remove what runs of any name have left that ended without findings long ago."""
    for path in directory.glob(f"*/*{CALM}"):
        with Suppress(OSError):
            if time.time() - path.stat().st_mtime > CALM_SECONDS:
                path.unlink()
                path.parent.rmdir()
