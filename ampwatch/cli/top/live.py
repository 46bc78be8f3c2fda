"""The loop of ``ampwatch top``: a thread asks the daemon, the others is keys, signals and paint."""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from ampwatch.cli.top import is_ascii, summary
from ampwatch.cli.top.painters import painter_for, size_of
from ampwatch.cli.top.rows import rows_of
from ampwatch.cli.top.terminal import Terminal
from ampwatch.cli.top.view import View
from ampwatch.errors import DaemonError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ampwatch.cli.top.painters import Painter

    State = Mapping[str, Any]

SECONDS = 1.0
"""Time between two questions to the daemon. Unit: s."""


class Asker(threading.Thread):
    """Asks for the state again and again, so that no key has to wait for an answer.

    Args:
        read: Returns the newest state, or raises ``DaemonError``.
        wake: Called when there is something new.
        seconds: Time between two questions. Unit: s.
    """

    def __init__(
        self, read: Callable[[], State], wake: Callable[[], None], seconds: float = SECONDS
    ) -> None:
        super().__init__(name="ampwatch-top", daemon=True)
        self._read = read
        self._wake = wake
        self._seconds = seconds
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._news: State | Exception | None = None

    def run(self) -> None:
        """Ask until ``end``."""
        while not self._is_over.wait(self._seconds):
            news: State | Exception
            try:
                news = self._read()
            except Exception as error:  # noqa: BLE001 - the loop says it, or raises it where it is seen
                news = error
            with self._lock:
                self._news = news
            if not self._is_over.is_set():
                self._wake()

    def end(self) -> None:
        """Ask no more; an answer that is awaited is left behind."""
        self._is_over.set()

    def news(self) -> State | Exception | None:
        """Return what came since the last call, once."""
        with self._lock:
            news, self._news = self._news, None
        return news


def watch(read: Callable[[], State], state: State) -> int:
    """Show the state until somebody leaves; return the exit status.

    Args:
        read: Returns the newest state, or raises ``DaemonError``.
        state: The first one.
    """
    view = View(is_ascii=is_ascii(sys.stdout))
    painter = painter_for(sys.stdout)
    _take_in(view, state)
    with Terminal(sys.stdin.fileno()) as terminal:
        asker = Asker(read, terminal.wake)
        asker.start()
        try:
            painter.open()
            _loop(view, painter, terminal, asker)
        finally:
            painter.close()
            asker.end()
    return 128 + terminal.ended_by if terminal.ended_by else 0


def _loop(view: View, painter: Painter, terminal: Terminal, asker: Asker) -> None:
    while not (view.is_over or terminal.ended_by):
        painter.paint(view.lines(*size_of(sys.stdout)))
        keys, signals = terminal.read()
        for key in keys:
            view.press(key)
        if signal.SIGTSTP in signals:
            painter.close()
            terminal.stop()
            painter.open()
        elif signal.SIGCONT in signals:  # stopped by somebody who did not ask
            painter.close()
            terminal.take()
            painter.open()
        _take_in(view, asker.news())


def _take_in(view: View, news: State | Exception | None) -> None:
    if isinstance(news, DaemonError):
        view.say(str(news))
    elif isinstance(news, Exception):
        raise news
    elif news is not None:
        rows = rows_of(news)
        now = time.strftime("%H:%M:%S", time.localtime(float(news.get("now", time.time()))))
        view.show(rows, f"{now}  {summary(rows)}", news.get("ended", ""))
