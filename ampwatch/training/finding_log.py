"""Findings in the log: one line each, from one of the ranks that have found it."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING

from ampwatch.diagnosis.news import News, Reason
from ampwatch.guard import Guard, Log, Suppress
from ampwatch.report.one_line import address, level_of, one_line, short_line
from ampwatch.wire.records import Severity

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.training.said import Said
    from ampwatch.wire.records import Finding, RunIdentity

logger = Log()

PATIENCE_SECONDS = 0.5
"""Time that a line of one of several ranks waits for the ranks that find the same."""

TURN_SECONDS = 0.1
"""Time from the turn of a local rank to that of the next one."""

MAX_TURNS = 16
"""Local ranks that have turns of their own; those after them share the last one."""

JOIN_SECONDS = 2.0
"""Patience with a log handler that hangs, at the end."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A line that waits for its turn.

    Attributes:
        level: Level in the log.
        write: Makes the text, given the ranks that have found the same.
        write_more: Makes the text of the addition, given the ranks that have found it later.
        what: What the line is about, the same in each rank that finds it.
        due_s: Monotonic time of its turn. Unit: s.
    """

    level: int
    write: Callable[[list[int]], str]
    write_more: Callable[[list[int]], str]
    what: str
    due_s: float


class FindingLog:
    """Writes the findings of one rank to the logger ``ampwatch``.

    The only rank of a run writes at once, on the thread of the finding. Of several ranks on one
    machine that find the same, the lowest one that lives writes, half a second later and for all
    of them, from a thread that starts with the first line. What one rank alone has found, it
    writes itself. For those that find it when the line is written one of them adds a short line,
    once: however many there are, and however late, a finding has two lines at most.

    Args:
        identity: Who writes.
        url: Address of the daemon; empty without one.
        said: What the ranks of this machine have said; ``None`` if each rank writes for itself.
        clock: Monotonic time. Unit: s.
        wait: Waits a number of seconds, on the thread of the log. By default ``close`` ends it.
    """

    def __init__(
        self,
        identity: RunIdentity,
        url: str = "",
        said: Said | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._identity = identity
        self.point_to(url)
        self._said = said
        self._clock = clock
        self._guard = Guard("log", is_thread_safe=True)
        self._ending = Event()
        self._wait = self._ending.wait if wait is None else wait
        self._times: Counter[str] = Counter()
        self._lines: SimpleQueue[_Line | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._pid = os.getpid()

    def point_to(self, url: str) -> None:
        """Name the page of the daemon at ``url`` from now on; none if it is empty."""
        who = self._identity
        self._page = address(url, who.run, who.rank, who.started_ns)

    def notify(self, news: News) -> None:
        """Write a line if the news is for a reader. Never raises, and never waits for a rank."""
        if is_worth_a_line(news):
            self._guard.run(self._take, news)

    def close(self) -> None:
        """Write what waits, without waiting any longer, and end the thread."""
        # In a fork there is no thread, and the file is the parent's to leave.
        if self._pid != os.getpid():
            return
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ending.set()
            self._lines.put(None)
            thread.join(JOIN_SECONDS)
        if self._said is not None:
            self._guard.run(self._leave, self._said)

    def _take(self, news: News) -> None:
        identity = self._identity
        news, world_size = _snapshot(news), identity.world_size
        write = partial(one_line, news, identity.run, of=world_size, page=self._page)
        level = level_of(news)
        if self._said is None or self._pid != os.getpid():
            logger.log(level, "%s", write([identity.rank] if world_size > 1 else []))
            return
        what = self._what(news)
        with Suppress(OSError):
            self._said.found(what)
        turn_s = min(identity.local_rank, MAX_TURNS) * TURN_SECONDS
        due_s = self._clock() + PATIENCE_SECONDS + turn_s
        more = partial(short_line, news, identity.run, of=world_size)
        self._lines.put(_Line(level, write, more, what, due_s))
        if self._thread is None:
            # A daemon: a log handler that hangs must not keep the program from ending.
            self._thread = Thread(target=self._work, name="ampwatch-log", daemon=True)
            self._thread.start()

    def _leave(self, said: Said) -> None:
        with Suppress(OSError):
            said.close()

    def _what(self, news: News) -> str:
        """Return what a line is about; the numbers in it are each rank's own."""
        finding = news.finding
        root = news.root.key if news.reason is Reason.EXPLAINED else ""
        what = f"{finding.key} {finding.severity.value} {root}"
        self._times[what] += 1
        return f"{what} {self._times[what]}"

    def _work(self) -> None:
        while (line := self._lines.get()) is not None:
            self._wait(max(0.0, line.due_s - self._clock()))
            self._guard.run(self._say, line)

    def _say(self, line: _Line) -> None:
        said = self._said
        if said is None:
            return
        rank, what, more = self._identity.rank, line.what, f"more of {line.what}"
        write, numbers = line.write, [rank]
        # Without the file each rank writes for itself: better twice than never.
        with Suppress(OSError):
            is_first, known = said.says(what), said.finders(what, said=what)
            if is_first:
                numbers = known or numbers
            elif rank in known or not said.says(more):
                return
            else:
                later = said.finders(what, said=more)
                write, numbers = line.write_more, [n for n in later if n not in known]
        logger.log(line.level, "%s", write(numbers))


def is_worth_a_line(news: News) -> bool:
    """Return whether a reader of the log has to know."""
    if news.reason is Reason.MADE:
        return news.finding.severity is not Severity.INFO
    # A story that has become worse by a symptom: the symptom's own line names the root.
    return news.reason is not Reason.CHANGED and not news.is_of_symptom


def _snapshot(news: News) -> News:
    """Return news of a finding as it stands now: it is written later, and goes on changing."""
    return replace(news, finding=_copy(news.finding), root=_copy(news.root))


def _copy(finding: Finding) -> Finding:
    return replace(finding, evidence=dict(finding.evidence))
