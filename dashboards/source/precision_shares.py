"""Shares of what is counted rarely: rates over rates of the same, over a range with some of it."""

from __future__ import annotations

from dashboards.source.links import field, to_dashboard
from dashboards.source.queries import of
from dashboards.source.tables import Key

OVER = "1h"
"""Ops are counted and windows opened a few times in an hour, whatever the range on the screen."""

FORWARD_ONLY = (
    "Fallbacks are reported in forward only, and backward does about twice as much: a third of all FLOPs"
    " is all of the model."
)
"""Caveat: what the counter of fallbacks leaves out, and that of FLOPs does not."""

LOW = 'dtype=~"float16|bfloat16|float8.*"'
BY_RUN = "run"

RUN = Key(
    label="run",
    title="Run",
    links=(
        to_dashboard("This run only", "ampwatch-precision", run=field("Run")),
        to_dashboard("Which module? Open its layers", "ampwatch-layers", run=field("Run")),
    ),
    width=160,
)
"""First column of the tables."""


def sums(metric: str, *matchers: str, by: str = BY_RUN) -> str:
    """Return PromQL of the increase of a counter over ``OVER``, summed up."""
    return f"sum by ({by}) (increase({of(metric, *matchers)}[{OVER}]))"


def share(part: str, whole: str) -> str:
    """Return PromQL of one over the other; absent where there is nothing to share."""
    return f"{part} / ({whole} > 0)"
