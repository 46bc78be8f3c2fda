"""Moving averages of weights and of data that are kept in half precision and do not move."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.rounding import OpSite, Stuck, What
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.devices import HOST
from ampwatch.training.hooks.sources import is_in_optimizer, user_source
from ampwatch.training.kernels.admission import is_plain
from ampwatch.training.kernels.dtypes import HALF, name_of
from ampwatch.training.memory import bytes_held
from ampwatch.training.ops.operands import has_grad, thinned
from ampwatch.training.ops.storage import Memory
from ampwatch.training.sensors.rounding.shadow import (
    RoundingSensor,
    Shadow,
    Shadows,
    distance_of,
    listed,
    now_of,
    number_of,
    rows_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ampwatch.training.hooks.events import TensorsSwapping
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.memory import HeldBytes
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op
    from ampwatch.training.ops.info import OpInfo

OF_WEIGHTS, OF_DATA = 1024, 256
"""Elements that are followed of an average of weights, and of one of data."""

MAX_TERMS, MAX_OF_WEIGHTS, MAX_OF_DATA = 4096, 4096, 1024
"""Computed tensors, averages of weights and averages of data that are followed at a time."""

LARGEST_WEIGHT = 0.5
"""Share of what is new in an average, at most: the rest is a product with what was there before."""

STUCK_SHARE = 0.95
"""Share of the elements that differ from the parameter which must stay as they are."""

SUM_OF_SHARES = 0.02
"""Distance from 1 up to which the two factors of an average of data may add up."""

MAX_WEIGHT = 2.0
"""Share of the data in a new average, in units of ``eps``, up to which it may stand still far from the data: its update
is less than half of a spacing until they differ by an eighth."""

SPACINGS = 1.0
"""Distance from float32 at which an average of data stands still, in units of ``eps``: rounding alone makes half a unit."""

MIN_STILL = 8
"""Updates in a row without effect after which it does."""

OP = "lerp_"
"""Name that an update of weights is reported by: a ``mul_`` and an ``add_`` are a ``lerp_`` as well."""


class _Term(NamedTuple):
    """A computed tensor: another one times a factor, or its difference to a third one times that."""

    base: int  # address of the other one
    factor: float  # the factor
    minus: int = 0  # address of the third one; 0 if there is none
    # whether it is a whole new value of an average of weights, with that share of the other one
    is_average: bool = False
    memory: Memory | None = None  # where it lies

    @property
    def is_decayed(self) -> bool:
        """Whether it may be what is kept of an average."""
        return LARGEST_WEIGHT < self.factor < 1.0 and not self.minus


class Averages(RoundingSensor):
    """Follows averages that no optimizer updates: of watched parameters, and of what is computed.

    An update may be a ``lerp_``, a ``mul_`` and an ``add_``, a difference that is added, a new
    value that is copied or takes the place of the old one, for one tensor or for lists; or a norm in
    training. One of weights is known by the parameter that goes into it, with a share. One of data
    by two factors that add up to one; beside it some elements are averaged in float32 since they
    moved last: where these have become another number and the average has not, its updates round away.

    Cost:
        Less than 1 us for an op that is no multiplication, addition, cast or norm, or that
        gradients flow through; 50 us an update of one tensor.
    """

    name = "averages"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._memory = context.memory
        self._memory.add("averages", self.held_bytes)
        self._parameters: dict[int, tuple[str, weakref.ref[Tensor]]] = {}
        self._terms: dict[int, _Term] = {}
        self._of_weights: dict[tuple[str, int], Shadow] = {}
        self._of_data = Shadows(MAX_OF_DATA)
        self._handlers: dict[str, Callable[[Op], None]] = {
            **dict.fromkeys(("lerp_", "lerp", "_foreach_lerp_"), self._lerp),
            **dict.fromkeys(("mul", "mul_", "div", "_foreach_mul", "_foreach_mul_"), self._scale),
            **dict.fromkeys(("add_", "sub_", "add", "sub"), self._add),
            **dict.fromkeys((f"_foreach_{op}" for op in ("add_", "sub_", "add", "sub")), self._add),
            **dict.fromkeys(("copy_", "_foreach_copy_"), self._copy),
            **dict.fromkeys(("_to_copy", "clone"), self._pass_on),
        }

    def held_bytes(self) -> HeldBytes:
        """Return the bytes of the elements that are remembered."""
        shadows = [*self._of_weights.values(), *self._of_data.known.values()]
        held = (t for s in shadows for t in (s.now, s.exact, s.additions))
        return bytes_held([t for t in held if isinstance(t, torch.Tensor)])

    def _begin(self) -> None:
        self._parameters = {
            p.data_ptr(): (name, weakref.ref(p))
            for name, p in self._names.parameters()
            if is_plain(p)
        }

    def tensors_swapping(self, _event: TensorsSwapping) -> None:
        """Refer to no parameter until the next iteration."""
        self._forget()

    def _forget(self) -> None:
        self._terms.clear()
        self._parameters.clear()

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:
        """Whether an op may be part of an update."""
        return not in_backward and (info.name in self._handlers or "batch_norm" in info.name)

    def prefilter(self, call: OpCall) -> bool:
        """Whether an op is a part of what is trained."""
        return call.info.name in self._handlers and has_grad(*call.args[:2])

    def op(self, event: Op) -> None:
        """Follow an op that may be part of an update."""
        call, place = event
        if place.phase is Phase.BACKWARD:
            return
        handler = self._handlers.get(call.info.name)
        if handler is None and "batch_norm" in call.info.name:
            self._normalize(event)
        elif handler is not None and not has_grad(*call.args[:2]):
            handler(event)

    # What the ops do, of one tensor or of lists of them.

    def _normalize(self, op: Op) -> None:
        """Follow the statistics of a norm; what they are averages of are its further results."""
        call = op.call
        given = dict(zip(call.info.arguments, call.args, strict=False)) | call.kwargs
        weight, out = given.get("momentum", given.get("exponential_average_factor")), call.out
        if not given.get("training", True) or not weight or not isinstance(out, (tuple, list)):
            return
        mean: Any = given.get("running_mean")
        variance: Any = given.get("running_var")
        if not all(map(is_plain, (mean, variance, *out[1:3]))) or len(out) < 3:
            return
        if is_slow(mean, weight):
            self._update_of_data(op, mean.data_ptr(), mean, out[1], weight)
            # The other result is the reciprocal of the standard deviation.
            square = out[2].detach().float().square().reciprocal()
            self._update_of_data(op, variance.data_ptr(), variance, square, weight)

    def _lerp(self, op: Op) -> None:
        call = op.call
        weight = number_of(call.args[2] if len(call.args) > 2 else call.kwargs.get("weight")) or 0.0
        for average, data, out in rows_of(call, 0, 1) if weight else ():
            share = self._share(data)
            if share is not None:
                factor, name = share.factor * weight, call.info.name
                self._replace(out, share.base, factor, name, is_new=out is not average)
            self._update_of_data(op, average.data_ptr(), out, data, weight)

    def _scale(self, op: Op) -> None:
        call = op.call
        first, second = call.args[:2] if len(call.args) > 1 else (call.args[0], None)
        factor = number_of(second)
        if factor is None and call.info.name in ("mul", "_foreach_mul"):
            factor, first = number_of(first), second
        if factor:
            factor = 1.0 / factor if call.info.name == "div" else factor
            products = first if call.info.name.endswith("_") else call.out
            for tensor, product in zip(listed(first), listed(products), strict=False):
                if is_plain(tensor):
                    self._multiply(tensor, product, factor)

    def _multiply(self, tensor: Tensor, out: Any, factor: float) -> None:
        term = self._term(tensor) if out is tensor else self._share(tensor)
        if term is not None and term.base in self._parameters:
            self._enter(out, term._replace(factor=term.factor * factor, is_average=False))
        elif LARGEST_WEIGHT < factor < 1.0 or tensor.dtype in HALF:
            self._enter(out, _Term(tensor.data_ptr(), factor))

    def _add(self, op: Op) -> None:
        call = op.call
        alpha = number_of(call.kwargs.get("alpha", 1))
        if alpha is None or len(call.args) < 2:
            return
        is_difference = "sub" in call.info.name
        for first, second, out in rows_of(call, 0, 1):
            if is_plain(second):
                terms = self._term(first), self._term(second)
                if first.shape == second.shape:
                    self._add_share(first, second, out, -alpha if is_difference else alpha)
                if not is_difference:
                    self._add_data(op, (first, second), terms, out, alpha)

    def _add_share(self, first: Tensor, second: Tensor, out: Tensor, alpha: float) -> None:
        """Take in a share of a parameter, or of a difference to it, that was added to something else."""
        part, other = self._share(second), first
        theirs = None if out is first else self._share(first)
        # Of two shares the smaller one is the parameter's, the other one is the average's.
        if theirs is not None and (part is None or theirs.factor < part.factor):
            part, other, alpha = theirs, second, 1.0
        if part is None:
            return
        factor = part.factor * alpha
        address, kept = other.data_ptr(), self._term(other)
        is_kept = part.minus == address if part.minus else kept is not None and kept.is_decayed
        if 0.0 < factor < LARGEST_WEIGHT and is_kept:
            self._terms.pop(address, None)
            self._replace(out, part.base, factor, is_new=out is not first)
        elif out is not first and not part.minus:
            self._enter(out, _Term(part.base, factor, address))

    def _add_data(
        self,
        op: Op,
        given: tuple[Tensor, Tensor],
        terms: tuple[_Term | None, _Term | None],
        out: Tensor,
        alpha: float,
    ) -> None:
        """Take in data that were added to what is kept of an average of them."""
        (_, addend), (kept, new) = given, terms
        if (kept is None or not kept.is_decayed) and out is not given[0] and alpha == 1.0:
            (addend, _), (new, kept) = given, terms
        if kept is None or not kept.is_decayed:
            return
        factor = alpha if new is None else alpha * new.factor
        # Without a factor, what is added is a share of the data already: ``0.999 * total + loss``.
        weight = 1.0 - kept.factor if factor == 1.0 else factor
        if abs(kept.factor + weight - 1.0) <= SUM_OF_SHARES * weight:
            self._update_of_data(op, kept.base, out, addend, weight, alpha / weight)

    def _copy(self, op: Op) -> None:
        """Follow an average that was computed elsewhere to where it is kept."""
        for out, source in rows_of(op.call, 0, 1):
            term = self._term(source)
            average = self._of_data.of(source) if is_plain(source) else None
            # A copy in the same dtype rounds nothing: it was compared when it was computed.
            if term is not None and term.is_average and source.dtype is not out.dtype:
                self._update_of_weights(out, term.base, term.factor)
            if average is not None:
                self._of_data.put(out, average)

    def _pass_on(self, op: Op) -> None:
        out, share = op.call.out, self._share(op.call.args[0])
        if share is not None:
            self._enter(out, share)
            if share.is_average:
                self._update_of_weights(out, share.base, share.factor, is_new=True)

    def _replace(
        self, out: Tensor, base: int, factor: float, name: str = OP, *, is_new: bool
    ) -> None:
        """Take in a new value of an average, with a share of a parameter."""
        self._update_of_weights(out, base, factor, name, is_new=is_new)
        if is_new:
            self._enter(out, _Term(base, factor, is_average=True))

    # What tensors are computed of.

    def _term(self, tensor: Any) -> _Term | None:
        """Return what a tensor was computed of, or one that it is a view of."""
        term = self._terms.get(tensor.data_ptr()) if is_plain(tensor) else None
        is_it = term is not None and term.memory is not None and term.memory.is_of(tensor)
        return term if is_it else None

    def _share(self, tensor: Any) -> _Term | None:
        """Return the share of a parameter in a tensor, ``None`` if there is none."""
        if not is_plain(tensor):
            return None
        parameter = self._parameter(tensor.data_ptr())
        if parameter is not None and parameter.shape == tensor.shape:
            return _Term(tensor.data_ptr(), 1.0)
        term = self._term(tensor)
        return term if term is not None and term.base in self._parameters else None

    def _parameter(self, address: int) -> Tensor | None:
        known = self._parameters.get(address)
        return None if known is None else known[1]()

    def _enter(self, out: Any, term: _Term) -> None:
        if is_plain(out) and len(self._terms) < MAX_TERMS:
            self._terms[out.data_ptr()] = term._replace(memory=Memory(out))

    # What has become of the averages.

    def _has_room(self, elements: Tensor) -> bool:
        left = self._memory.left()
        if elements.nbytes <= (left.host if elements.device.type == HOST else left.device):
            return True
        self._memory.refuse("averages", "some averages of weights are not followed")
        return False

    def _update_of_weights(
        self, out: Tensor, base: int, weight: float, op: str = OP, *, is_new: bool = False
    ) -> None:
        """Compare an average with what it was before an update.

        Args:
            out: New value of the average.
            base: Address of the parameter.
            weight: Share of that in it.
            op: Name of the op.
            is_new: Whether the new value lies elsewhere than the old one.
        """
        parameter = self._parameter(base)
        if out.dtype not in HALF or parameter is None or is_in_optimizer():
            return
        if parameter.device != out.device or parameter.shape != out.shape:
            return  # an average on the host cannot be compared without waiting for the device
        name = self._parameters[base][0]
        # An average that is replaced in each update is known by its parameter alone.
        key, now = (name, 0 if is_new else out.data_ptr()), now_of(out, OF_WEIGHTS)
        average = self._of_weights.get(key)
        if average is None or average.now.shape != now.shape:
            if len(self._of_weights) < MAX_OF_WEIGHTS and self._has_room(now):
                self._of_weights[key] = Shadow(now)
            return
        target = thinned(parameter.detach(), OF_WEIGHTS)
        differs = target.to(out.dtype) != now
        stays = differs & (now == average.now)
        average.now = now
        # Named after itself, where the average is a watched parameter as well.
        where = f"param:{self._parameters.get(out.data_ptr(), (name,))[0]}"
        site = OpSite(self._step, where, op, "optimizer", user_source())
        dtype, compared = name_of(out.dtype), len(now)

        def judge(read: list[float]) -> None:
            differing, unchanged, distance, is_finite = read
            is_stuck = bool(is_finite) and unchanged > STUCK_SHARE * differing
            average.additions = average.additions + 1 if is_stuck else 0
            if is_stuck:
                shares = unchanged / differing, differing / compared, distance, weight
                self._observe(Stuck(site, What.WEIGHT_AVERAGE, dtype, average.additions, *shares))

        distance = distance_of(now, target)
        self._read(judge, differs.sum(), stays.sum(), distance, now.isfinite().all())

    def _update_of_data(
        self, op: Op, before: int, out: Tensor, given: Any, weight: float, factor: float = 1.0
    ) -> None:
        """Take in an update of an average of data beside the same in float32.

        Args:
            op: The op that has added the data.
            before: Address of the average before it.
            out: The average after it.
            given: A tensor.
            weight: Share of the data in the new average.
            factor: By how much the tensor is to be multiplied to be the data.
        """
        if not is_slow(out, weight) or not is_plain(given) or given.device != out.device:
            return
        if is_in_optimizer():
            return
        now, dtype = now_of(out, OF_DATA), name_of(out.dtype)
        average = self._of_data.of(out, address=before)
        if average is None or average.now.dtype is not out.dtype:
            self._of_data.put(out, Shadow(now, now.float()))
            return
        self._of_data.put(out, average)
        if len(average.now) != len(now):
            return
        data = thinned(given.detach().expand(out.shape), OF_DATA).float() * factor
        has_moved = now != average.now
        average.add(now, weight * (data - average.exact))
        average.begin(has_moved)
        stays, spacing = average.additions, FORMATS[dtype].eps * now.float().abs()
        is_away = (average.exact - now).abs() > SPACINGS * spacing
        is_stuck = is_away & (stays >= MIN_STILL) & (now != 0)
        site, compared = self._site(op, out), len(now)

        def judge(read: list[float]) -> None:
            stuck, resting, updates, distance = read
            if math.isfinite(distance) and resting >= compared / 2:
                shares = stuck / compared, 1.0, distance, weight
                self._observe(Stuck(site, What.DATA_AVERAGE, dtype, int(updates), *shares))

        distance = distance_of(now, average.exact)
        self._read(judge, is_stuck.sum(), (stays > 0).sum(), stays.max(), distance)


def is_slow(average: Tensor, weight: float) -> bool:
    """Whether updates of an average with a share of data may round away far from the data."""
    if average.dtype not in HALF:
        return False
    return 0.0 < weight <= MAX_WEIGHT * FORMATS[name_of(average.dtype)].eps
