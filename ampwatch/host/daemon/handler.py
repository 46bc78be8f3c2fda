"""HTTP as the daemon speaks it: checks of who may ask, and the way of an answer to the client."""

from __future__ import annotations

import gzip
import logging
import re
from dataclasses import replace
from email.utils import formatdate
from http import HTTPStatus
from http.client import HTTPMessage
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import h11

from ampwatch.host.daemon.site import SERVICE, Request, Response, sentence

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

_NO_WORD = re.compile(r"[^A-Za-z0-9]+")

_QUERY = re.compile(r"\?\S+")

logger = logging.getLogger(__name__)


def parse_address(text: str) -> tuple[str, str | None] | None:
    """Return host (lower case) and port, if any, of ``host[:port]``; ``None`` if it is none."""
    match = _HOST.fullmatch(text)
    return (match[1].lower(), match[2]) if match else None


class Handler:
    """One request, as h11 has read it.

    Args:
        request: The request, or why there is none.
        client_address: Where it comes from.
        server: Where it has come to.

    Attributes:
        refused: The answer to what is no request; ``None`` for one.
        ends: The connection is to be closed after the answer.
    """

    def __init__(
        self, request: h11.Request | h11.RemoteProtocolError, client_address: Any, server: Server
    ) -> None:
        self.client_address = client_address
        self.server = server
        self.headers = HTTPMessage()
        self.refused: Response | None = None
        self.ends = False
        self.command = self.path = ""
        if isinstance(request, h11.RemoteProtocolError):
            # What has come is not repeated, as the error does: a token may be in it.
            status = HTTPStatus(request.error_status_hint)
            self.refused = sentence(status, f"{status.phrase}: HTTP allows no such request.")
            self.ends = True
            return
        self.command, self.path = request.method.decode(), request.target.decode()
        # One reverse proxy sends on the path that it was asked for, another one takes its own part out.
        if self.path.startswith(f"{server.site.prefix}/") and not server.site.has(self.path):
            self.path = self.path.removeprefix(server.site.prefix)
        for name, value in request.headers:
            self.headers[name.decode()] = value.decode("latin-1")

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
            self.ends = True
            text = "Too many requests: rate_limit of the web-config allows no more."
            return sentence(HTTPStatus.TOO_MANY_REQUESTS, text)
        if self.command not in METHODS:
            self.ends = True
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
            self.ends = True
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
            place=f"{address[1] or self.server.standard_port}{_NO_WORD.sub('-', self.server.site.prefix)}",
            # Of who comes by the name of a reverse proxy that has TLS, the connection to that is meant.
            is_tls=self.server.is_tls
            or (address[0], int(address[1] or 443)) == self.server.site.tls_address,
        )

    def _unknown(self, host: str) -> str:
        names = ", ".join(sorted(self.server.allowed_hosts))
        expected = f"Expected a Host of {names}, got {host[:MAX_QUOTED]}: "
        if self.server.is_loopback:
            return f"{expected}the daemon listens on loopback only. Come by localhost, or start it with --host."
        return f"{expected}nothing else keeps pages of others from reading here. Come by an address or one of these, start it with --web.external-address or --external-url, or give it a password or TLS."

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

    def head(self, response: Response) -> h11.Response:
        """Return status line and headers of an answer."""
        headers = {
            "Server": SERVICE,  # without a version that would lead to its weaknesses
            "Date": formatdate(usegmt=True),
            "Content-Type": response.content_type,
            **SECURITY_HEADERS,
            **response.headers,
        }
        if response.stream is None:
            headers["Content-Length"] = str(len(response.body))
        if self.ends:
            headers["Connection"] = "close"
        headers |= self.server.protection.web.headers
        asked = f"{self.command} {_QUERY.sub('?...', self.path)}"  # a query may have a secret in it
        logger.debug("%s %.*s %d", self.client_address[0], MAX_QUOTED, asked, response.status)
        status = HTTPStatus(response.status)
        lines = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        return h11.Response(status_code=status, headers=lines, reason=status.phrase)

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


def _takes_gzip(accept_encoding: str) -> bool:
    for coding in accept_encoding.lower().split(","):
        name, _, quality = coding.partition(";")
        if name.strip() == "gzip":
            return quality.replace(" ", "").rstrip("0") not in {"q=", "q=0."}
    return False
