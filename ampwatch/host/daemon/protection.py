"""The web-config in force: who may ask, how often, over what; it follows its files.

As exporter-toolkit does it, a change is taken at the next connection or request. Unlike there, a
file that is broken leaves what was in force: a certificate that is half written must not stop the
scrape, and a file that is empty for the moment in which it is copied must not open the daemon.

Basic authentication is against bcrypt hashes, and does not reveal which names exist: every refused name costs the same
time, one check runs at a time, and a right password is remembered for as long as it is used.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import ssl
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING

from ampwatch.errors import DaemonError
from ampwatch.host.daemon import web_config
from ampwatch.host.daemon.web_config import stamp_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ampwatch.host.daemon.web_config import RateLimit, WebConfig


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


RETRY_SECONDS = 10.0
"""Time between two readings of a file that was refused and stands as it stood: what it names may
have come meanwhile. Unit: s."""

logger = logging.getLogger(__name__)


class TokenBucket:
    """Allows a request an interval, and bursts, over all clients; its clock is monotonic, in s."""

    def __init__(self, limit: RateLimit, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._tokens = float(limit.burst)
        self._at = clock()
        self._guard = threading.Lock()

    def take(self) -> bool:
        """Return whether a request may be answered now."""
        with self._guard:
            now = self._clock()
            gained = (now - self._at) / self._limit.interval_seconds
            self._tokens = min(float(self._limit.burst), self._tokens + gained)
            self._at = now
            if self._tokens < 1.0:
                return False
            self._tokens -= 1.0
            return True


class Protection:
    """What protects the daemon right now.

    Args:
        web: What was read at start.
        clock: Monotonic time. Unit: s.

    Attributes:
        web: What is in force.
        auth: Checks the passwords of its users, ``None`` where it has none.
        bucket: Its rate limit, ``None`` where it has none.
    """

    def __init__(self, web: WebConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refused: tuple[object, ...] = ()
        self._refused_at = 0.0
        self._logged = ""
        # The loop of the server and the one of the daemon, at SIGHUP, both come here.
        self._guard = threading.Lock()
        self.auth: BasicAuth | None = None
        self.bucket: TokenBucket | None = None
        self._use(web, None)

    def refresh(self, *, force: bool = False) -> None:
        """Read the files again if they have changed, with ``force`` in any case.

        Cost: A ``stat`` of each file: some microseconds.
        """
        with self._guard:
            web = self.web
            now = tuple(stamp_of(path) for path, _ in web.stamps)
            if not force and now == tuple(stamp for _, stamp in web.stamps):
                return
            waits = self._clock() - self._refused_at < RETRY_SECONDS
            if not force and now == self._refused and waits:
                return
            try:
                new = web_config.load(web.path) if web.path else web
                _check_not_weaker(web, new)
            except DaemonError as error:
                self._refused, self._refused_at = now, self._clock()
                if str(error) != self._logged:
                    self._logged = str(error)
                    logger.error("the web-config stays in force as it was: %s", error)  # noqa: TRY400 - the sentence says it all
                return
            self._refused, self._logged = (), ""
            self._use(new, web)
            if web.path:
                logger.info("read %s again", web.path)

    def _use(self, web: WebConfig, old: WebConfig | None) -> None:
        # What a client has used up, or has proved, stands for as long as nothing about it changes.
        if old is None or web.limit != old.limit:
            self.bucket = None if web.limit is None else TokenBucket(web.limit, self._clock)
        if old is None or web.users != old.users:
            self.auth = BasicAuth(web.users, self._clock) if web.users else None
        self.web = web


def _check_not_weaker(old: WebConfig, new: WebConfig) -> None:
    """Refuse what a daemon that runs must not become by a file alone.

    Raises:
        DaemonError: If TLS comes or goes, all users go, or certificates are not required any more.
    """
    if (old.tls is None) != (new.tls is None):
        was, would_be = ("HTTPS", "HTTP") if old.tls else ("HTTP", "HTTPS")
        msg = f"expected {new.path} to leave {was} as it is, got {would_be}; restart the daemon for that: its address changes with it"
        raise DaemonError(msg)
    if old.users and not new.users:
        msg = f"expected {new.path} to have basic_auth_users still, got none; restart the daemon to let everybody read"
        raise DaemonError(msg)
    requires = [
        web.tls is not None and web.tls.verify_mode is ssl.CERT_REQUIRED for web in (old, new)
    ]
    if requires == [True, False]:
        msg = f"expected {new.path} to require certificates of clients still, got another client_auth_type; restart the daemon to let everybody read"
        raise DaemonError(msg)
