"""A command on a terminal of its own, as somebody in front of it has it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.host.daemon.parts import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SECONDS = 60.0
"""Patience with a busy machine."""


class Terminal:
    """A terminal, and the command that runs on it.

    Attributes:
        process: The command.
        said: All that it has written so far.
        modes: Modes of the terminal before the command began.
    """

    def __init__(self, process: subprocess.Popen[bytes], leader: int, follower: int) -> None:
        self.process = process
        self.said = ""
        self._leader = leader
        self._follower = follower
        self.modes = termios.tcgetattr(follower)

    def press(self, keys: str) -> None:
        os.write(self._leader, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        """Change the size; the process that has the terminal is sent SIGWINCH."""
        fcntl.ioctl(self._leader, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def hang_up(self) -> None:
        """Close the end at which somebody sits."""
        if self._leader >= 0:
            os.close(self._leader)
        self._leader = -1

    def until(self, text: str) -> str:
        """Wait until the command writes ``text``; return what it wrote since the last call."""
        new = ""
        end = time.monotonic() + SECONDS
        while text not in new:
            if time.monotonic() > end:
                message = f"{text!r} was not written: {new!r}"
                raise AssertionError(message)
            new += self._some()
        return new

    def end(self) -> int:
        """Wait for the end of the command; return its exit status."""
        end = time.monotonic() + SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it does not end: {self.said!r}"
            self._some()
        while self._some():
            pass
        return self.process.returncode

    def now(self) -> list[object]:
        """Modes of the terminal as they are."""
        return termios.tcgetattr(self._follower)

    def _some(self) -> str:
        if not select.select([self._leader], [], [], 0.1)[0]:
            return ""
        text = os.read(self._leader, 65536).decode(errors="replace")
        self.said += text
        return text


@contextmanager
def on_a_terminal(
    command: Sequence[str],
    environment: Mapping[str, str],
    columns: int = 100,
    lines: int = 24,
) -> Iterator[Terminal]:
    """Run a command on a terminal that is its controlling one, as in a shell."""
    leader, follower = pty.openpty()
    fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def take_it() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    known = {**environment, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
    known.pop("COLUMNS", None)
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=known,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        preexec_fn=take_it,  # noqa: PLW1509 - two system calls, which no lock is needed for
    ) as process:
        terminal = Terminal(process, leader, follower)
        try:
            yield terminal
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            terminal.hang_up()
            os.close(follower)
