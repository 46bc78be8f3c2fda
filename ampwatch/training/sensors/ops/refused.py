"""Ops that autocast refuses on a GPU, where it lets them run on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ampwatch.diagnosis.evidence.calls import RefusedOp
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks.regions import region_for
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.kernels.admission import is_plain
from ampwatch.training.kernels.dtypes import HALF, name_of
from ampwatch.training.ops.events import OpSensor
from ampwatch.training.ops.operands import place_name

if TYPE_CHECKING:
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op, OpPlace, OpsBegan, OpsEnded
    from ampwatch.training.ops.info import OpInfo

REFUSED = "binary_cross_entropy"
"""Name of the op that autocast refuses."""

CAST = "_to_copy"
"""Name of the op that autocast casts with."""


class RefusedOps(OpSensor):
    """Detects the loss of a probability that was rounded to half precision, under autocast.

    Autocast on a CPU casts the probability to float32 first, which brings no bit back. The cast
    right before the loss distinguishes it from a probability that was computed in float32.

    Cost:
        Less than 1 us an op.
    """

    name = "refused_ops"
    is_thread_safe = True

    def __init__(self, context: Context) -> None:
        self._regions = context.regions
        self._observe = context.observe
        self._step = 0
        self._cast: dict[int, str] = {}

    def ops_began(self, event: OpsBegan) -> None:
        """Begin an iteration without a remembered cast."""
        self._step = event.step
        self._cast.clear()

    @property
    def follows_all(self) -> bool:
        """Whether a cast is remembered, which any op but the loss ends."""
        return bool(self._cast)

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:
        """Whether an op is the loss, or casts in forward."""
        return info.name in (CAST, REFUSED) and not in_backward

    def prefilter(self, call: OpCall) -> bool:
        """Whether an op casts otherwise than from half precision to float32."""
        if call.info.name != CAST:
            return False
        return call.out.dtype != torch.float32 or call.args[0].dtype not in HALF

    def op(self, event: Op) -> None:
        """Remember a cast; check a loss that follows casts."""
        call, place = event
        name = call.info.name
        if name == CAST:
            self._remember(call)
            return
        if name == REFUSED and self._cast and place.phase is Phase.FORWARD:
            self._check(call, place)
        # Only casts right before the loss count, so any other op ends what is remembered: by then
        # an address may be another tensor's.
        if self._cast:
            self._cast.clear()

    def ops_ended(self, _event: OpsEnded) -> None:
        """Forget the casts."""
        self._cast.clear()

    def _remember(self, call: OpCall) -> None:
        """Remember the address of the result of a cast from half precision to float32."""
        given = call.args[0]
        out = call.out
        if is_plain(given) and is_plain(out) and given.dtype in HALF and out.dtype == torch.float32:
            self._cast[out.data_ptr()] = name_of(given.dtype)

    def _check(self, call: OpCall, place: OpPlace) -> None:
        probability = call.args[0]
        dtype = self._cast.get(probability.data_ptr()) if is_plain(probability) else None
        region = region_for(probability.device.type, self._regions.here())
        if dtype is not None and region is not None and region.enabled:
            self._observe(RefusedOp(self._step, REFUSED, place_name(place), dtype, user_source()))
