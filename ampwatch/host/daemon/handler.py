"""HTTP as the daemon speaks it: checks of who may ask, and the way of an answer to the client."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from email.utils import formatdate
from http import HTTPStatus
from http.client import HTTPMessage
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import h11

from ampwatch.host.daemon.site import SERVICE, Request, Response, sentence

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def parse_address(text: str) -> tuple[str, str | None] | None:
    """Return host (lower case) and port, if any, of ``host[:port]``; ``None`` if it is none."""
    match = _HOST.fullmatch(text)
    return (match[1].lower(), match[2]) if match else None


class Handler:
    """One request, as h11 has read it."""

    def __init__(self, request: h11.Request, server: Server) -> None:
        self._server = server
        self._method, self._path = request.method.decode(), request.target.decode()
        # One reverse proxy sends on the path that it was asked for, another one takes its own part out.
        if self._path.startswith(f"{server.site.prefix}/") and not server.site.has(self._path):
            self._path = self._path.removeprefix(server.site.prefix)
        self._headers = HTTPMessage()
        for name, value in request.headers:
            self._headers[name.decode()] = value.decode("latin-1")
        self.is_head = self._method == "HEAD"
        self.takes_gzip = _takes_gzip(self._headers.get("Accept-Encoding", ""))

    def __str__(self) -> str:
        # A query may have a secret in it.
        return f"{self._method} {_QUERY.sub('?...', self._path)}"[:MAX_QUOTED]

    @property
    def takes_long_to_know(self) -> bool:
        """Whether the client may ask takes long to find out: a password has to be checked."""
        auth = self._server.protection.auth
        return auth is not None and not auth.remembers(self._headers.get("Authorization", ""))

    def refusal(self) -> Response | None:
        """Return why this request gets no answer, ``None`` if it gets one."""
        bucket = self._server.protection.bucket
        if bucket is not None and not bucket.take():
            text = "Too many requests: rate_limit of the web-config allows no more."
            return sentence(HTTPStatus.TOO_MANY_REQUESTS, text, Connection="close")
        if self._method not in METHODS:
            if self._method not in OTHER_METHODS:
                text = f"Unsupported method ({self._method[:MAX_QUOTED]!r})"
                return sentence(HTTPStatus.NOT_IMPLEMENTED, text, Connection="close")
            text = f"Expected GET or HEAD, got {self._method}: the daemon only shows."
            return sentence(
                HTTPStatus.METHOD_NOT_ALLOWED, text, Allow="GET, HEAD", Connection="close"
            )
        # Exactly one: a proxy before the daemon may have checked the other one of two.
        host = self._headers.get_all("Host", [])
        address = parse_address(host[0]) if len(host) == 1 else None
        if address is None:
            text = "Expected one Host header with the name or address of this machine."
            return sentence(HTTPStatus.BAD_REQUEST, text, Connection="close")
        if not self._server.is_known_as(address[0]):
            # A page elsewhere can point its own name to 127.0.0.1 and read what it likes then.
            return sentence(HTTPStatus.FORBIDDEN, self._unknown(address[0]))
        return self._server.access.refusal(
            self._path,
            self._headers,
            auth=self._server.protection.auth,
            asks_who=self._server.asks_who,
            place=f"{address[1] or self._server.standard_port}{_NO_WORD.sub('-', self._server.site.prefix)}",
            # Of who comes by the name of a reverse proxy that has TLS, the connection to that is meant.
            is_tls=self._server.is_tls
            or (address[0], int(address[1] or 443)) == self._server.site.tls_address,
        )

    def _unknown(self, host: str) -> str:
        names = ", ".join(sorted(self._server.allowed_hosts))
        expected = f"Expected a Host of {names}, got {host[:MAX_QUOTED]}: "
        if self._server.is_loopback:
            return f"{expected}the daemon listens on loopback only. Come by localhost, or start it with --host."
        return f"{expected}nothing else keeps pages of others from reading here. Come by an address or one of these, start it with --web.external-address or --external-url, or give it a password or TLS."

    def request(self) -> Request:
        """Return the part of the request that answers depend on."""
        path, _, fields = self._path.partition("?")
        # Bounded: parsing a long list of fields takes long enough to be an attack.
        try:
            query = parse_qs(fields, max_num_fields=MAX_FIELDS)
        except ValueError:
            query = {}
        host = self._headers["Host"]
        has_port = parse_address(host) != (host.lower(), None)
        return Request(
            path=path,
            query=query,
            accept=self._headers.get("Accept", ""),
            known_etag=self._headers.get("If-None-Match", ""),
            address=host if has_port else f"{host}:{self._server.standard_port}",
            takes_gzip=self.takes_gzip,
        )

    def packed(self, response: Response) -> Response:
        """Return an answer with its body as this client takes it, and the headers that say so."""
        if response.status is HTTPStatus.NOT_MODIFIED:
            return replace(response, body=b"")
        is_small = not response.packed and len(response.body) < MIN_GZIP
        if response.stream is not None or is_small:
            return response
        body, headers = response.body, {**response.headers, "Vary": "Accept-Encoding"}
        if self.takes_gzip:
            headers["Content-Encoding"] = "gzip"
            body = body if response.packed else gzip.compress(body, 1)
        elif response.packed:
            body = gzip.decompress(body)
        return replace(response, body=body, headers=headers)


def refused(error: h11.RemoteProtocolError) -> Response:
    """Return the answer to what is no request. It is not repeated, as the error does: a token may be in it."""
    status = HTTPStatus(error.error_status_hint)
    text = f"{status.phrase}: HTTP allows no such request."
    return sentence(status, text, Connection="close")


def head(response: Response, more: Mapping[str, str]) -> h11.Response:
    """Return status line and headers of an answer, ``more`` of them from the web-config."""
    headers = {
        "Server": SERVICE,  # without a version that would lead to its weaknesses
        "Date": formatdate(usegmt=True),
        "Content-Type": response.content_type,
        **SECURITY_HEADERS,
        **response.headers,
    }
    if response.stream is None:
        headers["Content-Length"] = str(len(response.body))
    status = HTTPStatus(response.status)
    lines = [
        (name.encode(), value.encode("latin-1")) for name, value in {**headers, **more}.items()
    ]
    return h11.Response(status_code=status, headers=lines, reason=status.phrase)


def _takes_gzip(accept_encoding: str) -> bool:
    for coding in accept_encoding.lower().split(","):
        name, _, quality = coding.partition(";")
        if name.strip() == "gzip":
            return quality.replace(" ", "").rstrip("0") not in {"q=", "q=0."}
    return False
