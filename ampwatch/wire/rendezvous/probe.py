"""Probe of the daemon's port: an ampwatch daemon, another program or nobody answers."""

from __future__ import annotations

import http.client
import socket
import ssl
from dataclasses import dataclass, replace
from typing import Any

from ampwatch.wire.rendezvous.lock import reachable
from ampwatch.wire.rendezvous.port_owner import port_owner
from ampwatch.wire.ring.text import cut_name, parse_json

SERVICE = "ampwatch"
TIMEOUT_SECONDS = 0.3
MAX_ANSWER = 4096
MAX_TEXT = 64
UNKNOWN = "another program"
REPORTED = {"service": str, "scope": str, "uid": int, "version": str, "layout": int}
"""The fields of /healthz that matter here."""

CERTIFICATE_ALERTS = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "BAD_CERTIFICATE")
"""The TLS alerts of servers that want a client certificate: from TLS 1.3 on the first, before
it the second (RFC 5246, 7.4.6) or, of servers in Go, the third."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a probe of a port.

    Attributes:
        url: Where it was asked.
        taken: Somebody listens there.
        service: ``ampwatch`` for a daemon of ours, else empty.
        scope: ``user`` or ``machine`` for a daemon of ours.
        uid: User it runs as, -1 if unknown.
        version: Its version, empty if it keeps that for known users.
        layout: Version of the ring layout it reads, -1 if unknown.
        holder: Which process it is, in words.
        wants_certificate: It speaks TLS and ended the connection for want of a client
            certificate, so that it is not known who it is: maybe a daemon of ours.
    """

    url: str
    taken: bool
    service: str = ""
    scope: str = ""
    uid: int = -1
    version: str = ""
    layout: int = -1
    holder: str = UNKNOWN
    wants_certificate: bool = False

    @property
    def is_daemon(self) -> bool:
        """Return whether an ampwatch daemon answered."""
        return self.service == SERVICE

    def __str__(self) -> str:
        if not self.is_daemon:
            wants = ", which speaks TLS and seems to want a client certificate"
            return self.holder + wants * self.wants_certificate
        version = f" {self.version}" if self.version else ""
        return f"ampwatch{version} ({self.scope} daemon of uid {self.uid}), {self.holder}"


class _CertificateWantedError(Exception):
    """Somebody ended the connection for want of a client certificate."""


def realm(scope: str) -> str:
    """Return the realm of the daemon's 401 answers: it must say what /healthz may not then."""
    return f"{SERVICE} {scope}"


def ask(host: str, port: int) -> Answer:
    """Ask whoever listens on ``port`` for its health, over HTTP and then over TLS.

    Nothing secret is sent, so the certificate is not verified.

    Cost:
        Three connections on this machine at most, each bounded by the time-out.
    """
    url = f"http://{reachable(host)}:{port}/"
    try:
        socket.create_connection((_address(host), port), TIMEOUT_SECONDS).close()
    except OSError:
        return Answer(url, taken=False)
    owner = port_owner(port)
    nobody_known = Answer(url, taken=True, holder=str(owner) if owner else UNKNOWN)
    # Plain HTTP first: a server that expects TLS refuses it at once, while one that expects HTTP
    # may wait for the rest of a line when it is sent a handshake.
    for scheme in ("http", "https"):
        try:
            health = _health(scheme, _address(host), port)
        except _CertificateWantedError:
            return replace(nobody_known, url=url.replace("http", scheme), wants_certificate=True)
        except (OSError, http.client.HTTPException, ValueError):
            continue
        if health is not None:
            # A daemon with a password keeps its uid for known users; the kernel knows it all the same.
            uid = health.get("uid", owner.uid if owner else -1)
            return replace(nobody_known, url=url.replace("http", scheme), **(health | {"uid": uid}))
    return nobody_known


def _address(host: str) -> str:
    return reachable(host).strip("[]")


def _health(scheme: str, address: str, port: int) -> dict[str, Any] | None:
    """Return what an ampwatch daemon tells of itself, ``None`` from another program.

    Raises:
        _CertificateWantedError: If it reported nothing for want of a client certificate.
        OSError, HTTPException, ValueError: If it does not speak like this.
    """
    connection: http.client.HTTPConnection
    if scheme == "https":
        context = ssl._create_unverified_context()  # noqa: S323, SLF001 - see ask()
        connection = http.client.HTTPSConnection(
            address, port, timeout=TIMEOUT_SECONDS, context=context
        )
    else:
        connection = http.client.HTTPConnection(address, port, timeout=TIMEOUT_SECONDS)
    agreed = False
    try:
        connection.connect()
        agreed = scheme == "https"
        # Not the address: a daemon on loopback answers by the names of loopback only, and this
        # one is among them whatever address it is reached by.
        connection.request("GET", "/healthz", headers={"Host": f"localhost:{port}"})
        response = connection.getresponse()
        challenge = response.getheader("WWW-Authenticate", "")
        for scope in ("user", "machine"):
            if response.status == http.client.UNAUTHORIZED and f'"{realm(scope)}"' in challenge:
                return {"service": SERVICE, "scope": scope}
        # Bounded: on this port anybody may listen, and may send without end.
        health = parse_json(response.read(MAX_ANSWER))
    except (ssl.SSLError, ConnectionError) as error:
        if _wants_certificate(error, agreed=agreed):
            raise _CertificateWantedError from error
        raise
    finally:
        connection.close()
    if not isinstance(health, dict) or health.get("service") != SERVICE:
        return None
    # The types are checked as well: the answer ends up in error messages and comparisons. What is said
    # there ends up on a terminal, which obeys what cannot be printed.
    reported = {name: _printable(health.get(name)) for name in REPORTED}
    return (
        reported
        if all(isinstance(reported[name], kind) for name, kind in REPORTED.items())
        else None
    )


def _printable(value: object) -> object:
    return cut_name(value, MAX_TEXT) if isinstance(value, str) else value


def _wants_certificate(error: OSError, *, agreed: bool) -> bool:
    """Return whether the other side ended the connection for want of a client certificate.

    Args:
        error: How it ended.
        agreed: The handshake was over. With TLS 1.3 only then the server looks for a
            certificate, and its alert may get lost when it closes the connection.
    """
    # SSLEOFError is a connection that was cut without an alert, so that its reason says nothing.
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        return (error.reason or "").endswith(CERTIFICATE_ALERTS)
    return agreed
