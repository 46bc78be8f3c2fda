"""Findings: something that went wrong, named."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from msgspec import Struct

from ampwatch.wire.records.fields import Count
from ampwatch.wire.records.remedies import Tried, advice_of, once_explained


class Severity(str, Enum):
    """Severity of a finding; ``info`` is never an alarm."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


OUTSIDE = frozenset({"loss", "step", "api", "env"})
"""Places of findings that are outside of the model: the loss, the steps and their time, the calls of
the training loop, the machine and its settings."""

GONE_STEP = "gone_step"
"""Evidence: the iteration in which what a finding is about was seen to be gone."""


@dataclass(slots=True)
class Finding:
    """Something that went wrong, named.

    Attributes:
        kind: Slug of the kind of failure; never changes between releases.
        severity: How bad it is.
        where: Qualified name of a module (empty for the root module), ``param:<name>``,
            ``buffer:<name>``, ``optimizer:<index>``, or one of ``OUTSIDE``.
        op: Base name of the ATen op at fault, where one is.
        phase: ``forward``, ``backward``, ``optimizer``, ``eval`` or ``config``.
        dtype: Name of the dtype at fault (``float16``), where one is.
        first_step: Iteration in which it was first seen, from 0.
        last_step: Iteration in which it was last seen.
        count: In how many iterations it was seen.
        evidence: The numbers it rests on, by name.
        summary: One sentence: what happened, where, since when.
        kind_advice: What to change, for the kind; ``advice`` has what was tried as well.
        root: False when another finding explains this one.
        caused_by: Kind and place of that finding, as ``kind@where``; empty for a root.
        source: ``file:line`` of the user's code, where known.
        tried: Remedies that were tried on the failed batch: ``measure``, ``module``, ``step``, whether it
            ``cures``, and what failed in spite of it (``then_op``, ``then_module``).
    """

    kind: str
    severity: Severity
    where: str
    summary: str
    kind_advice: str
    op: str = ""
    phase: str = ""
    dtype: str = ""
    first_step: Count = 0
    last_step: Count = 0
    count: Count = 1
    evidence: dict[str, float] = field(default_factory=dict)
    root: bool = True
    caused_by: str = ""
    source: str = ""
    tried: tuple[Tried, ...] = ()

    @property
    def advice(self) -> str:
        """What to change: the remedy that was tried and cures it, then what else is possible."""
        own = self.kind_advice
        return advice_of(self.tried, once_explained(self.kind, own) if self.caused_by else own)

    @property
    def cure(self) -> Tried | None:
        """The smallest change that was tried and cures it."""
        return next((t for t in self.tried if t.cures), None)

    @property
    def key(self) -> str:
        """Identity of the finding within its run: ``kind@where``."""
        return f"{self.kind}@{self.where}"

    @property
    def is_gone(self) -> bool:
        """Whether what it is about was seen to be gone, and not since."""
        return GONE_STEP in self.evidence

    @property
    def last_seen(self) -> str:
        """When it was seen last, or was seen to be gone, as in "over since step 94"."""
        gone = self.evidence.get(GONE_STEP)
        return (
            f"last seen at step {self.last_step}" if gone is None else f"over since step {gone:.0f}"
        )


class FindingRecord(Struct, frozen=True):
    """A finding that was made or has changed; the newest of one key holds.

    Attributes:
        finding: The finding as it stands.
    """

    finding: Finding
