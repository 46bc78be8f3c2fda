"""Relations among the origins of one iteration: what was made of what, and where it got to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.evidence.origins import OriginKind
from ampwatch.numerics.units.ops import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from ampwatch.diagnosis.evidence.origins import OpTrace, Origin


class Descent:
    """Ancestors and descendants of the origins of one iteration.

    Args:
        trace: The iteration.
        lasting: Origins of backward that were seen at several loss scales and did not shrink.
    """

    def __init__(self, trace: OpTrace, lasting: AbstractSet[int]) -> None:
        self.trace = trace
        self.lasting = lasting
        self._children: dict[int, list[Origin]] = {}
        for origin in trace.origins:
            for parent in origin.parents:
                self._children.setdefault(parent, []).append(origin)

    @property
    def began_earlier(self) -> bool:
        """Whether values were not finite before the first op, in weights, buffers or elsewhere."""
        before = (OriginKind.PARAMETER, OriginKind.BUFFER, OriginKind.OTHER)
        return any(origin.kind in before for origin in self.trace.origins)

    def children(self, origin: Origin) -> Sequence[Origin]:
        """Return the origins of NaN that were made of an origin itself."""
        return self._children.get(origin.index, ())

    def parents(self, origin: Origin) -> Sequence[Origin]:
        """Return the origins that an origin was made of."""
        return [self.trace.origins[index] for index in sorted(origin.parents)]

    def descends(self, origin: Origin, ancestor: Origin) -> bool:
        """Whether values of one origin are made of those of another."""
        return any(
            parent is ancestor or self.descends(parent, ancestor) for parent in self.parents(origin)
        )

    def parameters(self, origin: Origin) -> list[str]:
        """Return the parameters whose gradients are made of an origin, the first of them first."""
        return [
            name
            for name, origins in self.trace.bad_gradients.items()
            if any(
                index == origin.index or self.descends(self.trace.origins[index], origin)
                for index in origins
            )
        ]

    def in_backward(self, origin: Origin) -> bool:
        """Whether values made of an origin were not finite in backward."""
        return origin.in_backward or any(self.in_backward(c) for c in self.children(origin))

    def spread(self, origin: Origin) -> set[str]:
        """Return the places in which values made of an origin were not finite."""
        places = set(origin.spread_to)
        for child in self.children(origin):
            places |= self.spread(child)
            if child.phase is not Phase.BACKWARD:
                places.add(child.place)
        return places
