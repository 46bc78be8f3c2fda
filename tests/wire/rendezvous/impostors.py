"""Servers that answer what a daemon answers, as any user and with any proof."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ampwatch import __version__
from ampwatch.wire.rendezvous.probe import CHALLENGE_HEADER, PROOF_HEADER
from ampwatch.wire.rendezvous.token import proof
from ampwatch.wire.ring.layout import LAYOUT
from tests.workshop import servers

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has a second user to be")

ANOTHER_USER = """
import encodings.idna, json, os, sys  # all that its user may not read later
from tests.wire.rendezvous.impostors import server_of
health = json.loads(sys.argv[1])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
with server_of(health) as server:
    print(server.server_port, flush=True)
    server.serve_forever()
"""


def health(**changes: object) -> dict[str, object]:
    """What a daemon says of itself, with changes."""
    return {
        "service": "ampwatch",
        "version": __version__,
        "layout": LAYOUT,
        "scope": "user",
        "uid": os.geteuid(),
    } | changes


def server_of(said: dict[str, object] | None, secret: str = "", proof_port: int = 0) -> HTTPServer:
    """A server that says of its health what it is told, or nothing that makes sense.

    With a secret it proves that it knows it, for its own port unless another one is given.
    """

    class Handler(servers.Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"hello" if said is None else json.dumps(said).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            challenge = self.headers.get(CHALLENGE_HEADER, "")
            if secret and challenge:
                port = proof_port or self.server.server_address[1]
                self.send_header(PROOF_HEADER, proof(secret, challenge, port))
            self.end_headers()
            self.wfile.write(body)

    return HTTPServer(("127.0.0.1", 0), Handler)


@contextmanager
def answering(
    said: dict[str, object] | None, secret: str = "", proof_port: int = 0
) -> Iterator[int]:
    """The port of such a server, in this process."""
    server = server_of(said, secret, proof_port)
    with servers.answering(server):
        yield server.server_port


@contextmanager
def another_users(said: dict[str, object]) -> Iterator[int]:
    """The port of such a server, in a process of another user."""
    with subprocess.Popen(
        [sys.executable, "-c", ANOTHER_USER, json.dumps(said)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()
