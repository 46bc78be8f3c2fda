"""The web-config of a daemon that runs: taken anew when its files change, kept when they are broken."""

from __future__ import annotations

import os
import signal
import socket
import ssl
from http import HTTPStatus
from pathlib import Path

import bcrypt
import pytest

from ampwatch.host.daemon import web_config
from ampwatch.host.daemon.protection import RETRY_SECONDS, Protection, TokenBucket
from ampwatch.host.daemon.web_config import RateLimit, WebConfig
from tests.host.daemon.parts import Place, ask, eventually
from tests.host.daemon.test_basic_auth import header
from tests.host.daemon.test_http import loud, serving
from tests.workshop.clocks import Clock

HASHES = {
    name: bcrypt.hashpw(name.encode(), bcrypt.gensalt(4)).decode() for name in ("alice", "bob")
}
TLS = "tls_server_config: {cert_file: server.pem, key_file: server.key}\n"


def users(*names: str) -> str:
    return f"basic_auth_users: {{{', '.join(f'{name}: {HASHES[name]}' for name in names)}}}\n"


def write(path: Path, text: str) -> Path:
    """Replace a file as an operator's tool does: whole, by a rename."""
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.rename(path)
    return path


def protection(path: Path, clock: Clock | None = None) -> Protection:
    return Protection(web_config.load(str(path)), clock or Clock())


@pytest.fixture
def files(certificates: Path, tmp_path: Path) -> Path:
    """Certificates that a test may change."""
    for file in certificates.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
        (tmp_path / file.name).chmod(0o600)
    return tmp_path


def test_users_that_change_are_asked_for_at_the_next_request(tmp_path: Path) -> None:
    """One who is gone is refused, also where the password was known to be right."""
    path = write(tmp_path / "web.yml", users("alice"))
    with serving(web=web_config.load(str(path))) as served:
        assert served.ask("/healthz", Authorization=header("alice", "alice")).status == 200

        write(path, users("bob"))
        refused = served.ask("/healthz", Authorization=header("alice", "alice"))
        taken = served.ask("/healthz", Authorization=header("bob", "bob"))

    assert refused.status == HTTPStatus.UNAUTHORIZED
    assert taken.status == HTTPStatus.OK


def test_headers_and_the_rate_limit_follow_the_file(tmp_path: Path) -> None:
    """Like all of it."""
    path = write(tmp_path / "web.yml", "")
    with serving(web=web_config.load(str(path))) as served:
        write(path, "http_server_config: {headers: {X-Frame-Options: sameorigin}}")
        assert served.ask("/healthz").headers.get_all("X-Frame-Options") == ["sameorigin"]
        write(path, "rate_limit: {interval: 1h, burst: 1}")
        assert [served.ask("/healthz").status for _ in range(2)] == [200, 429]


def test_a_certificate_that_is_renewed_is_shown_to_the_next_client(files: Path) -> None:
    """A renewal every few weeks needs no restart. Connections that stand go on."""
    path = write(files / "web.yml", TLS)

    def shown(address: tuple[str, int]) -> bytes:
        context = ssl.create_default_context(cafile=files / "ca.pem")
        with (
            socket.create_connection(address, timeout=60) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            return secure.getpeercert(binary_form=True) or b""

    with serving(web=web_config.load(str(path))) as served:
        before = shown(served.address)
        for suffix in ("pem", "key"):
            (files / f"client.{suffix}").rename(files / f"server.{suffix}")
        after = shown(served.address)

    assert before
    assert after not in (b"", before)


@pytest.mark.parametrize(
    "broken",
    [
        "basic_auth_users: {",
        "basic_auth_users: {alice: open sesame}",
        "unknown: 1",
        "",
        TLS,
    ],
)
def test_a_file_that_is_broken_or_opens_the_daemon_changes_nothing(
    files: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is reported once, and a file that is right again is taken."""
    path = write(files / "web.yml", users("alice"))
    kept = protection(path)
    before = kept.web

    write(path, broken)
    for _ in range(3):
        kept.refresh()

    assert kept.web is before
    assert len(loud(caplog)) == 1
    assert "stays in force" in loud(caplog)[0].getMessage()
    assert "open sesame" not in caplog.text

    write(path, users("bob"))
    kept.refresh()
    assert set(kept.web.users) == {"bob"}


def test_a_file_that_has_gone_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A mount that is renewed is away for a moment."""
    path = write(tmp_path / "web.yml", users("alice"))
    kept = protection(path)

    path.unlink()
    kept.refresh()

    assert set(kept.web.users) == {"alice"}
    assert len(loud(caplog)) == 1


@pytest.mark.parametrize(
    "weaker", ["", ", client_ca_file: ca.pem, client_auth_type: VerifyClientCertIfGiven"]
)
def test_certificates_of_clients_are_asked_for_until_a_restart(files: Path, weaker: str) -> None:
    """A file alone does not let everybody read, nor everybody who leaves his certificate away."""
    strict = "client_ca_file: ca.pem, client_auth_type: RequireAndVerifyClientCert"
    path = write(files / "web.yml", TLS.replace("}", f", {strict}}}"))
    kept = protection(path)

    write(path, TLS.replace("}", f"{weaker}}}"))
    kept.refresh()

    assert kept.web.tls.verify_mode is ssl.CERT_REQUIRED


def test_a_certificate_without_its_key_is_waited_for(files: Path) -> None:
    """Two files cannot be replaced at once. What is named and missing is looked for again."""
    clock = Clock()
    path = write(files / "web.yml", TLS)
    kept = protection(path, clock)
    before = kept.web.tls

    (files / "client.pem").rename(files / "server.pem")
    kept.refresh()
    assert kept.web.tls is before

    (files / "client.key").rename(files / "server.key")
    kept.refresh()
    assert kept.web.tls is not before

    before = kept.web.tls
    write(path, TLS.replace("server.", "next."))
    kept.refresh()
    for suffix in ("pem", "key"):
        os.link(files / f"server.{suffix}", files / f"next.{suffix}")
    clock.now += RETRY_SECONDS
    kept.refresh()
    assert kept.web.tls is not before


def test_nothing_is_read_while_nothing_changes(tmp_path: Path) -> None:
    """A request costs a stat of each file; a signal reads them in any case."""
    path = write(tmp_path / "web.yml", users("alice"))
    kept = protection(path)
    before, auth = kept.web, kept.auth

    kept.refresh()
    assert kept.web is before

    kept.refresh(force=True)
    assert kept.web is not before
    # The same users: a password that was found right is still known.
    assert kept.auth is auth


def test_a_daemon_without_a_file_has_nothing_to_read(caplog: pytest.LogCaptureFixture) -> None:
    """SIGHUP does nothing then, and harms nothing."""
    kept = Protection(WebConfig(), Clock())
    kept.refresh(force=True)

    assert kept.auth is None
    assert loud(caplog) == []


def test_sighup_reads_the_web_config_again_and_ends_nothing(place: Place, tmp_path: Path) -> None:
    """Also without a file, and however often."""
    path = write(tmp_path / "web.yml", users("alice"))
    with place.daemon("--web.config.file", str(path), "--log-level", "info") as daemon:
        address = ("127.0.0.1", daemon.info.port)
        daemon.process.send_signal(signal.SIGHUP)
        eventually(lambda: "again" in daemon.process.stderr.readline(), "the line in the log")
        write(path, users("bob"))
        daemon.process.send_signal(signal.SIGHUP)

        assert ask(address, "/healthz", Authorization=header("bob", "bob")).status == 200
        assert daemon.process.poll() is None
        # Before the last line of the test: nothing else reads the pipe.
        daemon.process.terminate()
        daemon.process.communicate(timeout=60)
    assert daemon.process.returncode == 0


def test_a_token_bucket_allows_bursts_and_a_rate() -> None:
    """Full at first; then one an interval, and no more saved than the burst."""
    clock = Clock()
    bucket = TokenBucket(RateLimit(2.0, 3), clock)

    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    clock.now += 2.0
    assert [bucket.take() for _ in range(2)] == [True, False]
    clock.now += 1000.0
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
