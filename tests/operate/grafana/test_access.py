"""A Grafana that is not there, is none, is old, or does not let in: each told in one line."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.host.daemon.certificates import make_certificates
from tests.integration.prometheus import free_port
from tests.operate.grafana.conftest import PROMETHEUS, Command
from tests.operate.grafana.standin import TOKEN, Grafana, serving


def test_an_expired_token_is_reported(ampwatch: Command) -> None:
    """The message says where to make a new one."""
    said = ampwatch("push", GRAFANA_TOKEN="glsa_expired")

    assert said.status == 1
    assert "got 401: Invalid API key; the token is wrong, expired, revoked" in said.err
    assert "Service accounts" in said.err
    assert "glsa_expired" not in said.out + said.err


@pytest.mark.parametrize(
    ("version", "is_old"),
    [("9.5.21", 1), ("10.3.9", 1), ("10.4.0", 0), ("12.1.0-89012pre", 0), ("", 0), ("next", 0)],
)
def test_an_old_grafana_is_refused(
    ampwatch: Command, grafana: Grafana, version: str, is_old: int
) -> None:
    """Nothing is written to it; one that says nothing readable is taken as it is."""
    grafana.version = version

    said = ampwatch("push", *PROMETHEUS)

    assert (said.status, not grafana.writes) == (is_old, is_old)
    told = f"got {version}, which would show the dashboards wrongly"
    assert (told in said.err) == is_old


@pytest.mark.parametrize(
    ("path", "reply", "told"),
    [
        ("/api/health", (200, "text/html", "<html><title>Sign in</title>"), "a page of HTML 'Sign in'"),
        ("/api/health", (200, "application/json", '{"status":"success"}'), "none of Grafana's"),
        ("/api/health", (200, "application/json", "{nonsense"), "none of Grafana's"),
        ("/api/health", (404, "text/plain", "404 page not found"), "check the address"),
        ("/api/health", (503, "text/html", "<h1>Service Unavailable</h1>"), "Grafana is starting"),
        ("/api/search", (200, "text/html", "<title>Login</title>"), "'Login'"),
        ("/api/search", (500, "application/json", '{"message":"Internal"}'), "got 500: Internal;"),
        ("/api/search", (500, "text/plain", f"Bearer {TOKEN}"), "Bearer <token>; Grafana's log says more"),
        ("/api/search", (500, "text/plain", f"{'x' * 190}{TOKEN}"), "xxx<token>"),
        ("/api/search", (200, "application/json", "{}"), "none of Grafana's"),
    ],
)  # fmt: skip
def test_what_is_no_grafana_is_reported(
    ampwatch: Command, grafana: Grafana, path: str, reply: tuple[int, str, str], told: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    """A login page, Prometheus, nonsense, a proxy; one that sends back the token, too."""
    grafana.replies[path] = reply

    said = ampwatch("export", str(tmp_path / "backup"))

    assert said.status == 1
    assert told in said.err
    assert said.err.count("\n") == 1
    assert TOKEN[:8] not in said.err


def test_a_grafana_below_a_path_is_reached_and_its_root_is_reported(
    commands: Command, dashboards: Path, tmp_path: Path
) -> None:
    """With a slash at the end or without, with a token from a file. No redirect is followed."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    argv = ("grafana", "push", *PROMETHEUS, "--dashboards", str(dashboards))
    argv += ("--token-file", str(tmp_path / "token"), "--url")
    grafana = Grafana(prefix="/monitoring/grafana")
    with serving(grafana) as url:
        for address in (url, f"{url}/"):
            said = commands(*argv, address, GRAFANA_TOKEN="glsa_of-another")
            assert (said.status, said.err) == (0, "")
        grafana.asked.clear()
        said = commands(*argv, url.removesuffix(grafana.prefix))

    assert (said.status, len(grafana.asked)) == (1, 1)
    assert "got a redirect to another address; give that one, with its sub-path" in said.err


@pytest.mark.nightly
def test_no_answer_in_time_is_reported(ampwatch: Command, grafana: Grafana) -> None:
    grafana.delay_s = 1.0

    said = ampwatch("push", "--timeout", "0.1")

    assert said.status == 1
    assert "within 0.1 s, got none" in said.err


def test_nobody_at_the_address_is_reported(commands: Command, dashboards: Path) -> None:
    """A closed port, a name that nobody has."""
    argv = ("grafana", "push", "--dashboards", str(dashboards), "--url")

    closed = commands(*argv, f"http://127.0.0.1:{free_port()}", GRAFANA_TOKEN=TOKEN)
    unknown = commands(*argv, "http://grafana.invalid", GRAFANA_TOKEN=TOKEN)

    assert "got no connection: Connection refused" in closed.err
    assert "expected a Grafana at http://grafana.invalid, got no connection" in unknown.err
    assert {closed.err.count("\n"), unknown.err.count("\n")} == {1}


@pytest.mark.services
def test_tls_is_verified(commands: Command, dashboards: Path, tmp_path: Path) -> None:
    """By an authority that is named, unless it is not wanted; TLS where there is none is told."""
    directory = make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.pem", directory / "server.key")
    argv = ("grafana", "push", *PROMETHEUS, "--dashboards", str(dashboards))
    with serving(Grafana(), context) as url:
        environment = {"GRAFANA_URL": url, "GRAFANA_TOKEN": TOKEN}
        unknown = commands(*argv, **environment)
        trusted = commands(*argv, "--ca-file", str(directory / "ca.pem"), **environment)
        unverified = commands(*argv, "--insecure", **environment)
        plain = commands(*argv, "--url", url.replace("https", "http"), GRAFANA_TOKEN=TOKEN)
    with serving(Grafana()) as url:
        no_tls = commands(*argv, "--url", url.replace("http", "https"), GRAFANA_TOKEN=TOKEN)

    assert "expected a certificate that is trusted" in unknown.err
    assert "name its authority with --ca-file" in unknown.err
    assert (trusted.status, trusted.err, unverified.status) == (0, "", 0)
    assert plain.status == 1
    assert "is it http:// there?" in no_tls.err
