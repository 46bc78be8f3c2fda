"""One sensor of ops, in an iteration whose places the test names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from typing_extensions import Self

from ampwatch.diagnosis.evidence.rounding import SumSeen
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.iteration.context import Context
from ampwatch.training.ops.call import OpCall
from ampwatch.training.ops.events import Op, OpPlace, OpsBegan, OpsEnded
from ampwatch.training.ops.info import op_info
from ampwatch.training.ops.mode import OpMode
from tests.training.bench import Bench

OUTSIDE = OpPlace(Phase.FORWARD, "", is_inside=False)
STEPPED = OpPlace(Phase.OPTIMIZER, "", is_inside=False)
EVALUATED = OpPlace(Phase.EVAL, "", is_inside=False)


def inside(module: str, phase: Phase = Phase.FORWARD) -> OpPlace:
    """Return the place of an op of a module."""
    return OpPlace(phase, module, is_inside=True)


class Listening:
    """Has a sensor told of every op of an iteration; each use is one more.

    Args:
        make: Makes the sensor of what is shared.
        models: The watched models.
        parts: Parts of the context by name, instead of the real ones.

    Attributes:
        seen: What the sensor has seen, in order.
        suspected: What it wants to have counted more closely first.
    """

    def __init__(self, make: Callable[[Context], Sensor], *models: nn.Module, **parts: Any) -> None:
        self.place = OUTSIDE
        self.step = 0
        self.bench = Bench(models, parts=parts)
        self.bench.bus.add(make(self.bench.context))
        self._mode: OpMode | None = None

    @property
    def seen(self) -> list[Any]:
        return [seen for seen in self.bench.seen if not isinstance(seen, SumSeen)]

    @property
    def suspected(self) -> list[SumSeen]:
        return [seen for seen in self.bench.seen if isinstance(seen, SumSeen)]

    def __enter__(self) -> Self:
        self.bench.bus.emit(OpsBegan(self.step))
        self._mode = OpMode(self._note)
        self._mode.put_on()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._mode is not None
        self._mode.take_off()
        self.bench.bus.emit(OpsEnded())
        self.step += 1
        assert not any(guard.off for guard in self.bench.bus.guards)

    def _note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        info = op_info(func)
        if not info.is_ignored:
            self.bench.bus.emit(Op(OpCall(func, info, args, kwargs, out), self.place))
