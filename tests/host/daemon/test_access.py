"""Who may read a daemon: its user, who has the token, and nobody else on the machine."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import bcrypt
import pytest

from ampwatch.host.daemon.access import Access
from ampwatch.host.daemon.web_config import WebConfig
from ampwatch.wire.rendezvous.token import TOKEN_FILE, ensure_token
from tests.host.daemon import test_http
from tests.host.daemon.parts import ROOT, Daemon, Place, ask, eventually
from tests.host.daemon.test_tls import basic

ROUTES = (
    *(
        "/",
        "/metrics",
        "/sd",
        "/state.json",
        "/ranks",
        "/events",
        "/map.json",
        "/map.json?run=gpt&rank=0",
        "/whatif.json?run=gpt&rank=0",
        "/debug/kernels.json",
        "/ended/",
        "/ended/report?run=0-gpt",
        "/static/app.js",
    ),
    *("/explain/", "/docs/settings", "/runbooks/", "/absent", "/healthz/", "/healthz/../"),
)
"""One of each kind, and some that there are not."""

WRONG = "A" * 43


class Served(test_http.Served):
    """A server, and the token that opens it."""

    token = ""

    def entered(self, **headers: str) -> str:
        """The cookie that a browser gets for the token, as it sends it back."""
        answer = self.ask(f"/?token={self.token}", **headers)
        return str(answer.headers["Set-Cookie"]).partition(";")[0]


@contextmanager
def serving(
    directory: Path, readers: str = "auto", web: WebConfig | None = None, *, machine: bool = False
) -> Iterator[Served]:
    access = Access("machine" if machine else "user", readers, directory)
    with test_http.serving(web=web, access=access, machine=machine) as open_server:
        served = Served(open_server.fleet, open_server.server)
        served.token = ensure_token(directory)
        yield served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as served:
        yield served


def users() -> WebConfig:
    return WebConfig(users={"alice": bcrypt.hashpw(b"open sesame", bcrypt.gensalt(4))})


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": f"Bearer {WRONG}"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer"},
        {"Authorization": "Basic OkE="},
        {"Authorization": "Bearer \u00e9"},
        {"Cookie": f"ampwatch-80={WRONG}; ampwatch-80="},
        {"Cookie": "=; ;;ampwatch-80"},
    ],
    ids=["none", "wrong", "empty", "bare", "basic", "strange", "cookie", "no-cookie"],
)
def test_who_has_no_token_reads_nothing(served: Served, headers: dict[str, str]) -> None:
    """Not a run, not even which paths there are: one sentence, which says where the token is."""
    asked = [f"{path}{query}" for path in ROUTES for query in ("", f"?token={WRONG}")]
    answers = [served.ask(path, Host="localhost", **headers) for path in asked]

    for answer in answers:
        assert answer.status == HTTPStatus.UNAUTHORIZED
        assert answer.headers["WWW-Authenticate"] == 'Bearer realm="ampwatch user"'
        assert TOKEN_FILE in answer.text
        assert len(answer.text.splitlines()) == 1
        assert "gpt" not in answer.text
        assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("path", ["/metrics", "/state.json", "/healthz", "/sd?x=1"])
def test_a_program_sends_the_token_in_a_header(served: Served, path: str) -> None:
    """As Prometheus does, and whatever the case of the scheme (RFC 9110, 11.1)."""
    for scheme in ("Bearer", "bearer", "BEARER"):
        answer = served.ask(path, Authorization=f"{scheme} {served.token}")
        assert answer.status == HTTPStatus.OK
        assert "Set-Cookie" not in answer.headers


def test_a_browser_is_sent_on_to_the_address_without_the_token(served: Served) -> None:
    """With a cookie that opens every route, for this port of this name alone."""
    host = f"localhost:{served.port}"
    answer = served.ask(f"/explain/?a=1&token={served.token}&b=%20", Host=host)
    cookie, *attributes = answer.headers["Set-Cookie"].split("; ")

    assert answer.status == HTTPStatus.SEE_OTHER
    assert answer.headers["Location"] == "./?a=1&b=%20"
    assert set(attributes) == {"Path=/", "Max-Age=2592000", "HttpOnly", "SameSite=Lax"}
    assert cookie.startswith(f"ampwatch-{served.port}=")
    for path in ("/", "/metrics", "/state.json"):
        assert served.ask(path, Host=host, Cookie=f"a=b; {cookie}").status == HTTPStatus.OK
    # Through a tunnel that ends at another port the browser knows the daemon by that one.
    elsewhere = served.ask("/", Host="localhost:8000", Cookie=cookie)
    assert elsewhere.status == HTTPStatus.UNAUTHORIZED
    tunnelled = served.entered(Host="localhost:8000")
    assert tunnelled.startswith("ampwatch-8000=")
    assert served.ask("/", Host="localhost:8000", Cookie=tunnelled).status == HTTPStatus.OK


def test_daemons_below_paths_of_one_name_take_no_cookie_from_one_another(tmp_path: Path) -> None:
    """A reverse proxy has them all at one port."""
    access, url = Access("user", "auto", tmp_path), "https://train.example.com/node-a/"
    names = frozenset({"train.example.com"})
    with test_http.serving(access=access, external_url=url, names=names) as served:
        ask = partial(served.ask, f"/node-a/?token={ensure_token(tmp_path)}")
        cookies = [
            ask(Host=host).headers["Set-Cookie"]
            for host in ("localhost:443", "train.example.com:443")
        ]

    for cookie in cookies:
        assert cookie.startswith("ampwatch-443-node-a=")
    # Over plain HTTP a browser would send back no cookie that is for TLS.
    assert ["Secure" in cookie for cookie in cookies] == [False, True]


@pytest.mark.parametrize("slashes", ["//", "/\\", "\\\\", "//\\//"])
def test_nobody_is_sent_to_another_host(served: Served, slashes: str) -> None:
    """Two slashes begin one, of either kind to a browser."""
    path = f"{slashes}evil.example/?token={served.token}"
    answer = served.say(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())

    assert b"\r\nLocation: ./\r\n" in answer


def test_the_cookie_is_not_the_token(served: Served) -> None:
    """A browser sends it to every port of the host: whoever gets it there can read, no more."""
    _, _, value = served.entered().partition("=")

    assert served.token not in value
    assert value == hmac.new(served.token.encode(), b"cookie", hashlib.sha256).hexdigest()
    assert served.ask("/", Authorization=f"Bearer {value}").status == HTTPStatus.UNAUTHORIZED
    assert served.ask(f"/?token={value}").status == HTTPStatus.UNAUTHORIZED


def test_who_serves_can_be_asked_without_a_token(served: Served) -> None:
    """A training has to know before it believes; of runs nothing is said."""
    health = served.ask("/healthz")

    assert health.status == HTTPStatus.OK
    assert health.json.keys() == {
        *("service", "status", "version", "layout", "scope", "uid", "pid", "external_url"),
    }


def test_a_person_is_told_on_a_page_and_can_enter_the_token_there(served: Served) -> None:
    """Which a browser asks for; without a word of the runs."""
    answer = served.ask("/", Accept="text/html,application/xhtml+xml,*/*;q=0.8")

    assert answer.status == HTTPStatus.UNAUTHORIZED
    assert answer.headers["Content-Type"].startswith("text/html")
    assert "`ampwatch url`" in answer.text
    assert '<input name="token" type="password"' in answer.text
    assert served.token not in answer.text
    assert "gpt" not in answer.text


def test_the_token_is_in_no_log_and_in_no_answer(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """Not at the level of details, not where a request is nonsense, not in a Referer."""
    caplog.set_level(logging.DEBUG)
    secret = served.token
    said = [served.ask(f"{path}?token={secret}&x", "GET") for path in ROUTES]
    said += [served.ask(f"/?token={secret}", method) for method in ("HEAD", "POST", "PUT")]
    said.append(served.ask(f"/absent?token={WRONG}", Authorization=f"Bearer {secret}"))
    said.append(served.ask("/state.json", Authorization=f"Bearer {secret}"))
    said.append(served.ask(f"/?token={secret}", Host="evil.example"))
    texts = [f"{answer.headers}{answer.text}" for answer in said]
    lines = (f"GET /?token={secret} x y", f"/?token={secret}", f"GET /?token={secret} HTTP/9")
    texts += [served.say(f"{line}\r\n\r\n".encode()).decode() for line in lines]

    assert "GET /?... 303" in caplog.text
    for text in (*texts, caplog.text):
        assert secret not in text
    assert {answer.headers["Referrer-Policy"] for answer in said} == {"no-referrer"}


def test_the_file_decides_and_not_what_was_read_at_the_start(tmp_path: Path) -> None:
    """A token that has got out is taken back by removing the file, without a new daemon."""
    with serving(tmp_path) as served:
        cookie = served.entered(Host="localhost")
        (tmp_path / TOKEN_FILE).unlink()
        old = {"Authorization": f"Bearer {served.token}"}
        assert served.ask("/sd", **old).status == HTTPStatus.UNAUTHORIZED

        new = {"Authorization": f"Bearer {ensure_token(tmp_path)}"}
        assert served.ask("/sd", **new).status == HTTPStatus.OK
        assert served.ask("/sd", Host="localhost", Cookie=cookie).status == HTTPStatus.UNAUTHORIZED


@pytest.mark.parametrize(
    ("readers", "machine", "has_users", "anybody", "with_token", "with_password"),
    [
        ("auto", False, False, 401, 200, 401),
        ("auto", False, True, 401, 401, 200),
        ("auto", True, False, 200, 200, 200),
        ("auto", True, True, 401, 401, 200),
        ("token", False, True, 401, 200, 200),
        ("token", True, False, 401, 200, 401),
        ("all", False, False, 200, 200, 200),
        ("all", False, True, 401, 401, 200),
    ],
)
def test_what_is_asked_for_follows_from_scope_setting_and_web_config(
    tmp_path: Path,
    readers: str,
    anybody: int,
    with_token: int,
    with_password: int,
    *,
    machine: bool,
    has_users: bool,
) -> None:
    """A password of the web-config is proof enough; a machine's daemon is for all unless told otherwise."""
    web = users() if has_users else WebConfig()
    with serving(tmp_path, readers, web, machine=machine) as served:
        known = basic("alice", "open sesame")

        assert served.ask("/sd").status == anybody
        assert served.ask("/sd", Authorization=f"Bearer {served.token}").status == with_token
        assert served.ask("/sd", Authorization=known).status == with_password


def test_a_token_is_made_only_where_it_is_asked_for(tmp_path: Path) -> None:
    """The directory of a service may be read-only to it."""
    for readers, scope in (("all", "user"), ("auto", "machine")):
        Access(scope, readers, tmp_path)
    assert not (tmp_path / TOKEN_FILE).exists()

    Access("user", "auto", tmp_path)
    assert stat.S_IMODE((tmp_path / TOKEN_FILE).stat().st_mode) == 0o600


STRANGER = """
import http.client, json, os, sys
from pathlib import Path
"127.0.0.1".encode("idna")  # the last module is loaded before it may lie where nobody else can enter
os.setgroups([]); os.setgid(65534); os.setuid(65534)
directory, port, paths = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
found = {}
for path in paths:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    found[path] = [answer.status, answer.read().decode()]
    connection.close()
try:
    found["file"] = (directory / "daemon.token").read_text()
except PermissionError:
    found["file"] = None
print(json.dumps(found))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_reads_nothing(running: tuple[Place, Daemon]) -> None:
    """A real daemon, a real run, a real second uid; and the run's own user reads it."""
    place, daemon = running
    with place.writer("secret-project") as writer:
        writer.do("step")
        eventually(lambda: "secret-project" in daemon.ask("/metrics").text, "the run is shown")
        asked = [*ROUTES, "/healthz"]
        command = [sys.executable, "-c", STRANGER, str(place.runtime), str(daemon.info.port)]
        told = subprocess.run(
            [*command, json.dumps(asked)], check=True, capture_output=True, text=True, cwd=ROOT
        ).stdout
        found = json.loads(told)
        mine = daemon.ask("/state.json")

    assert "secret-project" in mine.text
    assert found.pop("file") is None
    assert found.pop("/healthz")[0] == HTTPStatus.OK
    assert {status for status, _ in found.values()} == {HTTPStatus.UNAUTHORIZED}
    assert "secret-project" not in told
    assert daemon.token not in told


def test_the_command_prints_the_address_that_opens_the_page(running: tuple[Place, Daemon]) -> None:
    """Or the header, for a program: neither stands on a command line, which all can read."""
    place, daemon = running

    def said(*options: str) -> str:
        with place.command("url", *options) as process:
            return process.communicate(timeout=60)[0].strip()

    url, header = said(), said("--header")
    with place.writer("linked") as training:
        eventually(lambda: "linked" in daemon.states(), "the run")
        deep = said("--run", "linked", "--rank", "3", "--step", "8", "--finding", "overflow@a.b")
        training.do("finish and keep")
    entered = ask((daemon.info.host, daemon.info.port), f"/?{urlsplit(url).query}")
    name, _, value = header.partition(": ")
    read = ask((daemon.info.host, daemon.info.port), "/sd", **{name: value})

    assert url == daemon.address
    assert deep == f"{url}#run=linked&rank=3&step=8&finding=overflow@a.b"
    assert entered.status == HTTPStatus.SEE_OTHER
    assert read.status == HTTPStatus.OK


def test_the_command_says_where_there_is_no_daemon_and_no_token(place: Place) -> None:
    """The token is not given to whoever else listens on the port."""
    with place.command("url") as process:
        told, why = process.communicate(timeout=60)
    with place.daemon(AMPWATCH_READERS="all") as daemon, place.command("url") as opened:
        url = opened.communicate(timeout=60)[0].strip()
    with place.command("url", "--rank", "3") as misused:
        told_then, why_then = misused.communicate(timeout=60)

    assert (misused.returncode, told_then) == (2, "")
    assert "expected --run NAME with --rank, --step or --finding" in why_then
    assert (process.returncode, told) == (1, "")
    assert "no daemon shows your runs" in why
    assert url == daemon.info.url
