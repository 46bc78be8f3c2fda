"""Origins and traces as a sensor would hand them over."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ampwatch.diagnosis.evidence.origins import OpTrace, Origin, OriginKind, Values
from ampwatch.numerics.units.ops import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

INF = Values("float16", 8, posinf=True, amax=6e4)
MASK = Values("float16", 8, neginf=True, amax=1.0)
NAN = Values("float16", 8, nans=True, amax=1.0)
BIG = Values("float16", 8, amax=300.0, amin=200.0)
TINY = Values("float16", 8, amax=300.0, amin=0.0)


def inside(op: str = "mul", **more: Any) -> Origin:
    """Return an origin in the forward of the module ``block``; its index is given by ``traced``."""
    absorbed = more.pop("absorbed", ())
    usual: dict[str, Any] = {
        "kind": OriginKind.OP,
        "overload": f"aten.{op}.Tensor",
        "module": "block",
        "is_inside": True,
        "phase": Phase.FORWARD,
        "out": INF,
        "inputs": (BIG,),
        "source": "train.py:3",
    }
    origin = Origin(index=-1, name="", op=op, **{**usual, **more})
    origin.absorbed_by.update(absorbed)
    return origin


def outside(op: str = "mul", **more: Any) -> Origin:
    """Return an origin outside of all modules."""
    return inside(op, **{"module": "", "is_inside": False, **more})


def backward(op: str = "div", **more: Any) -> Origin:
    """Return an origin in backward."""
    return inside(op, **{"phase": Phase.BACKWARD, "is_inside": False, "in_backward": True, **more})


def traced(*origins: Origin, bad: Mapping[str, set[int]] | None = None, **more: Any) -> OpTrace:
    """Return the trace of an iteration with these origins, in which gradients were computed.

    Args:
        origins: In order.
        bad: Parameters to the origins of their gradients.
        more: Other attributes of the trace.
    """
    for index, origin in enumerate(origins):
        origin.index = index
    gradients = {name: frozenset(numbers) for name, numbers in (bad or {}).items()}
    given = {"has_trained": True, "loss_nonfinite": False, "scale": math.nan, **more}
    return OpTrace(given.pop("step", 5), origins=origins, bad_gradients=gradients, **given)
