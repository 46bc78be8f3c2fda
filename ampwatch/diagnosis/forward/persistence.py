"""Origins of backward that stay as large as they were while the loss scale falls.

Gradients are proportional to the loss scale. What comes again from the same line at an eighth of it, and has
not become smaller with any fall on the way there, is no gradient that is too large, whatever the op is called. A
step that is taken in between shows that the scale was the cure. Of two backwards that share a line, as those of two
networks that take turns may, a gradient of the one is now and then compared with one of the other; but some falls of
the scale lie between two of the same backward, and a gradient becomes smaller with these.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.diagnosis.evidence.origins import Fault, OriginKind
from ampwatch.numerics.units.ops import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ampwatch.diagnosis.evidence.origins import OpTrace, Origin

ENOUGH = 8.0
"""Factor by which the scale has to have fallen. Three halvings, and less than batches differ by."""

ENOUGH_UNMEASURED = 32.0
"""Factor by which the scale has to have fallen for NaN of inputs whose magnitudes are not known."""

MAX_APART = 64
"""Iterations between two traces beyond which they may be of different incidents."""

_Key = tuple[str, int, str, str, str, str]
"""The op and which of its results, its module, the dtype, the line, and the first parameter it goes into."""


class _Sighting(NamedTuple):
    """An origin at one loss scale."""

    scale: float  # the loss scale
    magnitude: float  # what shrinks with the gradient; NaN if unknown

    def lasts_in(self, later: _Sighting) -> bool:
        """Whether a later one is nearer to this magnitude than to what the scale makes of it."""
        # Half-way, in the logarithm, between what follows the scale and what does not.
        return later.magnitude * math.sqrt(self.scale / later.scale) > self.magnitude


class _Seen(NamedTuple):
    """An origin that has not followed the scale so far."""

    first: _Sighting  # the first of it
    newest: _Sighting  # the newest of it at another scale than the one before
    step: int  # the iteration in which it was seen last


class ScaleWitness:
    """Remembers the origins of backward from trace to trace."""

    def __init__(self) -> None:
        self._seen: dict[_Key, _Seen] = {}

    @property
    def is_at_rest(self) -> bool:
        """Whether a step that is taken would be nothing to it."""
        return not self._seen

    def step_taken(self, step: int) -> None:
        """Take in that an optimizer has stepped: what was seen until then the scale has cured."""
        self._seen = {key: seen for key, seen in self._seen.items() if seen.step > step}

    def observe(self, trace: OpTrace) -> frozenset[int]:
        """Take in a trace; return the places of its origins that the scale has no effect on."""
        if math.isnan(trace.scale) and trace.origins:
            return frozenset()
        if not trace.has_trained or trace.is_replay or trace.loss_nonfinite:
            return frozenset()
        lasting: set[int] = set()
        seen: dict[_Key, _Seen] = {}
        for key, origin in _of_backward(trace):
            now = _Sighting(trace.scale, magnitude_of(origin))
            known = self._seen.get(key)
            if known is None or trace.step - known.step > MAX_APART or not _goes_on(known, now):
                known = _Seen(now, now, trace.step)
            elif _has_lasted(origin, known.first, now):
                lasting.add(origin.index)
            newest = now if now.scale < known.newest.scale else known.newest
            seen.setdefault(key, _Seen(known.first, newest, trace.step))
        # What does not come again was cured by the scale.
        self._seen = seen
        return frozenset(lasting)


def _goes_on(known: _Seen, now: _Sighting) -> bool:
    """Whether an origin is as those before it, and has not become smaller with the scale."""
    newest = known.newest
    if now.scale >= newest.scale or now.scale <= 0.0:
        return now.scale <= newest.scale
    return math.isnan(now.magnitude + newest.magnitude) or newest.lasts_in(now)


def _of_backward(trace: OpTrace) -> Iterator[tuple[_Key, Origin]]:
    first_to_last = list(trace.bad_gradients.items())
    bad = {index: name for name, origins in reversed(first_to_last) for index in origins}
    for origin in trace.origins:
        is_made = origin.kind is OriginKind.OP and not origin.parents and not origin.is_hook
        if is_made and origin.phase is Phase.BACKWARD and origin.index in bad:
            # A gradient of weights is a sum over the batch, and larger than one of inputs.
            which = (
                origin.overload,
                origin.out_index,
                origin.module,
                origin.out.dtype,
                origin.source,
            )
            yield (*which, bad[origin.index]), origin


def magnitude_of(origin: Origin) -> float:
    """Return a number that is proportional to the gradient that went into an op of backward.

    The result in float64 where that is known, else the product of all inputs: backward is linear in
    the gradient, which is one of them.
    """
    if origin.answer.fault is not Fault.UNKNOWN:
        return origin.answer.amax
    known = [v.amax for v in origin.inputs if v.amax > 0.0]
    return math.prod(known) if known else math.nan


def _has_lasted(origin: Origin, first: _Sighting, now: _Sighting) -> bool:
    fallen = first.scale / now.scale if now.scale > 0.0 else math.inf
    if math.isnan(now.magnitude + first.magnitude):
        return origin.out.nans and fallen >= ENOUGH_UNMEASURED
    return fallen >= ENOUGH and (math.isinf(fallen) or first.lasts_in(now))
