"""What gradients would lose in each block-scaled format, for the what-if panel. No torch, no network."""

from __future__ import annotations

import math

from ampwatch.host.page.range_state import group_of
from ampwatch.host.page.rows import State
from ampwatch.numerics.block_casts import BlockOutcome, cast_to_all
from ampwatch.numerics.formats import FORMATS
from ampwatch.report.words import percent
from ampwatch.wire.records import RangeRecord


def losses(record: RangeRecord) -> list[State]:
    """Return for each format what the gradients of a measurement with blocks would lose. Cost: some 20 ms."""
    outcomes = cast_to_all(record.blocks, record.histogram)
    return [
        {"name": name, "group": group_of(FORMATS[name]), "words": _words(outcome)}
        for name, outcome in outcomes.items()
    ]


def _words(outcome: BlockOutcome) -> str:
    noise = "" if not math.isfinite(outcome.sqnr_db) else f"{outcome.sqnr_db:.1f} dB, "
    return f"{noise}{percent(outcome.flushed_share)} to zero"
