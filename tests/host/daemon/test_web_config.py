"""The web-config file: honoured in full, or refused."""

from __future__ import annotations

import ssl
import sys
from pathlib import Path

import pytest

from ampwatch.errors import DaemonError
from ampwatch.host.daemon import web_config

HASH = "$2b$04$" + "a" * 53


def load(directory: Path, text: str) -> web_config.WebConfig:
    path = directory / "web.yml"
    path.write_text(text)
    return web_config.load(str(path))


def test_an_empty_file_asks_for_nothing(tmp_path: Path) -> None:
    """An empty file is a valid one, as with exporter-toolkit."""
    config = load(tmp_path, "")

    assert (config.tls, config.users, config.headers) == (None, {}, {})


def test_everything_that_is_supported_is_taken(certificates: Path) -> None:
    """Paths are relative to the file, versions and policies become those of ssl."""
    config = load(
        certificates,
        f"""
        tls_server_config:
          cert_file: server.pem
          key_file: server.key
          client_auth_type: RequireAndVerifyClientCert
          client_ca_file: ca.pem
          min_version: TLS13
        basic_auth_users: {{alice: {HASH}}}
        http_server_config:
          http2: false
          headers: {{X-Frame-Options: deny}}
        """,
    )

    assert config.tls is not None
    assert config.tls.verify_mode is ssl.CERT_REQUIRED
    assert config.tls.minimum_version is ssl.TLSVersion.TLSv1_3
    assert config.users == {"alice": HASH.encode()}
    assert config.headers == {"X-Frame-Options": "deny"}


def test_without_a_version_it_is_tls_1_2_and_newer(certificates: Path) -> None:
    """The defaults of exporter-toolkit."""
    tls = load(certificates, "tls_server_config: {cert_file: server.pem, key_file: server.key}").tls

    assert (tls.minimum_version, tls.maximum_version) == (
        ssl.TLSVersion.TLSv1_2,
        ssl.TLSVersion.TLSv1_3,
    )
    assert tls.verify_mode is ssl.CERT_NONE


PAIR = "cert_file: server.pem, key_file: server.key"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("- list", "mapping"),
        ("rate_limit: {interval: 1s}", "burst"),
        ("rate_limit: {interval: 1s, burst: 0}", "burst"),
        ("rate_limit: {interval: 1s, burst: true}", "burst"),
        ("rate_limit: {interval: fast, burst: 1}", "interval"),
        ("rate_limit: {interval: -1s, burst: 1}", "interval"),
        ("rate_limit: {every: 1s}", "every"),
        ("basic_auth_user: {}", "basic_auth_user"),
        ("tls_server_config: {}", "cert_file"),
        ("tls_server_config:", "cert_file"),
        ("tls_server_config: {cert_file: server.pem}", "key_file"),
        ("tls_server_config: {cert_file: absent.pem, key_file: server.key}", "cert_file"),
        ("tls_server_config: {cert_file: ca.pem, key_file: server.key}", "tls_server_config"),
        ("tls_server_config: {cert_file: server.pem, key_file: locked.key}", "unencrypted"),
        (f"tls_server_config: {{{PAIR}, cipher_suites: [X]}}", "cipher_suites"),
        (f"tls_server_config: {{{PAIR}, client_allowed_sans: [a]}}", "client_allowed_sans"),
        (f"tls_server_config: {{{PAIR}, min_version: TLS10}}", "min_version"),
        (
            f"tls_server_config: {{{PAIR}, min_version: TLS13, max_version: TLS12}}",
            "max_version",
        ),
        (f"tls_server_config: {{{PAIR}, client_auth_type: RequireAnyClientCert}}", "RequireAny"),
        (
            f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert}}",
            "client_ca_file",
        ),
        (f"tls_server_config: {{{PAIR}, client_ca_file: ca.pem}}", "client_ca_file"),
        ("basic_auth_users: {alice: secret}", "alice"),
        ("basic_auth_users: {alice: 7}", "alice"),
        ("basic_auth_users: [alice]", "basic_auth_users"),
        ("http_server_config: {http2: true}", "http2"),
        ("http_server_config: {headers: {X-Powered-By: us}}", "X-Powered-By"),
        ('http_server_config: {headers: {X-Frame-Options: "a\\r\\nb"}}', "X-Frame-Options"),
        ("tls_server_config: {", "web-config"),
        ("!!python/object/apply:os.system [true]", "web-config"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    certificates: Path, text: str, named: str
) -> None:
    """Better no daemon than one without the protection it was told to have."""
    with pytest.raises(DaemonError, match=named):
        load(certificates, text)


@pytest.mark.parametrize(
    ("interval", "seconds"),
    [
        ("1s", 1.0),
        ("100ms", 0.1),
        ("1m30s", 90.0),
        ("1.5h", 5400.0),
        ("250µs", 0.00025),
        (10**9, 1.0),
    ],
)
def test_a_rate_limit_is_read_as_go_reads_it(
    tmp_path: Path, interval: str | int, seconds: float
) -> None:
    """A duration with units; a bare number is of nanoseconds."""
    config = load(tmp_path, f"rate_limit: {{interval: {interval}, burst: 20}}")

    assert config.limit.interval_seconds == pytest.approx(seconds)
    assert config.limit.burst == 20


@pytest.mark.parametrize(
    "text", ["rate_limit:", "rate_limit: {}", "rate_limit: {interval: 0, burst: 5}"]
)
def test_a_rate_limit_without_an_interval_is_none(tmp_path: Path, text: str) -> None:
    """As with exporter-toolkit."""
    assert load(tmp_path, text).limit is None


def test_a_key_that_everybody_can_read_is_warned_of(
    certificates: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who has it passes for the daemon. A group may read it: that is how services share keys."""
    for name in ("server.pem", "server.key"):
        (tmp_path / name).write_bytes((certificates / name).read_bytes())
    key = tmp_path / "server.key"
    key.chmod(0o640)
    load(tmp_path, f"tls_server_config: {{{PAIR}}}")
    assert caplog.text == ""

    key.chmod(0o644)
    load(tmp_path, f"tls_server_config: {{{PAIR}}}")
    assert str(key) in caplog.text


def test_a_password_in_clear_is_not_repeated_in_the_error(tmp_path: Path) -> None:
    """The message ends up in a log."""
    with pytest.raises(DaemonError) as caught:
        load(tmp_path, "basic_auth_users: {alice: my-password}")

    assert "my-password" not in str(caught.value)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """A typo in the path does not start an unprotected daemon."""
    with pytest.raises(DaemonError, match=r"absent\.yml"):
        web_config.load(str(tmp_path / "absent.yml"))


@pytest.mark.parametrize("module", ["yaml", "bcrypt"])
def test_a_missing_package_is_an_error_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """Without bcrypt nobody could be asked for a password."""
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(DaemonError, match=r"pip install 'ampwatch\[web\]'"):
        load(tmp_path, f"basic_auth_users: {{alice: {HASH}}}")
