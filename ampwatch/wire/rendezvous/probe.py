"""Probe of the daemon's port: an ampwatch daemon, another program or nobody answers.

Anybody on a machine may listen on a port that is free, and answer what a daemon answers. Who is
believed is decided here, and nowhere else: by what the kernel says of the listening socket, and
by a proof that takes the secret of this user. What the answer itself says of its user counts for
nothing.
"""

from __future__ import annotations

import http.client
import io
import os
import socket
import ssl
import time
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ampwatch.runtime import service_uid
from ampwatch.wire.rendezvous import token
from ampwatch.wire.rendezvous.lock import reachable
from ampwatch.wire.rendezvous.port_owner import listening_uids, port_owner
from ampwatch.wire.ring.text import cut_name, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

SERVICE = "ampwatch"
TIMEOUT_SECONDS = 0.5
"""Time for one exchange, from the connection to the last byte of the answer. Unit: s."""

MAX_ANSWER = 16384
"""Bytes of an answer that are read, its headers included."""

MAX_TEXT = 64
ROOT_UID = 0
NOT_KNOWN = -1
UNKNOWN = "another program"

CHALLENGE_HEADER = "Ampwatch-Challenge"
"""Header of a request in which the asker wants a proof."""

PROOF_HEADER = "Ampwatch-Proof"
"""Header in which each answer to such a request has the proof, also one that refuses."""

MAX_CHALLENGE = 64
"""Characters of a challenge that is answered."""

REPORTED = {"service": str, "scope": str, "version": str, "layout": int, "external_url": str}
"""The fields of /healthz that matter here. A daemon of an older release names no address."""

SCOPES = ("user", "machine")

CERTIFICATE_ALERTS = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "BAD_CERTIFICATE")
"""The TLS alerts of servers that want a client certificate: from TLS 1.3 on the first, before
it the second (RFC 5246, 7.4.6) or, of servers in Go, the third."""


class Answer(Struct, frozen=True):
    """Result of a probe of a port.

    Attributes:
        url: Where it was asked.
        taken: Somebody listens there.
        service: ``ampwatch`` for a daemon that is believed, else empty.
        scope: ``user`` or ``machine`` for a daemon that is believed.
        uid: User it runs as, as the kernel says; -1 if unknown.
        version: Its version, empty if it keeps that for known users.
        layout: Version of the ring layout it reads, -1 if unknown.
        holder: Which process it is, in words.
        wants_certificate: It speaks TLS and ended the connection for want of a client
            certificate, so that it is not known who it is: maybe a daemon of ours.
        why_not: Why it is not believed, though it answers as a daemon; empty otherwise.
        external_url: Address by which others open its page; empty if it names none.
    """

    url: str
    taken: bool
    service: str = ""
    scope: str = ""
    uid: int = NOT_KNOWN
    version: str = ""
    layout: int = -1
    holder: str = UNKNOWN
    wants_certificate: bool = False
    why_not: str = ""
    external_url: str = ""

    @property
    def is_daemon(self) -> bool:
        """Return whether it is a daemon that reads the rings of this user, and believed to be one."""
        return self.service == SERVICE

    def __str__(self) -> str:
        if not self.is_daemon:
            wants = ", which speaks TLS and seems to want a client certificate"
            doubt = f", which answers as an ampwatch daemon and is not believed: {self.why_not}"
            return self.holder + wants * self.wants_certificate + doubt * bool(self.why_not)
        version = f" {self.version}" if self.version else ""
        whose = "" if self.uid == NOT_KNOWN else f" of uid {self.uid}"
        return f"ampwatch{version} ({self.scope} daemon{whose}), {self.holder}"


class _CertificateWantedError(Exception):
    """Somebody ended the connection for want of a client certificate."""


class _Peer(NamedTuple):
    """The other side of a connection, as the kernel knows it.

    Attributes:
        is_here: It is on this machine.
        uids: Users whose socket it may be; empty if the kernel does not say.
    """

    is_here: bool
    uids: frozenset[int]

    @property
    def is_mine(self) -> bool:
        """Whether this user listens."""
        return self.uids == {os.geteuid()}

    @property
    def is_of_machine(self) -> bool:
        """Whether somebody listens whom this machine has put in charge of it."""
        return bool(self.uids) and self.uids <= {ROOT_UID, service_uid()}

    @property
    def is_service(self) -> bool:
        """Whether the system's own daemon listens, which is not root."""
        return self.is_of_machine and ROOT_UID not in self.uids

    @property
    def is_stranger(self) -> bool:
        """Whether somebody listens who is not believed whatever the answer is."""
        return bool(self.uids) and not (self.is_mine or self.is_of_machine)


class _Told(NamedTuple):
    """What was answered.

    Attributes:
        fields: Those of ``REPORTED`` that were told.
        proof: The proof, empty without one.
    """

    fields: dict[str, Any]
    proof: str


def realm(scope: str) -> str:
    """Return the realm of the daemon's 401 answers: it must say what /healthz may not then."""
    return f"{SERVICE} {scope}"


def prover(secret: Callable[[], str], port: int) -> Callable[[str], dict[str, str]]:
    """Return what a daemon answers to a challenge: the headers to add to any response.

    Args:
        secret: Returns the secret of its user.
        port: The port it listens on itself.
    """

    def headers(challenge: str) -> dict[str, str]:
        if not 0 < len(challenge) <= MAX_CHALLENGE:
            return {}
        return {PROOF_HEADER: token.proof(secret(), challenge, port)}

    return headers


def ask(host: str, port: int, places: Iterable[Path] = ()) -> Answer:
    """Ask whoever listens on ``port`` for its health, over HTTP and then over TLS.

    Nothing secret is sent, so the certificate is not verified. A stranger is not asked at all.

    Args:
        host: Name or address.
        port: TCP port.
        places: Runtime directories of this user: a daemon of this user knows the secret of one.

    Cost:
        Three connections at most, each bounded by the time-out.
    """
    url = f"http://{reachable(host)}:{port}/"
    try:
        with socket.create_connection((_address(host), port), TIMEOUT_SECONDS) as connection:
            where = connection.getsockname()[0], connection.getpeername()
    except OSError:
        return Answer(url, taken=False)
    peer = _peer(where)
    owner = port_owner(port) if peer.is_here else None
    uid = next(iter(peer.uids)) if len(peer.uids) == 1 else NOT_KNOWN
    answer = Answer(url, taken=True, uid=uid, holder=str(owner) if owner else UNKNOWN)
    if peer.is_stranger:
        return answer
    # Plain HTTP first: a server that expects TLS refuses it at once, while one that expects HTTP
    # may wait for the rest of a line when it is sent a handshake.
    challenge = os.urandom(16).hex()
    for scheme in ("http", "https"):
        there = replace(answer, url=url.replace("http", scheme))
        try:
            told = _health(scheme, _address(host), port, challenge)
        except _CertificateWantedError:
            # Nothing but its daemon runs as the user of the service; of root's there is much.
            there = replace(there, wants_certificate=True)
            if peer.is_service and peer == _peer(where):
                there = replace(there, service=SERVICE, scope="machine")
            return there
        except (OSError, http.client.HTTPException, ValueError):
            continue
        if told is not None:
            found = [token.read_token(place, token.SECRET_FILE) for place in places]
            secrets = [secret for secret in found if secret is not None]
            is_proved = any(token.proves(told.proof, s, challenge, port) for s in secrets)
            # Asked once more: who listened at first may have ended, and another have taken the port.
            if not is_proved and peer != _peer(where):
                return answer
            why_not = _why_not(peer, told, is_proved=is_proved, could_prove=bool(secrets))
            return replace(there, why_not=why_not, **({} if why_not else told.fields))
    return answer


def _why_not(peer: _Peer, told: _Told, *, is_proved: bool, could_prove: bool) -> str:
    """Return why who answers as a daemon is not believed; empty if it is."""
    scope = told.fields["scope"]
    if is_proved or (scope == "machine" and peer.is_of_machine):
        return ""
    if peer.is_mine:
        # A process of this user may be a tunnel to another machine, whose daemon cannot know the
        # secret. Where this user has none, a daemon in a container beside this one may have its own.
        return "it does not know the secret of this user" if could_prove else ""
    if peer.uids:
        return "it shows the runs of its own user alone"
    if peer.is_here:
        return "the kernel does not say whose it is, and it does not know the secret of this user"
    # On another machine there is no impostor of this one: whoever has set the address believes it.
    return "" if scope == "machine" else "a daemon elsewhere cannot read the rings of this user"


def _peer(where: tuple[str, Any]) -> _Peer:
    """Return who listens now where a connection led to.

    Args:
        where: The connection's own address, and the address and port that it led to.
    """
    ours, theirs = where
    address = theirs[0].partition("%")[0]
    is_here = ip_address(address).is_loopback or ours == theirs[0]
    uids = listening_uids(address, theirs[1]) if is_here else frozenset[int]()
    return _Peer(is_here, uids)


def _address(host: str) -> str:
    return reachable(host).strip("[]")


def _health(scheme: str, address: str, port: int, challenge: str) -> _Told | None:
    """Return what an ampwatch daemon tells of itself, ``None`` from another program.

    Raises:
        _CertificateWantedError: If it reported nothing for want of a client certificate.
        OSError, HTTPException, ValueError: If it does not speak like this.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS
    # Not the address: a daemon on loopback answers by the names of loopback only, and this
    # one is among them whatever address it is reached by.
    question = (
        f"GET /healthz HTTP/1.1\r\nHost: localhost:{port}\r\n{CHALLENGE_HEADER}: {challenge}\r\n"
        "Connection: close\r\n\r\n"
    )
    agreed = False
    connection = socket.create_connection((address, port), TIMEOUT_SECONDS)
    try:
        if scheme == "https":
            context = ssl._create_unverified_context()  # noqa: S323, SLF001 - see ask()
            connection = context.wrap_socket(connection)
            agreed = True
        connection.sendall(question.encode())
        answer = _read(connection, deadline)
        if not answer:
            raise ConnectionResetError
    except (ssl.SSLError, ConnectionError) as error:
        if _wants_certificate(error, agreed=agreed):
            raise _CertificateWantedError from error
        raise
    finally:
        connection.close()
    response = http.client.HTTPResponse(_Received(answer))  # type: ignore[arg-type] # all it needs of a socket
    response.begin()
    proof = response.getheader(PROOF_HEADER, "")
    challenged = response.getheader("WWW-Authenticate", "")
    for scope in SCOPES:
        if response.status == http.client.UNAUTHORIZED and f'"{realm(scope)}"' in challenged:
            return _Told({"service": SERVICE, "scope": scope}, proof)
    # Not as much as it says that there is: of more than 64 bits that raises OverflowError.
    health = parse_json(response.read(MAX_ANSWER))
    if not isinstance(health, dict):
        return None
    # The types are checked as well: the answer ends up in error messages and comparisons, and what
    # is said there on a terminal, which obeys what cannot be printed.
    reported = {name: _printable(health.get(name)) for name in REPORTED}
    # Whole or not at all: the beginning of an address leads elsewhere.
    url = health.get("external_url")
    is_whole = isinstance(url, str) and url == cut_name(url, MAX_ANSWER)
    reported["external_url"] = url if is_whole else ""
    is_one = all(isinstance(reported[name], kind) for name, kind in REPORTED.items())
    is_ours = is_one and reported["service"] == SERVICE and reported["scope"] in SCOPES
    return _Told(reported, proof) if is_ours else None


def _read(connection: socket.socket, deadline: float) -> bytes:
    """Read an answer to its end; bounded, as on a port anybody may listen and may send without end.

    A time-out of the socket alone would start anew with each byte that drips in.
    """
    answer = b""
    while len(answer) < MAX_ANSWER and (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            received = connection.recv(MAX_ANSWER)
        except ConnectionError:
            # Cut after it was answered: what there is may be enough.
            if answer:
                break
            raise
        if not received:
            break
        answer += received
    return answer


class _Received:
    """An answer that was read, as ``HTTPResponse`` takes it."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def makefile(self, _mode: str) -> io.BytesIO:
        """Return the answer as a file."""
        return io.BytesIO(self._answer)


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
