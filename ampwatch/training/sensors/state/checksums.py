"""Checksums of weights, by which the ranks of a job see whether they still have the same ones.

A check is made every ``PERIOD`` iterations, in two iterations that follow one another, of a part
of the weights; the parts take turns. All of that follows from the number of the iteration and
from the shapes of the weights alone, so that ranks that count alike check the same weights in the
same iterations, and nobody waits for anybody. A checksum is a sum of integers that are made of the
bits of each element: the order of summation is of no account, and one bit makes a difference.
"""

from __future__ import annotations

import math
import zlib
from collections import deque
from hashlib import blake2b
from typing import TYPE_CHECKING

import torch
from msgspec import Struct
from msgspec.structs import replace

from ampwatch.diagnosis.evidence.scaler import GROUPS, KEPT_CHECKS, CheckedWeights
from ampwatch.training.devices import HOST, is_capturing
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.kernels.admission import admit, is_plain
from ampwatch.training.model.tensors import is_in_flat
from ampwatch.wire.records import ChecksumRecord
from ampwatch.wire.records.fields import MAX_NAME
from ampwatch.wire.ring.text import cut_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ampwatch.training.hooks.events import IterationClosed, IterationClosing
    from ampwatch.training.iteration.context import Context

PERIOD = 257
"""Iterations from one check to the next. A prime: weights that are averaged every few
iterations are met at each distance from that in turn."""

COMPARED_AFTER = 16
"""Iterations after the beginning of a check in which it is compared: by then the ranks of a job,
which wait for one another in every iteration, have all made it."""

HOST_BYTES = 2**20
DEVICE_BYTES = 2**25
"""Weights of one check, in host memory and on a device. Unit: bytes."""

BLOCK = 2**22
"""Elements that are summed at a time: 16 MB are held for it, 32 MB for float64."""

MAX_WEIGHTS = 65536
"""Parameters of a model up to which it is checked: they are listed in each check."""

_MIX = 0x9E3779B1 - 2**32
"""An odd constant: with it the sign, the top bit, is not lost in the product."""

_LIMB = 16
_LIMBS = 3
"""A checksum has 48 bits: a float32, as which values leave a device, holds 16 of them exactly, and
a float64, the only number that Prometheus has, all."""

_AS_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Span(Struct, frozen=True):
    """Elements of a parameter, in the order in which they lie in memory."""

    name: str
    number: int
    begin: int
    end: int


class _Plan(Struct, frozen=True):
    """The division of the weights into parts and groups."""

    layout: int  # digest of names, shapes and dtypes: ranks with another one are not compared
    parts: list[list[list[_Span]]]  # for each part its groups, and for each group its elements


class ChecksumSensor(Sensor):
    """Sums the bits of weights, and compares the sums with those of the other ranks.

    Weights that are spread over the ranks (DTensor, FSDP) are left out. Where weights lie on several
    devices none are summed: to bring the sums together would wait for one.
    """

    name = "checksums"

    def __init__(self, context: Context) -> None:
        self._names = context.names
        self._iteration = context.iteration
        self._deferred = context.deferred
        self._observe = context.observe
        self._out = context.out
        self._peers = context.peers
        self._first: tuple[int, list[int]] | None = None
        self._made: deque[ChecksumRecord] = deque(maxlen=KEPT_CHECKS)
        self._plan: _Plan | None = None

    def iteration_closing(self, _event: IterationClosing) -> None:
        """Sum what is due: after the step of the optimizer, before the next forward."""
        step = self._iteration.step
        number, position = divmod(step, PERIOD)
        # Without a ring nobody reads them.
        if position > 1 or self._out.ring_path is None or is_capturing():
            return
        weights = self._weights()
        if len({p.device for _, p in weights}) != 1:
            return
        if position == 0 or self._plan is None:
            self._plan = _plan(weights)
        plan = self._plan
        if not plan.parts:
            return
        part = number % len(plan.parts)
        sums = [_sum(weights, group) for group in plan.parts[part]]
        check = ChecksumRecord(
            step=step - position,
            part=part,
            checksum=0,
            layout=plan.layout,
            parts=len(plan.parts),
            places=tuple(_place(group) for group in plan.parts[part]),
            first=(),
            then=(),
        )

        def take(limbs: Sequence[float]) -> None:
            self._take(check, position, limbs)

        self._deferred.read(_limbs(torch.stack(sums)), take)

    def _weights(self) -> list[tuple[str, Tensor]]:
        weights = [
            (name, p)
            for name, p in self._names.parameters()
            if p.requires_grad and is_plain(p) and not is_in_flat(p)
        ]
        return weights if len(weights) <= MAX_WEIGHTS else []

    def _take(self, check: ChecksumRecord, position: int, limbs: Sequence[float]) -> None:
        sums = [
            sum(int(limbs[limb * GROUPS + group]) << (_LIMB * limb) for limb in range(_LIMBS))
            for group in range(len(check.places))
        ]
        if position == 0:
            self._first = check.step, sums
            return
        first, self._first = self._first, None
        # A value of a device may have been given up.
        if first is None or first[0] != check.step:
            return
        whole = replace(check, first=tuple(first[1]), then=tuple(sums))
        whole = replace(whole, checksum=_digest(whole))
        self._out.put(whole)
        self._made.append(whole)

    def iteration_closed(self, _event: IterationClosed) -> None:
        """Compare the newest check with those of the other ranks, a while after it."""
        step = self._iteration.step
        if step % PERIOD == COMPARED_AFTER:
            others = self._peers.checks()
            if others and self._made:
                self._observe(CheckedWeights(step, {self._peers.rank: self._made, **others}))


def _digest(check: ChecksumRecord) -> int:
    text = repr((check.step, check.layout, check.parts, check.first, check.then))
    return int.from_bytes(blake2b(text.encode(), digest_size=6).digest(), "big")


def _plan(weights: Sequence[tuple[str, Tensor]]) -> _Plan:
    """Divide weights of one device into parts of a bounded size, of about ``GROUPS`` equal groups each."""
    described = [(name, tuple(p.shape), str(p.dtype)) for name, p in weights]
    layout = zlib.crc32(repr(described).encode("utf-8", "backslashreplace"))
    total = sum(p.numel() * p.element_size() for _, p in weights)
    if not total:
        return _Plan(layout, [])
    is_on_host = weights[0][1].device.type == HOST
    num_parts = math.ceil(total / (HOST_BYTES if is_on_host else DEVICE_BYTES))
    # Whole elements of every kind: a group is one at least, and a small model has one part.
    room = 8 * math.ceil(total / (num_parts * GROUPS * 8))
    groups: list[list[_Span]] = [[]]
    left = room
    for number, (name, p) in enumerate(weights):
        begin = 0
        while begin < p.numel():
            if left < p.element_size():
                groups.append([])
                left = room
            end = min(p.numel(), begin + left // p.element_size())
            groups[-1].append(_Span(name, number, begin, end))
            left -= (end - begin) * p.element_size()
            begin = end
    return _Plan(layout, [groups[i : i + GROUPS] for i in range(0, len(groups), GROUPS)])


def _place(group: Sequence[_Span]) -> tuple[str, str]:
    return cut_name(group[0].name, MAX_NAME), cut_name(group[-1].name, MAX_NAME)


def _sum(weights: Sequence[tuple[str, Tensor]], group: Sequence[_Span]) -> Tensor:
    """Return the checksum of a group, int64 of no dimension, on the device of the weights."""
    sums: list[Tensor] = []
    for span in group:
        parameter = weights[span.number][1].detach()
        pieces, why = admit(parameter)
        # A piece is dense, but may be transposed: in the order of memory.
        flat = pieces[0].detach().as_strided((pieces[0].numel(),), (1,)) if pieces else None
        if why or flat is None or flat.numel() != parameter.numel():
            continue
        bits = flat.view(_AS_INTEGERS[flat.element_size()])
        for begin in range(span.begin, span.end, BLOCK):
            block = bits[begin : min(begin + BLOCK, span.end)]
            # A product carries bits upwards only, and the low 48 are kept.
            is_wide = block.element_size() == 8
            wide = block ^ (block >> 32) if is_wide else block.to(torch.int32)
            # Not linear: two elements that move by a bit in opposite directions do not cancel.
            mixed = (wide + _MIX).mul_(wide)
            sums.append(mixed.sum(dtype=torch.int64))
    if not sums:
        return torch.zeros((), dtype=torch.int64, device=weights[group[0].number][1].device)
    return torch.stack(sums).sum()


def _limbs(totals: Tensor) -> Tensor:
    """Return the low 48 bits of each total in three parts, those of one place side by side."""
    padded = totals.new_zeros(GROUPS)
    padded[: len(totals)] = totals
    parts = [(padded >> (_LIMB * limb)) & (2**_LIMB - 1) for limb in range(_LIMBS)]
    return torch.stack(parts).to(torch.float32)
