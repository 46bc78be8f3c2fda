"""Relations among the births of one iteration: what was made of what, and where it got to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.evidence.origins import Origin
from ampwatch.numerics.units.ops import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from ampwatch.diagnosis.evidence.origins import Birth, OpTrace


class Descent:
    """Ancestors and descendants of the births of one iteration.

    Args:
        trace: The iteration.
        lasting: Births of backward that were seen at several loss scales and did not shrink.
    """

    def __init__(self, trace: OpTrace, lasting: AbstractSet[int]) -> None:
        self.trace = trace
        self.lasting = lasting
        self._children: dict[int, list[Birth]] = {}
        for birth in trace.births:
            for parent in birth.parents:
                self._children.setdefault(parent, []).append(birth)

    @property
    def began_earlier(self) -> bool:
        """Whether values were not finite before the first op, in weights, buffers or elsewhere."""
        before = (Origin.PARAMETER, Origin.BUFFER, Origin.OTHER)
        return any(birth.origin in before for birth in self.trace.births)

    def children(self, birth: Birth) -> Sequence[Birth]:
        """Return the births of NaN that were made of a birth itself."""
        return self._children.get(birth.index, ())

    def parents(self, birth: Birth) -> Sequence[Birth]:
        """Return the births that a birth was made of."""
        return [self.trace.births[index] for index in sorted(birth.parents)]

    def descends(self, birth: Birth, ancestor: Birth) -> bool:
        """Whether values of one birth are made of those of another."""
        return any(
            parent is ancestor or self.descends(parent, ancestor) for parent in self.parents(birth)
        )

    def parameters(self, birth: Birth) -> list[str]:
        """Return the parameters whose gradients are made of a birth, the first of them first."""
        return [
            name
            for name, births in self.trace.bad_gradients.items()
            if any(
                index == birth.index or self.descends(self.trace.births[index], birth)
                for index in births
            )
        ]

    def in_backward(self, birth: Birth) -> bool:
        """Whether values made of a birth were not finite in backward."""
        return birth.in_backward or any(self.in_backward(c) for c in self.children(birth))

    def spread(self, birth: Birth) -> set[str]:
        """Return the places in which values made of a birth were not finite."""
        places = set(birth.spread_to)
        for child in self.children(birth):
            places |= self.spread(child)
            if child.phase is not Phase.BACKWARD:
                places.add(child.place)
        return places
