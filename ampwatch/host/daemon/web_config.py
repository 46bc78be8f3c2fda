"""The exporter-toolkit web-config file: TLS, client certificates, users, headers, a rate limit.

A file that cannot be honoured in full is refused: a daemon that starts without
the protection that it was to have is worse than none. Who follows its changes is
`protection.py`.

Source: github.com/prometheus/exporter-toolkit, docs/web-configuration.md.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from ampwatch.errors import DaemonError

TLS_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}

CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
"""The policies Python's ssl can carry out. It has none that takes a certificate unverified."""

HEADERS = (
    "Content-Security-Policy",
    "Strict-Transport-Security",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "X-XSS-Protection",
)
"""The response headers that exporter-toolkit lets a file set."""

SECTIONS = ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")
TLS_KEYS = (
    "cert_file",
    "key_file",
    "client_auth_type",
    "client_ca_file",
    "min_version",
    "max_version",
)
HTTP_KEYS = ("http2", "headers")
LIMIT_KEYS = ("interval", "burst")

DURATION_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
"""Units of a duration as Go writes it, in seconds."""

_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")

_BCRYPT = re.compile(r"\$2[aby]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")


Stamp = tuple[int, ...]
"""What tells that a file is another one: a link to another file, another content, another time."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A bound on requests, over all clients.

    Attributes:
        interval_seconds: Time between two requests that may go on for ever.
        burst: Requests that may come at once.
    """

    interval_seconds: float
    burst: int


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The protection that the file asks for; the default asks for nothing.

    Attributes:
        tls: Context for the server's side of each connection, ``None`` for plain HTTP.
        users: Bcrypt hash by user name; empty for no authentication.
        headers: Headers of every answer, over the daemon's own.
        limit: Bound on requests, ``None`` for none.
        path: Where it was read, empty for nowhere.
        stamps: The files that it was made from, as each was when it was read.
    """

    tls: ssl.SSLContext | None = None
    users: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    limit: RateLimit | None = None
    path: str = ""
    stamps: tuple[tuple[Path, Stamp], ...] = ()


def stamp_of(path: Path) -> Stamp:
    """Return what tells this state of a file from another one; nothing if there is no file."""
    try:
        status = os.stat(path)  # noqa: PTH116 - one call, at every request
    except OSError:
        return ()
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_mode,
    )


def load(path: str) -> WebConfig:
    """Read the web-config file at ``path``.

    Raises:
        DaemonError: If it cannot be read, or asks for anything that cannot be honoured.
    """
    yaml = _required("yaml", "the web-config file")
    # Each before its file is read: what changes meanwhile is found changed later.
    stamps = {Path(path): stamp_of(Path(path))}
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    # Besides its own errors PyYAML raises AttributeError, IndexError and KeyError for tags that do
    # not fit their values, and RecursionError for what nests too deeply.
    except Exception as error:
        msg = f"expected a web-config file at {path!r}, got: {error}; see exporter-toolkit's web-configuration.md"
        raise DaemonError(msg) from error
    sections = _mapping(path, "the file", content, SECTIONS)
    tls = _mapping(path, "tls_server_config", sections.get("tls_server_config"), TLS_KEYS)
    http = _mapping(path, "http_server_config", sections.get("http_server_config"), HTTP_KEYS)
    if http.get("http2"):
        raise _refused(path, "http2", True, "false; this daemon speaks HTTP/1.1")  # noqa: FBT003 - the refused value
    return WebConfig(
        tls=_tls_context(path, tls, stamps) if "tls_server_config" in sections else None,
        users=_users(path, sections.get("basic_auth_users")),
        headers=_headers(path, http.get("headers")),
        limit=_limit(path, sections.get("rate_limit")),
        path=path,
        stamps=tuple(stamps.items()),
    )


def _tls_context(path: str, tls: dict[str, Any], stamps: dict[Path, Stamp]) -> ssl.SSLContext:
    policy = tls.get("client_auth_type") or "NoClientCert"
    verify = _choice(path, "client_auth_type", policy, CLIENT_AUTH)
    # Refused where it says one thing and means another: verified certificates without an
    # authority, or an authority that nothing is verified against.
    authority = tls.get("client_ca_file")
    if bool(authority) != (verify is not ssl.CERT_NONE):
        expected = "a file exactly if client_auth_type verifies certificates"
        raise _refused(path, "client_ca_file", authority, expected)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _choice(
        path, "min_version", tls.get("min_version") or "TLS12", TLS_VERSIONS
    )
    context.maximum_version = _choice(
        path, "max_version", tls.get("max_version") or "TLS13", TLS_VERSIONS
    )
    if context.minimum_version > context.maximum_version:
        raise _refused(path, "max_version", tls.get("max_version"), "not below min_version")
    context.verify_mode = verify
    certificate, key = (_file(path, name, tls.get(name)) for name in ("cert_file", "key_file"))
    authorities = [_file(path, "client_ca_file", authority)] if authority else []
    stamps.update((file, stamp_of(file)) for file in (certificate, key, *authorities))
    try:
        # Without a password function OpenSSL would ask on the terminal of an encrypted key.
        context.load_cert_chain(certificate, key, password=lambda: "")
        for file in authorities:
            context.load_verify_locations(file)
    except (OSError, ValueError) as error:
        msg = f"{path}: expected PEM files with an unencrypted key in tls_server_config, got: {error}; check cert_file, key_file and client_ca_file"
        raise DaemonError(msg) from error
    _warn_of_readers(key)
    return context


def _warn_of_readers(key: Path) -> None:
    """Say that others can read a key; its group may, which is how keys are shared with services."""
    with suppress(OSError):
        if stat.S_IMODE(key.stat().st_mode) & stat.S_IROTH:
            logger.warning(
                "every user of this machine can read the key %s, and pass for the daemon then: chmod o-r it",
                key,
            )


def _limit(path: str, content: Any) -> RateLimit | None:
    limit = _mapping(path, "rate_limit", content, LIMIT_KEYS)
    seconds = _seconds(path, limit.get("interval", 0))
    if not seconds:
        return None
    burst = limit.get("burst", 0)
    # With a burst of 0 no request at all would be answered.
    if not isinstance(burst, int) or isinstance(burst, bool) or burst < 1:
        raise _refused(path, "rate_limit: burst", burst, "a number of requests from 1 on")
    return RateLimit(seconds, burst)


def _seconds(path: str, value: Any) -> float:
    """Return a duration as Go writes it, like ``1m30s`` or ``100ms``; a number is of nanoseconds."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value * DURATION_UNITS["ns"]
    if isinstance(value, str):
        parts = _DURATION_PART.findall(value)
        if parts and "".join(map("".join, parts)) == value:
            return sum(float(number) * DURATION_UNITS[unit] for number, unit in parts)
        if value == "0":
            return 0.0
    raise _refused(path, "rate_limit: interval", value, "a duration like 1s or 100ms, or 0")


def _users(path: str, content: Any) -> dict[str, bytes]:
    users = _mapping(path, "basic_auth_users", content)
    if users:
        _required("bcrypt", "basic_auth_users")
    for name, hashed in users.items():
        # A colon ends the name in the header (RFC 7617), so nobody could ever log in by this one.
        if ":" in name or not isinstance(hashed, str) or not _BCRYPT.fullmatch(hashed):
            # The value is a secret, or a password in clear by mistake: not repeated.
            raise _refused(
                path, f"basic_auth_users: {name}", "something else", "a bcrypt hash, $2y$..."
            )
    return {name: hashed.encode() for name, hashed in users.items()}


def _headers(path: str, content: Any) -> dict[str, str]:
    headers = _mapping(path, "headers", content, HEADERS)
    for name, value in headers.items():
        # A line break in a value would end the header and begin another one.
        if not isinstance(value, str) or not value.isprintable() or not value.isascii():
            raise _refused(path, f"headers: {name}", value, "one line of ASCII text")
    return headers


def _mapping(
    path: str, what: str, content: Any, keys: tuple[str, ...] | None = None
) -> dict[str, Any]:
    """Return ``content`` as a dictionary with no other keys than ``keys``."""
    content = {} if content is None else content
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise _refused(path, what, content, "a mapping of names to values")
    if keys is not None and (unknown := sorted(set(content) - set(keys))):
        msg = f"{path}: expected {what} to have no other keys than {', '.join(keys)}, got {', '.join(unknown)}; the daemon cannot honour the rest, so remove it or put a reverse proxy in front"
        raise DaemonError(msg)
    return content


def _choice(path: str, name: str, value: Any, choices: dict[str, Any]) -> Any:
    if not isinstance(value, str) or value not in choices:
        raise _refused(path, name, value, f"one of {', '.join(choices)}")
    return choices[value]


def _file(path: str, name: str, value: Any) -> Path:
    """Return a file named in the web-config, relative to where that lies."""
    if not isinstance(value, str) or not value:
        raise _refused(path, name, value, "the path of a PEM file")
    # Not relative to where the daemon was started: exporter-toolkit does it like this.
    return Path(path).resolve().parent / value


def _refused(path: str, name: str, value: Any, expected: str) -> DaemonError:
    msg = f"{path}: expected `{name}` to be {expected}, got {value!r}; a web-config that cannot be honoured is refused"
    return DaemonError(msg)


def _required(module: str, what: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        msg = f"expected the package of module {module!r} for {what}, found none; pip install 'ampwatch[web]'"
        raise DaemonError(msg) from error
