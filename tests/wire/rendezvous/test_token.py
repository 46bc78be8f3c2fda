"""The token of one user: made once, readable by that user alone."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ampwatch.errors import DaemonError
from ampwatch.wire.rendezvous.token import TOKEN_FILE, ensure_token, read_token


def test_a_token_is_made_once_and_kept(tmp_path: Path) -> None:
    """A bookmark and a file of credentials outlive the daemon that they were written for."""
    assert read_token(tmp_path) is None
    token = ensure_token(tmp_path)

    assert len(token) == 43
    assert ensure_token(tmp_path) == read_token(tmp_path) == token
    assert (tmp_path / TOKEN_FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.glob("daemon*")] == [TOKEN_FILE]


def test_all_that_make_it_at_once_have_the_same(tmp_path: Path) -> None:
    """Ranks start a daemon at the same moment."""
    with ThreadPoolExecutor(16) as pool:
        tokens = set(pool.map(ensure_token, [tmp_path] * 64))

    assert tokens == {read_token(tmp_path)}
    assert [path.name for path in tmp_path.glob("daemon*")] == [TOKEN_FILE]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_what_others_can_read_is_no_secret(tmp_path: Path, mode: int) -> None:
    """A file that was made readable, by hand or by a backup that was played back."""
    ensure_token(tmp_path)
    (tmp_path / TOKEN_FILE).chmod(mode)

    assert read_token(tmp_path) is None
    with pytest.raises(DaemonError, match=r"only uid .* can read"):
        ensure_token(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away takes root")
def test_what_belongs_to_somebody_else_is_no_secret(tmp_path: Path) -> None:
    """Its owner knows it."""
    ensure_token(tmp_path)
    os.chown(tmp_path / TOKEN_FILE, 65534, 65534)

    assert read_token(tmp_path) is None


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "empty", "words", "binary"])
def test_what_has_its_name_and_is_no_token_is_refused(tmp_path: Path, kind: str) -> None:
    """Neither followed, nor waited for, nor taken for an empty secret."""
    path = tmp_path / TOKEN_FILE
    if kind == "link":
        (tmp_path / "elsewhere").mkdir()
        ensure_token(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere" / TOKEN_FILE)
    elif kind == "pipe":
        os.mkfifo(path, 0o600)
    elif kind == "directory":
        path.mkdir(0o700)
    else:
        path.write_bytes({"empty": b"", "words": b"open sesame\n", "binary": b"\xff" * 43}[kind])
        path.chmod(0o600)

    assert read_token(tmp_path) is None
    with pytest.raises(DaemonError, match="expected"):
        ensure_token(tmp_path)
