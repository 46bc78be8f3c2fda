"""One listener of ops, in an iteration whose places the test names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ampwatch.diagnosis.evidence.rounding import SumSeen
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.ops.call import OpCall
from ampwatch.training.ops.info import op_info
from ampwatch.training.ops.listener import OpPlace
from ampwatch.training.ops.mode import OpMode
from ampwatch.training.transfer.deferred import Deferred

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from ampwatch.training.ops.listener import OpListener

OUTSIDE = OpPlace(Phase.FORWARD, "", is_inside=False)
STEPPED = OpPlace(Phase.OPTIMIZER, "", is_inside=False)
EVALUATED = OpPlace(Phase.EVAL, "", is_inside=False)


def inside(module: str, phase: Phase = Phase.FORWARD) -> OpPlace:
    """Return the place of an op of a module."""
    return OpPlace(phase, module, is_inside=True)


class Listening:
    """Has a listener hear every op of an iteration.

    Args:
        make: Makes the listener of how values are read and who is told.
        deferred: How values are read.

    Attributes:
        seen: What the listener has seen, in order.
        suspected: What it wants to look at more closely first.
    """

    def __init__(
        self,
        make: Callable[[Deferred, Callable[[object], None]], OpListener],
        deferred: Deferred | None = None,
    ) -> None:
        self.seen: list[Any] = []
        self.suspected: list[SumSeen] = []
        self.place = OUTSIDE
        self.step = 0
        self._listener = make(deferred or Deferred(), self._observe)
        self._mode: OpMode | None = None

    def _observe(self, observation: object) -> None:
        if isinstance(observation, SumSeen):
            self.suspected.append(observation)
        else:
            self.seen.append(observation)

    def __enter__(self) -> Self:
        self._listener.begin(self.step)
        self._mode = OpMode(self._note)
        self._mode.put_on()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._mode is not None
        self._mode.take_off()
        self._listener.end()
        self.step += 1

    def _note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        info = op_info(func)
        if not info.is_ignored:
            self._listener.note(OpCall(func, info, args, kwargs, out), self.place)
