"""The live screen of ``ampwatch top``: Rich paints it, a thread asks the daemon, keys are read one by one."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import threading
import tty
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ampwatch.cli.output import encodable
from ampwatch.cli.top.view import View
from ampwatch.report.rank_list import RankList

Shown = tuple[RankList, str]
"""What is shown, and what to say of runs that have ended."""

ASK_SECONDS = 1.0
"""Time between two questions to the daemon. Unit: s."""

POLL_SECONDS = 0.1
"""Time after which an answer, a signal or a new size of the terminal is seen. Unit: s."""

ESCAPE_SECONDS = 0.05
"""Time after which an escape character is the key and not the beginning of another one. Unit: s."""

NOTED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)

_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
_NAMES = {
    **dict.fromkeys(("\x1b[A", "\x1bOA"), "<up>"),
    **dict.fromkeys(("\x1b[B", "\x1bOB"), "<down>"),
    **dict.fromkeys(("\x1b[D", "\x1bOD"), "<left>"),
    **dict.fromkeys(("\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~"), "<home>"),
    **dict.fromkeys(("\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~"), "<end>"),
    **dict.fromkeys(("\r", "\n"), "<enter>"),
    **dict.fromkeys(("\x7f", "\b"), "<backspace>"),
    "\x1b[5~": "<page up>",
    "\x1b[6~": "<page down>",
    "\x1b": "<escape>",
}


def watch(read: Callable[[], Shown], first: Shown) -> int:
    """Show the state until somebody leaves; return the exit status."""
    view = View()
    view.show(*first)
    answers: deque[Shown | Exception] = deque(maxlen=1)
    is_over = threading.Event()
    threading.Thread(target=_ask, args=(read, answers, is_over), daemon=True).start()
    # A handler only notes its signal: no line is left half painted, and no lock of Rich's held.
    noted: deque[int] = deque()
    before: dict[int, Any] = {
        number: signal.signal(number, lambda number, _frame: noted.append(number))
        for number in NOTED
    }
    try:
        while not view.is_over:
            try:
                _show(view, answers, noted)
            except OSError:  # the terminal is gone, and what Rich writes last has nowhere to go
                return 128 + signal.SIGHUP
            number = noted.popleft() if noted else None
            if number == signal.SIGTSTP:
                os.kill(os.getpid(), signal.SIGSTOP)  # until SIGCONT
            elif number is not None:
                return 128 + number
    finally:
        is_over.set()
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _ask(
    read: Callable[[], Shown], answers: deque[Shown | Exception], is_over: threading.Event
) -> None:
    """Ask for the state again and again, so that no key has to wait for an answer."""
    while not is_over.wait(ASK_SECONDS):
        try:
            answers.append(read())
        except Exception as error:  # noqa: BLE001, PERF203 - whatever it is, the screen says it
            answers.append(error)


def _show(view: View, answers: deque[Shown | Exception], noted: deque[int]) -> None:
    """Paint and take keys until somebody leaves or a signal is noted; then the terminal is as before."""
    console = Console(highlight=False)
    fd = sys.stdin.fileno()
    with (
        keys_one_by_one(fd),
        Live(
            console=console,
            screen=True,
            auto_refresh=False,  # it would be a thread
            redirect_stdout=False,
            redirect_stderr=False,
        ) as live,
    ):
        size, is_new = None, True
        while not (view.is_over or noted):
            if is_new or console.size != size:
                size = console.size
                live.update(_painted(view, *size), refresh=True)
            keys = keys_pressed(fd)
            for key in keys:
                view.press(key)
            is_new = bool(keys or answers)
            if answers:
                answer = answers.popleft()
                view.say(str(answer)) if isinstance(answer, Exception) else view.show(*answer)


def _painted(view: View, width: int, height: int) -> Text:
    lines = view.lines(width, height)
    spans = ([(encodable(text), style) for text, style in line] for line in lines)
    text = Text("\n").join(Text.assemble(*line) for line in spans)
    text.no_wrap, text.overflow = True, "crop"
    return text


@contextmanager
def keys_one_by_one(fd: int) -> Iterator[None]:
    """Have a terminal send each key at once and not show it, for as long as the context is open."""
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd, termios.TCSADRAIN)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


def keys_pressed(fd: int) -> list[str]:
    """Wait a while for keys; return their names, and characters as they are."""
    if not select.select([fd], [], [], POLL_SECONDS)[0]:
        return []
    try:
        text = os.read(fd, 1024)
        if text.endswith(b"\x1b") and select.select([fd], [], [], ESCAPE_SECONDS)[0]:
            text += os.read(fd, 1024)
    except OSError:
        text = b""
    if not text:  # the terminal is gone, and nobody there to press q
        signal.raise_signal(signal.SIGHUP)
    keys = [_NAMES.get(key, key) for key in _KEY.findall(text.decode(errors="ignore"))]
    return [key for key in keys if key.isprintable()]
