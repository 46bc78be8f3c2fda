"""The contract of what listens to the ops of an iteration, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.guard import Guard
    from ampwatch.numerics.units.ops import Phase
    from ampwatch.training.ops.call import OpCall


class OpPlace(NamedTuple):
    """Where an op ran.

    Attributes:
        phase: The part of the iteration.
        module: Qualified name of the innermost watched module that was running, or, in backward,
            of the one whose forward made the node; empty for the root and outside of all.
        is_inside: Whether a watched module was running in this thread.
    """

    phase: Phase
    module: str
    is_inside: bool


class OpListener(Protocol):
    """Something that looks at every op of the iterations whose ops are watched.

    Ops that compute nothing (views, ``empty``, ``detach``) are not told of. Tensors may be looked at in ``note`` and must not be kept.
    """

    def begin(self, step: int) -> None:
        """Iteration ``step`` begins, or what is left of it."""

    def note(self, call: OpCall, place: OpPlace) -> None:
        """An op has returned. Inside of it no dispatch mode is on; nothing of it is recorded."""

    def end(self) -> None:
        """The iteration is over, or is not watched any further."""


class GuardedListeners:
    """Some listeners behind a fail-open boundary of their own.

    If one of them fails, they all are switched off; who else listens, and the census, go on.

    Args:
        guard: The boundary, a thread-safe one.
        listeners: The listeners.
    """

    def __init__(self, guard: Guard, listeners: Sequence[OpListener]) -> None:
        self._guard = guard
        self._listeners = listeners

    def begin(self, step: int) -> None:
        """Iteration ``step`` begins."""
        self._guard.run(self._begin, step)

    def _begin(self, step: int) -> None:
        for listener in self._listeners:
            listener.begin(step)

    def note(self, call: OpCall, place: OpPlace) -> None:
        """An op has returned."""
        self._guard.run(self._note, call, place)

    def _note(self, call: OpCall, place: OpPlace) -> None:
        for listener in self._listeners:
            listener.note(call, place)

    def end(self) -> None:
        """The iteration is over."""
        self._guard.run(self._end)

    def _end(self) -> None:
        for listener in self._listeners:
            listener.end()
