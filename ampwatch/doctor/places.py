"""Can rings be written: shared memory, the fallback, the runtime directory. No torch here."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ampwatch.doctor.check import Check, State
from ampwatch.errors import RingError
from ampwatch.runtime import SHARED_MEMORY, lets_others_in, runtime_path
from ampwatch.wire.ring import layout
from ampwatch.wire.ring.writer import fitting_slots

if TYPE_CHECKING:
    from ampwatch.settings import Settings


def rings(settings: Settings, shared_memory: Path = SHARED_MEMORY) -> list[Check]:
    """Check the places where a training process would put its ring.

    Args:
        settings: Where they are, how large a ring is.
        shared_memory: Where the shared memory is mounted.

    Returns:
        One check per place, the best place first. They block if none of them is ok.
    """
    if settings.ring_dir:
        places = {"AMPWATCH_RING_DIR": Path(settings.ring_dir)}
    else:
        places = {"shared memory": shared_memory / f"ampwatch-{os.geteuid()}"}
        with suppress(RingError):  # the examination of the daemon says why there is none
            places["fallback"] = runtime_path(settings.runtime_dir)
    checks = [_place(name, path, settings.ring_slots) for name, path in places.items()]
    if any(check.state is State.OK for check in checks):
        return checks
    return [replace(check, blocks=True) for check in checks]


def _place(name: str, path: Path, slots: int) -> Check:
    """Return whether a ring of ``slots`` slots, or fewer if it is small, could be made in ``path``."""
    remedy = "set AMPWATCH_RING_DIR to a new directory, which is made private to you (0700), where there is room, best on a tmpfs"
    if trouble := trouble_with(path):
        return Check(name, State.PROBLEM, f"{path} cannot be used: {trouble}", remedy)
    existing = _existing(path)
    size = layout.file_size(fitting_slots(existing, slots))
    usage = shutil.disk_usage(existing)
    free = f"{path}: {_mib(usage.free)} free of {_mib(usage.total)}"
    if usage.free < size:
        why = f"{free}, and a ring takes {_mib(size)}"
        return Check(name, State.PROBLEM, why, f"make room, or {remedy}")
    return Check(name, State.OK, f"{free}; a ring takes {_mib(size)}")


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


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
