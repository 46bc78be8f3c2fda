"""The end of a job: which rank's failure made the others fail.

When one rank of a job raises, the others do not see its exception: their next collective finds
the connection closed, and they raise that. When one is killed, all of them do. So of eight
exceptions seven say nothing, and they are mostly not the last ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampwatch.wire.blackbox.box import DIED

if TYPE_CHECKING:
    from collections.abc import Iterable

KILLED = "killed"
"""Name of the error of a process that has ended without a word."""

MAX_NAME = 80
"""Characters of the name of an exception that are kept: it becomes a label."""

_LOST = re.compile(
    # Classes of torch.distributed for what is beneath a collective, and a launcher's for its own end.
    r"^(DistNetworkError|DistBackendError|DistStoreError|SignalException)\b"
    # Gloo, NCCL and the process groups raise RuntimeError as well; what they say names themselves.
    r"|\b(Connection (closed|reset|refused) by peer|Socket closed|pair closure"
    r"|remote process exited|Timed out waiting|NCCL (Error|communicator was aborted)"
    r"|ncclRemoteError|Watchdog caught collective|watchdog got stuck)\b"
)

TOGETHER_SECONDS = 30.0
"""Time within which ends of ranks cannot be put in order. The last word of a rank that was killed
is the end of a step before it, and a launcher ends the others within seconds. Unit: s."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of a rank that did not end well.

    Attributes:
        rank: Global rank.
        reason: Why it ended, in words: the exception that ended the loop, or that the process was gone.
        at_s: Unix time of its last word. Unit: s.
    """

    rank: int
    reason: str
    at_s: float

    @property
    def was_killed(self) -> bool:
        """Whether the process ended without a word."""
        return self.reason == DIED

    @property
    def is_lost_connection(self) -> bool:
        """Whether it only says that another process of the job was gone."""
        return _LOST.search(self.reason) is not None

    @property
    def error(self) -> str:
        """Name of the class of the exception, ``KILLED`` without one."""
        if self.was_killed:
            return KILLED
        name = self.reason.partition(":")[0].strip()
        return name[:MAX_NAME] if name.isidentifier() else "error"


def cause_of(failures: Iterable[Failure], *, is_whole_job: bool) -> Failure | None:
    """Return the failure that made the other ranks fail; ``None`` where that is not known.

    It is the earliest exception that is no lost connection, unless a process was gone long before
    it. Without such an exception it is a process that was gone without a word, if there is only one
    or it went long before the next. Without either it is the first that lost its connection.

    Args:
        failures: Those of the ranks of one job that have failed.
        is_whole_job: Whether all ranks of the job are known. If not, and none of these has raised
            anything of its own, the cause may be a rank that is not known.
    """
    known = sorted(failures, key=lambda failure: (failure.at_s, failure.rank))
    raised = [f for f in known if not f.was_killed and not f.is_lost_connection]
    killed = [f for f in known if f.was_killed]
    lost = [f for f in known if f.is_lost_connection]
    if killed and all(_is_before(killed[0], f) for f in (*killed[1:], *raised)):
        return killed[0] if is_whole_job or raised else None
    if raised:
        return raised[0]
    return lost[0] if lost and is_whole_job and not killed else None


def _is_before(one: Failure, other: Failure) -> bool:
    return one.at_s < other.at_s - TOGETHER_SECONDS


def num_led_to(cause: Failure | None, failures: Iterable[Failure]) -> int:
    """Return how many failures came after, or together with, the one that is their cause."""
    if cause is None:
        return 0
    return sum(f.rank != cause.rank and not _is_before(f, cause) for f in failures)
