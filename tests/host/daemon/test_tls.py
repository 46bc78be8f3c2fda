"""A protected daemon: real certificates, real passwords, a real process."""

from __future__ import annotations

import base64
import ssl
from http import HTTPStatus
from pathlib import Path

import bcrypt
import pytest

from ampwatch.host.daemon.access import Access
from ampwatch.host.daemon.web_config import load
from ampwatch.wire.rendezvous.token import ensure_token
from tests.host.daemon import test_http
from tests.host.daemon.parts import Place, ask

PAIR = "cert_file: server.pem, key_file: server.key"
TLS = f"tls_server_config: {{{PAIR}}}\n"
MUTUAL = f"tls_server_config: {{{PAIR}, client_ca_file: ca.pem, client_auth_type: RequireAndVerifyClientCert}}\n"
PASSWORD = "open sesame"


def web_config(directory: Path, text: str) -> str:
    path = directory / "web.yml"
    path.write_text(text)
    return str(path)


def users() -> str:
    return f"basic_auth_users: {{alice: {bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}}}\n"


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def trusting(certificates: Path, who: str = "") -> ssl.SSLContext:
    """A client that knows the authority, with the certificate of ``who`` if given."""
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    if who:
        context.load_cert_chain(certificates / f"{who}.pem", certificates / f"{who}.key")
    return context


def test_tls_and_a_password_are_both_asked_for(place: Place, certificates: Path) -> None:
    """Every route wants the password; the certificate is the one of the file."""
    path = web_config(certificates, TLS + users())
    with place.daemon("--web.config.file", path) as daemon:
        address, context = ("127.0.0.1", daemon.info.port), trusting(certificates)
        right = ask(address, "/sd", context=context, Authorization=basic("alice", PASSWORD))
        refused = {
            route: ask(address, route, context=context)
            for route in ("/", "/metrics", "/healthz", "/sd", "/events", "/static/app.js", "/x")
        }
        wrong = ask(address, "/metrics", context=context, Authorization=basic("alice", "x"))

    assert daemon.info.scheme == "https"
    assert right.status == HTTPStatus.OK
    assert right.json[0]["labels"] == {"__scheme__": "https"}
    assert {r.status for r in refused.values()} == {HTTPStatus.UNAUTHORIZED}
    assert refused["/"].headers["WWW-Authenticate"].startswith("Basic realm=")
    assert wrong.status == HTTPStatus.UNAUTHORIZED


def test_a_plain_client_gets_nothing_from_a_tls_port(certificates: Path, tmp_path: Path) -> None:
    """The daemon goes on serving the others."""
    web, access = load(web_config(certificates, TLS)), Access("user", "auto", tmp_path)
    with test_http.serving(web=web, access=access) as served:
        address = served.address
        with pytest.raises(OSError, match=r".*"):
            ask(address, "/metrics")
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(address, "/metrics", context=ssl.create_default_context())

        context = trusting(certificates)
        assert ask(address, "/metrics", context=context).status == HTTPStatus.UNAUTHORIZED
        right = f"Bearer {ensure_token(tmp_path)}"
        assert ask(address, "/sd", context=context, Authorization=right).status == HTTPStatus.OK


def test_only_a_client_with_a_certificate_of_the_authority_is_served(certificates: Path) -> None:
    """Neither one without, nor one that somebody else has signed."""
    with test_http.serving(web=load(web_config(certificates, MUTUAL))) as served:
        address = served.address
        for stranger in ("", "stranger"):
            with pytest.raises(OSError, match=r".*"):
                ask(address, "/metrics", context=trusting(certificates, stranger))

        known = ask(address, "/metrics", context=trusting(certificates, "client"))

    assert known.status == HTTPStatus.OK


def test_the_daemon_does_not_start_on_a_web_config_it_cannot_honour(
    place: Place, certificates: Path
) -> None:
    """One line on stderr that names the key, exit status 1, and no lock held."""
    path = web_config(certificates, TLS + "rate_limit: {interval: 1s}\n")
    with place.command("daemon", "--web.config.file", path) as process:
        _, said = process.communicate(timeout=200)

    assert process.returncode == 1
    assert "rate_limit" in said
    assert len(said.splitlines()) == 1
    assert place.info() is None
