"""Findings put in the order in which they are shown: the cause, then what it explains.

The ranks of a run mostly find the same, which is one incident then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ampwatch.diagnosis.news import SEVERITIES
from ampwatch.wire.records import Finding  # noqa: TC001 - read by msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ampwatch.wire.records import Severity

    IsCurrent = Callable[[int, Finding], bool]
    """Returns whether a finding of a rank still holds."""


@dataclass(slots=True)
class Incident:
    """A finding that nothing else explains, and what it explains.

    Attributes:
        finding: As the rank has it that saw it first; of several one that knows
            its cause, and then the one to which it is worst.
        ranks: The ranks that found it.
        is_current: Whether the finding itself still holds, on any rank.
        symptoms: What it explains, in the order in which it was found, and what that explains.
            They have no symptoms of their own.
    """

    finding: Finding
    ranks: list[int]
    is_current: bool = True
    symptoms: list[Incident] = field(default_factory=list)

    @property
    def members(self) -> list[Incident]:
        """The finding itself, and what it explains."""
        return [self, *self.symptoms]

    @property
    def goes_on(self) -> bool:
        """Whether the finding or anything that it explains still holds."""
        return any(member.is_current for member in self.members)

    @property
    def severity(self) -> Severity:
        """The worst of the finding and all that it explains: how bad it is for the run.

        While any of it goes on, what is over does not count.
        """
        current = [member for member in self.members if member.is_current]
        return max((m.finding.severity for m in current or self.members), key=SEVERITIES.index)

    @property
    def first_step(self) -> int:
        """The first iteration in which the finding or anything that it explains was seen."""
        return min(member.finding.first_step for member in self.members)


def incidents(
    found: Iterable[tuple[int, Sequence[Finding]]],
    is_current: IsCurrent = lambda _rank, _finding: True,
) -> list[Incident]:
    """Return the incidents of a run: those that go on, the worst first, and of equals what began first.

    What counts is the worst and the first thing in an incident, be it the cause or a symptom.

    Args:
        found: The findings of each rank.
        is_current: Returns whether a finding of a rank still holds; all do without.
    """
    by_key: dict[str, Incident] = {}
    for rank, findings in found:
        for finding in findings:
            holds = is_current(rank, finding)
            incident = by_key.get(finding.key)
            if incident is None:
                by_key[finding.key] = Incident(finding, [rank], holds)
                continue
            incident.ranks.append(rank)
            incident.is_current |= holds
            if _precedence(finding) < _precedence(incident.finding):
                incident.finding = finding
    roots = _roots(by_key)
    for key, incident in by_key.items():
        if roots[key] is not incident:
            roots[key].symptoms.append(incident)
    shown = [incident for key, incident in by_key.items() if roots[key] is incident]
    return sorted(shown, key=lambda s: (not s.goes_on, -SEVERITIES.index(s.severity), s.first_step))


def _precedence(finding: Finding) -> tuple[int, bool, int]:
    """Sort key of the same finding on several ranks: the first one, of equals one with a cause, then the worst."""
    return finding.first_step, finding.root, -SEVERITIES.index(finding.severity)


def _roots(by_key: dict[str, Incident]) -> dict[str, Incident]:
    """Return for the key of each incident the one that explains it; itself if none does.

    Where causes go round in a circle each of them is one.
    """
    roots: dict[str, Incident] = {}
    # The findings are another process's: a chain of them may be of any length, and lead nowhere.
    for incident in by_key.values():
        path = [incident]
        keys = {incident.finding.key}
        while path[-1].finding.key not in roots and not path[-1].finding.root:
            cause = by_key.get(path[-1].finding.caused_by)
            if cause is None:
                break
            if cause.finding.key in keys:
                roots.update((one.finding.key, one) for one in path)
                break
            path.append(cause)
            keys.add(cause.finding.key)
        root = roots.get(path[-1].finding.key, path[-1])
        for one in path:
            roots.setdefault(one.finding.key, root)
    return roots
