"""Births and traces as a sensor would hand them over."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ampwatch.diagnosis.evidence.origins import Birth, OpTrace, Origin, Values
from ampwatch.numerics.units.ops import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

INF = Values("float16", 8, posinf=True, amax=6e4)
MASK = Values("float16", 8, neginf=True, amax=1.0)
NAN = Values("float16", 8, nans=True, amax=1.0)
BIG = Values("float16", 8, amax=300.0, amin=200.0)
TINY = Values("float16", 8, amax=300.0, amin=0.0)


def born(op: str = "mul", **more: Any) -> Birth:
    """Return a birth in the forward of the module ``block``; its index is given by ``traced``."""
    absorbed = more.pop("absorbed", ())
    usual: dict[str, Any] = {
        "origin": Origin.OP,
        "overload": f"aten.{op}.Tensor",
        "module": "block",
        "is_inside": True,
        "phase": Phase.FORWARD,
        "out": INF,
        "inputs": (BIG,),
        "source": "train.py:3",
    }
    birth = Birth(index=-1, name="", op=op, **{**usual, **more})
    birth.absorbed_by.update(absorbed)
    return birth


def outside(op: str = "mul", **more: Any) -> Birth:
    """Return a birth outside of all modules."""
    return born(op, **{"module": "", "is_inside": False, **more})


def backward(op: str = "div", **more: Any) -> Birth:
    """Return a birth in backward."""
    return born(op, **{"phase": Phase.BACKWARD, "is_inside": False, "in_backward": True, **more})


def traced(*births: Birth, bad: Mapping[str, set[int]] | None = None, **more: Any) -> OpTrace:
    """Return the trace of an iteration with these births, in which gradients were computed.

    Args:
        births: In order.
        bad: Parameters to the births of their gradients.
        more: Other attributes of the trace.
    """
    for index, birth in enumerate(births):
        birth.index = index
    gradients = {name: frozenset(numbers) for name, numbers in (bad or {}).items()}
    given = {"has_trained": True, "loss_nonfinite": False, "scale": math.nan, **more}
    return OpTrace(given.pop("step", 5), births=births, bad_gradients=gradients, **given)
