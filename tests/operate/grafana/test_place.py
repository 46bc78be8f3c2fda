"""Where a Grafana is and how to get in: what is not usable is told before anything is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ampwatch.errors import SettingsError
from ampwatch.operate.grafana.place import find_place
from tests.operate.grafana.standin import TOKEN

if TYPE_CHECKING:
    from pathlib import Path

THERE = {"GRAFANA_URL": "http://localhost:3000", "GRAFANA_TOKEN": TOKEN}


@pytest.mark.parametrize(
    ("url", "url_told"),
    [
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://localhost:3000/", "http://localhost:3000"),
        ("https://example.com/monitoring/grafana/", "https://example.com/monitoring/grafana"),
        ("http://[::1]:3000/grafana", "http://[::1]:3000/grafana"),
    ],
)
def test_an_address_is_understood(url: str, url_told: str) -> None:
    """With a port, a sub-path, of IPv6."""
    assert find_place(THERE, url=url).url == url_told


@pytest.mark.parametrize(
    ("environment", "options", "told"),
    [
        ({}, {"url": "localhost:3000"}, "begins with http:// or https://"),
        ({}, {"url": "grafana.example.com"}, "begins with http:// or https://"),
        ({}, {"url": "ftp://grafana"}, "begins with http:// or https://"),
        ({}, {"url": "http://grafana:port"}, "cannot be read"),
        ({}, {"url": "http://grafana/?orgId=1"}, "without what follows `?`"),
        ({}, {"url": "http://admin:hunter2@grafana"}, "without a user and a password"),
        ({"GRAFANA_URL": ""}, {}, "set GRAFANA_URL or give --url"),
        ({"GRAFANA_TOKEN": ""}, {}, "Service accounts, and put it into GRAFANA_TOKEN"),
        ({"GRAFANA_TOKEN": "e"}, {}, "has 46 characters, got one that has 1"),
        ({"GRAFANA_TOKEN": "Bearer glsa_x"}, {}, "in one line and nothing else in GRAFANA_TOKEN"),
        ({}, {"timeout_s": 0.0}, "`--timeout`: expected seconds above 0"),
        ({}, {"timeout_s": float("nan")}, "`--timeout`: expected seconds above 0"),
        ({}, {"org_id": 0}, "`--org-id`: expected the number of an organization"),
        ({}, {"ca_file": "/nowhere/ca.pem"}, "found no file '/nowhere/ca.pem'"),
        ({}, {"token_file": "/nowhere/token"}, "No such file or directory: '/nowhere/token'"),
    ],
)
def test_what_is_not_usable_is_reported(
    environment: dict[str, str], options: dict[str, Any], told: str
) -> None:
    """Words name it and where to get it; a secret in it is not repeated."""
    with pytest.raises(SettingsError, match="expected") as caught:
        find_place(THERE | environment, **options)

    assert told in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "glsa_x" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"glsa_a\nglsa_b\n", "glsa_\u00fc".encode()])
def test_a_file_that_holds_no_token_is_reported(content: bytes, tmp_path: Path) -> None:
    """Empty, two lines, another alphabet."""
    file = tmp_path / "token"
    file.write_bytes(content)

    with pytest.raises(SettingsError, match="token") as caught:
        find_place(THERE, token_file=str(file))

    assert "glsa_" not in str(caught.value)


def test_the_token_is_not_in_what_is_printed_of_a_place() -> None:
    """The token is hidden, as in a traceback with the values of variables."""
    place = find_place(THERE)

    assert TOKEN not in repr(place)
    assert place.without_secrets(f"Bearer {TOKEN}!") == "Bearer <token>!"
