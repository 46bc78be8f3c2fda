"""A Grafana that is not there, is none, is old, or does not let in: each told in words."""

from __future__ import annotations

import importlib.util
import ssl
from typing import TYPE_CHECKING

import pytest

from ampwatch.cli import main
from tests.host.daemon.certificates import make_certificates
from tests.integration.prometheus import free_port
from tests.operate.grafana.conftest import PROMETHEUS, Commands, Said
from tests.operate.grafana.standin import TOKEN, Grafana, serving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Command = Callable[..., Said]


def test_an_expired_token_is_reported(ampwatch: Command, grafana: Grafana) -> None:
    """The message says where to make a new one."""
    said = ampwatch("push", GRAFANA_TOKEN="glsa_expired")

    assert said.status == 1
    assert "got 401: Invalid API key; the token is wrong, expired, revoked" in said.err
    assert "Service accounts" in said.err
    assert "glsa_expired" not in said.out + said.err


def test_a_token_comes_from_a_file(ampwatch: Command, tmp_path: Path) -> None:
    """Before that of the environment."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")

    said = ampwatch("push", *PROMETHEUS, "--token-file", str(file), GRAFANA_TOKEN="")

    assert said.status == 0


def test_a_server_that_sends_back_the_token_does_not_get_it_shown(
    ampwatch: Command, grafana: Grafana
) -> None:
    """The answer repeats the request, as debugging proxies do."""
    echo = f"Authorization: Bearer {TOKEN}"
    grafana.replies["/api/folders/ampwatch"] = (500, "text/plain", echo)

    said = ampwatch("push")

    assert "got 500: Authorization: Bearer <token>; Grafana's log says more" in said.err


def test_an_old_grafana_is_reported(ampwatch: Command, grafana: Grafana) -> None:
    """Nothing is written to it."""
    grafana.version = "9.5.21"

    said = ampwatch("push", *PROMETHEUS)

    assert (said.status, grafana.writes) == (1, [])
    assert "expected Grafana 10.4 or newer" in said.err
    assert "got 9.5.21" in said.err


@pytest.mark.parametrize("hidden", ["", "null"])
def test_a_grafana_that_hides_its_version_is_taken_as_it_is(
    ampwatch: Command, grafana: Grafana, hidden: str
) -> None:
    """From everybody, or from those without a token."""
    grafana.version = ""
    if hidden:
        settings = '{"buildInfo": null}'
        grafana.replies["/api/frontend/settings"] = (200, "application/json", settings)

    assert ampwatch("push", *PROMETHEUS).status == 0


@pytest.mark.parametrize(
    ("path", "reply", "told"),
    [
        ("/api/health", (200, "text/html", "<html><title>Sign in</title>"), "a page of HTML 'Sign in'"),
        ("/api/health", (200, "application/json", '{"status":"success"}'), "none of Grafana's"),
        ("/api/health", (200, "application/json", "{nonsense"), "none of Grafana's"),
        ("/api/health", (404, "text/plain", "404 page not found"), "check the address"),
        ("/api/health", (503, "text/html", "<h1>Service Unavailable</h1>"), "Grafana is starting"),
        ("/api/folders/ampwatch", (200, "text/html", "<title>Login</title>"), "'Login'"),
        ("/api/folders/ampwatch", (500, "application/json", '{"message":"Internal"}'), "Internal"),
        ("/api/search", (200, "application/json", "{}"), "none of Grafana's"),
    ],
)  # fmt: skip
def test_what_is_no_grafana_is_reported(
    ampwatch: Command, grafana: Grafana, path: str, reply: tuple[int, str, str], told: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    """A login page, Prometheus, nonsense, a proxy."""
    if path == "/api/search":
        grafana.folders["ampwatch"] = "ampwatch"
    grafana.replies[path] = reply

    said = ampwatch("export", str(tmp_path / "backup"))

    assert said.status == 1
    assert told in said.err
    assert said.err.count("\n") == 1


def test_a_grafana_below_a_path_is_reached_and_its_root_is_reported(
    commands: Commands, dashboards: Path
) -> None:
    """With a slash at the end or without."""
    grafana = Grafana(prefix="/monitoring/grafana")
    with serving(grafana) as url:
        for address in (url, f"{url}/"):
            argv = ("grafana", "push", *PROMETHEUS, "--dashboards", str(dashboards))
            said = commands(*argv, "--url", address, GRAFANA_TOKEN=TOKEN)
            assert (said.status, said.err) == (0, "")
        root = url.removesuffix(grafana.prefix)
        said = commands(*argv, "--url", root, GRAFANA_TOKEN=TOKEN)

    assert said.status == 1
    assert "got a redirect to another address; give that one, with its sub-path" in said.err


@pytest.mark.nightly
def test_a_grafana_that_does_not_answer_in_time_is_reported(
    ampwatch: Command, grafana: Grafana
) -> None:
    """In the time that was given."""
    grafana.delay_s = 1.0

    said = ampwatch("push", "--timeout", "0.1")

    assert said.status == 1
    assert "within 0.1 s, got none" in said.err


def test_nobody_at_the_address_is_reported(commands: Commands, dashboards: Path) -> None:
    """A closed port, a name that nobody has."""
    argv = ("grafana", "push", "--dashboards", str(dashboards), "--url")

    closed = commands(*argv, f"http://127.0.0.1:{free_port()}", GRAFANA_TOKEN=TOKEN)
    unknown = commands(*argv, "http://grafana.invalid", GRAFANA_TOKEN=TOKEN)

    assert "got no connection: Connection refused" in closed.err
    assert "expected a Grafana at http://grafana.invalid, got no connection" in unknown.err
    assert {closed.err.count("\n"), unknown.err.count("\n")} == {1}


@pytest.mark.services
def test_tls_is_verified(commands: Commands, dashboards: Path, tmp_path: Path) -> None:
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


def test_without_the_client_the_command_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, dashboards: Path
) -> None:
    """In an environment of its own, not in this one, which trains."""
    assert importlib.util.find_spec("grafana_client") is None, "it would replace urllib3 here"
    monkeypatch.setenv("GRAFANA_URL", "http://localhost:3000")
    monkeypatch.setenv("GRAFANA_TOKEN", TOKEN)

    assert main(["grafana", "push", "--dashboards", str(dashboards)]) == 1

    said = capsys.readouterr().err
    assert "expected the package grafana-client, which is not installed here" in said
    assert "uvx --from 'ampwatch[grafana]' ampwatch grafana" in said
    assert "takes the place of urllib3" in said
