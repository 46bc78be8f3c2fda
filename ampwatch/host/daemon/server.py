"""The listening socket: binding, TLS, and bounds on how many clients for how long."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket
import ssl
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any

from ampwatch.errors import DaemonError
from ampwatch.host.daemon.basic_auth import BasicAuth
from ampwatch.host.daemon.handler import Handler
from ampwatch.wire.rendezvous import probe

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.host.daemon.site import Site
    from ampwatch.host.daemon.web_config import WebConfig

MAX_CONNECTIONS = 192
"""Connections at a time, each with a thread: the open pages, and as many again for the rest."""

CONNECTION_SECONDS = 30.0
"""Time for one request, waiting for it and answering it included; then the connection is cut.

A time-out of the socket would not do: it starts anew with each byte that drips in.
"""

ERROR_SECONDS = 60.0
"""Time between two failed requests that are logged as errors: a client must not fill the log.
Unit: s."""

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

logger = logging.getLogger(__name__)


def _deadline() -> float:
    return time.monotonic() + CONNECTION_SECONDS


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    deadline: float = field(default_factory=_deadline)


class Server(ThreadingHTTPServer):
    """Serves a site, a thread for each connection.

    Args:
        host: Name or address to listen on.
        port: Port to listen on, 0 for any free one.
        site: What to serve.
        web: How to protect it.
        more_hosts: Names to be known by besides its own, where names are checked.

    Raises:
        DaemonError: If it cannot listen there.

    Attributes:
        is_loopback: Only this machine can connect.
        asks_who: Clients need a password or a certificate.
        allowed_hosts: The names that clients must come by; empty for any.
        prove: Returns the headers that answer a challenge; none by default.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_port = False  # or another program could listen on our port beside us
    request_queue_size = 64

    def __init__(
        self, host: str, port: int, site: Site, web: WebConfig, more_hosts: frozenset[str]
    ) -> None:
        self.site = site
        self.prove: Callable[[str], dict[str, str]] = lambda _: {}
        self.headers = web.headers
        self.auth = BasicAuth(web.users) if web.users else None
        self.standard_port = 443 if web.tls else 80
        self._tls = web.tls
        self.asks_who = bool(web.users) or (
            web.tls is not None and web.tls.verify_mode is ssl.CERT_REQUIRED
        )
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._connections: dict[int, _Connection] = {}
        self._guard = threading.Lock()
        self._loud_from = 0.0
        try:
            self.address_family, address = _resolve(host, port)
            super().__init__(address, Handler)
        except OSError as error:
            raise DaemonError(_why_not_bound(host, port, error)) from error
        self.is_loopback = ipaddress.ip_address(str(self.server_address[0])).is_loopback
        # Against DNS rebinding: a page elsewhere whose name points here cannot send one of these.
        own_names = LOOPBACK_NAMES | {host.lower()} | more_hosts
        self.allowed_hosts = own_names if self.is_loopback else frozenset[str]()

    def server_bind(self) -> None:
        """Bind, without the base class's search for the host's full name, which may take long."""
        TCPServer.server_bind(self)
        self.server_port = self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection its thread, if there is room."""
        if not self._room.acquire(blocking=False):
            logger.debug("%s was refused: too many connections", client_address[0])
            self.shutdown_request(request)
            return
        with ExitStack() as unless_started:
            # Where no thread can be had nobody else would give the place back; the caller logs the
            # error and closes the connection. A thread that has started gives it back itself.
            unless_started.callback(self._room.release)
            super().process_request(request, client_address)
            unless_started.pop_all()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection to its end."""
        thread = threading.get_ident()
        with self._guard:
            self._connections[thread] = _Connection(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._guard:
                del self._connections[thread]
            self._room.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Agree on TLS, if that is asked for, and answer the requests."""
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        # Here and not when listening: a client that is slow at it holds its own thread only.
        with self._tls.wrap_socket(
            request, server_side=True, do_handshake_on_connect=False
        ) as secure:
            with self._guard:
                self._connections[threading.get_ident()].socket = secure
            secure.do_handshake()
            Handler(secure, client_address, self)

    def renew(self) -> None:
        """Give the connection of the calling thread its full time again."""
        with self._guard:
            self._connections[threading.get_ident()].deadline = _deadline()

    def cut_overdue(self) -> None:
        """Cut the connections whose time is over; their threads then end. Call it now and then."""
        now = time.monotonic()
        # Shut down outside of the lock: each connection that ends takes it to unregister itself.
        with self._guard:
            overdue = [c.socket for c in self._connections.values() if c.deadline < now]
        for connection in overdue:
            try:
                # The plain socket's method: the one of TLS is not for another thread.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
            except OSError:  # noqa: PERF203 - gone by now, which is rare
                continue

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class calls it so
        """Log what ended a connection: loudly now and then, unless it was the client."""
        error = sys.exc_info()[1]
        if isinstance(error, (ConnectionError, TimeoutError, ssl.SSLError)):
            logger.debug("%s: %s", client_address[0], error)
            return
        level = logging.DEBUG
        now = time.monotonic()
        if now >= self._loud_from:
            level = logging.ERROR
            self._loud_from = now + ERROR_SECONDS
        logger.log(level, "a request of %s failed", client_address[0], exc_info=error)


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    return family, address


def _why_not_bound(host: str, port: int, error: OSError) -> str:
    expected = f"expected to listen on {host}:{port}, got: "
    if error.errno == errno.EADDRINUSE:
        return f"{expected}the port is held by {probe.ask(host, port)}; end that, or choose another port with --port or AMPWATCH_PORT"
    if error.errno == errno.EACCES:
        return f"{expected}uid {os.geteuid()} may not; ports below 1024 are for root, choose another with --port or AMPWATCH_PORT"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"{expected}{error.strerror}; give an address of this machine with --host or AMPWATCH_HOST"
    return f"{expected}{error.strerror}"
