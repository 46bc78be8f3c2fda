"""Findings about single ops: made at the place where the op ran, and counted once a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampwatch.diagnosis.book import FindingBook
    from ampwatch.diagnosis.evidence.rounding import OpSite
    from ampwatch.diagnosis.kinds.kind import Kind
    from ampwatch.wire.records import Finding, Severity


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
    return kind.finding(
        site.where,
        site.step,
        summary=summary,
        severity=severity,
        op=site.op,
        phase=site.phase,
        dtype=dtype,
        source=site.source,
        evidence=evidence,
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
