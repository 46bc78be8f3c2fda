"""HTTP as the daemon speaks it: checks of who may ask, and the way of an answer to the client."""

from __future__ import annotations

import gzip
import logging
import re
from http import HTTPStatus
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from ampwatch.host.daemon.site import Request, Response, sentence
from ampwatch.wire.rendezvous.probe import CHALLENGE_HEADER, SERVICE, realm

if TYPE_CHECKING:
    from ampwatch.host.daemon.server import Server

SECURITY_HEADERS = {
    # Plotly sets styles in attributes and draws images from data: URLs.
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}

MIN_GZIP = 1400
"""Smaller bodies fit one packet as they are. Unit: bytes."""

MAX_FIELDS = 100
"""Fields of a query that are read; a scrape may name metrics, one a field."""

MAX_QUOTED = 200
"""Text of a client that is repeated, to it and in the log. Unit: characters."""

_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")

logger = logging.getLogger(__name__)


def parse_address(text: str) -> tuple[str, str | None] | None:
    """Return host (lower case) and port, if any, of ``host[:port]``; ``None`` if it is none."""
    match = _HOST.fullmatch(text)
    return (match[1].lower(), match[2]) if match else None


class Handler(BaseHTTPRequestHandler):
    """One connection. The base class parses, ``Server`` bounds it in time."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    headers = HTTPMessage()  # until the first request is parsed, which may fail
    server: Server

    def handle_one_request(self) -> None:
        """Wait for a request and answer it, in bounded time."""
        self.server.renew()
        super().handle_one_request()

    def do_GET(self) -> None:
        """Answer a GET or HEAD request."""
        # A body has no meaning here. Left unread it would be taken for the next request.
        if {"content-length", "transfer-encoding"} & {name.lower() for name in self.headers}:
            self.close_connection = True
        refusal = self._refusal()
        self._send(self.server.site.answer(self._request()) if refusal is None else refusal)

    do_HEAD = do_GET  # noqa: N815 - the names are the base class's

    def do_POST(self) -> None:
        """Refuse a method that could change something."""
        self.close_connection = True
        self._send(
            sentence(
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"Expected GET or HEAD, got {self.command}: the daemon only shows.",
                Allow="GET, HEAD",
            )
        )

    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_CONNECT = do_TRACE = do_POST  # noqa: N815 - as above

    def _refusal(self) -> Response | None:
        """Return why this client gets no answer, ``None`` if it gets one."""
        # Exactly one: a proxy before the daemon may have checked the other one of two.
        host = self.headers.get_all("Host", [])
        address = parse_address(host[0]) if len(host) == 1 else None
        if address is None:
            text = "Expected one Host header with the name or address of this machine."
            return sentence(HTTPStatus.BAD_REQUEST, text)
        allowed = self.server.allowed_hosts
        if allowed and address[0] not in allowed:
            # A page elsewhere can point its own name to 127.0.0.1 and read what it likes then.
            text = f"Expected a Host of {', '.join(sorted(allowed))}, got {address[0]}: the daemon listens on loopback only. Come by localhost, or start it with --host."
            return sentence(HTTPStatus.FORBIDDEN, text)
        auth = self.server.auth
        if auth is not None and not auth.allows(self.headers.get("Authorization", "")):
            challenge = f'Basic realm="{realm(self.server.site.scope)}", charset="UTF-8"'
            text = "Expected a user name and password of basic_auth_users."
            return sentence(HTTPStatus.UNAUTHORIZED, text, WWW_Authenticate=challenge)
        return None

    def _request(self) -> Request:
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
        )

    def _send(self, response: Response) -> None:
        try:
            self._send_head_and_body(response)
        finally:
            # A generator that is left to the garbage collector holds its place among the streams.
            if response.stream is not None:
                response.stream.close()

    def _send_head_and_body(self, response: Response) -> None:
        headers = {"Content-Type": response.content_type, **SECURITY_HEADERS, **response.headers}
        body = response.body
        if response.stream is not None:
            # Without a length the end of the body is the end of the connection.
            self.close_connection = True
        else:
            body, encoding = self._encoded(response)
            headers |= encoding | {"Content-Length": str(len(body))}
        # Whatever the answer: who may not read may still ask whose daemon this is.
        headers |= self.server.prove(self.headers.get(CHALLENGE_HEADER, ""))
        if self.close_connection:
            headers["Connection"] = "close"
        self.send_response(response.status)
        for name, value in (headers | self.server.headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            # A page stays open for days: its time starts anew with each chunk that the client takes.
            for chunk in response.stream or ():
                self.server.renew()
                self.wfile.write(chunk)

    def _encoded(self, response: Response) -> tuple[bytes, dict[str, str]]:
        """Return the body as this client takes it, and the headers that say so."""
        if response.status is HTTPStatus.NOT_MODIFIED:
            return b"", {}
        if not response.packed and len(response.body) < MIN_GZIP:
            return response.body, {}
        headers = {"Vary": "Accept-Encoding"}
        if not _takes_gzip(self.headers.get("Accept-Encoding", "")):
            body = gzip.decompress(response.body) if response.packed else response.body
            return body, headers
        body = response.body if response.packed else gzip.compress(response.body, 1)
        return body, headers | {"Content-Encoding": "gzip"}

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002 - the base class calls it so
        """Answer a request that the base class could not parse."""
        self.close_connection = True
        status = HTTPStatus(code)
        self._send(sentence(status, (message or status.phrase)[:MAX_QUOTED]))

    def version_string(self) -> str:
        """Name the server, without a version that would lead to its weaknesses."""
        return SERVICE

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log a request at the level of details."""
        logger.debug("%s %s", self.client_address[0], (format % args)[:MAX_QUOTED])


def _takes_gzip(accept_encoding: str) -> bool:
    for coding in accept_encoding.lower().split(","):
        name, _, quality = coding.partition(";")
        if name.strip() == "gzip":
            return quality.replace(" ", "").rstrip("0") not in {"q=", "q=0."}
    return False
