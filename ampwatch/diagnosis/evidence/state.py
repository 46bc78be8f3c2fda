"""What outlives a step, as it was before the first one. No torch."""

from __future__ import annotations

from typing import NamedTuple


class SoundBuffers(NamedTuple):
    """Floating-point buffers without NaN and infinities, before the first iteration.

    Attributes:
        names: Their names.
    """

    names: frozenset[str]
