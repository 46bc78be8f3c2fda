"""Basic authentication against bcrypt hashes, without revealing which names exist.

Every refused name costs the same time, one check runs at a time, and a right password
is remembered for as long as it is used: a bcrypt check takes about 50 ms of a core.
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

REMEMBER_SECONDS = 600.0
"""Time from the last use of a right password until it is checked again: longer than from scrape to
scrape, so that a scrape never waits behind those who guess. Users that change are forgotten at
once: they get a new ``BasicAuth``. Unit: s."""

_COST = slice(4, 6)
"""Where the logarithm of a hash's cost stands: ``$2b$12$...``."""


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
        # Checked for an unknown name; the costliest, so that it takes no less than a known one.
        self._decoy = max(users.values(), key=lambda hashed: hashed[_COST])
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
        if self._remembers(name, password):
            return True
        if not self._check(name, password):
            return False
        self._remember(name, password)
        return True

    def remembers(self, header: str) -> bool:
        """Return whether ``allows`` is known to be quick: a known password, or nothing to check."""
        credentials = _credentials(header)
        return credentials is None or self._remembers(*credentials)

    def _remembers(self, name: str, password: bytes) -> bool:
        digest, until = self._right.get(name, (b"", 0.0))
        if not hmac.compare_digest(self._digest(password), digest) or self._clock() >= until:
            return False
        self._remember(name, password)
        return True

    def _remember(self, name: str, password: bytes) -> None:
        self._right[name] = (self._digest(password), self._clock() + REMEMBER_SECONDS)

    def _digest(self, password: bytes) -> bytes:
        # What is remembered is a digest under a key of this process, never the password itself.
        return hmac.digest(self._key, password, hashlib.sha256)

    def _check(self, name: str, password: bytes) -> bool:
        hashed = self._users.get(name, self._decoy)
        # One at a time: a client that guesses must not take all cores away from the training.
        with self._one_at_a_time:
            try:
                right = bool(self._bcrypt.checkpw(password, hashed)) and name in self._users
                if not right:
                    self._spend_the_rest(password, hashed)
            except ValueError:  # bcrypt takes no more than 72 bytes and no NUL
                return False
        return right

    def _spend_the_rest(self, password: bytes, hashed: bytes) -> None:
        """Let the refusal of a name whose hash is cheap take as long as that of the costliest.

        A step of cost doubles the work, so that one check of each cost between adds up to it:
        2^c + (2^c + 2^(c+1) + ... + 2^(m-1)) is 2^m.
        """
        for cost in range(int(hashed[_COST]), int(self._decoy[_COST])):
            self._bcrypt.checkpw(password, b"%b%02d%b" % (hashed[:4], cost, hashed[6:]))


def _credentials(header: str) -> tuple[str, bytes] | None:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except ValueError:
        return None
