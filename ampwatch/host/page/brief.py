"""The state for a line a rank, as a terminal shows it: that of the page without what takes room."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampwatch.host.page.rows import State

MAX_ROWS = 60
"""Newest rows of a rank's course: as many as a line has room for."""

_ONLY_ON_THE_PAGE = frozenset(
    {
        "exponent_columns",
        "histogram_columns",
        "module_columns",
        "op_columns",
        "kernel_columns",
        "phases",
        "formats",
        "troubles",
    }
)
_LARGE = frozenset({"ranges", "precision", "series"})


def brief(state: State) -> State:
    """Return ``state`` with the newest rows of each course only, and without ranges and ops.

    What remains is the page's own. ``state`` is left as it is.

    Cost:
        Some 50 us a rank. With 256 ranks and a day of history 1.7 MB of JSON, where the whole has 15.5.
    """
    short = {name: value for name, value in state.items() if name not in _ONLY_ON_THE_PAGE}
    short["runs"] = {
        run: {**told, "ranks": {rank: _rank(of) for rank, of in told["ranks"].items()}}
        for run, told in state["runs"].items()
    }
    return short


def _rank(rank: State) -> State:
    series = rank["series"]
    newest = dict(islice(series.items(), max(0, len(series) - MAX_ROWS), None))
    return {**{name: value for name, value in rank.items() if name not in _LARGE}, "series": newest}
