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
    # Classes: Python's own for sockets, and torch.distributed's for what is beneath a collective.
    r"^(ConnectionError|ConnectionResetError|ConnectionAbortedError|ConnectionRefusedError"
    r"|BrokenPipeError|DistNetworkError|DistBackendError|DistStoreError)\b"
    # Gloo and the process groups raise RuntimeError; what they say names themselves.
    r"|\b(Connection (closed|reset|refused)|Broken pipe|Socket closed|remote process exited"
    r"|Timed out waiting|ncclRemoteError|watchdog got stuck)\b"
)


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
        if self.was_killed or not self.reason:
            return KILLED
        name = self.reason.partition(":")[0].strip()
        return name[:MAX_NAME] if name.isidentifier() else "error"


def cause_of(failures: Iterable[Failure], *, is_whole_job: bool) -> Failure | None:
    """Return the failure that made the other ranks fail.

    That is the earliest exception that is no lost connection; without one the first process that
    was gone without a word; without that either the first that lost its connection.

    Args:
        failures: Those of the ranks of one job that have failed.
        is_whole_job: Whether all ranks of the job are known. If not, and all of these have only lost
            a connection, the cause is a rank that is not known: ``None``.
    """
    known = sorted(failures, key=lambda failure: (failure.at_s, failure.rank))
    raised = [f for f in known if not f.was_killed and not f.is_lost_connection]
    killed = [f for f in known if f.was_killed]
    lost = [f for f in known if f.is_lost_connection] if is_whole_job else []
    return next(iter([*raised, *killed, *lost]), None)
