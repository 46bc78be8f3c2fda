"""Runs as rows of a list, the same for ``ampwatch report --all`` and for the daemon's page."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ampwatch.report.headline import headline
from ampwatch.report.judged_boxes import judge_boxes
from ampwatch.report.report import iterations, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.wire.blackbox import Box


class RunRow(NamedTuple):
    """One run in a list.

    Attributes:
        run: Its name.
        ranks: Ranks that have left something.
        started_ns: When the first of them started, as Unix time. Unit: ns.
        seconds: From there to the newest that is known of any of them. Unit: s.
        iterations: Iterations of the rank that came farthest.
        level: The word of its state.
        state: That word, and since when.
        cause: What is wrong, in one line; of a healthy run what is healthy.
        kinds: Kinds of its findings, roots first, without what they explain.
        progress: How far its first rank came, and how that ended.
        has_ended: Each rank has reported that it ends, or is known to have died.
    """

    run: str
    ranks: int
    started_ns: int
    seconds: float
    iterations: int
    level: str
    state: str
    cause: str
    kinds: tuple[str, ...]
    progress: str
    has_ended: bool

    @property
    def key(self) -> str:
        """What tells it from all other runs."""
        return f"{self.started_ns}-{self.run}"


def row_of(job: Sequence[Box]) -> RunRow:
    """Return the row of a run.

    Args:
        job: What its ranks have left; at least one.
    """
    first = job[0].identity
    verdict = judge_boxes(job)
    head = headline(verdict)
    started_ns = min(box.identity.started_ns for box in job)
    return RunRow(
        run=first.run,
        ranks=len(job),
        started_ns=started_ns,
        seconds=max(0, max(box.last_ns for box in job) - started_ns) / 1e9,
        iterations=max(map(iterations, job)),
        level=verdict.level.value,
        state=head.state,
        cause=head.cause,
        kinds=tuple(dict.fromkeys(incident.finding.kind for incident in verdict.incidents)),
        progress=one_line(job[0]),
        has_ended=all(box.has_ended for box in job),
    )
