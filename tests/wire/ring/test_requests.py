"""Requests beside a ring: whatever lies there is read, or refused by an error that its readers expect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ampwatch.wire.ring.requests import (
    answer_path,
    read_answer,
    read_request,
    request_path,
    withdraw,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "content",
    [b"", b"[" * 65536, b'{"token":' * 7000, b"\xff", b"null", b'{"token": "a", "pid": true}'],
)
def test_what_is_no_request_is_refused_and_ends_no_sensor(content: bytes, tmp_path: Path) -> None:
    """The training looks at it in the middle of a run, and takes ValueError and OSError alone."""
    ring = tmp_path / "a.ring"
    for path in (request_path(ring), answer_path(ring)):
        path.write_bytes(content)
        path.chmod(0o600)

    with pytest.raises(ValueError, match=r"."):
        read_request(ring)
    with pytest.raises(ValueError, match=r"."):
        read_answer(ring)

    withdraw(ring)
    assert not list(tmp_path.glob("a.*"))
