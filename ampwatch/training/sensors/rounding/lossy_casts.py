"""Integers that become numbers of a format in which several of them are equal, and angles that were rounded."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.rounding import LossyCast
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.kernels.admission import is_plain
from ampwatch.training.kernels.dtypes import FLOATS, HALF, MEASURED, name_of
from ampwatch.training.ops.call import tensors_among
from ampwatch.training.ops.operands import has_grad, head, thinned
from ampwatch.training.ops.storage import WeakStorage
from ampwatch.training.sensors.rounding.shadow import (
    CASTS,
    RoundingSensor,
    VainChecks,
    cast_by,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op, OpPlace
    from ampwatch.training.ops.info import OpInfo

MANTISSA_BITS = {dtype: MEASURED[dtype].mantissa_bits for dtype in FLOATS}

LARGEST_INTEGER = {dtype: 2 ** (MANTISSA_BITS[dtype] + 1) for dtype in FLOATS - {torch.float64}}
"""Integers up to here are all numbers of a format. In float64 that is beyond what anybody counts."""

INTEGERS = frozenset({torch.int16, torch.int32, torch.int64})
"""Dtypes of integers that can be too large for a format; int8 and uint8 fit into all."""

EVIDENCE_BITS = 4
"""Bits behind the point that a number could have, for it to be evidence of counting that it has
none: a float32 of 2**23 and more is an integer, whatever it is about."""

MIN_EVIDENCE = 8
"""Elements that have to be evidence of counting."""

MIN_VALUES = 8
"""Elements below which a tensor proves nothing."""

MAX_FEW = 256
"""Casts of fewer integers that are distinguished; those of several iterations are put together."""

FIRST_SAMPLED = 64
"""Elements of floating-point tensors that are checked first: most are no integers."""

MAX_COMPARED = 65536
"""Elements of one tensor that are compared."""

MAX_HELD = 16
"""Casts outside of modules that wait for their use."""

ORDERED_SHARE = 0.9
"""Share of the steps between neighbours that must go the same way."""

LOST_SHARE = 0.05
"""Share of the distinct integers that must become equal to others."""

MIN_LOST = 4
"""Distinct integers that must become equal to others, however few there are."""

WAVES = frozenset({"sin", "cos"})
"""Ops that make an angle of what they are given."""

KEEP_SHARE = frozenset({"mul", "mul_", "div", "div_", "_to_copy", "clone"})
"""Ops that leave a relative error as it is; views are known by their memory."""

WRONG_ANGLE = 0.5
"""Error of an angle from which on its sine is another one: it differs by up to half of its amplitude."""

MAX_OPS = 6
"""Ops from the cast of numbers to a sine of them."""

MAX_FOLLOWED = 64
"""Ops after the last cast of numbers in which a sine of them is looked for: angles are made right after."""

ROUNDED_SHARE = 0.25
"""Share of the elements of an integer dtype that must be rounded, where none become equal."""


class _Result(NamedTuple):
    """Where the result of a cast lies, or what was computed of it."""

    storage: WeakStorage
    address: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Result:
        """Return where a tensor lies."""
        return cls(WeakStorage(tensor.untyped_storage()), _address(tensor))


class _Held(NamedTuple):
    """A cast outside of modules whose result was not used yet."""

    result: _Result
    cast: LossyCast  # evidence of the cast


class _Angle(NamedTuple):
    """What was made of a cast of numbers that may become angles: times, coordinates, positions by their rates."""

    result: _Result
    num_ops: int  # ops from the cast to it
    cast: LossyCast  # evidence of the cast, but for the largest number
    read: torch.Tensor  # the largest change of a number over the largest number, and that
    signature: Hashable  # what casts like it have in common


class LossyCasts(RoundingSensor):
    """Checks casts to formats with few bits, and cumulative sums in these, in the forward pass.

    A cast of integers outside of the model counts once an op of the model, or one that gradients flow
    through, reads the result. A cast of other numbers counts where what is made of them is the angle of a
    sine or cosine: that magnifies the rounding by as much as the numbers, or their factors, are large.

    Cost:
        Less than 1 us for an op that casts nothing; 10 us a cast on a CPU until it is known to be
        of something else than integers; a sort of at most 65536 elements for integers.
    """

    name = "lossy_casts"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._vain = VainChecks()
        self._held: list[_Held] = []
        self._angles: list[_Angle] = []
        self._num_followed = 0
        self._few: dict[Hashable, set[float]] = {}
        self._handlers: dict[str, Callable[[OpCall, OpPlace], None]] = {
            **dict.fromkeys(CASTS, self._cast),
            "arange": self._range,
            "cumsum": self._sum_up,
            **dict.fromkeys(("mul", "div", "add", "sub", "pow"), self._promote),
        }

    @property
    def follows_all(self) -> bool:
        """Whether the result of a cast waits for its use, which may be any op."""
        return bool(self._held or self._angles)

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:
        """Whether an op casts in forward."""
        return info.name in self._handlers and not in_backward

    def prefilter(self, call: OpCall) -> bool:
        """Whether no integers can have become too large for a format, as dtypes tell most of the time."""
        name = call.info.name
        if name not in CASTS:
            return getattr(call.out, "dtype", None) not in HALF
        source, out = (call.args[1], call.args[0]) if name == "copy_" else (call.args[0], call.out)
        # A cast to a wider format loses nothing, and weights are no counts.
        bits = MANTISSA_BITS.get(source.dtype)
        return bits is not None and (
            isinstance(source, torch.nn.Parameter)
            or out.dtype is torch.float32
            or bits <= MANTISSA_BITS.get(out.dtype, 0)
        )

    def op(self, event: Op) -> None:
        """Check an op that casts, and follow the results of earlier casts."""
        call, place = event
        if self._held:
            self._follow(call, place)
        if self._angles:
            self._follow_angles(call)
        handler = self._handlers.get(call.info.name)
        if handler is not None and place.phase in (Phase.FORWARD, Phase.EVAL):
            handler(call, place)

    def _forget(self) -> None:
        """Forget the casts of numbers: what has become no angle by now is none."""
        for signature in {angle.signature for angle in self._angles}:
            self._vain.add(signature)
        self._angles.clear()

    def _cast(self, call: OpCall, place: OpPlace) -> None:
        self._check(call, place, *cast_by(call))

    def _check(self, call: OpCall, place: OpPlace, source: Any, out: Any) -> None:
        if not (is_plain(source) and is_plain(out)):
            return
        is_integer = source.dtype in INTEGERS
        if source.numel() >= MIN_VALUES:
            self._compare(call, place, source, out)
        # One number is a count as a rule, whose rounding does no harm.
        elif is_integer and source.numel() > 1 and out.dtype in HALF:
            self._gather(call, place, source, out)

    def _promote(self, call: OpCall, place: OpPlace) -> None:
        """Check an op on tensors of different dtypes: it casts one of them implicitly."""
        if getattr(call.out, "dtype", None) not in HALF:
            return
        for value in call.args[:2]:
            if isinstance(value, torch.Tensor) and value.dtype in INTEGERS and value.ndim:
                self._check(call, place, value, call.out)

    def _range(self, call: OpCall, place: OpPlace) -> None:
        """Check an ``arange`` in half precision, which rounds as a cast of the integers would."""
        out = call.out
        numbers = [float(x) for x in call.args if isinstance(x, (int, float))]
        if not is_plain(out) or out.dtype not in HALF or not all(map(float.is_integer, numbers)):
            return
        largest = max(map(abs, numbers), default=0.0)
        values = head(out, MAX_COMPARED)
        if largest <= LARGEST_INTEGER[out.dtype] or len(values) < MIN_VALUES:
            return
        count = len(values)
        site = self._place(call, place)
        dtype = name_of(out.dtype)
        result = _Result.of(out)

        def judge(read: list[float]) -> None:
            kept = int(read[0]) + 1
            if count - kept >= max(MIN_LOST, LOST_SHARE * count):
                cast = LossyCast(
                    site, dtype, count, count, kept, count - kept, largest, is_ordered=True
                )
                self._report(cast, result, place)

        self._deferred.read((values[1:] != values[:-1]).sum(), judge)

    def _sum_up(self, call: OpCall, place: OpPlace) -> None:
        """Check a cumulative sum in half precision: sums of ones, as positions are, are cast as they are stored."""
        row, dim = call.args[0], call.args[1]
        if not (is_plain(row) and is_plain(call.out)) or not row.ndim:
            return
        row = row.detach().movedim(dim, -1)
        while row.ndim > 1 and len(row):
            row = row[0]
        self._check(call, place, row[:MAX_COMPARED].float().cumsum(0), call.out)

    def _compare(
        self, call: OpCall, place: OpPlace, source: torch.Tensor, out: torch.Tensor
    ) -> None:
        limit = LARGEST_INTEGER.get(out.dtype)
        is_integer = source.dtype in INTEGERS
        if limit is None or isinstance(source, torch.nn.Parameter):
            return
        bits = MANTISSA_BITS.get(source.dtype, 0)
        # A cast to a wider format loses nothing. One of float64 to float32 loses only what is beyond
        # any usual count.
        if not is_integer and (bits <= MANTISSA_BITS[out.dtype] or out.dtype is torch.float32):
            return
        signature = place.module, source.dtype, out.dtype, source.shape
        if self._vain.are_enough(signature, self._step):
            return
        if not is_integer and self._is_other(call, place, source, out, signature):
            return
        values = head(source.detach(), MAX_COMPARED)
        if values.device.type == "cpu" and values.abs().max().tolist() <= limit:
            self._vain.add(signature)
            return
        site, count = self._place(call, place), len(values)
        result, dtype = _Result.of(out), out.dtype

        def judge(read: list[float]) -> None:
            whole, largest, distinct, kept, rounded, evidence, ups, downs = read
            is_whole = is_integer or (whole == count and evidence >= MIN_EVIDENCE)
            is_large = is_whole and math.isfinite(largest) and largest > limit
            lost = distinct - kept
            collides = lost >= max(MIN_LOST, LOST_SHARE * distinct)
            # Large ids and times may keep apart and still be rounded; small excess is left alone.
            is_far = largest > 2 * limit and dtype in HALF
            is_varied = is_integer and distinct >= MIN_VALUES
            rounds = is_varied and is_far and rounded >= ROUNDED_SHARE * count
            if not (is_large and (collides or rounds)):
                self._vain.add(signature)
                return
            is_ordered = max(ups, downs) >= max(1.0, ORDERED_SHARE * (ups + downs))
            numbers = count, int(distinct), int(kept), int(rounded)
            cast = LossyCast(site, name_of(dtype), *numbers, largest, is_ordered=is_ordered)
            self._report(cast, result, place)

        # What is left of a device's memory is the training's. The next cast may fit.
        with contextlib.suppress(torch.OutOfMemoryError):
            self._read(judge, *_compared(values, out.dtype, bits))

    def _is_other(
        self,
        call: OpCall,
        place: OpPlace,
        source: torch.Tensor,
        out: torch.Tensor,
        signature: Hashable,
    ) -> bool:
        """Whether floats are seen to be no integers; angles may be made of those that need no gradient."""
        # In host memory reading is no sync, so most casts are rejected here, before any sort.
        first = thinned(source.detach(), FIRST_SAMPLED)
        is_read = first.device.type == "cpu"
        is_other = is_read and not all(map(float.is_integer, first.tolist()))
        is_whole = source.numel() <= MAX_COMPARED and source.shape == out.shape
        may_be_angles = is_whole and out.dtype in HALF and not source.requires_grad
        if may_be_angles and len(self._angles) < MAX_HELD and (is_other or not is_read):
            self._hold_numbers(call, place, source, out, signature)
        elif is_other:
            self._vain.add(signature)
        return is_other

    def _hold_numbers(
        self,
        call: OpCall,
        place: OpPlace,
        source: torch.Tensor,
        out: torch.Tensor,
        signature: Hashable,
    ) -> None:
        given = source.detach().reshape(-1).float()
        largest = given.abs().max()
        lost = (out.detach().reshape(-1) - given).abs().max()
        count = len(given)
        cast = LossyCast(
            self._place(call, place),
            name_of(out.dtype),
            *(count, count, count, count),
            largest=math.nan,
            is_ordered=False,
        )
        read = torch.stack([lost / largest, largest])
        self._angles.append(_Angle(_Result.of(out), 0, cast, read, signature))
        self._num_followed = 0

    def _follow_angles(self, call: OpCall) -> None:
        """Follow what is made of the numbers that were cast, up to a sine or a cosine."""
        self._num_followed += 1
        if self._num_followed > MAX_FOLLOWED:
            self._forget()
            return
        self._angles = [angle for angle in self._angles if not angle.result.storage.expired()]
        tensors = tensors_among(call.args)
        addresses = {_address(tensor) for tensor in tensors if is_plain(tensor)}
        used = [angle for angle in self._angles if angle.result.address in addresses]
        out = call.out
        if not used:
            return
        if call.info.name in WAVES:
            self._judge_angle(used[0], tensors[0])
        elif call.info.name in KEEP_SHARE and is_plain(out) and len(self._angles) < MAX_HELD:
            made = max(used, key=lambda angle: angle.num_ops)
            if made.num_ops < MAX_OPS and _address(out) != made.result.address:
                result, num_ops = _Result.of(out), made.num_ops + 1
                self._angles.append(made._replace(result=result, num_ops=num_ops))

    def _judge_angle(self, angle: _Angle, phase: torch.Tensor) -> None:
        alike = angle.signature
        self._angles = [other for other in self._angles if other.signature != alike]

        def judge(read: list[float]) -> None:
            lost, largest, reached = read
            error = lost * reached
            if math.isfinite(error) and error >= WRONG_ANGLE:
                self._observe(angle.cast._replace(largest=largest, angle=error))
            else:
                self._vain.add(alike)

        reached = phase.detach().abs().max().float()
        if reached.device == angle.read.device:
            self._deferred.read(torch.cat([angle.read, reached[None]]), judge)

    def _gather(
        self, call: OpCall, place: OpPlace, source: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Put integers together with those of other casts alike, until they are enough to judge.

        A small batch has few time steps, and other ones in the next iteration.
        """
        signature = place.module, source.dtype, out.dtype, source.shape
        if self._vain.are_enough(signature, self._step):
            return
        site = self._place(call, place)
        dtype = out.dtype
        result = _Result.of(out)

        def judge(read: list[float]) -> None:
            if signature not in self._few and len(self._few) >= MAX_FEW:
                self._few.clear()
            # Distinct ones: one value in many casts is one piece of evidence.
            values = self._few.setdefault(signature, set())
            values.update(read)
            if len(values) < MIN_VALUES:
                return
            del self._few[signature]
            rounded = sum(value != _rounded(value, dtype) for value in values)
            kept = len({_rounded(value, dtype) for value in values})
            largest = max(map(abs, values))
            is_far = largest > 2 * LARGEST_INTEGER[dtype]
            if not (is_far and rounded >= ROUNDED_SHARE * len(values)):
                self._vain.add(signature)
                return
            numbers = len(values), len(values), kept, rounded
            # What runs up from iteration to iteration is no row of positions.
            cast = LossyCast(site, name_of(dtype), *numbers, largest, is_ordered=False)
            self._report(cast, result, place)

        self._deferred.read(source.float(), judge)

    def _report(self, cast: LossyCast, result: _Result, place: OpPlace) -> None:
        if place.is_inside:
            self._observe(cast)
        elif result.address and len(self._held) < MAX_HELD:
            self._held.append(_Held(result, cast))

    def _follow(self, call: OpCall, place: OpPlace) -> None:
        """Check whether an op reads the result of a cast outside of the model."""
        # A storage that lives holds its memory: whatever is at its address is a view of it.
        self._held = [held for held in self._held if not held.result.storage.expired()]
        tensors = tensors_among(call.args)
        addresses = {_address(tensor) for tensor in tensors if is_plain(tensor)}
        used = [held for held in self._held if held.result.address in addresses]
        if not used:
            return
        if place.is_inside or has_grad(*tensors):
            # By identity: weak references compare their objects, and tensors compare by element.
            done = {id(held) for held in used}
            self._held = [held for held in self._held if id(held) not in done]
            for held in used:
                self._observe(held.cast)
        elif is_plain(call.out) and call.out.dtype in INTEGERS | FLOATS:
            self._inherit(used, call.out)

    def _inherit(self, used: Sequence[_Held], out: torch.Tensor) -> None:
        """Hold a result that was computed from held ones, unless it is only a summary of them."""
        for held in used:
            if out.numel() >= held.cast.num_values and len(self._held) < MAX_HELD:
                self._held.append(_Held(_Result.of(out), held.cast))


def _compared(values: torch.Tensor, dtype: torch.dtype, bits: int) -> tuple[torch.Tensor, ...]:
    """Return the columns that ``judge`` reads. Cost: one pass each, and a sort; no sync."""
    in_order = values.sort().values
    cast = in_order.to(dtype)
    magnitude = values.abs()
    steps = values[1:] - values[:-1]
    if values.is_floating_point():
        whole = (values == values.round()).sum()
        evidence = ((magnitude > 0) & (magnitude < 2 ** (bits - EVIDENCE_BITS))).sum()
    else:
        whole = evidence = values.new_zeros(())
    return (
        whole,
        magnitude.max(),
        # In order, distinct numbers are as many as neighbours that differ, and one.
        (in_order[1:] != in_order[:-1]).sum() + 1,
        (cast[1:] != cast[:-1]).sum() + 1,
        (cast.to(values.dtype) != in_order).sum(),
        evidence,
        (steps > 0).sum(),
        (steps < 0).sum(),
    )


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _rounded(number: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(number, dtype=torch.float32).to(dtype))
