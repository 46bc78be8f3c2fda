"""What outlives a step, as it was before the first one. No torch."""

from __future__ import annotations

from typing import NamedTuple


class SoundBuffers(NamedTuple):
    """Floating-point buffers without NaN and infinities, before the first iteration.

    Attributes:
        names: Their names.
    """

    names: frozenset[str]


class BrokenWeights(NamedTuple):
    """Parameters that were NaN before the first iteration, and still are at its end.

    Attributes:
        step: The iteration.
        first: Name of the first of them, in the order of the model.
        dtype: Name of its dtype.
        tensors: How many there are.
    """

    step: int
    first: str
    dtype: str
    tensors: int
