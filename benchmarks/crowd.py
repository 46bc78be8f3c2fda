"""Does a crowd of bad clients stop the scrape?

``python benchmarks/crowd.py`` puts some ranks on a machine, scrapes their daemon once a second, first
alone and then beside a crowd: connections that stay idle, that come again and again, that
open pages and never read them, that dribble their headers, that leave a TLS handshake or
an answer unfinished, that send garbage. Ranks are simulated (`simulated.py`), the rest is real. All
of the crowd comes from this machine: by their addresses nobody can tell it from the Prometheus.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import time

from fleet import cpu_seconds, get, resident, said, watched

SCRAPE_TIMEOUT = 10.0
"""Prometheus' default. Unit: s."""

HOST = b"Host: localhost\r\n"
EVENTS = b"GET /events HTTP/1.1\r\n" + HOST + b"\r\n"
STATE = b"GET /state.json HTTP/1.1\r\n" + HOST + b"\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n"
HUGE = b"GET / HTTP/1.1\r\n" + HOST + b"A: " + b"b" * 60000
GARBAGE = b"\x00\xffGET GET\r\n" * 2000
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32)
"""The beginning of a TLS handshake."""

CROWD = {
    "idle": (1000, b""),
    "again": (300, b"GET /"),
    "unread pages": (64, EVENTS),
    "unread states": (32, STATE),
    "unread metrics": (32, METRICS * 20),
    "dribbling": (100, b"GET / HTTP/1.1\r\nA: "),
    "half-closed": (50, b"GET /metrics HTTP/1.1\r\n"),
    "huge headers": (20, HUGE),
    "garbage": (50, GARBAGE),
    "handshakes": (50, HELLO),
}
"""How many of each kind, and what they say first."""


class Client:
    """One of the crowd; comes again whenever it is cut."""

    def __init__(self, kind: str, port: int) -> None:
        self.kind = kind
        self.port = port
        self.until = 0.0
        self.socket: socket.socket | None = None

    def come(self) -> None:
        """Connect and say the first words."""
        self.leave()
        self.socket = socket.socket()
        # A small window: what is not read soon stays with the daemon.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(0.5)
        try:
            self.socket.connect(("127.0.0.1", self.port))
            self.socket.settimeout(0.0)
            self.socket.send(CROWD[self.kind][1] or b"")
            if self.kind == "half-closed":
                self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        self.until = time.monotonic() + (0.5 if self.kind == "again" else 1e9)

    def leave(self) -> None:
        """Hang up."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def go_on(self) -> None:
        """Dribble, or come again where the daemon has hung up."""
        if self.socket is None or time.monotonic() > self.until:
            self.come()
            return
        try:
            if self.kind == "dribbling":
                self.socket.send(b"x")
            elif not self.kind.startswith("unread") and self.socket.recv(1, socket.MSG_PEEK) == b"":
                self.come()
        except BlockingIOError:
            pass
        except OSError:
            self.come()


def crowd(port: int, kinds: list[str]) -> None:
    """Be the crowd until the end of standard input."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    clients = [Client(kind, port) for kind in kinds for _ in range(CROWD[kind][0])]
    print(len(clients), flush=True)
    end = os.getppid()
    while os.getppid() == end:
        for client in clients:
            client.go_on()
        time.sleep(0.2)


def scrapes(pid: int, port: int, seconds: float) -> dict[str, float]:
    """Return how scrapes went, one a second."""
    times: list[float] = []
    failed = 0
    used, begin = cpu_seconds(pid), time.monotonic()
    while time.monotonic() - begin < seconds:
        start = time.perf_counter()
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=SCRAPE_TIMEOUT)
            connection.close()
            body, took = get(port, "/metrics")
            assert body.startswith(b"# HELP")
            times.append(took)
            failed += took > SCRAPE_TIMEOUT
        except Exception:  # noqa: BLE001 - whatever it was, it was no scrape
            failed += 1
        time.sleep(max(0.0, 1.0 - (time.perf_counter() - start)))
    return {
        "scrapes": len(times) + failed,
        "failed": failed,
        "median_s": round(statistics.median(times), 4) if times else float("nan"),
        "max_s": round(max(times), 4) if times else float("nan"),
        "daemon_cpu": round((cpu_seconds(pid) - used) / (time.monotonic() - begin), 3),
        "daemon_rss_mb": resident(pid) >> 20,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kinds", nargs="*", default=list(CROWD), choices=CROWD)
    parser.add_argument("--port", type=int, help="be the crowd of this port")
    args = parser.parse_args()
    if args.port:
        crowd(args.port, args.kinds)
        return
    with watched(args.ranks, settle_seconds=3.0) as (daemon, info):
        alone = scrapes(daemon.pid, info.port, 10.0)
        print("alone", json.dumps(alone), flush=True)
        with subprocess.Popen(
            [sys.executable, __file__, "--port", str(info.port), "--kinds", *args.kinds],
            stdout=subprocess.PIPE,
            text=True,
        ) as others:
            said(others)
            beside = scrapes(daemon.pid, info.port, args.seconds)
            others.terminate()
        print("crowd", json.dumps(beside), flush=True)


if __name__ == "__main__":
    main()
