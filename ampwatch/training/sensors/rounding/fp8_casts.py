"""Casts to FP8 formats: elements that are clipped or flushed, and scales that are not finite."""

from __future__ import annotations

import weakref
from collections import deque
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.rounding import BrokenScale, Fp8Cast, OpSite
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.units.ops import FP8_DTYPES
from ampwatch.training.kernels.admission import is_plain
from ampwatch.training.kernels.dtypes import NAMES
from ampwatch.training.sensors.rounding.shadow import CASTS, RoundingSensor, cast_by

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.numerics.formats import FloatFormat
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op, OpPlace
    from ampwatch.training.ops.info import OpInfo

FP8 = {dtype: FORMATS[name] for dtype, name in NAMES.items() if name in FP8_DTYPES}
"""Formats that numbers are cast to; ``float8_e8m0fnu`` is one of scales."""

LIMITS = frozenset(fmt.max for fmt in FP8.values())
"""Largest numbers of the formats."""

CLAMPS = ("clamp", "hardtanh", "clamp_max")
"""Ops that clip. An element that was clipped in place leaves nothing to compare with."""

DIVISIONS = ("reciprocal", "reciprocal_", "div", "div_", "true_divide")
"""Ops that make a scale out of the largest magnitude."""

LARGEST_SCALE = 4096
"""Elements of a tensor of scales, one per row or block, at most."""

PATIENCE = 2
"""Iterations in which divisions are checked although nothing has been cast yet."""

MAX_PLACES = 4096
"""Places in the model and lines of code that are remembered."""

MAX_SCALES = 16
"""Newest divisions among which a broken scale is searched for."""


EXCUSED = 2.0
"""Added to the flag of a division that is excused, to distinguish it from one that has broken a scale."""


class _Division(NamedTuple):
    """A division that may have made a scale."""

    site: OpSite  # place of the division
    is_broken: torch.Tensor  # device scalar: whether it made something infinite of finite numbers
    # device scalar: whether what it divides by is not finite. Then the tensor that is cast next was
    # not finite before it was scaled.
    is_excused: torch.Tensor


class _Clamped(NamedTuple):
    """What a clamp to the limits of a format has clipped."""

    result: weakref.ref[torch.Tensor]  # what it has returned
    beyond: torch.Tensor  # device scalar: how many elements were beyond the format
    largest: torch.Tensor  # device scalar: the largest finite magnitude before it


class Fp8Casts(RoundingSensor):
    """Checks every cast of a tensor to an FP8 format.

    Elements that are clamped to the limits of a format before they are cast count as clipped
    there. Formats inside custom ops (Transformer Engine's kernels, torchao's own in CUDA and Triton) are
    not seen, and neither are the insides of tensor subclasses that do not say what they are made of.

    Cost:
        Less than 1 us for other ops; two passes over a small tensor that is divided; six over
        what is cast.
    """

    name = "fp8_casts"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._has_cast = False
        self._num_iterations = 0
        self._casts: set[tuple[str, str]] = set()
        self._divisions: deque[_Division] = deque(maxlen=MAX_SCALES)
        self._clamped: dict[int, _Clamped] = {}
        self._handlers: dict[str, Callable[[OpCall, OpPlace], None]] = {
            **dict.fromkeys(CASTS, self._cast),
            **dict.fromkeys(CLAMPS, self._clamp),
            **dict.fromkeys(DIVISIONS, self._divide),
        }

    def _begin(self) -> None:
        """Count the iteration; scales of the one before may be used in this one."""
        self._num_iterations += 1

    def _forget(self) -> None:
        """Forget what was clipped in the iteration."""
        self._clamped.clear()

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:  # noqa: ARG002 - of all
        """Whether an op casts, clips or divides."""
        return info.name in self._handlers

    def prefilter(self, call: OpCall) -> bool:
        """Whether an op casts to another format, clips elsewhere, or divides where nobody casts."""
        name = call.info.name
        if name in DIVISIONS:
            return not self._has_cast and self._num_iterations > PATIENCE
        if name in CLAMPS:
            return _upper(call) not in LIMITS
        return not self._clamped and getattr(call.out, "dtype", None) not in FP8

    def op(self, event: Op) -> None:
        """Check an op that casts, clips or divides."""
        call, place = event
        handler = self._handlers.get(call.info.name)
        if handler is not None:
            handler(call, place)

    def _cast(self, call: OpCall, place: OpPlace) -> None:
        source, out = cast_by(call)
        fmt = FP8.get(getattr(out, "dtype", None))  # type: ignore[arg-type]
        if fmt is None:
            # A cast to another format on the way: the count goes along with the result.
            if is_plain(out) and (clamped := self._clip_of(source)):
                self._clamped[id(out)] = clamped._replace(result=weakref.ref(out))
            return
        if not is_plain(source) or source.dtype in FP8:
            return
        self._has_cast = True
        values = source.detach()
        magnitude, finite, clipped, largest = _magnitudes(values, fmt)
        if before := self._clip_of(source):
            clipped = clipped + before.beyond
            largest = torch.maximum(largest, before.largest)
        nonzero = magnitude > 0
        columns = (
            (finite & nonzero).sum(),
            clipped,
            # Rounding is to nearest, ties to even: half of the smallest number becomes zero.
            (nonzero & (magnitude <= fmt.flush_at)).sum(),
            largest,
            (~finite).sum(),
        )
        # A copy: other threads may add to the deque meanwhile, and scalars of several devices
        # cannot be stacked.
        divisions = [d for d in list(self._divisions) if d.is_broken.device == values.device]
        # One number for both flags: as many values may be read at once as divisions are remembered.
        flags = [d.is_broken + EXCUSED * d.is_excused for d in divisions]
        site = self._place(call, place)
        sites = [d.site for d in divisions]
        broken: list[OpSite] = []
        place_of = site.where, site.source
        is_first = self._step == 0 and place_of not in self._casts
        if len(self._casts) < MAX_PLACES:
            self._casts.add(place_of)
        if sites:
            self._read(partial(_pick, sites, broken), *flags)

        def judge(read: list[float]) -> None:
            count, clipped, flushed, largest, nonfinite = read
            if nonfinite and broken:
                # The newest in the module that casts, else the newest of all.
                own = [b for b in broken if b.where == site.where] or broken
                origin = own[-1]._replace(step=site.step)
                self._observe(BrokenScale(origin, fmt.name, site.where, int(nonfinite)))
            if count:
                counts = int(count), int(clipped), int(flushed)
                self._observe(Fp8Cast(site, fmt.name, *counts, largest, is_first))

        self._read(judge, *columns)

    def _clip_of(self, source: torch.Tensor) -> _Clamped | None:
        """Return, once, what a clamp has clipped whose result is cast."""
        clamped = self._clamped.pop(id(source), None)
        return clamped if clamped is not None and clamped.result() is source else None

    def _clamp(self, call: OpCall, _place: OpPlace) -> None:
        """Count elements that are clipped on purpose to the largest number of a format."""
        values = call.args[0]
        limit = _upper(call)
        if limit not in LIMITS or not is_plain(values) or not is_plain(call.out):
            return
        fmt = next(fmt for fmt in FP8.values() if fmt.max == limit)
        _, _, beyond, largest = _magnitudes(values.detach(), fmt)
        if len(self._clamped) > MAX_SCALES:
            self._clamped.clear()
        self._clamped[id(call.out)] = _Clamped(weakref.ref(call.out), beyond, largest)

    def _divide(self, call: OpCall, place: OpPlace) -> None:
        """Note whether finite numbers were divided by zero, or by too little."""
        out = call.out
        if not self._has_cast and self._num_iterations > PATIENCE:
            return  # a training without FP8
        if not is_plain(out) or not out.is_floating_point():
            return
        divisor: Any = call.args[-1] if call.info.name.startswith("reciprocal") else call.args[1]
        if divisor is out:
            divisor = None  # the divisor was overwritten
        elif not isinstance(divisor, torch.Tensor):
            return  # a number
        flags = _flags(out, divisor)
        on_host = out.device.type == "cpu"
        if flags is not None and not (on_host and not (flags[0] | flags[1]).tolist()):
            self._divisions.append(_Division(self._place(call, place), *flags))


def _is_scale(divisor: torch.Tensor, quotient: torch.Tensor) -> bool:
    is_near = is_plain(divisor) and divisor.device == quotient.device
    return is_near and divisor.numel() <= LARGEST_SCALE


def _flags(
    quotient: torch.Tensor, divisor: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return whether a division has broken a scale, and whether it is excused (``_Division``).

    Args:
        quotient: What it has made.
        divisor: What it divides by; ``None`` if that is gone.

    Returns:
        Device scalars; ``None`` if both tensors are too large for scales.
    """
    known = None
    if divisor is not None and _is_scale(divisor, quotient):
        known = divisor.detach()
    if quotient.numel() > LARGEST_SCALE:
        return None if known is None else ((known == 0).any(), ~known.isfinite().all())
    is_infinite = ~quotient.detach().isfinite().all()
    if known is None:
        return is_infinite, torch.zeros_like(is_infinite)
    is_excused = ~known.isfinite().all()
    return (known == 0).any() | (is_infinite & ~is_excused), is_excused


def _magnitudes(
    values: torch.Tensor, fmt: FloatFormat
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return magnitudes, where they are finite, how many of these are beyond a format, and the largest of them."""
    magnitude = values.abs()
    finite = magnitude.isfinite()
    largest = torch.where(finite, magnitude, 0.0).max().to(torch.float32)
    return magnitude, finite, (finite & _is_beyond(magnitude, fmt)).sum(), largest


def _is_beyond(magnitude: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """Return where ``magnitude`` rounds to no finite number of the format."""
    limit = _nearest(magnitude.dtype, fmt.overflow_from)
    return magnitude > limit if limit < fmt.overflow_from else magnitude >= limit


@cache
def _nearest(dtype: torch.dtype, value: float) -> float:
    """Return the number of ``dtype`` nearest to ``value``, which is what PyTorch compares with.

    A limit just above a tie, of a format whose largest number is even, is the tie itself in every
    shorter type: compared with ``>=``, a tie would count that rounds back to the largest number.
    """
    return torch.tensor(value, dtype=dtype, device="cpu").item()


def _pick(sites: Sequence[OpSite], broken: list[OpSite], flags: list[float]) -> None:
    """Put the places of the divisions that have broken a scale into ``broken``, the oldest first."""
    for site, flag in zip(sites, flags, strict=True):
        if flag >= EXCUSED:
            # Largest magnitudes are divided by right before the cast. Infinite ones make a scale of 0,
            # which is divided by as well where it is taken off again.
            broken.clear()
        elif flag:
            broken.append(site)


def _upper(call: OpCall) -> float:
    """Return the upper bound of a clamp, NaN if it is no number."""
    place = 1 if call.info.name == "clamp_max" else 2
    given = call.args[place] if len(call.args) > place else call.kwargs.get("max")
    return float(given) if isinstance(given, (int, float)) else float("nan")
