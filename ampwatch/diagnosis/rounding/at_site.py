"""Findings about single ops: made at the place where the op ran, and counted once a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.wire.records import Finding

if TYPE_CHECKING:
    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.evidence.rounding import OpSite
    from ampwatch.diagnosis.kinds.kind import Kind
    from ampwatch.wire.records import Severity


def finding_at(
    site: OpSite,
    kind: Kind,
    dtype: str,
    summary: str,
    evidence: dict[str, float],
    *,
    severity: Severity | None = None,
) -> Finding:
    """Return a finding about an op.

    Args:
        site: Where and when it ran.
        kind: Kind of the finding.
        dtype: Name of the dtype at fault.
        summary: What happened.
        evidence: The numbers it rests on.
        severity: Another one than the kind is made with.
    """
    return Finding(
        kind=kind.slug,
        severity=severity or kind.severity,
        where=site.where,
        summary=summary,
        advice=kind.advice,
        op=site.op,
        phase=site.phase,
        dtype=dtype,
        first_step=site.step,
        last_step=site.step,
        evidence=evidence,
        source=site.source,
    )


def count_once_a_step(
    book: FindingBook, finding: Finding, step: int, newest: Finding | None = None
) -> None:
    """Count a finding again, unless it was counted in this step: one incident has many places.

    Args:
        book: Where it was made.
        finding: The finding.
        step: The iteration.
        newest: One of the same place with the numbers and the sentence as they stand now.
    """
    if finding.last_step == step:
        return
    if newest is None:
        book.again(finding.kind, finding.where, step)
    else:
        book.renew(newest)
