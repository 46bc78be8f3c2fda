"""The answer of whoever listens on the daemon's port: any program of any user."""

from __future__ import annotations

import functools
import json
import socket
import threading

from ampwatch.wire.rendezvous.probe import ask

BODY = json.dumps({"service": "ampwatch", "status": "ok", "version": "0.1.0", "layout": 6, "scope": "user", "uid": 1000, "pid": 12}).encode()  # fmt: skip
SEEDS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    + BODY,
    b'HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm="ampwatch machine"\r\n\r\n',
    b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"\x15\x03\x01\x00\x02\x02\x28",
)
WORDS = (b'"layout"', b'"uid"', b'"proof"', b"\r\n", b"Content-Length: -1\r\n", b"X: " + b"y" * 70000, b"HTTP/1.1 100 Continue\r\n\r\n", b"[" * 3000, b"Transfer-Encoding: chunked\r\n")  # fmt: skip
MANY = 40


class Stranger:
    """Sends the same to everybody who connects, and hangs up."""

    def __init__(self) -> None:
        self.data = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            try:
                connection.sendall(self.data)
                connection.shutdown(socket.SHUT_WR)
                # What was asked is read, so that the answer is not cut off by a reset.
                connection.settimeout(0.2)
                while connection.recv(65536):
                    pass
            except OSError:
                pass
            finally:
                connection.close()


@functools.cache
def stranger() -> Stranger:
    return Stranger()


def one(data: bytes) -> object:
    stranger().data = data
    answer = ask("127.0.0.1", stranger().port)
    assert answer.taken
    assert str(answer).isprintable(), str(answer)
    return answer.service, answer.scope, answer.wants_certificate
