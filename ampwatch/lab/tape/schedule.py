"""Which steps a run records: the same whatever they cost, so that two runs record the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampwatch.settings import Settings


def is_recorded(settings: Settings, step: int) -> bool:
    """Whether a step is recorded: one of the first, each n-th after them, or that of the elements."""
    if not settings.record_dir:
        return False
    return (
        step < settings.record_first
        or step == settings.record_elements
        or (settings.record_every > 0 and step % settings.record_every == 0)
    )
