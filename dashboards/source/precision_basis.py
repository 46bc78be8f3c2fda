"""The rows of the dashboard Precision about what its numbers rest on, and what that costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.source.capabilities import PRECISION_FEATURES, PRECISION_REASONS, STATE_WORDS
from dashboards.source.fields import described
from dashboards.source.precision_shares import RUN
from dashboards.source.queries import of
from dashboards.source.tables import Column, Key, Table

if TYPE_CHECKING:
    from dashboards.source.panels import Panel

_CAPABILITY = "ampwatch_precision_capability"


def absent() -> tuple[Panel, ...]:
    """Return how it stands with each measurement, in words."""
    return (
        Table(
            id=701,
            title="What is measured, and why something is not",
            description=described(
                shows="How many ranks of a run have each measurement, and if not, for what reason."
                " A value that is not known is absent from the panels above, never zero.",
                good="supported, for all ranks of the run.",
                act="the reason says what to change; docs/lab.md has the details.",
                metrics=[_CAPABILITY],
            ),
            unit="none",
            no_value="No run was chosen that is watched at level standard or deep",
            keys=(
                RUN,
                Key(label="feature", title="What", mappings=(PRECISION_FEATURES,)),
                Key(label="state", title="State", mappings=(STATE_WORDS,), width=140),
                Key(label="reason", title="Why", mappings=(PRECISION_REASONS,)),
            ),
            columns=(
                Column(
                    title="Ranks",
                    expr=f"count by (run, feature, state, reason) ({of(_CAPABILITY)})",
                    width=90,
                ),
            ),
            sort_by="Run",
        ),
    )
