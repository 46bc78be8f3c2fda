"""News of a finding: what the book passes on to the ring, the log and the user's callbacks."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct

from ampwatch.wire.records import Severity

if TYPE_CHECKING:
    from ampwatch.wire.records import Finding

SEVERITIES = tuple(Severity)
"""From harmless to bad."""


class Reason(Enum):
    """Reason for news."""

    MADE = "made"
    WORSE = "worse"
    EXPLAINED = "explained"
    CHANGED = "changed"


class News(Struct, frozen=True):
    """A finding, and why it is passed on.

    Attributes:
        finding: As it stands.
        reason: ``MADE`` once; ``WORSE`` each time its severity, or that of its incident, has risen;
            ``EXPLAINED`` when a root of a critical incident turns out to be none; else ``CHANGED``.
        severity: The worst of the finding and all that it explains: how bad it is for the run.
        escalated_from: Severity that was reported until now, of ``WORSE`` news.
        root: The finding that explains it; itself if nothing does.
    """

    finding: Finding
    reason: Reason
    severity: Severity
    root: Finding
    escalated_from: Severity | None = None

    @property
    def is_of_symptom(self) -> bool:
        """Whether only the incident has become worse: by a symptom, which has had news of its own."""
        since = self.escalated_from
        return since is not None and not is_worse(self.finding.severity, since)


def is_worse(severity: Severity, than: Severity) -> bool:
    """Return whether one severity is worse than another."""
    return SEVERITIES.index(severity) > SEVERITIES.index(than)
