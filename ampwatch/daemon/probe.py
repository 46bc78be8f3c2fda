"""Who answers on the daemon's port: an ampwatch daemon, another program, nobody."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from dataclasses import dataclass, replace
from typing import Any

from ampwatch.daemon.lock import reachable
from ampwatch.portowner import port_owner

SERVICE = "ampwatch"
TIMEOUT_SECONDS = 0.3
MAX_ANSWER = 4096
UNKNOWN = "another program"
TOLD = {"service": str, "scope": str, "uid": int, "version": str, "layout": int}
"""The fields of /healthz that matter here."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found on a port.

    Attributes:
        url: Where it was asked.
        taken: Somebody listens there.
        service: ``ampwatch`` for a daemon of ours, else empty.
        scope: ``user`` or ``machine`` for a daemon of ours.
        uid: User it runs as, -1 if unknown.
        version: Its version, empty if it keeps that for known users.
        layout: Version of the ring layout it reads, -1 if unknown.
        holder: Which process it is, in words.
    """

    url: str
    taken: bool
    service: str = ""
    scope: str = ""
    uid: int = -1
    version: str = ""
    layout: int = -1
    holder: str = UNKNOWN

    @property
    def is_daemon(self) -> bool:
        """Whether an ampwatch daemon answered."""
        return self.service == SERVICE

    def __str__(self) -> str:
        if not self.is_daemon:
            return self.holder
        version = f" {self.version}" if self.version else ""
        return f"ampwatch{version} ({self.scope} daemon of uid {self.uid}), {self.holder}"


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
    for scheme in ("http", "https"):
        try:
            health = _health(scheme, _address(host), port)
        except (OSError, http.client.HTTPException, ValueError):
            continue
        if health is not None:
            uid = health.get("uid", owner.uid if owner else -1)
            return replace(nobody_known, url=url.replace("http", scheme), **(health | {"uid": uid}))
    return nobody_known


def _address(host: str) -> str:
    return reachable(host).strip("[]")


def _health(scheme: str, address: str, port: int) -> dict[str, Any] | None:
    """Return what an ampwatch daemon tells of itself, ``None`` from another program."""
    connection: http.client.HTTPConnection
    if scheme == "https":
        context = ssl._create_unverified_context()  # noqa: S323, SLF001 - see ask()
        connection = http.client.HTTPSConnection(
            address, port, timeout=TIMEOUT_SECONDS, context=context
        )
    else:
        connection = http.client.HTTPConnection(address, port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/healthz", headers={"Host": f"localhost:{port}"})
        response = connection.getresponse()
        challenge = response.getheader("WWW-Authenticate", "")
        for scope in ("user", "machine"):
            if response.status == http.client.UNAUTHORIZED and f'"{realm(scope)}"' in challenge:
                return {"service": SERVICE, "scope": scope}
        health = json.loads(response.read(MAX_ANSWER))
    finally:
        connection.close()
    if not isinstance(health, dict) or health.get("service") != SERVICE:
        return None
    told = {name: health.get(name) for name in TOLD}
    return told if all(isinstance(told[name], kind) for name, kind in TOLD.items()) else None
