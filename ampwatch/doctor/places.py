"""Can rings and reports be written: shared memory, the fallback, the report directory. No torch here."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ampwatch.doctor.check import Check, State
from ampwatch.errors import ReportError, RingError
from ampwatch.runtime import SHARED_MEMORY, lets_others_in, runtime_path
from ampwatch.settings import Settings
from ampwatch.wire.blackbox.files import report_directory, run_directory
from ampwatch.wire.ring import layout
from ampwatch.wire.ring.writer import fitting_slots

RANKS = 8
"""Rings that a place should have room for: so many ranks a machine with GPUs has as a rule."""

REPORT_BYTES = 2**20
"""What a report takes at most as a rule."""


def rings(settings: Settings, shared_memory: Path = SHARED_MEMORY) -> list[Check]:
    """Check the places where a training process would put its ring.

    Returns:
        One check per place, the best place first. They block if none of them takes a ring.
    """
    if settings.ring_dir:
        places = {"AMPWATCH_RING_DIR": Path(settings.ring_dir)}
    else:
        places = {"shared memory": shared_memory / f"ampwatch-{os.geteuid()}"}
        with suppress(RingError):  # the examination of the daemon says why there is none
            places["fallback"] = runtime_path(settings.runtime_dir)
    checks = [_place(name, path, settings.ring_slots) for name, path in places.items()]
    if all(check.blocks for check in checks):
        return checks
    return [replace(check, blocks=False) for check in checks]


def reports(settings: Settings) -> list[Check]:
    """Check the directory in which runs leave their reports."""
    if not settings.report_files:
        why = "none are written, as report_files is 0"
        return [Check("reports", State.ABSENT, why)]
    remedy = "set AMPWATCH_REPORT_DIR to a writable directory where there is room"
    try:
        directory = report_directory(settings.report_dir)
    except ReportError as error:
        return [Check("reports", State.PROBLEM, str(error))]
    # That of a run alone has to be private, and is made below.
    if trouble := trouble_with(run_directory(directory, settings.run)):
        why = f"{directory} cannot be used: {trouble}"
        return [Check("reports", State.PROBLEM, why, remedy)]
    free = shutil.disk_usage(_existing(directory)).free
    if free < REPORT_BYTES:
        why = f"{directory}: {_size(free)} free, and a report takes up to {_size(REPORT_BYTES)}"
        return [Check("reports", State.PROBLEM, why, f"make room, or {remedy}")]
    has = "takes them" if directory.is_dir() else "is made for the first one"
    return [Check("reports", State.OK, f"{directory} {has}; {_size(free)} free")]


def _place(name: str, path: Path, slots: int) -> Check:
    """Return whether rings of ``slots`` slots, or fewer if it is small, could be made in ``path``.

    It blocks if not even one could.
    """
    remedy = "set AMPWATCH_RING_DIR to a new directory, which is made private to you (0700), where there is room, best on a tmpfs"
    if trouble := trouble_with(path):
        why = f"{path} cannot be used: {trouble}"
        return Check(name, State.PROBLEM, why, remedy, blocks=True)
    existing = _existing(path)
    size = layout.file_size(fitting_slots(existing, slots))
    usage = shutil.disk_usage(existing)
    if not usage.total:  # a tmpfs without a limit
        return Check(name, State.OK, f"{path}: without a limit; a ring takes {_size(size)}")
    why = f"{path}: {_size(usage.free)} free of {_size(usage.total)}; a ring takes {_size(size)}"
    room = usage.free // size
    if room < RANKS:
        why += f", so there is room for {room}, and each rank has one"
        return Check(name, State.PROBLEM, why, f"make room, or {remedy}", blocks=not room)
    return Check(name, State.OK, why)


def trouble_with(path: Path) -> str:
    """Return why ``path`` cannot become or be a private directory; empty if it can.

    The rules are those of ``runtime.private_directory``, without creating anything.
    """
    existing = _existing(path)
    try:
        status = path.lstat()
    except FileNotFoundError:
        if not existing.is_dir():
            return f"{existing} is not a directory"
    except OSError as error:
        return error.strerror or str(error)
    else:
        if trouble := _trouble_of(status):
            return trouble
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"uid {os.geteuid()} may not write to {existing}"
    return ""


def _trouble_of(status: os.stat_result) -> str:
    """Return what is wrong with something that exists; empty if it is a private directory."""
    if not stat.S_ISDIR(status.st_mode):
        return f"it is not a directory ({stat.filemode(status.st_mode)})"
    if status.st_uid != os.geteuid():
        return f"it belongs to uid {status.st_uid}, not to {os.geteuid()}"
    if lets_others_in(status):
        return f"others can enter it ({stat.filemode(status.st_mode)}, expected 0700); name another directory, or a subdirectory of it"
    return ""


def _existing(path: Path) -> Path:
    """Return ``path`` or the nearest directory above it that exists."""
    return next(p for p in (path, *path.absolute().parents) if os.path.lexists(p))


def _size(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB" if size >= 2**20 else f"{size / 2**10:,.1f} KiB"
