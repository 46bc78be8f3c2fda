"""Whose the name of a run is, where a daemon serves several users.

A ring says what its run is called and when it began, and anybody may write that into a ring. Who
owns the ring's file the kernel says. So a name belongs to the user whose run of that name was seen
first, for as long as the series of that run may be looked at. A file keeps that for the next daemon.
"""

from __future__ import annotations

import logging
import os
import pwd
import time
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from msgspec import json

from ampwatch.state.text import encodable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES_FILE = "runs.json"

SAVE_SECONDS = 3600.0
"""Time after which it is written though no owner has changed: when a run was there last has. Unit: s."""

KEPT_SECONDS = 30 * 86400.0
"""Time for which a name stays its owner's after the last run of that name: Prometheus keeps samples
for 15 days by default. Unit: s."""

MAX_NAMES = 512
"""Names that one user may own: twice as many as there are rings of a user at a time. The oldest go first."""

MAX_USER = 64
"""Characters of the name of a user."""

logger = logging.getLogger(__name__)


class Owner(NamedTuple):
    """The owner of a name.

    Attributes:
        seen_s: Unix time at which a run of that name and owner was there last. Unit: s.
    """

    uid: int
    seen_s: float


class NameOwners:
    """The owners of the names of runs; their clock is monotonic, in s."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._owners: dict[str, Owner] = {}
        self._clock = clock
        self._path: Path | None = None
        self._is_saved, self._due_s = True, 0.0

    def claim(self, name: str, uid: int, now: float) -> None:
        """Note that a run of this name and user is there at Unix time ``now``, in s.

        The name is that user's if it is nobody's.
        """
        owner = self._owners.get(name)
        if owner is None or now - owner.seen_s > KEPT_SECONDS:
            self._is_saved = False
            self._make_room(uid)
        elif owner.uid != uid:
            return
        self._owners[name] = Owner(uid, now)

    def label(self, name: str, uid: int) -> str:
        """Return what a run is called: its name, with the uid of a user who is not its owner.

        No name of a run has a ``~`` (``RankView``), so nobody can choose this for a name.
        """
        owner = self._owners.get(name)
        return name if owner is None or owner.uid == uid else f"{name}~uid{uid}"

    def keep_in(self, directory: Path) -> None:
        """Read the file in the runtime directory, which lets nobody else in, and write it from now on."""
        self._path, self._due_s = directory / NAMES_FILE, self._clock() + SAVE_SECONDS
        with suppress(OSError, ValueError):  # none yet, or a damaged one
            known = json.decode(self._path.read_bytes(), type=dict[str, Owner])
            self._owners = known | self._owners

    def save_if_due(self) -> None:
        """Write the file if there is something new. Trouble is logged, and tried again in an hour."""
        if not self._is_saved or self._clock() >= self._due_s:
            self.save()

    def save(self) -> None:
        """Write the file, if these are kept in one."""
        self._is_saved, self._due_s = True, self._clock() + SAVE_SECONDS
        if self._path is None:
            return
        # Whole under another name first: a daemon that is killed meanwhile leaves the old one.
        draft = self._path.with_suffix(".new")
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.encode(self._owners))
            draft.replace(self._path)
        except OSError as error:
            logger.warning("whose the names of runs are cannot be kept in %s: %s", draft, error)

    def _make_room(self, uid: int) -> None:
        """Forget the oldest name of a user who has too many: nobody else has fewer for it."""
        names = [name for name, owner in self._owners.items() if owner.uid == uid]
        if len(names) >= MAX_NAMES:
            del self._owners[min(names, key=lambda name: self._owners[name].seen_s)]


@lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    """Return the login name of a user, the number where there is none.

    Cost: A file is read, or a name service asked: not under a lock. Kept for the next time.
    """
    try:
        return encodable(pwd.getpwuid(uid).pw_name)[:MAX_USER]
    except (KeyError, OSError, OverflowError):
        return str(uid)
