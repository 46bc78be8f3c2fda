"""The web-config in force: who may ask, how often, over what; it follows its files.

As exporter-toolkit does it, a change is taken at the next connection or request. Unlike there, a
file that is broken leaves what was in force: a certificate that is half written must not stop the
scrape, and a file that is empty for the moment in which it is copied must not open the daemon.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from typing import TYPE_CHECKING

from ampwatch.errors import DaemonError
from ampwatch.host.daemon import web_config
from ampwatch.host.daemon.basic_auth import BasicAuth
from ampwatch.host.daemon.web_config import stamp_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.host.daemon.web_config import RateLimit, WebConfig

RETRY_SECONDS = 10.0
"""Time between two readings of a file that was refused and stands as it stood: what it names may
have come meanwhile. Unit: s."""

logger = logging.getLogger(__name__)


class TokenBucket:
    """Allows a request an interval, and bursts, over all clients.

    Args:
        limit: How often.
        clock: Monotonic time. Unit: s.
    """

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
        self._said = ""
        # The loop of the server and the one of the daemon, at SIGHUP, both come here.
        self._guard = threading.Lock()
        self.auth: BasicAuth | None = None
        self.bucket: TokenBucket | None = None
        self._use(web, None)

    def refresh(self, *, force: bool = False) -> None:
        """Read the files again if they have changed.

        Args:
            force: Read them in any case.

        Cost:
            A ``stat`` of each file: some microseconds.
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
                if str(error) != self._said:
                    self._said = str(error)
                    logger.error("the web-config stays in force as it was: %s", error)  # noqa: TRY400 - the sentence says it all
                return
            self._refused, self._said = (), ""
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
