"""List of the dashboards, in the order in which a reader needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.source import gpu, layers, overview, precision, ranks, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from dashboards.source.page import Page

BOOK: dict[str, Callable[[], Page]] = {
    "ampwatch-overview.json": overview.page,
    "ampwatch-run.json": run.page,
    "ampwatch-layers.json": layers.page,
    "ampwatch-precision.json": precision.page,
    "ampwatch-gpu.json": gpu.page,
    "ampwatch-ranks.json": ranks.page,
}
"""Name of the file, and what says what is in it."""
