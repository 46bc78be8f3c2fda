"""Ops that autocast refuses on a GPU, where it lets them run on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ampwatch.diagnosis.evidence.calls import RefusedOp
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks.regions import region_for
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.kernels.admission import is_plain
from ampwatch.training.kernels.dtypes import HALF, name_of
from ampwatch.training.model.graph import CAST
from ampwatch.training.ops.events import OpSensor
from ampwatch.training.ops.operands import place_name
from ampwatch.training.private import metadata_of_node

if TYPE_CHECKING:
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op, OpsBegan
    from ampwatch.training.ops.info import OpInfo

REFUSED = "binary_cross_entropy"
"""Name of the op that autocast refuses."""


class RefusedOps(OpSensor):
    """Detects the loss of a probability that was rounded to half precision, under autocast.

    Autocast on a CPU casts the probability to float32 first, which brings no bit back. The cast
    right before the loss, in the graph of autograd, distinguishes it from a probability that was
    computed in float32.

    Cost:
        2 us a loss of probabilities; nothing for any other op.
    """

    name = "refused_ops"
    is_thread_safe = True

    def __init__(self, context: Context) -> None:
        self._regions = context.regions
        self._observe = context.observe
        self._step = 0

    def ops_began(self, event: OpsBegan) -> None:
        """Note the iteration."""
        self._step = event.step

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:
        """Whether an op is the loss, in forward."""
        return info.name == REFUSED and not in_backward

    def prefilter(self, call: OpCall) -> bool:
        """Whether the probability was not cast from half precision right before."""
        return _rounded_to(call.args[0]) is None

    def op(self, event: Op) -> None:
        """Report a loss of a probability that was rounded, under autocast."""
        call, place = event
        if call.info.name != REFUSED or place.phase is not Phase.FORWARD:
            return
        probability = call.args[0]
        dtype = _rounded_to(probability)
        region = region_for(probability.device.type, self._regions.here())
        if dtype is not None and region is not None and region.enabled:
            self._observe(RefusedOp(self._step, REFUSED, place_name(place), dtype, user_source()))


def _rounded_to(tensor: Any) -> str | None:
    """Return the name of the half precision that a tensor, or what it is a view of, was cast from."""
    if not is_plain(tensor):
        return None
    whole = tensor if tensor._base is None else tensor._base  # noqa: SLF001 - what a view is of
    node = whole.grad_fn
    if node is None or CAST not in node.name():
        return None
    source, index = node.next_functions[0]
    dtype = None if source is None else metadata_of_node(source)[index].dtype
    return name_of(dtype) if dtype in HALF else None
