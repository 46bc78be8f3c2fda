"""The lock file of a daemon and its token: their directory is private, but who wrote them may be of another release."""

from __future__ import annotations

import json

from msgspec.structs import asdict

from ampwatch.runtime import DAEMON_LOCK
from ampwatch.wire.rendezvous.lock import DaemonInfo, read_info
from ampwatch.wire.rendezvous.token import TOKEN_FILE, read_token
from tests.fuzz.engine import scratch

INFO = DaemonInfo(12, "http", "127.0.0.1", 10917, "0.1.0", 6, ("/dev/shm/ampwatch-0",))
SEEDS = (
    json.dumps(asdict(INFO)).encode(),
    b"zBpmUvOqKXR0oDNUmMNLSdCn2mPXfBZ9QZ3bsHnCbGc\n",
    b"{}",
)
WORDS = (b'"pid"', b'"host"', b'"ring_directories"', b"[" * 3000, b'"::"', b'""')


def one(data: bytes) -> object:
    directory = scratch()
    (directory / DAEMON_LOCK).write_bytes(data)
    (directory / TOKEN_FILE).write_bytes(data)
    (directory / TOKEN_FILE).chmod(0o600)
    info = read_info(directory)
    if info is not None:
        assert info.url.startswith(info.scheme)
        assert all(isinstance(each, str) for each in info.ring_directories)
    token = read_token(directory)
    assert token is None or token.encode() == data.strip()
    return info is None, token is None
