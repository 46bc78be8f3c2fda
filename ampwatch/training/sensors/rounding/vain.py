"""What was checked in vain, and is checked rarely from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

MAX_VAIN = 3
"""Ops alike that are checked in vain, after which they are checked rarely."""

RARELY = 16
"""Iterations of which one checks ops that were checked in vain."""

MAX_SIGNATURES = 4096
"""Kinds of ops that are told apart."""


class VainChecks:
    """Counts checks that have shown nothing, by a signature: what the ops have in common."""

    def __init__(self) -> None:
        self._times: dict[Hashable, int] = {}

    def are_enough(self, signature: Hashable, step: int) -> bool:
        """Whether ops alike were checked in vain, and it is not their turn again in iteration ``step``."""
        return self._times.get(signature, 0) >= MAX_VAIN and step % RARELY != 0

    def add(self, signature: Hashable) -> None:
        """Count a check in vain."""
        if len(self._times) >= MAX_SIGNATURES:
            self._times.clear()
        self._times[signature] = self._times.get(signature, 0) + 1
