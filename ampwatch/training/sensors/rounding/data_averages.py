"""Moving averages of data that are kept in half precision and do not move."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.rounding import OpSite, StillAverage
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks.sources import is_in_optimizer, user_source
from ampwatch.training.memory import bytes_held
from ampwatch.training.model.dtypes import name_of
from ampwatch.training.ops.events import OpSensor
from ampwatch.training.ops.operands import HALF
from ampwatch.training.ops.storage import Memory
from ampwatch.training.ops.values import has_grad, is_plain, names_by_address, place_name, thinned
from ampwatch.training.sensors.rounding.operands import listed, number_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ampwatch.training.iteration.context import Context
    from ampwatch.training.memory import HeldBytes
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op, OpPlace, OpsBegan, OpsEnded
    from ampwatch.training.ops.info import OpInfo

SAMPLED = 256
"""Elements of an average that are averaged in float32 beside it."""

MAX_AVERAGES = 1024
"""Averages that are followed."""

MAX_SCALED = 256
"""Products of tensors and numbers that may become part of an average."""

DECAYS = 0.5, 1.0
"""Factors between which a product may be what is kept of an average."""

SUM_OF_SHARES = 0.02
"""Distance from 1 up to which the two factors of an average may add up."""

MAX_WEIGHT = 2.0
"""Share of the data in a new average, in units of ``eps``, up to which it may stand still far from
the data: its update is less than half of a spacing until they differ by an eighth."""

SPACINGS = 1.0
"""Distance from the average in float32 at which a number stands still, in units of ``eps``. One
that is only rounded is half a unit away."""

MIN_STILL = 8
"""Updates in a row without effect."""


class _Scaled(NamedTuple):
    """A product of a tensor and a number.

    Attributes:
        memory: Where the product lies.
        base: Where the tensor lies; of a product in place the product itself.
        factor: The number.
    """

    memory: Memory
    base: int
    factor: float

    @property
    def is_decayed(self) -> bool:
        """Whether it may be what is kept of an average."""
        return DECAYS[0] < self.factor < DECAYS[1]


class _Average:
    """An average, and beside it some of its elements in float32.

    Attributes:
        memory: Where the average lies now.
        dtype: Name of its dtype.
        before: The elements after the last update.
        exact: What the elements would be in float32, averaged since they moved last.
        still: Updates since they moved last.
    """

    __slots__ = ("before", "dtype", "exact", "memory", "still")

    def __init__(self, tensor: Tensor) -> None:
        self.memory = Memory(tensor)
        self.dtype = name_of(tensor.dtype)
        self.before = self.exact = thinned(tensor.detach(), SAMPLED).float()
        self.still = torch.zeros_like(self.before)


class DataAverages(OpSensor):
    """Follows averages of what is computed: statistics of norms, losses, sizes of clusters.

    An average is a tensor in half precision of which a share is replaced, the two factors adding up
    to one: by a norm in training, a ``lerp``, or a ``mul`` and an ``add``, in place or not. Beside
    it some elements are averaged in float32 since they moved last: where these have become another
    number and the average has not, its updates round away.

    Args:
        context: Shared parts of the training.

    Cost:
        Less than 1 us for an op that is no multiplication, addition or norm, or whose result is
        not in half precision; 50 us an update.
    """

    name = "data_averages"
    is_thread_safe = True

    def __init__(self, context: Context) -> None:
        self._names = context.names
        self._deferred = context.deferred
        context.memory.add("averages", self.held_bytes)
        self._observe = context.observe
        self._step = 0
        self._scaled: dict[int, _Scaled] = {}
        self._averages: dict[int, _Average] = {}
        self._buffers: dict[int, str] = {}
        self._handlers: dict[str, Callable[[OpCall, OpPlace], None]] = {
            **dict.fromkeys(("lerp_", "lerp", "_foreach_lerp_"), self._lerp),
            **dict.fromkeys(("mul_", "_foreach_mul_"), self._scale_in_place),
            **dict.fromkeys(("mul", "_foreach_mul"), self._scale),
            **dict.fromkeys(("copy_", "_foreach_copy_"), self._copy),
            **dict.fromkeys(("add_", "add", "_foreach_add_", "_foreach_add"), self._add),
        }

    def held_bytes(self) -> HeldBytes:
        """Return the bytes of the elements beside the averages: 3 MB at most."""
        averages = list(self._averages.values())
        return bytes_held([t for a in averages for t in (a.before, a.exact, a.still)])

    def ops_began(self, event: OpsBegan) -> None:
        """Begin an iteration; averages live longer than iterations."""
        self._step = event.step
        self._deferred.poll()
        self._buffers = names_by_address(self._names.buffers())

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:
        """Whether an op may be part of an update."""
        return not in_backward and (info.name in self._handlers or "batch_norm" in info.name)

    def glance(self, call: OpCall) -> bool:
        """Whether an op is a part of what is trained, or not in half precision."""
        if call.info.name not in self._handlers:
            return False
        return not _is_half(call) or has_grad(*call.args[:2])

    def op(self, event: Op) -> None:
        """Follow an op that may be part of an update."""
        call, place = event
        if place.phase is Phase.BACKWARD:
            return
        name = call.info.name
        if "batch_norm" in name:
            self._normalize(call, place)
            return
        handler = self._handlers.get(name)
        if handler is None or not _is_half(call) or has_grad(*call.args[:2]):
            return
        if not is_in_optimizer():
            handler(call, place)

    def ops_ended(self, _event: OpsEnded) -> None:
        """Take in the values that have reached the host; forget what was in between."""
        self._deferred.poll()
        self._scaled.clear()
        self._buffers.clear()

    # What the ops do, of one tensor or of lists of them.

    def _normalize(self, call: OpCall, place: OpPlace) -> None:
        """Follow the statistics of a norm; what they are averages of are its further results."""
        given = dict(zip(call.info.arguments, call.args, strict=False)) | call.kwargs
        weight = given.get("momentum", given.get("exponential_average_factor"))
        out = call.out
        if not given.get("training", True) or not weight or not isinstance(out, (tuple, list)):
            return
        mean: Any = given.get("running_mean")
        variance: Any = given.get("running_var")
        if not all(map(is_plain, (mean, variance, *out[1:3]))) or len(out) < 3:
            return
        if is_slow(mean, weight):
            self._update(mean.data_ptr(), mean, (out[1], 1.0), weight, call, place)
            # The other result is the reciprocal of the standard deviation.
            square = out[2].detach().float().square().reciprocal()
            self._update(variance.data_ptr(), variance, (square, 1.0), weight, call, place)

    def _lerp(self, call: OpCall, place: OpPlace) -> None:
        weight = number_of(call.args[2] if len(call.args) > 2 else call.kwargs.get("weight"))
        for average, data, out in rows_of(call, 0, 1) if weight else ():
            if weight is not None:
                self._update(average.data_ptr(), out, (data, 1.0), weight, call, place)

    def _scale_in_place(self, call: OpCall, _place: OpPlace) -> None:
        factor = number_of(call.args[1])
        for (tensor,) in rows_of(call, 0) if factor is not None else ():
            self._remember(tensor, tensor, factor)

    def _scale(self, call: OpCall, _place: OpPlace) -> None:
        first, second = call.args[:2]
        factor = number_of(second)
        if factor is None:
            factor = number_of(first)
            first = second
        if factor is not None:
            for base, product in zip(listed(first), listed(call.out), strict=False):
                if is_plain(base):
                    self._remember(product, base, factor)

    def _remember(self, product: Any, base: Tensor, factor: float | None) -> None:
        if factor is not None and is_plain(product) and len(self._scaled) < MAX_SCALED:
            scaled = _Scaled(Memory(product), base.data_ptr(), factor)
            self._scaled[product.data_ptr()] = scaled

    def _add(self, call: OpCall, place: OpPlace) -> None:
        alpha = number_of(call.kwargs.get("alpha", 1))
        if alpha is None or len(call.args) < 2:
            return
        for first, second, out in rows_of(call, 0, 1):
            if is_plain(second):
                self._combine(first, second, out, alpha, call, place)

    def _combine(
        self, first: Tensor, second: Tensor, out: Tensor, alpha: float, call: OpCall, place: OpPlace
    ) -> None:
        kept = self._product(first)
        addend = second
        if (kept is None or not kept.is_decayed) and first is not out and alpha == 1.0:
            kept = self._product(second)
            addend = first
        if kept is None or not kept.is_decayed:
            return
        new = self._product(addend)
        factor = alpha if new is None else alpha * new.factor
        # Without a factor, what is added is a share of the data already: ``0.999 * total + loss``.
        weight = 1.0 - kept.factor if factor == 1.0 else factor
        if abs(kept.factor + weight - 1.0) <= SUM_OF_SHARES * weight:
            self._update(kept.base, out, (addend, alpha / weight), weight, call, place)

    def _product(self, tensor: Tensor) -> _Scaled | None:
        known = self._scaled.get(tensor.data_ptr())
        return known if known is not None and known.memory.is_of(tensor) else None

    def _copy(self, call: OpCall, _place: OpPlace) -> None:
        """Follow an average that was computed elsewhere to where it is kept."""
        for out, source in rows_of(call, 0, 1):
            average = self._averages.get(source.data_ptr()) if is_plain(source) else None
            if average is not None and average.memory.is_of(source):
                del self._averages[source.data_ptr()]
                self._enter(out, average)

    def _update(
        self,
        before: int,
        out: Tensor,
        data: tuple[Any, float],
        weight: float,
        call: OpCall,
        place: OpPlace,
    ) -> None:
        """Take in an update of an average.

        Args:
            before: Address of the average before it.
            out: The average after it.
            data: A tensor, and by how much that is to be multiplied to be what is averaged.
            weight: Share of the data in the new average.
            call: The op that has added the data.
            place: Its place.
        """
        given, factor = data
        if not is_slow(out, weight) or not is_plain(given) or given.device != out.device:
            return
        average = self._averages.pop(before, None)
        if average is None or not average.memory.is_of(out) or average.dtype != name_of(out.dtype):
            self._enter(out, _Average(out))
            return
        self._enter(out, average)
        now = thinned(out.detach(), SAMPLED).float()
        if len(average.before) == len(now):
            target = thinned(given.detach().expand(out.shape), SAMPLED).float() * factor
            self._compare(average, now, target, weight, self._site(out, call, place))

    def _enter(self, out: Tensor, average: _Average) -> None:
        if len(self._averages) >= MAX_AVERAGES:
            alive = [(k, a) for k, a in self._averages.items() if a.memory.is_alive]
            self._averages = dict(alive)
        if len(self._averages) < MAX_AVERAGES:
            average.memory = Memory(out)
            self._averages[out.data_ptr()] = average

    def _site(self, out: Tensor, call: OpCall, place: OpPlace) -> OpSite:
        where = place_name(place, self._buffers.get(out.data_ptr()))
        phase = Phase.EVAL if place.phase is Phase.EVAL else Phase.FORWARD
        return OpSite(self._step, where, call.info.name, phase.label, user_source())

    def _compare(
        self, average: _Average, now: Tensor, data: Tensor, weight: float, site: OpSite
    ) -> None:
        has_moved = now != average.before
        average.exact = torch.where(has_moved, now, average.exact + weight * (data - average.exact))
        average.still = torch.where(has_moved, torch.zeros_like(now), average.still + 1.0)
        average.before = now
        distance = (average.exact - now).abs()
        is_away = distance > SPACINGS * FORMATS[average.dtype].eps * now.abs()
        is_stuck = is_away & (average.still >= MIN_STILL) & (now != 0)
        relative = distance.mean() / now.abs().mean().clamp(min=1e-30)
        still = average.still
        columns = is_stuck.sum(), (still > 0).sum(), still.max(), relative
        compared = len(now)

        def judge(read: list[float]) -> None:
            stuck, resting, updates, distance = read
            if math.isfinite(distance) and resting >= compared / 2:
                numbers = int(updates), compared, int(stuck)
                self._observe(StillAverage(site, average.dtype, weight, *numbers, distance))

        self._deferred.read(torch.stack([c.to(torch.float32) for c in columns]), judge)


def is_slow(average: Tensor, weight: float) -> bool:
    """Whether updates of an average with a share of data may round away far from the data."""
    if average.dtype not in HALF:
        return False
    return 0.0 < weight <= MAX_WEIGHT * FORMATS[name_of(average.dtype)].eps


def _is_half(call: OpCall) -> bool:
    """Whether an op has left its result in half precision."""
    results = listed(call.out if call.out is not None else call.args[0])
    return bool(results) and getattr(results[0], "dtype", None) in HALF
