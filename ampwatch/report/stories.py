"""Findings put in the order in which they are shown: the cause, then what it explains.

The ranks of a run mostly find the same, which is one story then.
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
class Story:
    """A finding that nothing else explains, and what it explains.

    Attributes:
        finding: As the rank has it that saw it first; of several the one to which it is worst.
        ranks: The ranks that found it.
        is_current: Whether the finding itself still holds, on any rank.
        symptoms: What it explains, in the order in which it was found, and what that explains.
            They have no symptoms of their own.
    """

    finding: Finding
    ranks: list[int]
    is_current: bool = True
    symptoms: list[Story] = field(default_factory=list)

    @property
    def members(self) -> list[Story]:
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


def stories(
    found: Iterable[tuple[int, Sequence[Finding]]],
    is_current: IsCurrent = lambda _rank, _finding: True,
) -> list[Story]:
    """Return the stories of a run: those that go on, the worst first, and of equals what began first.

    What counts is the worst and the first thing in a story, be it the cause or a symptom.

    Args:
        found: The findings of each rank.
        is_current: Returns whether a finding of a rank still holds; all do without.
    """
    by_key: dict[str, Story] = {}
    for rank, findings in found:
        for finding in findings:
            holds = is_current(rank, finding)
            story = by_key.get(finding.key)
            if story is None:
                by_key[finding.key] = Story(finding, [rank], holds)
                continue
            story.ranks.append(rank)
            story.is_current |= holds
            if _precedence(finding) < _precedence(story.finding):
                story.finding = finding
    roots = _roots(by_key)
    for key, story in by_key.items():
        if roots[key] is not story:
            roots[key].symptoms.append(story)
    shown = [story for key, story in by_key.items() if roots[key] is story]
    return sorted(shown, key=lambda s: (not s.goes_on, -SEVERITIES.index(s.severity), s.first_step))


def _precedence(finding: Finding) -> tuple[int, int]:
    """Sort key of the same finding on several ranks: the first one, of equals the worst."""
    return finding.first_step, -SEVERITIES.index(finding.severity)


def _roots(by_key: dict[str, Story]) -> dict[str, Story]:
    """Return for the key of each story the one that explains it; itself if none does.

    Where causes go round in a circle each of them is one.
    """
    roots: dict[str, Story] = {}
    # The findings are another process's: a chain of them may be of any length, and lead nowhere.
    for story in by_key.values():
        path = [story]
        keys = {story.finding.key}
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
