"""The state that commands ask this user's daemon for."""

from __future__ import annotations

from base64 import b64encode
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from ampwatch.cli import daemon_state
from ampwatch.errors import DaemonError
from ampwatch.report.rank_list import RankList, RunRow, packed
from ampwatch.report.verdict import Level
from ampwatch.settings import Settings
from ampwatch.wire.blackbox import Box, files
from ampwatch.wire.records import RunState
from ampwatch.wire.rendezvous.lock import DaemonInfo, DaemonLock
from ampwatch.wire.rendezvous.token import ensure_token
from tests.workshop.records import identity
from tests.workshop.servers import Quiet, answering

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Answers = dict[str, tuple[int, bytes]]
QUIET = ("", "", "", "")


def list_of(*runs: str) -> bytes:
    """The answer of a daemon that shows these runs, of which no rank has said anything."""
    return packed(RankList("1", 0.0, [RunRow(run, Level.HEALTHY, QUIET) for run in runs], []))


STATE = list_of("gpt")


class Asked:
    """The requests that a daemon has got: paths, and what proves who asks."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.headers: list[Any] = []


@contextmanager
def serving(
    directory: Path, answers: Answers, *, wants_token: bool, password: str | None = None
) -> Iterator[Asked]:
    """A program that holds the lock of ``directory`` and answers so."""
    asked = Asked()

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.paths.append(self.path)
            asked.headers.append(dict(self.headers))
            status, body = answers.get(self.path, (404, b"nothing here"))
            wanted = "" if password is None else b64encode(password.encode()).decode()
            if wanted and self.headers["Authorization"] != f"Basic {wanted}":
                status, body = 401, b"a password is wanted"
            self.send_response(status)
            if wanted and status == HTTPStatus.UNAUTHORIZED:
                self.send_header("WWW-Authenticate", 'Basic realm="ampwatch user"')
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    lock = DaemonLock.take(directory)
    assert lock is not None
    lock.publish(
        DaemonInfo(1, "http", "127.0.0.1", server.server_port, "1", 1, wants_token=wants_token)
    )
    with answering(server):
        try:
            yield asked
        finally:
            lock.release()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    place = tmp_path / "mine"
    place.mkdir(mode=0o700)
    return place


def read(directory: Path) -> list[str]:
    return [of.run for of in daemon_state.read(Settings(runtime_dir=str(directory), port=0)).runs]


def test_it_asks_for_the_ranks_and_proves_who_it_is(directory: Path) -> None:
    """The token goes in a header, by the name of loopback."""
    token = ensure_token(directory)
    with serving(directory, {"/ranks": (200, STATE)}, wants_token=True) as asked:
        assert read(directory) == ["gpt"]

    assert asked.paths == ["/ranks"]
    assert asked.headers[0]["Authorization"] == f"Bearer {token}"
    assert asked.headers[0]["Host"].startswith("localhost:")


def test_no_token_goes_to_whom_wants_none(directory: Path) -> None:
    ensure_token(directory)
    with serving(directory, {"/ranks": (200, STATE)}, wants_token=False) as asked:
        assert read(directory) == ["gpt"]

    assert "Authorization" not in asked.headers[0]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((401, b"who are you"), "asks for a password: 'who are you'"),
        ((503, b"too many"), "answered with status 503: 'too many'"),
        ((200, b"<html>"), "if it is of another release, end it"),
        ((200, STATE.replace(b"healthy", b"cosmic!")), "if it is of another release, end it"),
        ((404, b"There is nothing here."), "if it is of another release, end it"),
    ],
)
def test_what_is_no_state_is_said(directory: Path, answer: tuple[int, bytes], told: str) -> None:
    """In one sentence."""
    with (
        serving(directory, {"/ranks": answer}, wants_token=False),
        pytest.raises(DaemonError, match=told.replace("[", r"\[")),
    ):
        read(directory)


def test_a_token_that_is_refused_is_not_the_user_s_fault(directory: Path) -> None:
    """It says which file, and what to do."""
    ensure_token(directory)
    with (
        serving(directory, {"/ranks": (401, b"")}, wants_token=True),
        pytest.raises(DaemonError, match=r"refused the token in '.*daemon\.token'; end"),
    ):
        read(directory)


def test_nobody_who_merely_listens_is_asked(directory: Path) -> None:
    """Without a lock there is no daemon, whoever has the port."""
    with serving(directory, {"/ranks": (200, STATE)}, wants_token=False):
        elsewhere = directory.parent / "elsewhere"
        elsewhere.mkdir(mode=0o700)
        with pytest.raises(
            DaemonError, match=r"no daemon shows your runs \(none in '[^']*'\); start"
        ) as refused:
            read(elsewhere)
    assert "ampwatch report" not in str(refused.value)


def test_without_a_daemon_reports_still_tell_of_runs_that_ended(directory: Path) -> None:
    """Where there are any: after a run that has died its daemon ends as well."""
    reports = directory / "reports"
    files.write(reports, Box(identity(), RunState.FAILED, "it broke"), most=4)
    settings = Settings(runtime_dir=str(directory), port=0, report_dir=str(reports))

    with pytest.raises(DaemonError, match=r"none in .*; `ampwatch report` says what went"):
        daemon_state.read(settings)


def test_a_daemon_that_has_gone_without_a_word_is_said(directory: Path) -> None:
    """Its lock is held by somebody who does not answer."""
    lock = DaemonLock.take(directory)
    assert lock is not None
    lock.publish(DaemonInfo(1, "http", "127.0.0.1", 1, "1", 1))
    try:
        with pytest.raises(DaemonError, match=r"did not answer: .*refused"):
            read(directory)
    finally:
        lock.release()


@pytest.fixture
def netrc_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(path))
    path.touch(mode=0o600)
    return path


def test_a_password_is_taken_from_where_curl_takes_it(directory: Path, netrc_file: Path) -> None:
    """It is sent to a daemon that asks for it, and to no other."""
    netrc_file.write_text("machine localhost login ada password secret\n", encoding="utf-8")
    answers = {"/ranks": (200, STATE)}
    with serving(directory, answers, wants_token=False, password="ada:secret") as asked:
        assert read(directory) == ["gpt"]
    assert [("Authorization" in headers) for headers in asked.headers] == [False, True]

    with serving(directory, answers, wants_token=False) as asked:
        read(directory)
    assert [("Authorization" in headers) for headers in asked.headers] == [False]


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        ("", 0o600, "put the name and password of its web-config file in '.*netrc', as `machine"),
        ("default login ada password secret", 0o600, "put the name and password"),
        (
            "machine localhost login ada password wrong",
            0o600,
            "refused the password of 'ada' in '.*netrc'",
        ),
        (
            "machine localhost login ada password secret",
            0o644,
            "others can read .*: its mode is 0644; run: chmod 600",
        ),
        ("nonsense", 0o600, "netrc' is not a valid netrc file: bad toplevel"),
    ],
)
def test_a_password_that_is_not_there_or_wrong_is_said(
    directory: Path, netrc_file: Path, text: str, mode: int, told: str
) -> None:
    """With the file, and what to write into it; never with the password."""
    netrc_file.write_text(text, encoding="utf-8")
    netrc_file.chmod(mode)
    answers = {"/ranks": (200, STATE)}
    with (
        serving(directory, answers, wants_token=False, password="ada:secret"),
        pytest.raises(DaemonError, match=told) as refused,
    ):
        read(directory)

    assert "secret" not in str(refused.value)
    assert "wrong" not in str(refused.value)
