"""A finding in one line, for a log: the rest is an address or a command away."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from urllib.parse import quote

from ampwatch.diagnosis.news import Reason
from ampwatch.report.accounts import cut, first_sentence, place, ranks
from ampwatch.wire.records import Severity
from ampwatch.wire.rendezvous.token import TOKEN_FIELD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.news import News
    from ampwatch.wire.records import Finding

NAME = "ampwatch "
"""Begins each line: without a handler of the program's, nothing else says whose it is."""

MAX_LENGTH = 250
"""Characters of a line; only names and the address may make it longer."""

MIN_SENTENCE = 60
"""Characters that are left of a sentence, however long everything else is."""

LEVELS = {
    Severity.INFO: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.CRITICAL: logging.ERROR,
}
"""Level in a log, by severity."""


def level_of(news: News) -> int:
    """Return the level in a log: that of the severity, or INFO where nothing has become worse."""
    return logging.INFO if news.reason is Reason.EXPLAINED else LEVELS[news.finding.severity]


def printable(text: str) -> str:
    r"""Return ``text`` in one line, whatever it holds: what nobody would see is written as ``\x1b``.

    A name with a line break would otherwise write lines of its own into a log.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def address(
    url: str,
    run: str,
    rank: int | None = None,
    started_ns: int | None = None,
    token: str = "",
    *,
    step: int | None = None,
    finding: str = "",
) -> str:
    """Return the address of the page of a run, or of one of its ranks; empty without a page.

    Args:
        url: Address of the daemon.
        run: Name of the run.
        rank: One of its ranks.
        started_ns: Unix time at which that rank, or any, began to be watched. It tells the run
            from others of the same name. Unit: ns.
        token: What the daemon wants of a browser that comes for the first time. A secret: not for
            what is kept, as logs and reports are.
        step: The step that charts mark.
        finding: Key of the finding that is scrolled to and marked.
    """
    if not url:
        return ""
    fragment = f"run={quote(run, safe=':/', errors='replace')}"
    if rank is not None:
        fragment += f"&rank={rank}"
    if step is not None:
        fragment += f"&step={step}"
    if finding:
        fragment += f"&finding={quote(finding, safe=':/@', errors='replace')}"
    if started_ns is not None:
        fragment += f"&started={started_ns / 1e9:.3f}"
    query = f"?{TOKEN_FIELD}={token}" if token else ""
    return f"{url.rstrip('/')}/{query}#{fragment}"


def named(finding: Finding) -> str:
    """Write kind, place and op, as in "forward_overflow in module encoder.4 (op exp)"."""
    op = f" (op {finding.op})" if finding.op else ""
    return f"{finding.kind} in {place(finding)}{op}"


def one_line(news: News, run: str, numbers: Sequence[int], page: str = "", *, of: int = 0) -> str:
    """Write news of a finding in one line.

    Args:
        news: The finding, and why it is written about.
        run: Name of the run.
        numbers: The ranks that have found it; none if there is only one rank.
        page: Address of the page about it; a command is named without one.
        of: Ranks of the run.
    """
    finding, run = news.finding, printable(run)
    who = f" {ranks(numbers, of)}" if numbers else ""
    tail = page or f"More: ampwatch explain {finding.kind}"
    is_explained = news.reason is Reason.EXPLAINED
    severity = (Severity.INFO if is_explained else finding.severity).value.upper()
    what = printable(named(finding))
    head = f"{NAME}{severity} run {run}{who} step {finding.last_step}: {what}"
    root = printable(named(news.root))
    if is_explained:
        # It was seen before its root as often as after it: nothing here says what came first.
        return f"{head} is now part of: {root}, since step {news.root.first_step}. {tail}"
    if news.reason is Reason.WORSE and news.escalated_from is not None:
        head += f", escalated from {news.escalated_from.value}"
    if news.root.key != finding.key:
        head += f", explained by {root}"
    room = max(MIN_SENTENCE, MAX_LENGTH - len(head) - len(tail) - len(": ") - len(" "))
    return f"{head}: {cut(printable(first_sentence(finding.summary)), room)} {tail}"
