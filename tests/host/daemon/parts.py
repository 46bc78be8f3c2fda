"""Helpers that the tests of the daemon share: real daemons, real writers, requests."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ampwatch.host.daemon.access import Access
from ampwatch.wire.rendezvous.lock import DaemonInfo, DaemonLock, read_info
from ampwatch.wire.rendezvous.token import read_token

ROOT = Path(__file__).parents[3]

OPEN = Access("user", "all", Path())
"""Everybody may read."""

WRITER = """
import sys, time
from pathlib import Path
from ampwatch.wire.ring import RingWriter
from tests.workshop.records import end, identity, step
rank, world_size = int(sys.argv[3]), int(sys.argv[4])
who = identity(run=sys.argv[2], rank=rank, world_size=world_size, started_ns=time.time_ns())
writer = RingWriter.create([Path(sys.argv[1])], who, slots=64)
print(writer.path, flush=True)
for index, command in enumerate(map(str.strip, sys.stdin)):
    if command == "step":
        writer.put(step(index, time_ns=time.time_ns()))
    elif command == "step an hour ago":
        writer.put(step(index, time_ns=time.time_ns() - 3600 * 10**9))
    else:
        writer.close(end(time_ns=time.time_ns()), keep=command == "finish and keep")
    print("done", flush=True)
"""


def eventually(condition: Callable[[], Any], what: str = "", seconds: float = 60.0) -> Any:
    """Wait for something that another process does; return what ``condition`` returned.

    For so long only where something is wrong, or where the machine is very busy.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if result := condition():
            return result
        time.sleep(0.02)
    message = f"not within {seconds} s: {what or condition}"
    raise AssertionError(message)


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    address: tuple[str, int], path: str, method: str = "GET", context: Any = None, **headers: str
) -> Answer:
    """Send one request; underscores in header names stand for hyphens."""
    connection = (
        http.client.HTTPConnection(*address, timeout=60)
        if context is None
        else http.client.HTTPSConnection(*address, timeout=60, context=context)
    )
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request(method, path, headers=named)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


class Place:
    """Directories of their own for the daemons and rings of one test."""

    def __init__(self, directory: Path) -> None:
        self.runtime = directory / "runtime"
        self.rings = directory / "rings"
        self.environment = os.environ | {
            "AMPWATCH_RUNTIME_DIR": str(self.runtime),
            "AMPWATCH_RING_DIR": str(self.rings),
            "AMPWATCH_PORT": "0",
            "AMPWATCH_POLL_SECONDS": "0.05",
        }

    def info(self) -> DaemonInfo | None:
        """Self-description of the daemon that holds the lock."""
        self.runtime.mkdir(mode=0o700, exist_ok=True)
        lock = DaemonLock.take(self.runtime)
        if lock is not None:
            lock.release()
            return None
        return read_info(self.runtime)

    @contextmanager
    def daemon(self, *arguments: str, **environment: str) -> Iterator[Daemon]:
        """A daemon in the foreground of a process of its own, that serves."""
        process = self.command("daemon", *arguments, **environment)
        with process:
            try:
                info = eventually(lambda: self.info() or process.poll() is not None, "a daemon")
                if info is True:
                    raise AssertionError(process.stderr.read())
                yield Daemon(process, info, read_token(self.runtime) or "")
            finally:
                if process.poll() is None:
                    process.terminate()
                process.wait(60)

    def command(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """The command line in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "ampwatch", *arguments],
            env=self.environment | environment,
            cwd=ROOT,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @contextmanager
    def writer(self, run: str, rank: int = 0, world_size: int = 1) -> Iterator[Writer]:
        """A training process with a ring."""
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(self.rings), run, str(rank), str(world_size)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield Writer(process)
            finally:
                process.kill()


class Daemon:
    def __init__(self, process: subprocess.Popen[str], info: DaemonInfo, token: str) -> None:
        self.process = process
        self.info = info
        self.token = token

    @property
    def address(self) -> str:
        """Where its user opens the page."""
        return f"{self.info.url}?token={self.token}" if self.token else self.info.url

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """Ask as its user does, unless ``headers`` say who asks."""
        known = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return ask((self.info.host, self.info.port), path, method, **(known | headers))

    def states(self) -> dict[str, str]:
        """State by run, as the page is told."""
        runs = self.ask("/state.json").json["runs"]
        return {name: run["ranks"]["0"]["state"] for name, run in runs.items()}


class Writer:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.path = Path(process.stdout.readline().strip())

    def do(self, command: str) -> None:
        """``step``, ``finish`` or ``finish and keep``."""
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
