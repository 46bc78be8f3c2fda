"""Authorisation of readers: a user's daemon answers who sends the token that this user alone can read.

Every program of a machine can connect to loopback, whoever runs it. A program sends the token as
``Authorization: Bearer``. A browser comes once by an address with ``?token=``, gets a cookie for it
and is sent on to the address without: so the token stays in no history, no bookmark and no
``Referer``. Where a web-config asks who is there, that is the proof, and no token is needed.
"""

from __future__ import annotations

import hashlib
import hmac
import html
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING

from ampwatch.errors import DaemonError
from ampwatch.host.daemon.site import HTML, SERVICE, Response, sentence
from ampwatch.wire.rendezvous.token import TOKEN_FIELD, TOKEN_FILE, ensure_token

if TYPE_CHECKING:
    from http.client import HTTPMessage
    from pathlib import Path

    from ampwatch.host.daemon.protection import BasicAuth

OPEN_PATHS = frozenset({"/healthz"})
"""What answers without a token: it says who serves, which a training must know before it believes
it, and a probe that watches over the daemon; of runs it says nothing."""

COOKIE_SECONDS = 30 * 24 * 3600
"""How long a browser need not send the token again. Unit: s."""

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>ampwatch: token wanted</title>
<style>
:root {{ color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif }}
body {{ max-width: 40rem; margin: 4rem auto; padding: 0 1rem; overflow-wrap: anywhere }}
</style>
<h1>This page is its user's alone</h1>
<p>{text}</p>
<form method="get">
<label>Token <input name="{field}" type="password" required autocomplete="off" size="45"></label>
<button>Open</button>
</form>
<p>This browser then keeps a cookie for {days} days.</p>
</html>
"""


class Access:
    """Decides about each request.

    Args:
        scope: ``user`` or ``machine``: whose runs the daemon shows.
        directory: The runtime directory, where the token is.

    Raises:
        DaemonError: If a token is needed and cannot be made.
    """

    def __init__(self, scope: str, readers: str, directory: Path) -> None:
        self._scope = scope
        self._directory = directory
        self._always = readers == "token"
        # What root or a service shows of everybody's runs has no user whose token it could be.
        self._else_who = readers == "auto" and scope == "user"
        is_needed = self._always or self._else_who
        self._token = ensure_token(directory) if is_needed else ""

    def wants_token(self, *, asks_who: bool) -> bool:
        """Return whether readers need the token."""
        return self._always or (self._else_who and not asks_who)

    def refusal(
        self,
        target: str,
        headers: HTTPMessage,
        *,
        auth: BasicAuth | None,
        asks_who: bool,
        place: str,
        is_tls: bool,
    ) -> Response | None:
        """Return what a client gets instead of an answer, ``None`` if it may read.

        Args:
            target: Path and query that it asks for.
            headers: Its headers.
            auth: The users of the web-config, ``None`` without any.
            asks_who: The web-config asks for a password or a certificate.
            place: What tells this daemon from others of the same host: the port that the client came by, which
                a tunnel may have changed, and a path that a reverse proxy has put it below.
            is_tls: The connection of the client is TLS.
        """
        wants_token = self.wants_token(asks_who=asks_who)
        if not wants_token and auth is None:
            return None
        authorization = headers.get("Authorization", "")
        if auth is not None and auth.allows(authorization):
            return None
        if wants_token:
            token = self._current()
            path, _, query = target.partition("?")
            cookie = _cookie(token, place)
            if any(_equal(field, f"{TOKEN_FIELD}={token}") for field in query.split("&")):
                return _sent_on(path, query, cookie, is_tls=is_tls)
            scheme, _, credentials = authorization.partition(" ")
            is_bearer = scheme.lower() == "bearer" and _equal(credentials.strip(), token)
            cookies = ";".join(headers.get_all("Cookie", [])).split(";")
            passed = any(_equal(given.strip(), cookie) for given in cookies)
            if is_bearer or passed or path in OPEN_PATHS:
                return None
        return self._unauthorized(headers, has_users=auth is not None, wants_token=wants_token)

    def _current(self) -> str:
        """Return the token as the file has it now: whoever reads it there is right.

        A file that was removed is made anew: that is how its user takes back what the token allows.

        Cost: some 20 us.
        """
        with suppress(DaemonError):  # no place for it now, or one that others can read
            self._token = ensure_token(self._directory)
        return self._token

    def _unauthorized(
        self, headers: HTTPMessage, *, has_users: bool, wants_token: bool
    ) -> Response:
        name = f"{SERVICE} {self._scope}"
        wanted, challenges = list[str](), list[str]()
        if has_users:
            wanted.append("a user name and password of basic_auth_users")
            challenges.append(f'Basic realm="{name}", charset="UTF-8"')
        if wants_token:
            place = self._directory / TOKEN_FILE
            wanted.append(
                f"the token of this daemon's user, which is in {place}, as `Authorization: Bearer TOKEN` or in the address that `ampwatch url` prints"
            )
            challenges.append(f'Bearer realm="{name}"')
        text = f"Expected {', or '.join(wanted)}."
        challenge = ", ".join(challenges)
        if wants_token and "text/html" in headers.get("Accept", ""):
            page = _PAGE.format(
                text=html.escape(text), field=TOKEN_FIELD, days=COOKIE_SECONDS // 86400
            )
            named = {"WWW-Authenticate": challenge}
            return Response(page.encode(), HTML, HTTPStatus.UNAUTHORIZED, named)
        return sentence(HTTPStatus.UNAUTHORIZED, text, WWW_Authenticate=challenge)


def _equal(given: str, secret: str) -> bool:
    """Compare in a time that does not say how much of it is right."""
    return hmac.compare_digest(given.encode("utf-8", "backslashreplace"), secret.encode())


def _cookie(token: str, place: str) -> str:
    """Return name and value of the cookie: what the token allows to read, and not the token.

    A browser sends a cookie to every port of a host, whoever listens there. Nobody can make the
    token of it, which opens other daemons of the user as well. Two daemons behind one name, tunnels
    to two machines for instance, would take it from each other without the place.
    """
    return f"ampwatch-{place}={hmac.new(token.encode(), b'cookie', hashlib.sha256).hexdigest()}"


def _sent_on(path: str, query: str, cookie: str, *, is_tls: bool) -> Response:
    """Send a browser with its cookie to the address without its token.

    What follows ``#`` there it keeps (RFC 9110, 10.2.2). The address is relative: a reverse proxy may
    have put the daemon below a path of its own, and what begins with ``./`` leads to no other host.
    The cookie is lax and not strict: a link in a chat, a mail or a Grafana leads to the page. With
    ``Strict`` it would not, nor would the redirect after such a link; and nothing here can be changed
    by a link.
    """
    attributes = f"Path=/; Max-Age={COOKIE_SECONDS}; HttpOnly; SameSite=Lax{'; Secure' * is_tls}"
    rest = "&".join(f for f in query.split("&") if f.partition("=")[0] != TOKEN_FIELD)
    name = path.replace("\\", "/").rpartition("/")[2]
    return sentence(
        HTTPStatus.SEE_OTHER,
        "The address without its token, which is in a cookie now.",
        Location=f"./{name}{'?' * bool(rest)}{rest}",
        Set_Cookie=f"{cookie}; {attributes}",
    )
