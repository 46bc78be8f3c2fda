"""Findings put in the order in which they are shown: the cause, then what it explains.

The ranks of a run mostly find the same, which is one story then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ampwatch.wire.records import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ampwatch.wire.records import Finding

    IsCurrent = Callable[[int, Finding], bool]
    """Returns whether a finding of a rank still holds."""

_ORDER = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}


def _always(_rank: int, _finding: Finding) -> bool:
    return True


@dataclass(slots=True)
class Story:
    """A finding that nothing else explains, and what it explains.

    Attributes:
        finding: As the rank has it that saw it first.
        ranks: The ranks that found it.
        is_current: Whether the finding itself still holds, on any rank.
        symptoms: What it explains, in the order in which it was found.
    """

    finding: Finding
    ranks: list[int]
    is_current: bool = True
    symptoms: list[Story] = field(default_factory=list)

    @property
    def goes_on(self) -> bool:
        """Whether the finding or anything that it explains still holds."""
        return any(member.is_current for member in all_members(self))

    @property
    def severity(self) -> Severity:
        """The worst of the finding and all that it explains: how bad it is for the run.

        While any of it goes on, what is over does not count.
        """
        members = all_members(self)
        current = [member for member in members if member.is_current]
        return min((m.finding.severity for m in current or members), key=_ORDER.__getitem__)

    @property
    def first_step(self) -> int:
        """The first iteration in which the finding or anything that it explains was seen."""
        return min(member.finding.first_step for member in all_members(self))


def stories(
    found: Iterable[tuple[int, Sequence[Finding]]], is_current: IsCurrent = _always
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
            if finding.first_step < story.finding.first_step:
                story.finding = finding
    roots = []
    for story in by_key.values():
        cause = by_key.get(story.finding.caused_by)
        if story.finding.root or cause is None or _leads_back(story, by_key):
            roots.append(story)
        else:
            cause.symptoms.append(story)
    return sorted(roots, key=lambda s: (not s.goes_on, _ORDER[s.severity], s.first_step))


def all_symptoms(story: Story) -> list[Story]:
    """Return what a story explains, and what that explains, and so on."""
    return [each for s in story.symptoms for each in (s, *all_symptoms(s))]


def all_members(story: Story) -> list[Story]:
    """Return a story and what it explains, and what that explains, and so on."""
    return [story, *all_symptoms(story)]


def _leads_back(story: Story, by_key: dict[str, Story]) -> bool:
    """Return whether the causes of ``story`` go round in a circle: none would ever be shown."""
    seen = set()
    step: Story | None = story
    while step is not None and not step.finding.root:
        if step.finding.key in seen:
            return True
        seen.add(step.finding.key)
        step = by_key.get(step.finding.caused_by)
    return False
