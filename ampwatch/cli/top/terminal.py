"""A terminal that is read key by key, and is as before in the end, whatever happens meanwhile.

Ctrl-C, SIGTERM, SIGHUP, a stop and a new size are events like keys: nothing is done in a signal
handler but to note them, so that no line is left half painted.
"""

from __future__ import annotations

import codecs
import os
import re
import select
import signal
import termios
import tty
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

    from typing_extensions import Self

ESCAPE_SECONDS = 0.05
"""Time after which an escape character is the key and not the beginning of another one. Unit: s."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NOTED = (*ENDING, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)

_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|\x1b|[^\x1b]", re.DOTALL)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;]*|O)?\Z")


class Key:
    """Names of the keys that are no character."""

    UP = "<up>"
    DOWN = "<down>"
    LEFT = "<left>"
    PAGE_UP = "<page up>"
    PAGE_DOWN = "<page down>"
    HOME = "<home>"
    END = "<end>"
    ENTER = "<enter>"
    ESCAPE = "<escape>"
    BACKSPACE = "<backspace>"


_NAMES = {
    **dict.fromkeys(("\x1b[A", "\x1bOA"), Key.UP),
    **dict.fromkeys(("\x1b[B", "\x1bOB"), Key.DOWN),
    **dict.fromkeys(("\x1b[D", "\x1bOD"), Key.LEFT),
    **dict.fromkeys(("\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~"), Key.HOME),
    **dict.fromkeys(("\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~"), Key.END),
    **dict.fromkeys(("\r", "\n"), Key.ENTER),
    **dict.fromkeys(("\x7f", "\b"), Key.BACKSPACE),
    "\x1b[5~": Key.PAGE_UP,
    "\x1b[6~": Key.PAGE_DOWN,
    "\x1b": Key.ESCAPE,
}


def keys_in(text: str) -> list[str]:
    """Return the keys that a terminal has sent as ``text``: names, or characters as they are."""
    found = []
    for sequence in _KEY.findall(text):
        name = _NAMES.get(sequence, sequence)
        if name == sequence and not name.isprintable():
            continue  # a key without a meaning here, as F5 or Ctrl-L
        found.append(name)
    return found


class Terminal:
    """Reads keys and signals while the context is open.

    Args:
        fd: Descriptor of the terminal that is read.

    Attributes:
        ended_by: Number of the signal that asks to end; 0 for none.
    """

    def __init__(self, fd: int) -> None:
        self.ended_by = 0
        self._fd = fd
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._signals: deque[int] = deque()
        self._handlers: dict[int, Any] = {}
        self._before: list[Any] | None = None
        self._wakes = -1
        self._waker = -1

    def __enter__(self) -> Self:
        self._wakes, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in NOTED:
            self._handlers[number] = signal.signal(number, self._note)
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()
        for number, handler in self._handlers.items():
            # None: somebody had set it who is not Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        # Forgotten first: the thread that asks may wake later, when others have these numbers.
        wakes, waker, self._wakes, self._waker = self._wakes, self._waker, -1, -1
        os.close(wakes)
        os.close(waker)

    def take(self) -> None:
        """Have keys come one by one, and unseen."""
        with suppress(termios.error):  # the terminal is gone: there will be no keys
            self._before = self._before or termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd, termios.TCSADRAIN)

    def give_back(self) -> None:
        """Leave the terminal as it was found."""
        if self._before is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def wake(self) -> None:
        """Let ``read`` return; may be called from any thread."""
        with suppress(OSError):  # full, so that it wakes anyway
            os.write(self._waker, b"!")

    def read(self) -> tuple[list[str], list[int]]:
        """Wait for a key, a signal or ``wake``; return keys and signals."""
        ready, _, _ = select.select([self._fd, self._wakes], [], [])
        with suppress(BlockingIOError):
            os.read(self._wakes, 4096)
        keys = self._keys() if self._fd in ready else []
        signals = [self._signals.popleft() for _ in range(len(self._signals))]
        self.ended_by = next((number for number in signals if number in ENDING), self.ended_by)
        return keys, signals

    def stop(self) -> None:
        """Stop the process, as Ctrl-Z does, until it is continued."""
        self.give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._note)
        self.take()

    def _keys(self) -> list[str]:
        text = self._some()
        while _UNFINISHED.search(text) and select.select([self._fd], [], [], ESCAPE_SECONDS)[0]:
            more = self._some()
            if not more:
                break
            text += more
        return keys_in(text)

    def _some(self) -> str:
        try:
            got = os.read(self._fd, 1024)
        except OSError:
            got = b""
        if not got:
            self.ended_by = signal.SIGHUP
        return self._decoder.decode(got)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)
        self.wake()
