"""What the newest gradients would lose in each block-scaled format, for the what-if panel.

It is asked for by itself (``/blocks.json``): blocks are measured every few seconds, and a cast to NVFP4 takes
ten milliseconds to foretell. No torch, no network.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ampwatch.host.page.range_state import group_of
from ampwatch.numerics.block_casts import cast_to_all
from ampwatch.numerics.formats import FORMATS
from ampwatch.report.words import percent
from ampwatch.wire.records import ALL_MODULES

if TYPE_CHECKING:
    from ampwatch.host.fleet import Fleet, RankView
    from ampwatch.host.page.rows import State
    from ampwatch.numerics.block_casts import BlockOutcome
    from ampwatch.wire.records import RangeRecord

MAX_KEPT = 8
"""Answers of a rank that are kept ready."""


class BlockStates:
    """Losses of gradients in block-scaled formats, by rank and module. For one thread.

    Args:
        fleet: Whose they are.

    Cost:
        Some 20 ms, without the fleet's lock; nothing while no blocks were measured since.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._kept: WeakKeyDictionary[RankView, dict[str, tuple[RangeRecord, State]]] = (
            WeakKeyDictionary()
        )

    def of(self, run: str, rank: str, module: str | None) -> State | None:
        """Return what the gradients of a module would lose, or those of all; ``None`` if there is no such rank."""
        name = ALL_MODULES if module is None else module
        with self._fleet.lock:
            view = self._fleet.rank(run, rank)
            record = None if view is None else view.ranges.blocked.get(name)
        if view is None:
            return None
        if record is None:
            return {"formats": []}
        kept = self._kept.setdefault(view, {})
        before, state = kept.pop(name, (None, {}))
        if before is not record:
            state = _state(record)
        while len(kept) >= MAX_KEPT:
            kept.pop(next(iter(kept)))
        kept[name] = record, state
        return state


def _state(record: RangeRecord) -> State:
    outcomes = cast_to_all(record.blocks, record.histogram)
    return {
        "step": record.step,
        "formats": [
            {"name": name, "group": group_of(FORMATS[name]), "words": _words(outcome)}
            for name, outcome in outcomes.items()
        ],
    }


def _words(outcome: BlockOutcome) -> str:
    noise = "" if not math.isfinite(outcome.sqnr_db) else f"{outcome.sqnr_db:.1f} dB, "
    return f"{noise}{percent(outcome.flushed_share)} to zero"
