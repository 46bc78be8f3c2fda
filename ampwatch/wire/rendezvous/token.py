"""The token that the processes of one user share: a file that nobody else can read.

It answers whether a client may read: who sends the token may. It is made once and kept, so that
what was written down with it, a bookmark or a file of credentials, stays true when a daemon ends
and another one starts.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from ampwatch.errors import DaemonError, remedy_of

if TYPE_CHECKING:
    from pathlib import Path

TOKEN_FILE = "daemon.token"  # noqa: S105 - the name of a file
"""What readers send."""

TOKEN_FIELD = "token"  # noqa: S105 - the name of a field
"""Field of an address by which a browser sends the token, once."""

TOKEN_BYTES = 32
"""Random bytes of a token."""

MAX_CONTENT = 64
"""Bytes of the file that are read; a token has fewer."""

_TOKEN = re.compile(rb"[A-Za-z0-9_-]{43}")
"""32 bytes in the alphabet of URLs (RFC 4648, section 5), without the padding."""


def ensure_token(directory: Path) -> str:
    """Return the token in ``directory``, made if there is none.

    Args:
        directory: The runtime directory, which lets nobody else in.

    Raises:
        DaemonError: If the file cannot be made, or is not one that this user alone can read.
    """
    path = directory / TOKEN_FILE
    token = read_token(directory)
    if token is not None:
        return token
    # Written whole under another name first: who reads it meanwhile never finds half a token.
    draft = directory / f"{TOKEN_FILE}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        if not os.path.lexists(path):
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(f"{secrets.token_urlsafe(TOKEN_BYTES)}\n".encode())
            # A link fails where another process was faster; its token is everybody's then.
            with suppress(FileExistsError):
                os.link(draft, path)
    except OSError as error:
        remedy = remedy_of(error, "set AMPWATCH_RUNTIME_DIR to a writable directory")
        msg = f"expected to make the token {str(path)!r}, got: {error.strerror}; {remedy}"
        raise DaemonError(msg) from error
    finally:
        with suppress(OSError):
            draft.unlink()
    token = read_token(directory)
    if token is None:
        msg = f"expected {str(path)!r} to be a file with a token that only uid {os.geteuid()} can read, got another one; remove it, and the next daemon makes a new one"
        raise DaemonError(msg)
    return token


def read_token(directory: Path) -> str | None:
    """Return the token in ``directory``.

    Args:
        directory: The runtime directory.

    Returns:
        ``None`` where there is none, and where the file is a link, somebody else's, or one that
        others may read: that is no secret.
    """
    try:
        descriptor = os.open(
            directory / TOKEN_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        is_secret = stat.S_ISREG(status.st_mode) and not stat.S_IMODE(status.st_mode) & 0o077
        text = b""
        if is_secret and status.st_uid == os.geteuid():
            text = os.read(descriptor, MAX_CONTENT).strip()
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return text.decode() if _TOKEN.fullmatch(text) else None
