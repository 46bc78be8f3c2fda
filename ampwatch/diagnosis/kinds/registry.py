"""All kinds of findings, gathered from their families."""

from __future__ import annotations

from ampwatch.diagnosis.autocast import kinds as autocast
from ampwatch.diagnosis.calls import kinds as calls
from ampwatch.diagnosis.forward import kinds as forward
from ampwatch.diagnosis.gradients import kinds as gradients
from ampwatch.diagnosis.kinds.kind import Certainty, Kind, KindFamily
from ampwatch.diagnosis.memory import kinds as memory
from ampwatch.diagnosis.performance import kinds as performance
from ampwatch.diagnosis.rounding import kinds as rounding
from ampwatch.diagnosis.scale import kinds as scale
from ampwatch.diagnosis.state import kinds as state
from ampwatch.diagnosis.steps import kinds as steps
from ampwatch.diagnosis.time import kinds as time

_MODULES = (
    *(autocast, calls, forward, gradients, memory, performance),
    *(rounding, scale, state, steps, time),
)

RELEASED = tuple(
    sorted(
        (row for module in _MODULES for row in vars(module).values() if isinstance(row, Kind)),
        key=lambda row: row.number,
    )
)
"""Every kind, in the order of release, so that a new one moves no label value and no series."""

ROWS = tuple(row for family in KindFamily for row in RELEASED if row.family is family)
"""Every kind, in the order of the pages: by family, and in each in the order of release."""

_BY_SLUG = {row.slug: row for row in ROWS}

KINDS = tuple(row.slug for row in RELEASED)
"""The kinds of findings that this release makes; a ring of another release may hold more."""


def _check(rows: tuple[Kind, ...]) -> None:
    """Refuse rows that contradict one another, when they are loaded: edges name kinds by slug.

    Raises:
        ValueError: If two rows share a slug or a number, or an edge leads to no kind.
    """
    if sorted(row.number for row in rows) != list(range(len(rows))) or len(_BY_SLUG) != len(rows):
        msg = f"expected numbers 0 to {len(rows) - 1} and slugs, each once; got {[(r.number, r.slug) for r in RELEASED]}"
        raise ValueError(msg)
    for row in rows:
        for cause in row.explained_by:
            if cause.kind and cause.kind not in _BY_SLUG:
                msg = (
                    f"`explained_by` of {row.slug}: expected kinds of findings, got {cause.kind!r}"
                )
                raise ValueError(msg)


_check(ROWS)

UNKNOWN = Certainty("not stated", "this release does not know findings of this kind")


def row_of(kind: str) -> Kind | None:
    """Return the row of a kind; ``None`` if this release does not know it."""
    return _BY_SLUG.get(kind)


def certainty(kind: str) -> Certainty:
    """Return how sure a finding of ``kind`` is."""
    row = row_of(kind)
    return UNKNOWN if row is None else row.certainty
