"""Births of backward that stay as large as they were while the loss scale falls.

Gradients are proportional to the loss scale. What comes again at an eighth of it and has not become
smaller is no gradient that is too large, whatever the op is called.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.diagnosis.evidence.births import Fault, Origin
from ampwatch.numerics.units.ops import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ampwatch.diagnosis.evidence.births import Birth, OpTrace

ENOUGH = 8.0
"""Factor by which the scale has to have fallen. Three halvings, and less than batches differ by."""

ENOUGH_UNMEASURED = 32.0
"""Factor by which the scale has to have fallen for NaN of inputs whose magnitudes are not known."""

MAX_APART = 64
"""Iterations between two traces beyond which they may be of different incidents."""

_Key = tuple[str, int, str, str, str]
"""The op and which of its results, its module, the dtype, and the first parameter it goes into."""


class _Sighting(NamedTuple):
    """A birth as it was seen first.

    Attributes:
        scale: The loss scale.
        magnitude: What shrinks with the gradient; NaN if unknown.
        step: The iteration in which it was seen last.
    """

    scale: float
    magnitude: float
    step: int


class ScaleWitness:
    """Remembers the births of backward from trace to trace."""

    def __init__(self) -> None:
        self._seen: dict[_Key, _Sighting] = {}

    def observe(self, trace: OpTrace) -> frozenset[int]:
        """Take in a trace; return the places of its births that the scale has no effect on."""
        if math.isnan(trace.scale) and trace.births:
            return frozenset()
        if not trace.has_trained or trace.is_replay or trace.loss_nonfinite:
            return frozenset()
        lasting: set[int] = set()
        seen: dict[_Key, _Sighting] = {}
        for key, birth in _of_backward(trace):
            known = self._seen.get(key)
            magnitude = magnitude_of(birth)
            if known is None or trace.scale > known.scale or trace.step - known.step > MAX_APART:
                known = _Sighting(trace.scale, magnitude, trace.step)
            elif _has_lasted(birth, magnitude, known, trace.scale):
                lasting.add(birth.index)
            seen.setdefault(key, known._replace(step=trace.step))
        # What does not come again was cured by the scale.
        self._seen = seen
        return frozenset(lasting)


def _of_backward(trace: OpTrace) -> Iterator[tuple[_Key, Birth]]:
    first_to_last = list(trace.bad_gradients.items())
    bad = {index: name for name, births in reversed(first_to_last) for index in births}
    for birth in trace.births:
        is_made = birth.origin is Origin.OP and not birth.parents and not birth.is_hook
        if is_made and birth.phase is Phase.BACKWARD and birth.index in bad:
            # A gradient of weights is a sum over the batch, and larger than one of inputs.
            key = birth.overload, birth.out_index, birth.module, birth.out.dtype, bad[birth.index]
            yield key, birth


def magnitude_of(birth: Birth) -> float:
    """Return a number that is proportional to the gradient that went into an op of backward.

    The result in float64 where that is known, else the product of all inputs: backward is linear in
    the gradient, which is one of them.
    """
    if birth.answer.fault is not Fault.UNKNOWN:
        return birth.answer.amax
    known = [v.amax for v in birth.inputs if v.amax > 0.0]
    return math.prod(known) if known else math.nan


def _has_lasted(birth: Birth, magnitude: float, known: _Sighting, scale: float) -> bool:
    fallen = known.scale / scale if scale > 0.0 else math.inf
    if math.isnan(magnitude) or math.isnan(known.magnitude):
        return birth.out.nans and fallen >= ENOUGH_UNMEASURED
    # Half-way, in the logarithm, between what follows the scale and what does not.
    return fallen >= ENOUGH and magnitude * math.sqrt(fallen) > known.magnitude
