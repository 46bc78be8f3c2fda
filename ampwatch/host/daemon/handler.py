"""HTTP as the daemon speaks it: checks of who may ask, and the way of an answer to the client."""

from __future__ import annotations

import gzip
import logging
import re
from dataclasses import replace
from http import HTTPStatus
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from ampwatch.host.daemon.site import Request, Response, sentence
from ampwatch.wire.rendezvous.probe import CHALLENGE_HEADER, SERVICE

if TYPE_CHECKING:
    from ampwatch.host.daemon.server import Server

SECURITY_HEADERS = {
    # The sign in the tab is an image from a data: URL.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # An address may have a token in it.
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "deny",
    "Cache-Control": "no-store",
}

MIN_GZIP = 1400
"""Smaller bodies fit one packet as they are. Unit: bytes."""

MAX_FIELDS = 100
"""Fields of a query that are read; a scrape may name metrics, one a field."""

MAX_QUOTED = 200
"""Text of a client that is repeated, to it and in the log. Unit: characters."""

METHODS = frozenset({"GET", "HEAD"})
OTHER_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"})
"""Methods that are known and could change something."""

_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")

_QUERY = re.compile(r"\?\S+")

_HEAD = re.compile(rb"[^\0\r\n]*\r?\n(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\0\r\n]*\r?\n)*\r?\n")
"""A head that cannot be read in two ways (RFC 9112, 5; RFC 9110, 5.6.2): no space before a colon, no line
without one or continued, no NUL, and no end of a line but the one."""

logger = logging.getLogger(__name__)


def parse_address(text: str) -> tuple[str, str | None] | None:
    """Return host (lower case) and port, if any, of ``host[:port]``; ``None`` if it is none."""
    match = _HOST.fullmatch(text)
    return (match[1].lower(), match[2]) if match else None


class Handler(BaseHTTPRequestHandler):
    """One request: parsed by the base class, from bytes that have come already.

    Args:
        head: Request line and headers; ``None`` if they were too long to be taken.
        client_address: Where they come from.
        server: Where they have come to.

    Attributes:
        is_sound: The request could be parsed.
        refused: The answer to one that could not, if there is any.
    """

    protocol_version = "HTTP/1.1"
    headers = HTTPMessage()  # until the request is parsed, which may fail
    server: Server  # type: ignore[assignment] # not one of the base class's servers

    def __init__(self, head: bytes | None, client_address: Any, server: Server) -> None:
        # Not the base class's: that one waits for the socket in a thread of its own.
        self.client_address = client_address
        self.server = server
        self.rfile = BytesIO(head or b"")
        self._written = BytesIO()
        self.wfile = self._written
        self.refused: Response | None = None
        self.command = self.requestline = ""
        self.request_version = self.protocol_version
        self.close_connection = True
        self.raw_requestline = self.rfile.readline()
        if head is None:
            self.is_sound = False
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif _HEAD.fullmatch(head) is None:
            # A proxy before the daemon may have read it otherwise, and sent on as one what would be two here.
            self.is_sound = False
            self.send_error(HTTPStatus.BAD_REQUEST, "Expected lines of name: value")
        else:
            self.is_sound = self.parse_request()
        # A body has no meaning here. Left unread it would be taken for the next request.
        if {"content-length", "transfer-encoding"} & {name.lower() for name in self.headers}:
            self.close_connection = True

    @property
    def is_head(self) -> bool:
        """No body is wanted."""
        return self.command == "HEAD"

    @property
    def takes_gzip(self) -> bool:
        """The client takes a body that is gzipped."""
        return _takes_gzip(self.headers.get("Accept-Encoding", ""))

    @property
    def takes_long_to_know(self) -> bool:
        """Whether the client may ask takes long to find out: a password has to be checked."""
        auth = self.server.protection.auth
        return auth is not None and not auth.remembers(self.headers.get("Authorization", ""))

    def refusal(self) -> Response | None:
        """Return why this request gets no answer, ``None`` if it gets one."""
        bucket = self.server.protection.bucket
        if bucket is not None and not bucket.take():
            self.close_connection = True
            text = "Too many requests: rate_limit of the web-config allows no more."
            return sentence(HTTPStatus.TOO_MANY_REQUESTS, text)
        if self.command not in METHODS:
            self.close_connection = True
            if self.command not in OTHER_METHODS:
                text = f"Unsupported method ({self.command[:MAX_QUOTED]!r})"
                return sentence(HTTPStatus.NOT_IMPLEMENTED, text)
            text = f"Expected GET or HEAD, got {self.command}: the daemon only shows."
            return sentence(HTTPStatus.METHOD_NOT_ALLOWED, text, Allow="GET, HEAD")
        return self._refusal()

    def _refusal(self) -> Response | None:
        """Return why this client gets no answer, ``None`` if it gets one."""
        # Exactly one: a proxy before the daemon may have checked the other one of two.
        host = self.headers.get_all("Host", [])
        address = parse_address(host[0]) if len(host) == 1 else None
        if address is None:
            self.close_connection = True
            text = "Expected one Host header with the name or address of this machine."
            return sentence(HTTPStatus.BAD_REQUEST, text)
        if not self.server.is_known_as(address[0]):
            # A page elsewhere can point its own name to 127.0.0.1 and read what it likes then.
            return sentence(HTTPStatus.FORBIDDEN, self._unknown(address[0]))
        return self.server.access.refusal(
            self.path,
            self.headers,
            auth=self.server.protection.auth,
            asks_who=self.server.asks_who,
            port=address[1] or str(self.server.standard_port),
            is_tls=self.server.is_tls,
        )

    def _unknown(self, host: str) -> str:
        names = ", ".join(sorted(self.server.allowed_hosts))
        expected = f"Expected a Host of {names}, got {host[:MAX_QUOTED]}: "
        if self.server.is_loopback:
            return f"{expected}the daemon listens on loopback only. Come by localhost, or start it with --host."
        return f"{expected}nothing else keeps pages of others from reading here. Come by an address or one of these, start it with --web.external-address, or give it a password or TLS."

    def request(self) -> Request:
        """Return the part of the request that answers depend on."""
        path, _, fields = self.path.partition("?")
        # Bounded: parsing a long list of fields takes long enough to be an attack.
        try:
            query = parse_qs(fields, max_num_fields=MAX_FIELDS)
        except ValueError:
            query = {}
        host = self.headers["Host"]
        has_port = parse_address(host) != (host.lower(), None)
        return Request(
            path=path,
            query=query,
            accept=self.headers.get("Accept", ""),
            known_etag=self.headers.get("If-None-Match", ""),
            address=host if has_port else f"{host}:{self.server.standard_port}",
            takes_gzip=self.takes_gzip,
        )

    def head(self, response: Response) -> bytes:
        """Return status line and headers of an answer."""
        headers = {"Content-Type": response.content_type, **SECURITY_HEADERS, **response.headers}
        if response.stream is not None:
            # Without a length the end of the body is the end of the connection.
            self.close_connection = True
        else:
            headers["Content-Length"] = str(len(response.body))
        # Whatever the answer: who may not read may still ask whose daemon this is.
        headers |= self.server.prove(self.headers.get(CHALLENGE_HEADER, ""))
        if self.close_connection:
            headers["Connection"] = "close"
        self.send_response(response.status)
        for name, value in (headers | self.server.protection.web.headers).items():
            self.send_header(name, value)
        self.end_headers()
        return self._written.getvalue()

    def packed(self, response: Response) -> Response:
        """Return an answer with its body as this client takes it."""
        if response.stream is not None:
            return response
        body, headers = self._encoded(response)
        return replace(response, body=body, headers={**response.headers, **headers})

    def _encoded(self, response: Response) -> tuple[bytes, dict[str, str]]:
        """Return the body as this client takes it, and the headers that say so."""
        if response.status is HTTPStatus.NOT_MODIFIED:
            return b"", {}
        if not response.packed and len(response.body) < MIN_GZIP:
            return response.body, {}
        headers = {"Vary": "Accept-Encoding"}
        if not self.takes_gzip:
            body = gzip.decompress(response.body) if response.packed else response.body
            return body, headers
        body = response.body if response.packed else gzip.compress(response.body, 1)
        return body, headers | {"Content-Encoding": "gzip"}

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002 - the base class calls it so
        """Answer a request that the base class could not parse."""
        self.close_connection = True
        status = HTTPStatus(code)
        self.refused = sentence(status, _without_query(message or status.phrase)[:MAX_QUOTED])

    def version_string(self) -> str:
        """Name the server, without a version that would lead to its weaknesses."""
        return SERVICE

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log a request at the level of details."""
        logger.debug("%s %s", self.client_address[0], _without_query(format % args)[:MAX_QUOTED])


def _without_query(text: str) -> str:
    """Return what is said of a request without what may be secret in it: its query."""
    return _QUERY.sub("?...", text)


def _takes_gzip(accept_encoding: str) -> bool:
    for coding in accept_encoding.lower().split(","):
        name, _, quality = coding.partition(";")
        if name.strip() == "gzip":
            return quality.replace(" ", "").rstrip("0") not in {"q=", "q=0."}
    return False
