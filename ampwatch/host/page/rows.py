"""Findings and the buckets of a history as the page has them: rows of JSON."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ampwatch.host.page.as_json import digits
from ampwatch.report.accounts import evidence, place
from ampwatch.report.glossary import terms_in
from ampwatch.report.pages import route_about
from ampwatch.report.words import quantity, scale
from ampwatch.wire.records import SKIP_CLASSES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.host.fleet import Bucket
    from ampwatch.report.incidents import Incident
    from ampwatch.report.verdict import RunVerdict
    from ampwatch.wire.records import Finding

State = dict[str, Any]
"""JSON-ready: plain dicts with string keys, finite numbers, and no ``None`` as a dict's value."""

Row = tuple[float | str | tuple[int, ...] | None, ...]

COLUMNS = (
    "last_step",
    "steps",
    "scale_low",
    "scale_high",
    "scale",
    "loss",
    "nonfinite_losses",
    "seconds",
    "longest",
    "ended",
    *(skip.label for skip in SKIP_CLASSES),
    "phased",
    "phases",
)
"""Cells of the row of a bucket; its first step is its key. ``ended`` is the Unix time at the end of its
last step, ``phased`` the mean time of those steps whose phases are known, and ``phases`` what each
``StepPhase`` has of that, in thousandths; the last ones that have nothing are left out."""

WHOLE = 1000
"""What the phases of a row add up to, but for rounding."""


def found(verdict: RunVerdict) -> dict[str, list[int]]:
    """Return for the key of each finding a rank that has it, and how many have it.

    It is the rank that speaks for the run, if that has it: an address need not name one.
    """
    members = [member for incident in verdict.incidents for member in incident.members]
    shown_rank = verdict.shown_rank
    return {
        m.finding.key: [shown_rank if shown_rank in m.ranks else min(m.ranks), len(m.ranks)]
        for m in members
    }


def order(incident: Incident) -> list[list[str | int]]:
    """Return the keys of an incident's findings in reading order, each with how deep it stands."""
    return [[member.finding.key, int(member is not incident)] for member in incident.members]


def finding_row(finding: Finding, *, current: bool, change: Sequence[str] = ()) -> State:
    """Return a finding with its words.

    Args:
        finding: The finding.
        current: Whether it still holds.
        change: The remedy as a difference of its line (``line_change.py``).
    """
    return {
        "kind": finding.kind,
        "severity": finding.severity.value,
        "where": finding.where,
        "place": place(finding),
        "op": finding.op,
        "phase": finding.phase,
        "dtype": finding.dtype,
        "first_step": finding.first_step,
        "last_step": finding.last_step,
        "count": finding.count,
        "last_seen": finding.last_seen,
        "evidence": {name: digits(value) for name, value in finding.evidence.items()},
        "evidence_words": dict(evidence(finding, _written)),
        "summary": finding.summary,
        "advice": finding.advice,
        "change": list(change),
        "tried": [tried._asdict() for tried in finding.tried],
        "terms": _terms(finding.summary, finding.advice),
        "root": finding.root,
        "caused_by": finding.caused_by,
        "source": finding.source,
        "page": route_about(finding.kind),
        "current": current,
    }


def _written(name: str, value: float) -> str:
    """Write a number of the evidence as charts write it: a loss scale is a power of two there."""
    return scale(value) if "scale" in name.split("_") else quantity(value)


@lru_cache(maxsize=4096)
def _terms(*texts: str) -> tuple[str, ...]:
    """Return the terms that come up in texts. Kept: ranks mostly find the same, and say it again."""
    return tuple(term.name for term in terms_in(*texts))


def bucket_row(bucket: Bucket, *, on_device: bool = False) -> Row:
    """Return the cells of a bucket, in the order of ``COLUMNS``.

    Args:
        bucket: The bucket.
        on_device: Whether its phases are to be those of the device.
    """
    loss = bucket.loss_mean if bucket.num_losses else bucket.loss_last
    return (
        bucket.last_step,
        bucket.num_steps,
        *map(_known, (bucket.scale_min, bucket.scale_max, bucket.scale_last)),
        None if loss is None else digits(loss),
        bucket.num_nonfinite_losses,
        *map(_known, (bucket.duration_mean, bucket.duration_max)),
        round(bucket.time_ns / 1e9, 3),
        *bucket.skips,
        *_phases(bucket, on_device=on_device),
    )


def _known(value: float) -> float | str | None:
    return None if math.isnan(value) else digits(value)


def _phases(
    bucket: Bucket, *, on_device: bool
) -> tuple[float | str | None, tuple[int, ...] | None]:
    """Return the mean time of the steps whose phases are known, unit s, and the phases in thousandths."""
    sums = bucket.device_phase_sums if on_device else bucket.phase_sums
    steps = bucket.num_device_phased if on_device else bucket.num_phased
    seconds = sum(sums)
    if not steps or not seconds:
        return None, None
    parts = [round(WHOLE * part / seconds) for part in sums]
    while not parts[-1]:
        parts.pop()
    return digits(seconds / steps, 4), tuple(parts)
