"""A finding in one line, for a log: the rest is an address or a command away."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from urllib.parse import quote

from ampwatch.diagnosis.news import Reason
from ampwatch.report.accounts import cut, first_sentence, place, ranks
from ampwatch.wire.records import Severity

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


def address(url: str, run: str, rank: int | None = None) -> str:
    """Return the address of the page of a run, or of one of its ranks; empty without a page."""
    if not url:
        return ""
    fragment = f"run={quote(run, safe=':/')}" + ("" if rank is None else f"&rank={rank}")
    return f"{url.rstrip('/')}/#{fragment}"


def named(finding: Finding) -> str:
    """Write kind, place and op, as in "forward_overflow in module encoder.4 (op exp)"."""
    op = f" (op {finding.op})" if finding.op else ""
    return f"{finding.kind} in {place(finding)}{op}"


def one_line(news: News, run: str, numbers: Sequence[int], url: str = "") -> str:
    """Write news of a finding in one line.

    Args:
        news: The finding, and why it is written about.
        run: Name of the run.
        numbers: The ranks that have found it; none if there is only one rank.
        url: Address of the daemon; a command is named without one.
    """
    finding = news.finding
    who = f" {ranks(numbers)}" if numbers else ""
    severity = finding.severity.value.upper()
    head = f"{NAME}{severity} run {run}{who} step {finding.last_step}: {named(finding)}"
    tail = address(url, run, min(numbers, default=0)) or f"More: ampwatch explain {finding.kind}"
    if news.reason is Reason.EXPLAINED:
        return f"{head} is explained by {named(news.root)}. {tail}"
    if news.reason is Reason.WORSE and news.escalated_from is not None:
        head += f", escalated from {news.escalated_from.value}"
    if news.root.key != finding.key:
        head += f", explained by {named(news.root)}"
    room = max(MIN_SENTENCE, MAX_LENGTH - len(head) - len(tail) - len(": ") - len(" "))
    return f"{head}: {cut(first_sentence(finding.summary), room)} {tail}"
