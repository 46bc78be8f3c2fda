"""Products that read a cast that autocast has made of a weight before the weight changed."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.scaler import StaleCast
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.kernels.admission import is_plain
from ampwatch.training.kernels.dtypes import HALF, name_of
from ampwatch.training.ops.call import tensors_among
from ampwatch.training.ops.events import OpSensor
from ampwatch.training.ops.storage import Memory
from ampwatch.training.private import version_of

if TYPE_CHECKING:
    from ampwatch.training.hooks.events import TensorsSwapping
    from ampwatch.training.hooks.regions import AutocastRegion
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op, OpsBegan, OpsEnded
    from ampwatch.training.ops.info import OpInfo

MAX_CASTS = 4096
"""Casts that are remembered at a time."""


class _Cast(NamedTuple):
    """A cast of a weight that autocast may keep."""

    result: weakref.ref[torch.Tensor]  # result of the cast
    parameter: weakref.ref[torch.Tensor]  # the weight
    name: str  # name of the weight
    written: tuple[int, int]  # what tells writes to the weight before the cast from later ones
    memory: Memory  # where the weight was
    regions: list[AutocastRegion]  # autocast regions around the cast


class AgedCasts(OpSensor):
    """Compares how often a weight was written to before it was cast, and before the cast is used.

    Works without a step of an optimizer and without backward: for a line search, a perturbation,
    weights that are loaded or averaged inside of one region. What is written through ``.data`` raises
    no version of the weight; the op that writes is seen, or that the weight lies elsewhere.

    Cost:
        Less than 1 us for an op that neither casts a parameter nor multiplies nor writes in place;
        2 us for one that does. No value is read.
    """

    name = "aged_casts"
    is_thread_safe = True

    def __init__(self, context: Context) -> None:
        self._names = context.names
        self._regions = context.regions
        self._observe = context.observe
        self._step = -1
        self._reported_in = -1
        self._named: dict[int, str] = {}
        self._casts: dict[int, _Cast] = {}
        # Writes in place to the memory of weights that were cast, by its address.
        self._written: dict[int, int] = {}

    def ops_began(self, event: OpsBegan) -> None:
        """Begin an iteration; casts that still live are kept, they live as long as their region."""
        self._step = event.step
        self._named = {id(p): name for name, p in self._names.parameters()}
        alive = {at: cast for at, cast in self._casts.items() if cast.result() is not None}
        self._casts = alive
        addresses = {cast.memory.address for cast in alive.values()}
        self._written = {at: n for at, n in self._written.items() if at in addresses}

    def tensors_swapping(self, _event: TensorsSwapping) -> None:
        """Refer to no weight; its casts are of what it was before."""
        self._casts.clear()
        self._written.clear()

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:
        """Whether an op casts, multiplies or writes in place in forward."""
        is_wanted = info.name == "_to_copy" or info.kind.has_flops or info.name.endswith("_")
        return not in_backward and is_wanted

    def glance(self, call: OpCall) -> bool:
        """Remember the cast of a weight; check whether no operand of a product is one that has aged."""
        if call.info.name == "_to_copy":
            self._keep(call.args[0], call.out)
            return True
        if call.info.name.endswith("_"):
            self._write(call)
            return True
        if not self._casts or self._reported_in == self._step:
            return True
        return not any(
            isinstance(value, torch.Tensor)
            and value.dtype in HALF
            and self._aged(value) is not None
            for value in call.args
        )

    def op(self, event: Op) -> None:
        """Remember the casts of weights, and check the operands of products."""
        call, place = event
        if place.phase is Phase.BACKWARD:
            return  # backward reads the operands of its forward, which were checked there
        if call.info.name == "_to_copy":
            self._keep(call.args[0], call.out)
        elif call.info.name.endswith("_"):
            self._write(call)
        elif self._casts and self._reported_in != self._step and call.info.kind.has_flops:
            self._compare([t for t in tensors_among(call.args) if t.dtype in HALF and is_plain(t)])

    def ops_ended(self, _event: OpsEnded) -> None:
        """Forget the names of parameters, at the end of the iteration."""
        self._named.clear()

    def _write(self, call: OpCall) -> None:
        for tensor in tensors_among(call.args[:1]) if self._written else ():
            if is_plain(tensor) and (address := tensor.data_ptr()) in self._written:
                self._written[address] += 1

    def _keep(self, weight: Any, out: Any) -> None:
        name = self._named.get(id(weight))
        regions = self._regions.here()
        if name is None or not regions or not is_plain(out) or out.dtype not in HALF:
            return
        is_kept = torch.is_autocast_cache_enabled() and weight.requires_grad and weight.is_leaf
        if is_kept and len(self._casts) < MAX_CASTS:
            # By address: what reads the cast reads a view of it (a transposed weight). An address
            # is met again once its storage is freed, so ``_aged`` asks whether the cast lives.
            self._written.setdefault(weight.data_ptr(), 0)
            self._casts[out.untyped_storage().data_ptr()] = _Cast(
                weakref.ref(out),
                weakref.ref(weight),
                name,
                self._writes(weight),
                Memory(weight),
                regions,
            )

    def _compare(self, operands: list[torch.Tensor]) -> None:
        aged = [cast.name for tensor in operands if (cast := self._aged(tensor)) is not None]
        if aged:
            # The first in the order of the model: the weight before the bias. An interrupt may have left
            # the names of an iteration forgotten, and its casts here.
            first = next((name for name in self._named.values() if name in aged), aged[0])
            self._reported_in = self._step
            self._observe(StaleCast(self._step, first, len(aged), name_of(operands[0].dtype)))

    def _aged(self, tensor: torch.Tensor) -> _Cast | None:
        cast = self._casts.get(tensor.untyped_storage().data_ptr())
        # The cache is emptied where the outermost region is left: a cast that is used in another
        # region was kept by the user, on purpose.
        if cast is None or cast.result() is None or cast.regions is not self._regions.here():
            return None
        weight = cast.parameter()
        if weight is None:
            return None
        if weight.data_ptr() != cast.memory.address:
            # What was moved, by offloading or gathering shards, is freed where it was; what was swapped is kept.
            return cast if cast.memory.is_alive else None
        return cast if self._writes(weight) != cast.written else None

    def _writes(self, weight: torch.Tensor) -> tuple[int, int]:
        """Return how often a weight has been written to, as its version says and as was seen."""
        # Tensors made under torch.inference_mode count no versions, and raise when asked.
        version = -1 if weight.is_inference() else version_of(weight)
        return version, self._written.get(weight.data_ptr(), 0)
