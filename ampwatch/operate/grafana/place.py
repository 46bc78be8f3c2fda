"""Access to a Grafana: its address, the token, TLS. All of it is checked at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ampwatch.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT_SECONDS = 10.0

MIN_TOKEN_LENGTH = 8
"""Characters of a token, at least: a real one has 46, and one of a letter is in every message."""


@dataclass(frozen=True)
class GrafanaPlace:
    """A Grafana, and the way in.

    Attributes:
        scheme: ``http`` or ``https``.
        host: Name or address, in brackets if it is of IPv6.
        port: ``None`` for that of the scheme.
        path: Where it is below the host: empty, or ``grafana/``.
        token: Of a service account. Not in ``repr``.
        org_id: The organization; that of the token if ``None``.
        verify: Whether to verify certificates, or the file with the authorities to trust.
        timeout_s: How long an answer may take. Unit: s.
    """

    scheme: str
    host: str
    port: int | None
    path: str
    token: str = field(repr=False)
    org_id: int | None = None
    verify: bool | str = True
    timeout_s: float = TIMEOUT_SECONDS

    @property
    def url(self) -> str:
        """The address for a reader, without a slash at its end."""
        port = f":{self.port}" if self.port else ""
        return f"{self.scheme}://{self.host}{port}/{self.path}".rstrip("/")

    def without_secrets(self, text: str) -> str:
        """Return ``text`` without the token: a server may send back what it was sent."""
        return text.replace(self.token, "<token>")


def find_place(
    environment: Mapping[str, str],
    *,
    url: str | None = None,
    token_file: str | None = None,
    org_id: int | None = None,
    ca_file: str | None = None,
    insecure: bool = False,
    timeout_s: float = TIMEOUT_SECONDS,
) -> GrafanaPlace:
    """Return the Grafana that is meant.

    Args:
        environment: Has ``GRAFANA_URL`` and ``GRAFANA_TOKEN``.
        url: Instead of ``GRAFANA_URL``.
        token_file: Holds the token, instead of ``GRAFANA_TOKEN``.
        org_id: The organization; that of the token if ``None``.
        ca_file: PEM file with the certificate authorities to trust.
        insecure: Verify no certificate.
        timeout_s: How long an answer may take. Unit: s.

    Raises:
        SettingsError: If something is missing or not usable.
    """
    scheme, host, port, path = _address(url or environment.get("GRAFANA_URL", ""))
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        msg = f"`--timeout`: expected seconds above 0, got {timeout_s:g}"
        raise SettingsError(msg)
    if org_id is not None and org_id < 1:
        msg = f"`--org-id`: expected the number of an organization, 1 or more, got {org_id}"
        raise SettingsError(msg)
    if ca_file is not None and not Path(ca_file).is_file():
        msg = f"`--ca-file`: expected a PEM file with certificates, found no file {ca_file!r}"
        raise SettingsError(msg)
    return GrafanaPlace(
        scheme=scheme,
        host=host,
        port=port,
        path=path,
        token=_token(environment, token_file),
        org_id=org_id,
        verify=ca_file if ca_file is not None else not insecure,
        timeout_s=timeout_s,
    )


def _address(url: str) -> tuple[str, str, int | None, str]:
    if not url:
        msg = (
            "expected the address of a Grafana, got none; set GRAFANA_URL or give --url,"
            " like https://grafana.example.com or http://localhost:3000"
        )
        raise SettingsError(msg)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        msg = f"expected the address of a Grafana, like http://localhost:3000, got one that cannot be read: {error}"
        raise SettingsError(msg) from None
    if parts.username is not None or parts.password is not None:
        # Not quoted: it holds a password.
        msg = "expected an address without a user and a password; make a token for a service account and set GRAFANA_TOKEN"
        raise SettingsError(msg)
    if parts.scheme not in ("http", "https") or not host:
        msg = f"expected the address of a Grafana that begins with http:// or https://, got {url!r}"
        raise SettingsError(msg)
    if parts.query or parts.fragment:
        msg = f"expected the address of a Grafana without what follows `?` or `#`, got {url!r}"
        raise SettingsError(msg)
    path = parts.path.strip("/")
    return parts.scheme, f"[{host}]" if ":" in host else host, port, f"{path}/" if path else ""


def _token(environment: Mapping[str, str], file: str | None) -> str:
    """Return the token, which no message may quote."""
    if file is not None:
        where = f"the file {file!r}"
        try:
            token = Path(file).read_text(encoding="ascii").strip()
        except OSError as error:
            msg = f"`--token-file`: expected a file with a token, got: {error.strerror}: {file!r}"
            raise SettingsError(msg) from error
        except UnicodeDecodeError:
            msg = f"`--token-file`: expected a token and nothing else in {file!r}, got other characters than ASCII"
            raise SettingsError(msg) from None
    else:
        where = "GRAFANA_TOKEN"
        token = environment.get(where, "").strip()
    if not token:
        msg = (
            "expected the token of a service account, got none; make one in Grafana under Administration >"
            f" Users and access > Service accounts, and put it into {where} or name a file with --token-file"
        )
        raise SettingsError(msg)
    if len(token) < MIN_TOKEN_LENGTH:
        # It could not be kept out of a message without making that unreadable.
        msg = f"expected the token of a service account in {where}, which begins with glsa_ and has 46 characters, got one that has {len(token)}"
        raise SettingsError(msg)
    if not token.isascii() or not token.isprintable() or " " in token:
        msg = f"expected a token in one line and nothing else in {where}, got spaces or other characters"
        raise SettingsError(msg)
    return token
