"""Whose the name of a run is, where a daemon serves several users.

A ring says what its run is called and when it began, and anybody may write that into a ring. Who
owns the ring's file the kernel says. So a name belongs to the user whose run of that name was seen
first, for as long as the series of that run may be looked at.
"""

from __future__ import annotations

import pwd
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from ampwatch.state.text import encodable

KEPT_SECONDS = 30 * 86400.0
"""Time for which a name stays its owner's after the last run of that name: Prometheus keeps samples
for 15 days by default. Unit: s."""

MAX_NAMES = 512
"""Names that one user may own: twice as many as there are rings of a user at a time. The oldest go first."""

MAX_USER = 64
"""Characters of the name of a user."""


class Owner(NamedTuple):
    """The owner of a name.

    Attributes:
        uid: The user.
        seen_s: Unix time at which a run of that name and owner was there last. Unit: s.
    """

    uid: int
    seen_s: float


class NameOwners:
    """The owners of the names of runs.

    Attributes:
        version: Counts the changes of owners.
    """

    def __init__(self) -> None:
        self.version = 0
        self._owners: dict[str, Owner] = {}

    def claim(self, name: str, uid: int, now: float) -> None:
        """Note that a run of this name and user is there; the name is that user's if it is nobody's.

        Args:
            name: Name of the run.
            uid: Owner of its ring.
            now: Unix time. Unit: s.
        """
        owner = self._owners.get(name)
        if owner is None or now - owner.seen_s > KEPT_SECONDS:
            self.version += 1
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

    def dump(self) -> dict[str, Owner]:
        """Return all owners by name, for a daemon to come."""
        return dict(self._owners)

    def load(self, owners: Any) -> None:
        """Take over what a daemon before this one has known; what makes no sense is left out."""
        if not isinstance(owners, Mapping):
            return
        for name, owner in owners.items():
            match owner:
                case [int(uid), int() | float() as seen_s] if name not in self._owners:
                    self._owners[name] = Owner(uid, float(seen_s))

    def _make_room(self, uid: int) -> None:
        """Forget the oldest name of a user who has too many: nobody else has fewer for it."""
        names = [name for name, owner in self._owners.items() if owner.uid == uid]
        if len(names) >= MAX_NAMES:
            del self._owners[min(names, key=lambda name: self._owners[name].seen_s)]


@lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    """Return the login name of a user, the number where there is none.

    Cost:
        A file is read, or a name service asked: not under a lock. Kept for the next time.
    """
    try:
        return encodable(pwd.getpwuid(uid).pw_name)[:MAX_USER]
    except (KeyError, OSError, OverflowError):
        return str(uid)
