"""Findings in the log: one line each, from one of the ranks that have found it."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from msgspec import structs

from ampwatch.diagnosis.news import News, Reason
from ampwatch.guard import Guard, Log
from ampwatch.report.one_line import address, level_of, one_line
from ampwatch.wire.records import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.training.other_ranks import OtherRanks
    from ampwatch.wire.records import Finding, RunIdentity

logger = Log()

PATIENCE_SECONDS = 0.5
"""Time that a line waits for the other ranks to find the same. Unit: s."""

JOIN_SECONDS = 2.0
"""Patience with a log handler that hangs, at the end."""


class FindingLog:
    """Writes the findings of one rank to the logger ``ampwatch``.

    A rank that knows of no others writes at once, on the thread of the finding. Of several whose
    rings hold the same, the lowest one that lives writes, half a second later and in the name of all
    of them, from a thread that starts with the first line. What one rank alone has found, it writes itself.

    Args:
        identity: Who writes.
        url: Address of the daemon; empty without one.
        others: The other ranks of this machine; ``None`` if each rank writes for itself.
        wait: Waits a number of seconds, on the thread of the log.
    """

    def __init__(
        self,
        identity: RunIdentity,
        url: str = "",
        others: OtherRanks | None = None,
        *,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._identity = identity
        self.point_to(url)
        self._others = others
        self._guard = Guard("log", is_thread_safe=True)
        self._wait = wait
        self._lines: SimpleQueue[tuple[News, float] | None] = SimpleQueue()
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
        """Write what waits, each line when its time has come, and end the thread."""
        thread, self._thread = self._thread, None
        # In a fork there is no thread.
        if thread is not None and self._pid == os.getpid():
            self._lines.put(None)
            thread.join(JOIN_SECONDS)

    def _take(self, news: News) -> None:
        news = _snapshot(news)
        if self._others is None or self._pid != os.getpid():
            self._write(news, [])
            return
        self._lines.put((news, time.monotonic() + PATIENCE_SECONDS))
        if self._thread is None:
            # A daemon: a log handler that hangs must not keep the program from ending.
            args = (self._others,)
            self._thread = Thread(target=self._work, args=args, name="ampwatch-log", daemon=True)
            self._thread.start()

    def _work(self, others: OtherRanks) -> None:
        while (line := self._lines.get()) is not None:
            self._guard.run(self._agree, others, *line)
        self._guard.run(others.close)

    def _agree(self, others: OtherRanks, news: News, due_s: float) -> None:
        """Write a line when it is due, unless a lower rank has found the same by then."""
        others.read()  # so that one that ends in between has been seen alive
        self._wait(max(0.0, due_s - time.monotonic()))
        holders = others.holders(news)
        if not holders or self._identity.rank < holders[0]:
            self._write(news, holders)

    def _write(self, news: News, others: Sequence[int]) -> None:
        who = self._identity
        numbers = [who.rank, *others] if who.world_size > 1 else []
        line = one_line(news, who.run, numbers, of=who.world_size, page=self._page)
        logger.log(level_of(news), "%s", line)


def is_worth_a_line(news: News) -> bool:
    """Return whether a reader of the log has to know."""
    if news.reason is Reason.MADE:
        return news.finding.severity is not Severity.INFO
    # An incident that has become worse by a symptom: the symptom's own line names the root.
    return news.reason is not Reason.CHANGED and not news.is_of_symptom


def _snapshot(news: News) -> News:
    """Return news of a finding as it stands now: it is written later, and goes on changing."""
    return structs.replace(news, finding=_copy(news.finding), root=_copy(news.root))


def _copy(finding: Finding) -> Finding:
    return replace(finding, evidence=dict(finding.evidence))
