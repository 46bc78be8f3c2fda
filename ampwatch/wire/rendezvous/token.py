"""Two secrets that the processes of one user share: files that nobody else can read.

One answers whether the one on the port is the daemon of this user: who knows the secret proves it
without ever sending it. The other answers whether a client may read: who sends the token may. They
are two, because a token is sent, in the worst case to whoever has taken the port of a daemon that
is away: what is collected so lets its finder read, and not be taken for the daemon. Both are
made once and kept, so that what was written down with them, a bookmark or a file of credentials,
stays true when a daemon ends and another one starts.
"""

from __future__ import annotations

import hashlib
import hmac
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

SECRET_FILE = "daemon.secret"  # noqa: S105 - likewise
"""What the daemon proves itself by; it is never sent."""

TOKEN_FIELD = "token"  # noqa: S105 - the name of a field
"""Field of an address by which a browser sends the token, once."""

TOKEN_BYTES = 32
"""Random bytes of a token: as many as its digest has."""

MAX_CONTENT = 64
"""Bytes of the file that are read; a token has fewer."""

_TOKEN = re.compile(rb"[A-Za-z0-9_-]{43}")
"""32 bytes in the alphabet of URLs (RFC 4648, section 5), without the padding."""


def ensure_token(directory: Path, name: str = TOKEN_FILE) -> str:
    """Return the token in ``directory``, made if there is none.

    Args:
        directory: The runtime directory, which lets nobody else in.
        name: Which one: the name of its file.

    Raises:
        DaemonError: If the file cannot be made, or is not one that this user alone can read.
    """
    path = directory / name
    token = read_token(directory, name)
    if token is not None:
        return token
    # Written whole under another name first: who reads it meanwhile never finds half a token.
    draft = directory / f"{name}.{os.getpid()}.{secrets.token_hex(4)}"
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
    token = read_token(directory, name)
    if token is None:
        msg = f"expected {str(path)!r} to be a file with a token that only uid {os.geteuid()} can read, got another one; remove it, and the next daemon makes a new one"
        raise DaemonError(msg)
    return token


def read_token(directory: Path, name: str = TOKEN_FILE) -> str | None:
    """Return the token in ``directory``.

    Args:
        directory: The runtime directory.
        name: Which one: the name of its file.

    Returns:
        ``None`` where there is none, and where the file is a link, somebody else's, or one that
        others may read: that is no secret.
    """
    try:
        descriptor = os.open(
            directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
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


def proof(secret: str, challenge: str, port: int) -> str:
    """Return what only those who know the secret can answer to ``challenge``.

    Args:
        secret: The secret.
        challenge: What the asker has made up, new each time.
        port: The port that the daemon listens on itself. An impostor on another port could pass
            the question on to the real daemon, and its answer back; with the port in it, that
            answer is wrong.

    Returns:
        An HMAC-SHA256 (RFC 2104) in hexadecimal digits.
    """
    message = f"{port} {challenge}".encode("utf-8", "backslashreplace")
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


def proves(answer: str, secret: str, challenge: str, port: int) -> bool:
    """Return whether ``answer`` is the proof, in a time that does not say how much of it is right."""
    expected = proof(secret, challenge, port)
    return hmac.compare_digest(answer.encode("utf-8", "backslashreplace"), expected.encode())
