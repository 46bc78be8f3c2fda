"""A real Alertmanager, and somebody it tells."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.host.daemon.parts import eventually
from tests.integration.prometheus import free_port
from tests.services import require
from tests.workshop.servers import Quiet, answering


class Messages:
    """Messages that came in at a webhook.

    Attributes:
        address: Where to send to.
        bodies: The messages, as Alertmanager writes them, oldest first.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.bodies: list[dict[str, Any]] = []

    def of(self, alert: str, status: str) -> dict[str, Any] | None:
        """Return the part about ``alert`` of the first message that has it in a status, ``firing`` or ``resolved``."""
        for body in self.bodies:
            found = [
                one
                for one in body["alerts"]
                if one["labels"]["alertname"] == alert and one["status"] == status
            ]
            if found:
                return {**body, "alerts": found, "status": status}
        return None


class _Handler(Quiet, BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.server.messages.bodies.append(json.loads(self.rfile.read(length)))
        self.send_response(200)
        self.end_headers()


class _Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.messages = Messages(f"http://127.0.0.1:{self.server_port}/alerts")


@contextmanager
def webhook() -> Iterator[Messages]:
    """Take what an Alertmanager sends."""
    server = _Server()
    with answering(server):
        yield server.messages


@contextmanager
def alertmanager(config: Path, data: Path, port: int = 0) -> Iterator[str]:
    """Run one, alone, with the configuration in ``config``; yield its host and port."""
    address = f"127.0.0.1:{port or free_port()}"
    process = subprocess.Popen(
        [
            require("prometheus-alertmanager"),
            f"--config.file={config}",
            f"--storage.path={data}",
            f"--web.listen-address={address}",
            "--cluster.listen-address=",
            "--log.level=error",
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: _is_ready(address), "Alertmanager is ready", seconds=30)
        yield address
    finally:
        process.terminate()
        process.wait(20)


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
