"""HTTP: what is served, to whom, and what a bad client achieves. A real server, a real fleet."""

from __future__ import annotations

import gzip
import json
import logging
import re
import socket
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPResponse
from pathlib import Path
from urllib.parse import urljoin

import bcrypt
import pytest

from ampwatch import __version__, shipped
from ampwatch.host.daemon import server as server_module
from ampwatch.host.daemon import site as site_module
from ampwatch.host.daemon.access import Access
from ampwatch.host.daemon.ended import EndedRuns
from ampwatch.host.daemon.server import Server
from ampwatch.host.daemon.site import Request, Response, Site
from ampwatch.host.daemon.web_config import WebConfig
from ampwatch.host.fleet import Fleet
from ampwatch.host.fleet.fleet import CollectorPass
from ampwatch.wire.ring.layout import LAYOUT
from tests.host.daemon.parts import OPEN, Answer, ask, eventually
from tests.workshop.fleets import made_up_fleet
from tests.workshop.records import step
from tests.workshop.servers import answering


class Served:
    def __init__(self, fleet: Fleet, server: Server) -> None:
        self.fleet = fleet
        self.server = server
        self.port = server.server_port
        self.address = ("127.0.0.1", self.port)

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        return ask(self.address, path, method, **headers)

    @contextmanager
    def raw(self, request: bytes) -> Iterator[socket.socket]:
        """A connection on which ``request`` was sent as it is."""
        with socket.create_connection(self.address, timeout=60) as connection:
            connection.sendall(request)
            yield connection

    def say(self, request: bytes) -> bytes:
        """Bytes that come back until the server closes the connection."""
        with self.raw(request) as connection:
            return b"".join(iter(lambda: connection.recv(65536), b""))


def loud(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Lines that an operator would see in the log."""
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


@contextmanager
def serving(
    host: str = "127.0.0.1",
    web: WebConfig | None = None,
    names: frozenset[str] = frozenset(),
    access: Access = OPEN,
    **options: object,
) -> Iterator[Served]:
    fleet = made_up_fleet()
    options.setdefault("ended", EndedRuns(fleet, "/nowhere"))
    fleet.passes["rings"] = CollectorPass(success=True, duration_seconds=0.0)
    site = Site(fleet, **options)
    server = Server(host, 0, site, web or WebConfig(), names, access)
    with answering(server):
        yield Served(fleet, server)


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


def test_metrics_can_be_asked_for_by_name(served: Served) -> None:
    """The name[] parameter of Prometheus's own client libraries."""
    answer = served.ask("/metrics?name[]=ampwatch_loss_scale")

    samples = [line for line in answer.text.splitlines() if not line.startswith("#")]
    assert samples
    assert all(line.startswith("ampwatch_loss_scale{") for line in samples)


def test_health_says_who_serves(served: Served) -> None:
    """Facts that the launcher needs about a daemon it did not start."""
    health = served.ask("/healthz").json

    assert health["service"] == "ampwatch"
    assert health["version"] == __version__
    assert health["layout"] == LAYOUT
    assert health["scope"] == "user"
    assert "ranks" not in health


def test_a_daemon_that_has_stopped_reading_is_not_healthy() -> None:
    """A liveness probe restarts it."""
    with serving(is_stuck=lambda: True) as served:
        answer = served.ask("/healthz")

    assert answer.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert "stuck" in answer.json["status"]


def test_service_discovery_names_the_address_the_client_came_to(served: Served) -> None:
    """A list of target groups, as http_sd_configs wants it."""
    port = served.address[1]

    answer = served.ask("/sd", Host=f"localhost:{port}")

    assert answer.headers["Content-Type"].startswith("application/json")
    assert answer.json == [{"targets": [f"localhost:{port}"], "labels": {}}]
    assert served.ask("/sd", Host="localhost").json[0]["targets"] == ["localhost:80"]
    assert served.ask("/sd", Host="[::1]").json[0]["targets"] == ["[::1]:80"]


def test_service_discovery_names_the_address_it_was_given() -> None:
    """Behind a proxy only the operator knows it."""
    with serving(external_address="gpu7.example.org:443", https=True) as served:
        (group,) = served.ask("/sd").json

    assert group == {"targets": ["gpu7.example.org:443"], "labels": {"__scheme__": "https"}}


def test_the_page_stays_below_the_path_of_a_reverse_proxy() -> None:
    """Whether that sends its own part of the path on or takes it out: no address begins with a slash."""
    with serving(external_url="https://train.example.com/node-a/") as served:
        found, todo = dict[str, str](), ["/node-a/", "/node-a/explain/"]
        while todo:
            if (path := todo.pop()) in found:
                continue
            answer = served.ask(path)
            assert answer.status == HTTPStatus.OK, path
            found[path] = answer.text
            links = re.findall(r'(?:from|import|href=|src=) ?"([\w./]+)"', answer.text)
            todo += [urljoin(path, link) for link in links]
            assert not re.search(r"""(?:fetch|EventSource|URL)\(["'`]/""", answer.text), path
        health = served.ask("/healthz").json

    assert all(path.startswith("/node-a/") for path in found)
    assert {"/node-a/static/map_draw.js", "/node-a/metrics", "/node-a/docs/page"} <= found.keys()
    assert health["external_url"] == "https://train.example.com/node-a/"


def test_the_page_and_its_files_are_served(served: Served) -> None:
    """With their media types, as nosniff makes browsers insist on them."""
    page = served.ask("/")
    assert page.headers["Content-Type"].startswith("text/html")
    assert "<title>ampwatch</title>" in page.text

    assert served.ask("/static/app.js").headers["Content-Type"].startswith("text/javascript")
    assert served.ask("/static/style.css").headers["Content-Type"].startswith("text/css")


def test_a_file_of_the_page_is_packed_and_sent_once(served: Served) -> None:
    """Gzipped for those who take it, and not at all for those who have it."""
    plain = served.ask("/static/style.css")
    packed = served.ask("/static/style.css", Accept_Encoding="br, gzip")
    again = served.ask("/static/style.css", If_None_Match=packed.headers["ETag"])

    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 2
    assert (again.status, again.body) == (HTTPStatus.NOT_MODIFIED, b"")


def test_gzip_that_is_refused_is_not_sent(served: Served) -> None:
    """q=0 means no."""
    assert "Content-Encoding" in served.ask("/metrics", Accept_Encoding="gzip;q=0.5").headers
    for refusing in ("gzip;q=0", "gzip; q=0.0", "identity", ""):
        answer = served.ask("/metrics", Accept_Encoding=refusing)
        assert "Content-Encoding" not in answer.headers


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/explain/forward_overflow", "an op turns finite inputs into infinity"),
        ("/runbooks/AmpwatchLossScaleCollapsed.md", "Keep the newest checkpoint"),
        ("/docs/", "Use it in a training"),
    ],
)
def test_pages_to_read_are_served(served: Served, path: str, words: str) -> None:
    """By the daemon that shows the finding: nobody is sent to a file of a checkout."""
    page = served.ask(path)
    again = served.ask(path, If_None_Match=page.headers["ETag"])

    assert page.status == HTTPStatus.OK
    assert page.headers["Content-Type"].startswith("text/html")
    assert page.headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert words in page.text
    assert (again.status, again.body) == (HTTPStatus.NOT_MODIFIED, b"")


def test_a_daemon_without_pages_to_read_shows_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An image may have the code alone. It is said once, in the log."""
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path / "ampwatch")

    with serving() as served:
        assert served.ask("/").status == HTTPStatus.OK
        assert served.ask("/explain/forward_overflow").status == HTTPStatus.NOT_FOUND

    assert caplog.text.count("no pages about kinds of findings and alerts are served") == 1


def test_a_path_that_is_nearly_right_is_put_right(served: Served) -> None:
    """Without a list of a hundred pages, and without a word of what was asked for."""
    answer = served.ask("/explain/forward_overflows")

    assert answer.status == HTTPStatus.NOT_FOUND
    assert "There is nothing here; did you mean '/explain/forward_overflow'? The" in answer.text
    assert "divergence" not in answer.text
    assert "overflows" not in answer.text


def test_the_names_of_kernels_can_be_read_by_whoever_mends_the_classifier(served: Served) -> None:
    """They are never labels, so here they are."""
    runs = json.loads(served.ask("/debug/kernels.json").text, parse_constant=pytest.fail)["runs"]

    assert runs["gpt"]["0"]["unlisted"] == ["strange"]


def test_a_map_is_of_one_rank_and_sent_again_only_if_it_is_another(served: Served) -> None:
    """Strict JSON; a page that has it already is told so."""
    answer = served.ask("/map.json?run=gpt&rank=0")
    map_ = json.loads(answer.text, parse_constant=pytest.fail)
    again = served.ask("/map.json?run=gpt&rank=0", If_None_Match=answer.headers["ETag"])

    assert sorted(map_["modules"]) == ["", "head"]
    assert len(map_["rows"]) == 2
    assert (again.status, again.body) == (304, b"")
    history = served.ask("/map.json?run=gpt&rank=0&module=head").json
    assert history["module"] == "head"
    assert served.ask("/map.json?run=gpt&rank=0&module=(root)").json["module"] == ""


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/whatif.json?run=gpt", 400),
        ("/whatif.json?run=gpt&rank=0&exponent=absent", 400),
        ("/whatif.json?run=gpt&rank=0&exponent=9999", 400),
        ("/whatif.json?run=gpt&rank=99", 404),
        ("/map.json?run=gpt", 400),
        ("/map.json?run=gpt&rank=99", 404),
        ("/map.json?run=gpt&rank=0&module=absent", 404),
        (f"/map.json?run={'x' * 5000}&rank=0", 404),
    ],
)
def test_a_map_of_nothing_is_a_sentence(served: Served, path: str, status: int) -> None:
    """What is expected, and nothing of what was asked."""
    answer = served.ask(path)

    assert answer.status == status
    assert answer.text[0].isupper()
    assert "absent" not in answer.text


@pytest.mark.parametrize("path", ["/", "/metrics", "/healthz", "/state.json", "/absent", "/events"])
def test_a_head_request_gets_the_headers_of_a_get_and_no_body(served: Served, path: str) -> None:
    """The connection stays usable."""
    head = served.ask(path, "HEAD")

    assert head.body == b""
    if path != "/events":
        get = served.ask(path)
        assert head.status == get.status
        assert head.headers["Content-Type"] == get.headers["Content-Type"]


@pytest.mark.parametrize(
    "path",
    [
        "/absent",
        "/static/",
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/events/",
    ],
)
def test_nothing_is_served_that_is_not_in_the_table(served: Served, path: str) -> None:
    """No path is ever made into a file name; the answer says what there is."""
    answer = served.ask(path)

    assert answer.status == HTTPStatus.NOT_FOUND
    assert "/metrics" in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_no_method_that_could_change_something_is_answered(served: Served, method: str) -> None:
    """The daemon only shows."""
    answer = served.ask("/metrics", method)

    assert answer.status == HTTPStatus.METHOD_NOT_ALLOWED
    assert answer.headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/", "/metrics", "/absent"])
def test_every_answer_has_the_security_headers(served: Served, path: str) -> None:
    """A browser loads nothing from elsewhere, guesses no type, and shows it in nobody's frame."""
    headers = served.ask(path).headers

    assert headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Frame-Options"] == "deny"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Server"] == "ampwatch"


def test_what_changes_is_not_cached(served: Served) -> None:
    """A proxy must not show a run as it was."""
    for path in ("/metrics", "/healthz", "/state.json", "/sd"):
        assert served.ask(path).headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example"])
def test_on_loopback_a_foreign_host_name_is_refused(served: Served, host: str) -> None:
    """A web page that points its own name to 127.0.0.1 (DNS rebinding) reads nothing."""
    answer = served.ask("/state.json", Host=host)

    assert answer.status == HTTPStatus.FORBIDDEN
    assert "localhost" in answer.text
    assert "gpt" not in answer.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:10917"])
def test_on_loopback_its_own_names_are_answered(served: Served, host: str) -> None:
    """Also at another port, as through `kubectl port-forward`."""
    assert served.ask("/healthz", Host=host).status == HTTPStatus.OK


def test_the_external_name_is_answered_on_loopback_as_well() -> None:
    """A reverse proxy on the same machine hands the Host header on."""
    with serving(names=frozenset({"gpu7"})) as served:
        assert served.ask("/healthz", Host="gpu7").status == HTTPStatus.OK


OWN_NAMES = (
    *("127.0.0.1:10917", "10.1.2.3:10917", "[2001:db8::1]:10917", "localhost", "gpu7", "node3"),
    *("gpu7.node.internal:10917", "ampwatch.monitoring.svc", "gpu7.local", "Daemon.example.org"),
    *("ampwatch.monitoring.svc.cluster.local:10917", "node3.cluster.example"),
)


def test_beyond_loopback_names_that_nobody_else_can_have_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Addresses, names without a domain or in a private one, its own, and the one it was given."""
    (tmp_path / "resolv.conf").write_text("nameserver 10.0.0.1\nsearch lab cluster.example.\n")
    monkeypatch.setattr(server_module, "RESOLV_CONF", tmp_path / "resolv.conf")
    monkeypatch.setattr(socket, "gethostname", lambda: "node3")
    with serving(host="0.0.0.0", names=frozenset({"daemon.example.org"})) as served:
        answers = {host: served.ask("/healthz", Host=host).status for host in OWN_NAMES}

    assert answers == dict.fromkeys(OWN_NAMES, HTTPStatus.OK)


@pytest.mark.parametrize(
    "host", ["evil.example", "10.1.2.3.evil.example:10917", "local.evil.example"]
)
def test_beyond_loopback_a_foreign_host_name_is_refused(host: str) -> None:
    """A page that points its own name to this machine (DNS rebinding) reads nothing."""
    with serving(host="0.0.0.0") as served:
        answer = served.ask("/state.json", Host=host)

    assert answer.status == HTTPStatus.FORBIDDEN
    assert "--web.external-address" in answer.text
    assert "gpt" not in answer.text


def test_beyond_loopback_a_daemon_with_a_password_is_asked_by_any_name() -> None:
    """A page elsewhere has no password; behind a proxy names are many."""
    web = WebConfig(users={"alice": bcrypt.hashpw(b"x", bcrypt.gensalt(4))})
    with serving(host="0.0.0.0", web=web) as served:
        answer = served.ask("/healthz", Host="gpu7.example.org")

    assert answer.status == HTTPStatus.UNAUTHORIZED


@pytest.mark.parametrize(
    "host_lines", [b"", b"Host: a b\r\n", b"Host: localhost\r\nHost: localhost\r\n", b"Host:\r\n"]
)
def test_a_request_without_one_sound_host_is_bad(served: Served, host_lines: bytes) -> None:
    """The name goes into /sd, so it is checked."""
    answer = served.say(b"GET /sd HTTP/1.1\r\nConnection: close\r\n" + host_lines + b"\r\n")

    assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"x" * 60000 + b" / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        b"FROBNICATE / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /metrics?"
        + b"a=1&" * 200
        + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
)
def test_a_client_that_speaks_no_sense_harms_nobody(
    served: Served, request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It gets an answer or a closed connection, nothing loud is logged, the next is served."""
    with suppress(ConnectionError):  # closed before all was sent
        assert b"Traceback" not in served.say(request_bytes)

    assert served.ask("/healthz").status == HTTPStatus.OK
    assert loud(caplog) == []


def test_a_request_line_without_sense_is_answered_in_short(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the answer nor the log repeats any of it."""
    caplog.set_level("DEBUG", "ampwatch")

    answer = served.say(b"x" * 30000 + b"\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"xxx" not in answer
    assert "xxx" not in caplog.text


def test_requests_that_fail_by_our_fault_are_reported_once_a_minute(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the traceback; however often a client asks, it cannot fill the log."""

    def fail(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(served.server.site, "answer", fail)
    for _ in range(5):
        assert served.say(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n") == b""

    (told,) = loud(caplog)
    assert told.exc_info[0] is ZeroDivisionError


def test_the_body_of_a_get_is_not_taken_for_the_next_request(served: Served) -> None:
    """Request smuggling ends with the connection."""
    inner = b"GET /state.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    outer = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(inner)

    answer = served.say(outer + inner)

    assert answer.count(b"HTTP/1.1 ") == 1


class Events:
    """Server-sent events as a browser reads them."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = HTTPResponse(connection)
        self._file.begin()

    def next(self) -> tuple[str, dict[str, object]]:
        # A comment is for nobody: it only shows that the page is still there.
        while not (line := self._file.readline()).startswith(b"event: "):
            assert line.startswith(b":") or line == b"\n"
        name = line.decode().removeprefix("event: ").strip()
        data = json.loads(self._file.readline().decode().removeprefix("data: "))
        assert self._file.readline() == b"\n"
        return name, data


EVENTS = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_the_event_stream_begins_with_everything_and_goes_on_with_changes(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One full event, then a change a second."""
    monkeypatch.setattr(site_module, "EVENT_SECONDS", 0.01)
    with served.raw(EVENTS) as connection:
        events = Events(connection)
        name, full = events.next()
        (rank,) = (r for r in served.fleet.ranks() if (r.run, r.identity.rank) == ("gpt", 0))
        with served.fleet.lock:
            rank.apply(step(4, loss_scale=128.0))
        while True:
            later, patch = events.next()
            assert later == "delta"
            if "runs" in patch:
                break

    assert name == "full"
    assert set(full["runs"]) == {"gpt", "bert"}
    assert patch["runs"]["gpt"]["ranks"]["0"]["step"] == 4
    assert "bert" not in patch["runs"]


def test_a_page_that_takes_gzip_gets_each_event_packed_when_it_comes(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stream for the browser, in parts that were packed once for all pages; none waits for the next."""
    monkeypatch.setattr(site_module, "EVENT_SECONDS", 0.01)
    asking = b"GET /events HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n"
    unpack = zlib.decompressobj(16 + zlib.MAX_WBITS)
    with served.raw(asking) as connection:
        response = HTTPResponse(connection)
        response.begin()
        text = b""
        while text.count(b"event: ") < 3 or not text.endswith(b"\n\n"):
            text += unpack.decompress(response.read1())

    assert response.headers["Content-Encoding"] == "gzip"
    assert response.headers["Vary"] == "Accept-Encoding"
    # Where there is nothing new a comment says that the connection lives.
    names = [event.partition(b"\n")[0] for event in text.split(b"\n\n") if event != b":"]
    assert names[:3] == [b"event: full", b"event: delta", b"event: delta"]


def test_a_page_says_which_ranks_it_shows(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those it gets everything, of others a line."""
    monkeypatch.setattr(site_module, "EVENT_SECONDS", 0.01)
    for query, whole in (("?run=bert&rank=0", {"bert"}), ("?run=bert&with=gpt:0", {"bert", "gpt"})):
        with served.raw(EVENTS.replace(b"/events", b"/events" + query.encode())) as connection:
            _, full = Events(connection).next()
        assert {
            run for run, told in full["runs"].items() if "series" in told["ranks"]["0"]
        } == whole
        assert all("sentence" in told["ranks"]["0"] for told in full["runs"].values())


def test_there_is_room_for_so_many_open_pages_and_then_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds a thread; one that leaves makes room."""
    monkeypatch.setattr(site_module, "EVENT_SECONDS", 0.01)
    served.server.site._streams = threading.BoundedSemaphore(1)
    with served.raw(EVENTS) as connection:
        Events(connection).next()
        refused = served.ask("/events")

    assert refused.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert "pages are open" in refused.text
    # One answer: the room that it took itself may not be free again at once.
    answers: list[HTTPStatus | int] = []
    eventually(
        lambda: answers.append(served.ask("/events", "HEAD").status) or answers[-1] == HTTPStatus.OK
    )
    assert answers[-1] == HTTPStatus.OK


def test_a_client_that_stays_too_long_is_cut(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slowly the bytes drip in: the time does not start anew with each."""
    monkeypatch.setattr(server_module, "CONNECTION_SECONDS", 0.2)
    with served.raw(b"GET / HT") as connection:
        eventually(lambda: _is_cut(connection, b"T"))

    eventually(lambda: not served.server._clients)


def _is_cut(connection: socket.socket, drop: bytes) -> bool:
    connection.settimeout(0.02)
    try:
        connection.sendall(drop)
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_a_client_that_never_reads_its_answer_is_cut(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has asked for is not kept for it."""
    monkeypatch.setattr(server_module, "CONNECTION_SECONDS", 0.2)
    asked = []
    monkeypatch.setattr(
        served.server.site,
        "answer",
        lambda request: asked.append(request) or Response(bytes(1 << 25)),
    )
    with served.raw(b"GET /state.json HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        eventually(lambda: asked and not served.server._clients)


def test_a_client_in_time_is_not_cut(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request gets the full time again, and each answer."""
    within, parts = served.server._within, list[bool]()
    monkeypatch.setattr(
        served.server,
        "_within",
        lambda clients, part: (
            parts.append(clients is served.server._waiting) or within(clients, part)
        ),
    )
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served.raw(request) as connection:
        assert connection.recv(65536)
        connection.sendall(request)
        assert connection.recv(65536)

    eventually(lambda: not served.server._clients)
    # A request, its answer, another one, its answer, and a request that never came.
    assert parts == [True, False, True, False, True]


def test_where_all_room_is_taken_the_one_that_waited_longest_makes_room(served: Served) -> None:
    """A crowd of idle clients keeps nobody out; who is in the middle of an answer stays."""
    served.server._max_connections = 3
    with served.raw(EVENTS) as page:
        events = Events(page)
        events.next()
        with served.raw(b"") as first, served.raw(b"GET /") as second:
            eventually(lambda: len(served.server._clients) == 3)

            assert served.ask("/healthz").status == HTTPStatus.OK
            assert first.recv(1) == b""
            second.sendall(b"healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert second.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert events.next()[0] == "delta"


def test_a_client_that_is_too_many_is_refused_while_all_others_are_being_answered(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that is being made is not given up for one who has not even asked."""
    served.server._max_connections = 1
    go_on = threading.Event()
    monkeypatch.setattr(
        served.server.site, "answer", lambda _: go_on.wait(60) and Response(b"made")
    )
    with served.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") as first:
        eventually(lambda: served.server._clients and not served.server._waiting)
        with served.raw(b"") as second:
            assert second.recv(1) == b""
        go_on.set()
        assert first.recv(65536).endswith(b"made")


def test_a_connection_needs_no_thread(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit of processes all are served as before."""
    served.ask("/healthz")

    class Unstartable(threading.Thread):
        def start(self) -> None:
            message = "can't start new thread"
            raise RuntimeError(message)

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", Unstartable)
        for path in ("/metrics", "/healthz", "/state.json", "/"):
            assert served.ask(path).status == HTTPStatus.OK


def test_a_kind_of_answer_that_takes_long_delays_no_other_kind(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scrape least of all."""
    answer, go_on = served.server.site.answer, threading.Event()

    def slow(request: Request) -> Response:
        return answer(request) if request.path in {"/metrics", "/healthz"} else go_on.wait(60)

    monkeypatch.setattr(served.server.site, "answer", slow)
    waiting = [
        socket.create_connection(served.address, timeout=60) for _ in range(len(SLOW_PATHS) * 3)
    ]
    for connection, path in zip(waiting, SLOW_PATHS * 3, strict=True):
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    assert served.ask("/metrics").status == HTTPStatus.OK
    assert served.ask("/healthz").status == HTTPStatus.OK
    go_on.set()
    for connection in waiting:
        connection.close()


SLOW_PATHS = ("/state.json", "/events", "/static/app.js", "/x", "/metrics?name[]=up")


def test_many_who_scrape_at_once_are_given_one_scrape(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many they are, it is made once for those who wait; never one made before they came."""
    exporter, renders, go_on = served.server.site._exporter, [], threading.Event()
    render = exporter.render

    def counted(*arguments: object) -> tuple[bytes, str]:
        renders.append(arguments)
        go_on.wait(60)
        return render(*arguments)

    monkeypatch.setattr(exporter, "render", counted)
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    first = socket.create_connection(served.address, timeout=60)
    first.sendall(request)
    eventually(lambda: renders)
    others = [socket.create_connection(served.address, timeout=60) for _ in range(20)]
    for connection in others:
        connection.sendall(request)
    eventually(lambda: len(served.server._clients) == 21 and not served.server._waiting)
    go_on.set()
    for connection in (first, *others):
        answer = b"".join(iter(lambda: connection.recv(65536), b""))  # noqa: B023 - read here
        connection.close()
        assert b"ampwatch_loss_scale{" in answer

    assert len(renders) == 2


@pytest.mark.nightly
def test_a_crowd_does_not_stop_the_scrape(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle ones, ones that say half a request or nonsense, ones that never read: all at once."""
    monkeypatch.setattr(site_module, "EVENT_SECONDS", 0.01)
    crowd = [
        (300, b""),
        (40, b"GET / HTTP/1.1\r\nA: "),
        (64, EVENTS),
        (20, b"GET /state.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20),
        (20, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20),
        (20, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
        (20, b"\x00\xffGET GET\r\n" * 500),
        (20, b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"b" * 60000),
    ]
    with ExitStack() as stack:
        for number, words in crowd:
            for _ in range(number):
                connection = stack.enter_context(socket.create_connection(served.address))
                connection.settimeout(1.0)
                with suppress(OSError):  # cut already
                    connection.sendall(words)
        for _ in range(20):
            answer = ask(served.address, "/metrics")
            assert b"ampwatch_loss_scale{" in answer.body


def test_a_head_that_is_too_long_is_refused_in_words(served: Served) -> None:
    """The answer arrives although the client has sent more than was read."""
    answer = served.say(b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"b" * 70000 + b"\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 431 ")


def test_a_client_that_has_closed_its_half_is_answered(served: Served) -> None:
    """`nc -N` does it."""
    with served.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") as connection:
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))

    assert answer.startswith(b"HTTP/1.1 200 ")


def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    """All of them, from what was read at once."""
    request = b"GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n"
    answer = served.say(
        request % (b"/healthz", b"")
        + request % (b"/sd", b"")
        + request % (b"/x", b"Connection: close\r\n")
    )

    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"200", b"404"]


def test_a_client_that_leaves_in_the_middle_is_no_news(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken pipe is not logged as an error."""
    monkeypatch.setattr(site_module, "EVENT_SECONDS", 0.01)
    with served.raw(EVENTS) as connection:
        Events(connection).next()
    eventually(lambda: not served.server._clients)

    assert loud(caplog) == []
