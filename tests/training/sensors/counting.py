"""Iterations whose ops are counted, and an independent log of the same ops."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import Self

from ampwatch.diagnosis.evidence.ops import OpCensus, OpKey, OpTally
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.sensors.ops.census import OpCensusSensor
from tests.training.bench import Bench


class Counted:
    """One iteration of some models, from ``with`` to its end; then what was counted in it.

    Args:
        models: The watched models.
        scaler: The watched scaler or ``None``.
        count: Whether ops are counted, or only told of.
    """

    def __init__(
        self, *models: nn.Module, scaler: torch.amp.GradScaler | None = None, count: bool = True
    ) -> None:
        # With this setting the sensor plans nothing by itself.
        self.bench = Bench(models, scaler, op_census="window")
        self.regions = self.bench.context.regions
        self.sensor = OpCensusSensor(self.bench.context)
        self.census: OpCensus | None = None
        self.step = 7
        self._count = count
        self.add(self.regions, self.sensor)

    def add(self, *sensors: Sensor) -> None:
        """Have the ops emitted to sensors."""
        for sensor in sensors:
            self.bench.bus.add(sensor)

    def __enter__(self) -> Self:
        self.bench.install()
        assert self.sensor.begin(self.step, count=self._count, follow=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.census = self.sensor.end(self.step, 0.5)
        self.bench.remove()

    @property
    def tallies(self) -> list[tuple[OpKey, OpTally]]:
        return list(self.census.tallies.items()) if self.census is not None else []

    def sum(self, what: str = "calls", **wanted: Any) -> int:
        """Calls (or FLOPs, bytes) of the ops whose key has these values."""
        return sum(getattr(tally, what) for _, tally in self.of(**wanted))

    def of(self, **wanted: Any) -> list[tuple[OpKey, OpTally]]:
        return [
            (key, tally)
            for key, tally in self.tallies
            if all(getattr(key, name) == value for name, value in wanted.items())
        ]

    def by(self, name: str, what: str = "calls", **wanted: Any) -> dict[Any, int]:
        """Calls (or FLOPs, bytes) by one part of the key."""
        sums: Counter[Any] = Counter()
        for key, tally in self.of(**wanted):
            sums[getattr(key, name)] += getattr(tally, what)
        return {value: number for value, number in sums.items() if number}


class Log(TorchDispatchMode):
    """Writes down every op that is no view: name, dtypes of tensor inputs, dtype of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[tuple[str, tuple[str, ...], str]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        flat = torch.utils._pytree.tree_leaves((args, kwargs or {}))
        inputs = tuple(str(x.dtype) for x in flat if isinstance(x, torch.Tensor))
        outs = [x for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]
        if not func.is_view:
            self.ops.append((func._schema.name, inputs, str(outs[0].dtype) if outs else ""))
        return out

    def calls(self) -> Counter[str]:
        """How often each op was called, by its base name."""
        return Counter(name.partition("::")[2] for name, _, _ in self.ops)
