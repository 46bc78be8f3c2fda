"""Iterations that are traced op by op, and a slow log of their origins that knows no ampwatch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import Self

from ampwatch.diagnosis.evidence.origins import OpTrace, Origin, OriginKind
from ampwatch.training.sensors.origins.sensor import OriginSensor
from tests.training.sensors.counting import Counted

LOOKED_AT = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Traced(Counted):
    """An iteration, from ``with`` to its end, whose origins are followed; each use is one more.

    Args:
        models: The watched models.
        scale: The scaler's scale.
    """

    def __init__(self, *models: nn.Module, scale: Tensor | None = None) -> None:
        scaler = None
        if scale is not None:
            scaler = torch.amp.GradScaler("cpu")
            scaler._scale = scale
        super().__init__(*models, scaler=scaler, count=False)
        self.add(OriginSensor(self.bench.context))

    def __enter__(self) -> Self:
        self.step = len(self.traces)
        return super().__enter__()

    @property
    def traces(self) -> list[OpTrace]:
        """Traces of the iterations."""
        return [seen for seen in self.bench.seen if isinstance(seen, OpTrace)]

    @property
    def origins(self) -> list[Origin]:
        """The origins of the newest iteration."""
        return list(self.traces[-1].origins)

    def of(self, kind: OriginKind) -> list[Origin]:
        """The origins of the newest iteration that come from there."""
        return [origin for origin in self.origins if origin.kind is kind]


class Naive(TorchDispatchMode):
    """Lists each output with infinities none of the inputs had, or with NaN of no NaN.

    Python numbers count as inputs. ``float8`` and integers are passed over.
    """

    def __init__(self) -> None:
        super().__init__()
        self.origins: list[tuple[str, int]] = []

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
            is_origin = _trouble(tensor) == "nan" and "nan" not in given
            is_origin |= _trouble(tensor) == "inf" and given <= {""}
            if is_origin and "empty" not in func.overloadpacket.__name__:
                self.origins.append((func.overloadpacket.__name__, index))
        return out


def _trouble(x: object) -> str:
    if isinstance(x, float):
        return "nan" if math.isnan(x) else "inf" if math.isinf(x) else ""
    if not isinstance(x, torch.Tensor) or x.is_meta or x.is_sparse:
        return ""
    if x.dtype not in LOOKED_AT and not x.is_complex():
        return ""
    return "nan" if bool(x.isnan().any()) else "inf" if bool(x.isinf().any()) else ""
