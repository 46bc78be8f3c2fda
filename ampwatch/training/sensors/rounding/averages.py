"""Moving averages of weights that are kept in half precision and do not move."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.rounding import OpSite, StuckAverage
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.devices import HOST
from ampwatch.training.hooks.sources import is_in_optimizer, user_source
from ampwatch.training.memory import bytes_held
from ampwatch.training.model.dtypes import name_of
from ampwatch.training.ops.events import OpSensor
from ampwatch.training.ops.operands import HALF
from ampwatch.training.ops.values import has_grad, is_plain, thinned
from ampwatch.training.sensors.rounding.operands import listed, number_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.training.hooks.events import TensorsSwapping
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.memory import HeldBytes
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op, OpsBegan, OpsEnded
    from ampwatch.training.ops.info import OpInfo

SAMPLED = 1024
"""Elements of an average that are remembered from one update to the next."""

MAX_PARTS = 4096
"""Tensors computed of parameters that are followed at a time."""

MAX_AVERAGES = 4096
"""Averages that are remembered."""

DECAYS = 0.5, 1.0
"""Factors between which a tensor may be an average that decays."""

LARGEST_WEIGHT = 0.5
"""Share of the parameter in the new average from which it is no average any more."""

STUCK_SHARE = 0.95
"""Share of the elements that differ from the parameter which must stay as they are."""

OP = "lerp_"
"""Name that every update is reported by: a ``mul_`` and an ``add_`` are a ``lerp_`` as well."""


class _Part(NamedTuple):
    """Share of a parameter in a tensor.

    Attributes:
        tensor: The tensor.
        name: Name of the parameter.
        parameter: The parameter.
        factor: Factor of the parameter in the tensor.
        copy: Address of the tensor whose difference to the parameter this is; 0 if it is none.
        is_value: Whether this is a whole new value of an average.
    """

    tensor: weakref.ref[torch.Tensor]
    name: str
    parameter: weakref.ref[torch.Tensor]
    factor: float
    copy: int = 0
    is_value: bool = False


class _Average:
    """A moving average of a parameter.

    Attributes:
        elements: A copy of some elements after the last update.
        updates: Updates in a row after which nothing had changed.
    """

    __slots__ = ("elements", "updates")

    def __init__(self, elements: torch.Tensor) -> None:
        self.elements = elements
        self.updates = 0


class WeightAverages(OpSensor):
    """Follows what is written to half tensors out of watched parameters, outside of optimizers.

    An update may be a ``lerp_``, a ``mul_`` and an ``add_``, a difference that is added, a new
    value that is copied or takes the place of the old one, for one tensor or for lists. Each is
    known by the parameter that goes into it, and by its share. Elements that are remembered from
    the update before show whether anything has changed.

    Args:
        context: Shared parts of the training.

    Cost:
        Less than 1 us for an op that is no multiplication, addition or cast, or that
        gradients flow through; 40 us an update of one tensor.
    """

    name = "weight_averages"
    is_thread_safe = True

    def __init__(self, context: Context) -> None:
        self._names = context.names
        self._deferred = context.deferred
        self._memory = context.memory
        self._memory.add("averages", self.held_bytes)
        self._observe = context.observe
        self._step = 0
        self._parameters: dict[int, tuple[str, weakref.ref[torch.Tensor]]] = {}
        self._parts: dict[int, _Part] = {}
        self._decayed: dict[int, torch.Size] = {}
        self._averages: dict[tuple[str, int], _Average] = {}
        self._handlers: dict[str, Callable[[OpCall], None]] = {
            "lerp_": self._lerp,
            "lerp": self._lerp,
            "mul_": self._scale_in_place,
            "mul": self._scale,
            "div": self._scale,
            "add_": self._add,
            "sub_": self._add,
            "add": self._add,
            "sub": self._add,
            "copy_": self._copy,
            "_to_copy": self._pass_on,
            "clone": self._pass_on,
            "_foreach_lerp_": self._lerp,
            "_foreach_mul_": self._scale_in_place,
            "_foreach_mul": self._scale,
            "_foreach_add_": self._add,
            "_foreach_sub_": self._add,
            "_foreach_add": self._add,
            "_foreach_sub": self._add,
            "_foreach_copy_": self._copy,
        }

    def ops_began(self, event: OpsBegan) -> None:
        """Begin an iteration; averages live longer than iterations."""
        self._step = event.step
        self._deferred.poll()
        self._forget()
        # Collected each time: optimizers and wrappers replace parameters and their memory.
        self._parameters = {
            p.data_ptr(): (name, weakref.ref(p))
            for name, p in self._names.parameters()
            if is_plain(p)
        }

    def tensors_swapping(self, _event: TensorsSwapping) -> None:
        """Refer to no parameter until the next iteration."""
        self._forget()
        self._parameters.clear()

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:
        """Whether an op may be part of an update."""
        return info.name in self._handlers and not in_backward

    def glance(self, call: OpCall) -> bool:
        """Whether an op is a part of what is trained."""
        return has_grad(*call.args[:2])

    def op(self, event: Op) -> None:
        """Follow an op that may be part of an update."""
        call, place = event
        handler = self._handlers.get(call.info.name)
        if handler is None or place.phase is Phase.BACKWARD or has_grad(*call.args[:2]):
            return
        handler(call)

    def ops_ended(self, _event: OpsEnded) -> None:
        """Forget the tensors and parameters of the iteration."""
        self._deferred.poll()
        self._forget()
        self._parameters.clear()

    def _forget(self) -> None:
        self._parts.clear()
        self._decayed.clear()

    # What the ops do, of one tensor or of lists of them.

    def _lerp(self, call: OpCall) -> None:
        share = number_of(call.args[2] if len(call.args) > 2 else call.kwargs.get("weight"))
        in_place = call.info.name.endswith("_")
        for _, new, out in rows_of(call, 0, 1) if share is not None else ():
            part = self._part(new)
            if part is not None and share is not None:
                part = part._replace(factor=share * part.factor)
                self._update(out, part, in_place=in_place, op=call.info.name)
                if not in_place:
                    self._enter(out, part._replace(is_value=True))

    def _scale_in_place(self, call: OpCall) -> None:
        factor = number_of(call.args[1])
        for (tensor,) in rows_of(call, 0) if factor is not None else ():
            part = self._followed(tensor)
            if factor is not None and part is not None:
                self._enter(tensor, part._replace(factor=part.factor * factor))
            elif factor is not None and DECAYS[0] < factor < DECAYS[1]:
                self._decayed[tensor.data_ptr()] = tensor.shape

    def _scale(self, call: OpCall) -> None:
        first: Any = call.args[0]
        given = call.args[1] if len(call.args) > 1 else None
        is_division = call.info.name == "div"
        factor = number_of(given)
        if factor is None and not is_division:
            factor = number_of(first)
            first = given
        if not factor:
            return
        factor = 1.0 / factor if is_division else factor
        for tensor, out in zip(listed(first), listed(call.out), strict=False):
            part = self._part(tensor)
            if part is not None:
                self._enter(out, part._replace(factor=part.factor * factor, is_value=False))
            elif DECAYS[0] < factor < DECAYS[1] and is_plain(out):
                self._decayed[out.data_ptr()] = out.shape

    def _add(self, call: OpCall) -> None:
        name = call.info.name
        alpha = number_of(call.kwargs.get("alpha", 1))
        if alpha is None or len(call.args) < 2:
            return
        in_place = name.endswith("_")
        for first, second, out in rows_of(call, 0, 1):
            if not is_plain(second) or first.shape != second.shape:
                continue
            mine = self._part(second)
            part = mine
            other = first
            sign = -alpha if "sub" in name else alpha
            theirs = None if in_place else self._part(first)
            # Of two shares the smaller one is the parameter's, the other one is the average's.
            if theirs is not None and (mine is None or theirs.factor < mine.factor):
                part = theirs
                other = second
                sign = 1.0
            if part is not None:
                self._combine(part, other, out, part.factor * sign, in_place=in_place)

    def _combine(
        self, part: _Part, other: torch.Tensor, out: torch.Tensor, share: float, *, in_place: bool
    ) -> None:
        """Take in a share of a parameter, or of a difference to it, that was added to ``other``."""
        address = other.data_ptr()
        decayed = self._part(other)
        is_decayed = self._decayed.get(address) == other.shape or (
            decayed is not None and DECAYS[0] < decayed.factor < DECAYS[1]
        )
        if 0.0 < share < LARGEST_WEIGHT and (
            part.copy == address or (not part.copy and is_decayed)
        ):
            self._decayed.pop(address, None)
            part = part._replace(factor=share, is_value=True)
            self._update(out, part, in_place=in_place)
            if not in_place:
                self._enter(out, part)
        elif not in_place and not part.copy:
            self._enter(out, part._replace(factor=share, copy=address))

    def _copy(self, call: OpCall) -> None:
        for out, source in rows_of(call, 0, 1):
            part = self._followed(source)
            if part is not None and part.is_value and source.dtype is not out.dtype:
                # A copy in the same dtype rounds nothing: it was compared when it was computed.
                self._update(out, part, in_place=True)

    def _pass_on(self, call: OpCall) -> None:
        part = self._part(call.args[0])
        if part is not None:
            self._enter(call.out, part)
            if part.is_value:
                self._update(call.out, part, in_place=False)

    def _followed(self, tensor: Any) -> _Part | None:
        """Return the share in a tensor that was computed, or in a view of one."""
        part = self._parts.get(tensor.data_ptr()) if is_plain(tensor) else None
        known = None if part is None else part.tensor()
        # A tensor that lives holds its memory, so no other one is at this address.
        return part if known is not None and known.shape == tensor.shape else None

    def _part(self, tensor: Any) -> _Part | None:
        """Return the share of a parameter in a tensor, ``None`` if there is none."""
        if not is_plain(tensor):
            return None
        part = self._followed(tensor)
        if part is not None:
            return part
        known = self._parameters.get(tensor.data_ptr())
        parameter = known[1]() if known is not None else None
        if known is None or parameter is None or parameter.shape != tensor.shape:
            return None
        return _Part(weakref.ref(tensor), known[0], known[1], 1.0)

    def held_bytes(self) -> HeldBytes:
        """Return the bytes of the elements that are remembered."""
        return bytes_held([average.elements for average in list(self._averages.values())])

    def _has_room(self, elements: torch.Tensor) -> bool:
        left = self._memory.left()
        if elements.nbytes <= (left.host if elements.device.type == HOST else left.device):
            return True
        self._memory.refuse("averages", "some averages of weights are not followed")
        return False

    def _enter(self, out: Any, part: _Part) -> None:
        if is_plain(out) and len(self._parts) < MAX_PARTS:
            self._parts[out.data_ptr()] = part._replace(tensor=weakref.ref(out))

    def _update(self, out: torch.Tensor, part: _Part, *, in_place: bool, op: str = OP) -> None:
        """Compare an average before and after an update.

        Args:
            out: New value of the average; a share ``part.factor`` of it is the parameter.
            part: The share.
            in_place: Whether the new value lies where the old one was.
            op: Name of the op.
        """
        parameter = part.parameter()
        if out.dtype not in HALF or parameter is None or is_in_optimizer():
            return
        if parameter.device != out.device or parameter.shape != out.shape:
            return  # an average on the host cannot be compared without waiting for the device
        # An average that is replaced in each update is known by its parameter alone.
        key = part.name, out.data_ptr() if in_place else 0
        # Cloned: ``thinned`` may return a view, which the next update would change.
        elements = thinned(out.detach(), SAMPLED).clone()
        average = self._averages.get(key)
        if average is None or average.elements.shape != elements.shape:
            if len(self._averages) < MAX_AVERAGES and self._has_room(elements):
                self._averages[key] = _Average(elements)
            return
        target = thinned(parameter.detach(), SAMPLED)
        differing = target.to(out.dtype) != elements
        unchanged = differing & (elements == average.elements)
        distance = (target.float() - elements.float()).abs().mean()
        relative = distance / elements.float().abs().mean().clamp(min=1e-30)
        finite = elements.isfinite().all()
        average.elements = elements
        # Named after itself, where the average is a watched parameter as well.
        own = self._parameters.get(out.data_ptr())
        name = part.name if own is None else own[0]
        site = OpSite(self._step, f"param:{name}", op, "optimizer", user_source())
        dtype = name_of(out.dtype)
        compared = len(elements)

        def judge(read: list[float]) -> None:
            differing, unchanged, distance, is_finite = read
            is_stuck = bool(is_finite) and unchanged > STUCK_SHARE * differing
            average.updates = average.updates + 1 if is_stuck else 0
            if is_stuck:
                self._observe(
                    StuckAverage(
                        site,
                        dtype,
                        part.factor,
                        average.updates,
                        compared,
                        int(differing),
                        int(unchanged),
                        distance,
                    )
                )

        columns = differing.sum(), unchanged.sum(), relative, finite
        self._deferred.read(torch.stack([c.to(torch.float32) for c in columns]), judge)
