"""Basic authentication against bcrypt hashes, without revealing which names exist.

Every refused name costs the same time, one check runs at a time, and a right password
is remembered for a short while: a bcrypt check takes about 50 ms of a core.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REMEMBER_SECONDS = 60.0


class BasicAuth:
    """Checks ``Authorization`` headers.

    Args:
        users: Bcrypt hash by user name, at least one.
        clock: Monotonic time. Unit: s.
    """

    def __init__(
        self, users: Mapping[str, bytes], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._users = users
        # Checked for an unknown name; the costliest, characters 4 and 5, so that it takes no less.
        self._decoy = max(users.values(), key=lambda hashed: hashed[4:6])
        self._clock = clock
        self._bcrypt = import_module("bcrypt")
        self._key = os.urandom(32)
        self._one_at_a_time = threading.Lock()
        self._right: dict[str, tuple[bytes, float]] = {}

    def allows(self, header: str) -> bool:
        """Return whether ``header``, the value of ``Authorization``, names a user and its password."""
        credentials = _credentials(header)
        if credentials is None:
            return False
        name, password = credentials
        digest = hmac.digest(self._key, password, hashlib.sha256)
        # What is remembered is a digest under a key of this process, never the password itself.
        remembered, until = self._right.get(name, (b"", 0.0))
        if hmac.compare_digest(digest, remembered) and self._clock() < until:
            return True
        if not self._check(name, password):
            return False
        self._right[name] = (digest, self._clock() + REMEMBER_SECONDS)
        return True

    def _check(self, name: str, password: bytes) -> bool:
        hashed = self._users.get(name, self._decoy)
        # One at a time: a client that guesses must not take all cores away from the training.
        with self._one_at_a_time:
            try:
                right = self._bcrypt.checkpw(password, hashed)
            except ValueError:  # bcrypt takes no more than 72 bytes and no NUL
                return False
        return bool(right) and name in self._users


def _credentials(header: str) -> tuple[str, bytes] | None:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except ValueError:
        return None
