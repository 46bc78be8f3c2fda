"""Bytes that somebody sends to the port of a daemon: a real one, in a process of its own, with a run to show.

Each input is a connection. What comes back is HTTP without an error of the server, in time, and nothing is logged.
"""

from __future__ import annotations

import atexit
import functools
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

from ampwatch.wire.rendezvous.lock import read_info
from ampwatch.wire.rendezvous.token import read_token
from ampwatch.wire.ring import RingWriter
from tests.fuzz.engine import scratch
from tests.workshop.records import IDENTITY, finding, step

TOKEN = b"@TOKEN@"
"""Stands for the token of the daemon in an input, so that the corpus holds for every daemon."""

HOST = b"Host: localhost\r\nAuthorization: Bearer @TOKEN@\r\n"
SEEDS = (
    *(
        b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n"
        for path in (b"/", b"/metrics", b"/metrics?name[]=ampwatch_steps_total", b"/healthz", b"/sd", b"/state.json", b"/events", b"/debug/kernels.json", b"/map.json?run=gpt&rank=0&module=head", b"/whatif.json?run=gpt&rank=0&exponent=3", b"/nothing")
    ),
    b"GET /healthz?challenge=abc HTTP/1.1\r\n" + HOST + b"\r\nGET /sd HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET /metrics HTTP/1.1\r\n" + HOST + b"Accept: application/openmetrics-text; version=1.0.0\r\nAccept-Encoding: gzip;q=0.5\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\n" + HOST + b"Accept: application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,*/*;q=0.1\r\n\r\n",
    b"HEAD / HTTP/1.0\r\n" + HOST + b'If-None-Match: "x"\r\n\r\n',
    b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nhello",
    b"GET /state.json HTTP/1.1\r\nHost: localhost\r\nCookie: token=@TOKEN@\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /?token=@TOKEN@ HTTP/1.1\r\nHost: [::1]:10917\r\nAuthorization: Basic YTpi\r\n\r\n",
)  # fmt: skip
WORDS = (TOKEN, b"Host: ", b"\r\n\r\n", b"HTTP/1.1", b"HTTP/9.9", b"%00", b"%ff", b"/../../etc/passwd", b"Expect: 100-continue\r\n", b"Connection: keep-alive\r\n", b"name[]=" * 200, b"X: y\r\n" * 300, b"/" * 70000, b"PRI * HTTP/2.0\r\n")  # fmt: skip
MANY = 250

MAX_SECONDS = 30.0
"""Time for an answer; that of a busy machine. Unit: s."""

MAX_READ = 1 << 18
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


class Target:
    """A daemon that reads the rings of a directory of its own.

    Attributes:
        token: What its user's clients send.
    """

    def __init__(self) -> None:
        place = scratch() / f"daemon-{time.monotonic_ns()}"
        runtime, rings = place / "runtime", place / "rings"
        for directory in (place, runtime, rings):
            directory.mkdir(mode=0o700)
        self._ring = RingWriter.create([rings], IDENTITY, slots=64)
        for record in (step(1), finding(), step(2)):
            self._ring.put(record)
        self._log = place / "log"
        environment = os.environ | {
            "AMPWATCH_RUNTIME_DIR": str(runtime),
            "AMPWATCH_RING_DIR": str(rings),
            "AMPWATCH_REPORT_DIR": str(place / "reports"),
            "AMPWATCH_PORT": "0",
            # It ends by itself where this process could not end it.
            "AMPWATCH_GRACE_SECONDS": "0",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        command = [
            sys.executable,
            "-m",
            "ampwatch",
            "daemon",
            "--auto",
            "--no-gpu",
            "--log-level",
            "warning",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        atexit.register(self.end)
        until = time.monotonic() + MAX_SECONDS
        while (info := read_info(runtime)) is None:
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(self.said)
            time.sleep(0.02)
        self.port = info.port
        self.token = (read_token(runtime) or "").encode()
        self._known = self._log.stat().st_size

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def check(self) -> None:
        """Raise if the daemon has ended, or has said something."""
        if self._process.poll() is not None:
            target.cache_clear()
            msg = f"the daemon has ended with {self._process.returncode}: {self.said[-2000:]}"
            raise AssertionError(msg)
        if (size := self._log.stat().st_size) != self._known:
            new, self._known = self.said[self._known :], size
            raise AssertionError(new)

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


@functools.cache
def target() -> Target:
    return Target()


def one(data: bytes) -> object:
    daemon = target()
    answer = _exchanged(daemon.port, data.replace(TOKEN, daemon.token))
    daemon.check()
    if not answer:
        return None
    status = _STATUS.match(answer)
    # A request line that names no version is one of HTTP/0.9, whose answers have no status.
    if status is None:
        return answer[:20]
    assert int(status[1]) < 500 or int(status[1]) in (501, 503, 505), answer[:200]
    return int(status[1]), answer.count(b"HTTP/1."), re.sub(rb"\d", b"", answer[-40:])


def _exchanged(port: int, data: bytes) -> bytes:
    """Return the beginning of what is answered; a stream has no end."""
    answer = bytearray()
    with socket.create_connection(("127.0.0.1", port), MAX_SECONDS) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while len(answer) < MAX_READ and (got := connection.recv(65536)):
                answer += got
                if b"text/event-stream" in answer and b"event: full" in answer:
                    break
        except TimeoutError:
            msg = f"no end of the answer within {MAX_SECONDS} s"
            raise AssertionError(msg) from None
        except OSError:
            pass  # what was too long is not read to its end
    return bytes(answer)
