"""What outlives a step, as it was before the first one. No torch."""

from __future__ import annotations

from typing import NamedTuple


class SoundBuffers(NamedTuple):
    """Floating-point buffers before the first iteration.

    Attributes:
        names: Names of those without NaN and infinities.
        broken: Names of the others.
    """

    names: frozenset[str]
    broken: frozenset[str] = frozenset()


class BadOption(NamedTuple):
    """An option of an optimizer that is NaN or infinite, as a schedule may make it.

    Attributes:
        name: Its name in the parameter group: ``lr``, ``weight_decay``.
        value: Its value.
        optimizer: Number of the optimizer.
    """

    name: str
    value: float
    optimizer: int


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
