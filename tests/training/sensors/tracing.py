"""Iterations that are traced op by op, and a slow look at the same ops that knows no ampwatch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampwatch.guard import Account, Guard
from ampwatch.training.hooks.regions import Regions
from ampwatch.training.model.names import Names
from ampwatch.training.ops.listener import GuardedListeners
from ampwatch.training.sensors.births.births import BirthListener
from ampwatch.training.sensors.ops.census import OpCensusSensor

if TYPE_CHECKING:
    from torch import Tensor, nn
    from typing_extensions import Self

    from ampwatch.diagnosis.evidence.births import Birth, OpTrace, Origin

LOOKED_AT = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Traced:
    """An iteration, from ``with`` to its end, whose births are followed; each use is one more.

    Args:
        models: The watched models.
        scale: The scaler's scale.
    """

    def __init__(self, *models: nn.Module, scale: Tensor | None = None) -> None:
        account = Account()
        self.guard = Guard("census", account, is_thread_safe=True)
        self.births_guard = Guard("births", account, is_thread_safe=True)
        self.traces: list[OpTrace] = []
        self._regions = Regions(self.guard)
        names = Names(models)
        self.sensor = OpCensusSensor(names, self._regions, account, self.guard)
        listener = BirthListener(
            names, self.traces.append, lambda: self.sensor.is_stepping, lambda: scale
        )
        self.listener = listener
        self._listeners = (GuardedListeners(self.births_guard, (listener,)),)

    def __enter__(self) -> Self:
        self._regions.install()
        self.sensor.install()
        assert self.sensor.begin(len(self.traces), listeners=self._listeners)
        return self

    def __exit__(self, *_: object) -> None:
        self.sensor.end(len(self.traces), 0.5)
        self.sensor.remove()
        self._regions.remove()
        assert not self.guard.errors
        assert not self.births_guard.errors

    @property
    def births(self) -> list[Birth]:
        """The births of the newest iteration."""
        return list(self.traces[-1].births)

    def of(self, origin: Origin) -> list[Birth]:
        """The births of the newest iteration that come from there."""
        return [birth for birth in self.births if birth.origin is origin]


class Naive(TorchDispatchMode):
    """Lists each output with infinities none of the inputs had, or with NaN of no NaN.

    Python numbers count as inputs. ``float8``, complex numbers and integers are passed over.
    """

    def __init__(self) -> None:
        super().__init__()
        self.born: list[tuple[str, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        given = {_trouble(x) for x in tree_leaves((args, kwargs))}
        out = func(*args, **kwargs)
        made = [out] if isinstance(out, torch.Tensor) else list(out or ())
        if out is None:  # a foreach op in place: what it has written are its first inputs
            made = list(args[0])
        for index, tensor in enumerate(made):
            is_born = _trouble(tensor) == "nan" and "nan" not in given
            is_born |= _trouble(tensor) == "inf" and given <= {""}
            if is_born and "empty" not in func.overloadpacket.__name__:
                self.born.append((func.overloadpacket.__name__, index))
        return out


def _trouble(x: object) -> str:
    if isinstance(x, float):
        return "nan" if math.isnan(x) else "inf" if math.isinf(x) else ""
    if not isinstance(x, torch.Tensor) or x.dtype not in LOOKED_AT or x.is_meta or x.is_sparse:
        return ""
    return "nan" if bool(x.isnan().any()) else "inf" if bool(x.isinf().any()) else ""
