"""The routes of the daemon: a table of functions from request to response.

Nothing here writes to anything but the connection; there is no route that changes
or triggers something. No sockets here, and no HTTP.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ampwatch import __version__
from ampwatch.errors import did_you_mean
from ampwatch.host.daemon.assets import find_assets, find_pages
from ampwatch.host.daemon.ended import DAYS, EndedRuns
from ampwatch.host.metrics.prometheus import PrometheusExporter
from ampwatch.host.metrics.scopes import ROOT_MODULE
from ampwatch.host.page.as_json import encoded
from ampwatch.host.page.broadcast import GZIP_HEAD, Broadcast
from ampwatch.host.page.ended_page import PICKED, list_html, refused_html
from ampwatch.host.page.lines import Shown
from ampwatch.host.page.map_state import Maps
from ampwatch.host.page.page import Feed
from ampwatch.host.page.precision_state import kernel_names
from ampwatch.host.page.rank_lists import RankLists
from ampwatch.host.page.reading import ENDED
from ampwatch.host.page.whatif_state import FARTHEST, Asked, WhatIfs
from ampwatch.report.html_report import POLICY, render_html
from ampwatch.wire.ring.layout import LAYOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from ampwatch.host.fleet import Fleet

SERVICE = "ampwatch"

LANES = dict.fromkeys(("metrics", "health", "page", "rest", "rare"), 512) | {
    "login": 32,
    "reports": 32,
}
"""The kinds of answers, each with a thread: what floods one of them delays no other. By each, how
many may wait. Of guessed passwords few: whoever logs in for the first time waits behind them, each
for up to a quarter of a second."""

SHARED = frozenset({"/state.json", "/ranks"})
"""Paths whose answer is one for all who ask for it at the same time."""

MAX_STREAMS = 64
"""Open pages at a time."""

MAX_GUESSED = 200
"""Longest path for which a near one is looked for: that takes time for each pair of letters."""

MAX_ASKED = 1000
"""Characters of a name in a query that are read."""

EVENT_SECONDS = 1.0

PLAIN = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"
EVENTS = "text/event-stream; charset=utf-8"
HTML = "text/html; charset=utf-8"

REPORT = f"{ENDED.route}report"
"""The path of the report of a run that has ended."""

REPORT_HEADERS = {
    # A report has its style in it, loads nothing and runs nothing.
    "Content-Security-Policy": f"{POLICY}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

NO_REPORTS = "This daemon shows no reports."


@dataclass(frozen=True, slots=True)
class Request:
    """The part of a request that answers depend on.

    Attributes:
        path: Without the query.
        known_etag: The ``If-None-Match`` header.
        address: ``host:port`` that the client reached the daemon by.
    """

    path: str
    query: Mapping[str, list[str]]
    accept: str
    known_etag: str
    address: str
    takes_gzip: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    """An answer.

    Attributes:
        body: The content, gzipped if ``packed``.
        stream: Instead of a body, chunks that go on until the client leaves. To be closed.
        pause_seconds: Time between two chunks.
    """

    body: bytes = b""
    content_type: str = PLAIN
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)
    packed: bool = False
    stream: Generator[bytes, None, None] | None = None
    pause_seconds: float = 0.0


def sentence(status: HTTPStatus, text: str, **headers: str) -> Response:
    """Return an answer that is a sentence for a human."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(f"{text}\n".encode(), PLAIN, status, named)


def json_response(value: Any, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Return ``value`` as JSON."""
    return Response(b"".join(encoded(value)), JSON, status)


class Site:
    """The routes.

    Args:
        external_address: ``host:port`` for ``/sd``; where the client came to if empty.
        is_stuck: Returns whether the daemon has stopped reading rings.
        external_url: Address by which others open the page; empty if nobody gave one.
        ended: The runs that have ended, ``None`` to show none.

    Attributes:
        prefix: Path of that address, below which a reverse proxy may send requests on.
        tls_address: Host and port of that address, ``None`` unless it has TLS.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        machine: bool = False,
        external_address: str = "",
        is_stuck: Callable[[], bool] = lambda: False,
        https: bool = False,
        external_url: str = "",
        ended: EndedRuns | None = None,
    ) -> None:
        self.scope = "machine" if machine else "user"
        self._fleet = fleet
        self._exporter = PrometheusExporter(fleet)
        self._ended = ended or EndedRuns(fleet, "", refusal=lambda: NO_REPORTS)
        self._feed = Feed(fleet, lists_ended=lambda: not self._ended.refusal())
        self._broadcast = Broadcast(self._feed)
        self._rank_lists = RankLists(fleet)
        self._maps = Maps(fleet)
        self._what_ifs = WhatIfs(fleet)
        self._external_address = external_address
        self._is_stuck = is_stuck
        self._https = https
        self._external_url = external_url
        external = urlsplit(external_url)
        self.prefix = external.path.rstrip("/")
        is_tls = external.scheme == "https"
        self.tls_address = (external.hostname, external.port or 443) if is_tls else None
        pages = find_pages()
        self._assets = find_assets() | pages
        self._streams = threading.BoundedSemaphore(MAX_STREAMS)
        # The kind of each answer, one of ``LANES``, and what makes it.
        self._routes: dict[str, tuple[str, Callable[[Request], Response]]] = {
            "/metrics": ("metrics", self._metrics),
            "/healthz": ("health", self._health),
            "/sd": ("rest", self._discovery),
            "/state.json": ("page", self._state),
            "/ranks": ("page", self._ranks),
            "/events": ("page", self._events),
            "/map.json": ("page", self._map),
            "/whatif.json": ("page", self._what_if),
            "/debug/kernels.json": ("page", self._kernels),
            ENDED.route: ("reports", self._ended_runs),
            REPORT: ("reports", self._report),
        } | dict.fromkeys(self._assets, ("rest", self._asset))
        # Of pages to read their lists are enough: there are a hundred.
        listed = self._routes.keys() - {REPORT} - {path for path in pages if path[-1] != "/"}
        self._listed = sorted(listed)

    def has(self, path: str) -> bool:
        """Return whether there is anything at ``path``, whatever is asked for in its query."""
        return path.partition("?")[0] in self._routes

    def answer(self, request: Request) -> Response:
        """Return the answer to a GET or HEAD request."""
        route = self._routes.get(request.path)
        if route is None:
            near = did_you_mean(request.path[:MAX_GUESSED], self._routes)
            text = (
                f"There is nothing here{near or '.'} The daemon serves {', '.join(self._listed)}."
            )
            return sentence(HTTPStatus.NOT_FOUND, text)
        _, make = route
        return make(request)

    def lane(self, request: Request) -> tuple[str, str | None]:
        """Return the kind of answer that a request wants, one of ``LANES``.

        Returns:
            Also what the answer depends on, if it is one for all who ask for it at the same time.
        """
        if request.path == "/metrics":
            usual = self._exporter.usual(request.accept, request.query.get("name[]", []))
            return ("rare", None) if usual is None else ("metrics", usual)
        lane, _ = self._routes.get(request.path, ("rest", None))
        return lane, request.path if request.path in SHARED else None

    def _metrics(self, request: Request) -> Response:
        names = request.query.get("name[]", [])
        if self._exporter.usual(request.accept, names) is None:
            return Response(*self._exporter.render(request.accept, names))
        # The work of pages waits meanwhile.
        with self._fleet.priority.first():
            return Response(*self._exporter.render(request.accept, names))

    def _health(self, _: Request) -> Response:
        # Answered from another thread than the loop, so that a loop that hangs can be seen here.
        stuck = self._is_stuck()
        health = {
            "service": SERVICE,
            "status": "stuck: no ring was read for a while, see the log" if stuck else "ok",
            "version": __version__,
            "layout": LAYOUT,
            "scope": self.scope,
            "uid": os.geteuid(),
            "pid": os.getpid(),
            "external_url": self._external_url,
        }
        return json_response(health, HTTPStatus.SERVICE_UNAVAILABLE if stuck else HTTPStatus.OK)

    def _discovery(self, request: Request) -> Response:
        """Answer Prometheus's HTTP service discovery: this daemon is the one target."""
        labels = {"__scheme__": "https"} if self._https else {}
        target = self._external_address or request.address
        return json_response([{"targets": [target], "labels": labels}])

    def _state(self, _: Request) -> Response:
        chunks = encoded(self._feed.full(self._feed.usual_age), self._fleet.priority.step_aside)
        return Response(b"".join(chunks), JSON)

    def _ranks(self, _: Request) -> Response:
        return Response(self._rank_lists.sent(), "application/vnd.msgpack")

    def _map(self, request: Request) -> Response:
        """Answer with the map of the modules of a rank, or with the history of one of them."""
        run, rank, module = _member(request.query)
        if run is None or rank is None:
            text = "Expected a run and a rank of it, as in /map.json?run=train&rank=0."
            return sentence(HTTPStatus.BAD_REQUEST, text)
        answer = self._maps.answer(run, rank, module)
        if answer is None:
            text = (
                "There is no such run here, or it has no such rank, or no such module is measured."
            )
            return sentence(HTTPStatus.NOT_FOUND, text)
        headers = {"ETag": answer.etag}
        if answer.etag in request.known_etag:
            return Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(answer.packed, JSON, headers=headers, packed=True)

    def _what_if(self, request: Request) -> Response:
        """Answer with what would become of the gradients of a rank, or of a module of it."""
        run, rank, module = _member(request.query)
        exponent = _asked(request.query, "exponent")
        try:
            power = None if exponent is None else int(exponent)
        except ValueError:
            power = FARTHEST + 1
        if run is None or rank is None or (power is not None and abs(power) > FARTHEST):
            text = (
                "Expected a run, a rank of it and the exponent of a scale, as in"
                " /whatif.json?run=train&rank=0&format=float16&exponent=12."
            )
            return sentence(HTTPStatus.BAD_REQUEST, text)
        fmt = _asked(request.query, "format") or ""
        state = self._what_ifs.of(Asked(run, rank, module, fmt, power))
        if state is None:
            text = "There is no such run here, or it has no such rank."
            return sentence(HTTPStatus.NOT_FOUND, text)
        return json_response(state)

    def _kernels(self, _: Request) -> Response:
        """Answer whoever checks how the names of kernels were taken."""
        return json_response(kernel_names(self._fleet))

    def _ended_runs(self, request: Request) -> Response:
        """Answer with the list of runs that have ended, and with two of them compared if two are named."""
        if why := self._ended.refusal():
            return Response(refused_html(why).encode(), HTML, HTTPStatus.FORBIDDEN)
        picked = _all_asked(request.query, PICKED)
        two = picked if len(picked) == 2 else []
        listing = self._ended.listing(two)
        page = list_html(
            listing.rows,
            directory=self._ended.directory,
            days=DAYS,
            num_left_out=listing.num_left_out,
            problems=listing.problems,
            picked=picked,
            compared=listing.picked if all(listing.picked) else (),
        )
        return Response(page.encode(), HTML)

    def _report(self, request: Request) -> Response:
        """Answer with the report of a run of that list."""
        if why := self._ended.refusal():
            return Response(refused_html(why).encode(), HTML, HTTPStatus.FORBIDDEN)
        key = "".join(_all_asked(request.query, PICKED))
        (boxes,) = self._ended.listing([key]).picked
        if not boxes:
            text = "The list of ended runs, /ended/, has no such run, or has it no more."
            return sentence(HTTPStatus.NOT_FOUND, text)
        return Response(render_html(boxes).encode(), HTML, headers=REPORT_HEADERS)

    def _asset(self, request: Request) -> Response:
        asset = self._assets[request.path]
        headers = {"ETag": asset.etag, "Cache-Control": "no-cache"}
        # A client may know several, in one header; the quotes of the tag keep one from being taken
        # for a part of another.
        if asset.etag in request.known_etag:
            return Response(
                status=HTTPStatus.NOT_MODIFIED, headers=headers, content_type=asset.content_type
            )
        return Response(asset.packed, asset.content_type, headers=headers, packed=True)

    def _events(self, request: Request) -> Response:
        stream = self._stream(_shown(request.query), packed=request.takes_gzip)
        # The first chunk is taken here, while a status code can still say that there is no room.
        if next(stream, None) is None:
            text = f"{MAX_STREAMS} pages are open, which is all the daemon serves; close one."
            return sentence(HTTPStatus.SERVICE_UNAVAILABLE, text, Retry_After="30")
        headers = {"Vary": "Accept-Encoding"}
        if request.takes_gzip:
            headers["Content-Encoding"] = "gzip"
        return Response(
            content_type=EVENTS, headers=headers, stream=stream, pause_seconds=EVENT_SECONDS
        )

    def _stream(self, shown: Shown, *, packed: bool) -> Generator[bytes, None, None]:
        """Yield server-sent events: everything once, then what has changed.

        The first chunk is empty and says that there is room for one more; without it
        there is none. Every change has the time in it, so none is ever empty and the
        connection never silent.
        """
        # Not waited for: each page that waits would hold a connection.
        if not self._streams.acquire(blocking=False):
            return
        try:
            yield b""
            channel, seen = self._broadcast.channel(shown), 0
            head = GZIP_HEAD if packed else b""
            while True:
                # A client that has left is noticed by the next write, which raises, so that the
                # generator is closed and gives its place back.
                seen, events = channel.since(seen, EVENT_SECONDS)
                yield head + b"".join(e.packed if packed else e.plain for e in events)
                head = b""
        finally:
            self._streams.release()


def _shown(query: Mapping[str, list[str]]) -> Shown:
    """Return the ranks that a page asks for: ``run``, ``rank``, and ``with`` as ``run:rank``."""
    run, rank, beside = (_asked(query, name) for name in ("run", "rank", "with"))
    if beside is None:
        return Shown(run, rank)
    other, _, index = beside.rpartition(":")
    return Shown(run, rank, (other, index))


def _member(query: Mapping[str, list[str]]) -> tuple[str | None, str | None, str | None]:
    """Return the run, the rank and the module of it that are asked for."""
    run, rank, module = (_asked(query, name) for name in ("run", "rank", "module"))
    # An empty value of a query is none, so the root goes by the name that metrics have for it.
    return run, rank, "" if module == ROOT_MODULE else module


def _all_asked(query: Mapping[str, list[str]], name: str) -> list[str]:
    """Return all values of a name that are asked for, each as far as ``_asked`` does."""
    return [value[:MAX_ASKED] for value in query.get(name, [])]


def _asked(query: Mapping[str, list[str]], name: str) -> str | None:
    """Return a name that is asked for, as far as one can be that long; ``None`` without one."""
    return next(iter(_all_asked(query, name)), None)
