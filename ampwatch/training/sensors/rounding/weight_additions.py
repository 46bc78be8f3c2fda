"""What is added to weights in half precision, by whichever code updates them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ampwatch.diagnosis.evidence.rounding import UPDATE_SPAN, OpSite, Stuck, What
from ampwatch.training.hooks.sources import is_in_optimizer, user_source
from ampwatch.training.kernels.admission import is_plain
from ampwatch.training.kernels.dtypes import HALF, name_of
from ampwatch.training.ops.call import tensors_among
from ampwatch.training.ops.operands import names_by_address
from ampwatch.training.sensors.rounding.shadow import (
    RoundingSensor,
    Shadow,
    added_of,
    is_stuck,
    now_of,
    number_of,
    rows_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ampwatch.training.hooks.events import TensorsSwapping
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op
    from ampwatch.training.ops.info import OpInfo

ADDS = frozenset({"add_", "sub_", "addcmul_", "addcdiv_"})
ADDS_TO_MANY = frozenset(f"_foreach_{name}" for name in ADDS)
"""Ops that add to a tensor in place, as optimizers do."""

COPIES = frozenset({"clone", "_to_copy", "sub", "rsub", "copy_", "sub_"})
COPIES |= {"_foreach_sub", "_foreach_sub_", "_foreach_copy_"}
"""Ops by which an optimizer gets at what an addition loses: a copy of the weight, or a difference to it."""

SAMPLED = 1024
"""Elements of a weight that are compared."""

MAX_CHECKED = 32
"""Weights that are checked in an iteration; the others have their turn in the next ones."""


class _Addition(NamedTuple):
    """What an addition has done to a weight."""

    now: Tensor  # some elements of it after the addition
    stuck: Tensor  # where the addition has left them as they were
    nonzero: Tensor  # where what was added is not zero
    site: OpSite  # the addition
    is_by_optimizer: bool  # whether an optimizer has called it


class WeightAdditions(RoundingSensor):
    """Checks what is added to weights in float16 or bfloat16, whoever adds it.

    An optimizer of any package, a hook that updates a weight while backward runs, a loop over parameters: all of them
    add in place. An element has lost an addition if adding the same once more leaves it as it is. A weight is reported
    with the share of its elements that have, and with the share that is as it was some iterations before.

    Code that copies a weight, or takes a difference to it, before the addition or after, may keep what was lost, as
    Kahan summation and float32 copies do; so may an optimizer that reads the weight again in any way. Such an
    addition is not counted.

    Cost:
        Nothing without such weights, or in iterations whose ops are not observed. Else less than 1 us for an op that
        adds to no weight, and some 8 us for one after the first addition; on a CPU some 60 us for each weight that is
        added to, of which there are at most ``MAX_CHECKED`` in an iteration, and for each one transfer.
    """

    name = "weight_additions"
    waking = frozenset({"ops_began"})
    is_dormant = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._turn = 0
        self._known: dict[int, str] = {}
        self._before: dict[str, tuple[int, Shadow]] = {}
        self._added: dict[int, _Addition] = {}
        self._copied: set[int] = set()

    def _begin(self) -> None:
        """Choose the weights whose turn it is."""
        weights = [
            (name, p) for name, p in self._names.parameters() if p.dtype in HALF and p.requires_grad
        ]
        turns = max(1, math.ceil(len(weights) / MAX_CHECKED))
        self._turn = (self._turn + 1) % turns
        self._known = names_by_address(weights[self._turn :: turns])
        self.is_dormant = not self._known

    def _finish(self) -> None:
        """Report the weights that are to be compared with what they were, the largest first: one is named."""
        for seen in sorted(self._added.values(), key=lambda seen: -len(seen.now)):
            self._report(seen)

    def tensors_swapping(self, _event: TensorsSwapping) -> None:
        """Refer to no weight."""
        self._forget()

    def removed(self) -> None:
        """Forget the weights."""
        self._forget()
        self._before.clear()

    def _forget(self) -> None:
        self.is_dormant = True
        self._known.clear()
        self._added.clear()
        self._copied.clear()

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:
        """Whether an op may add to a weight, or may read one after that."""
        return not in_backward or info.name in ADDS | ADDS_TO_MANY | COPIES

    def prefilter(self, call: OpCall) -> bool:
        """Whether an op adds to no weight and copies none, and none was added to yet."""
        name = call.info.name
        if self._added or name in ADDS_TO_MANY:
            return False
        if name in COPIES:
            return all(t.data_ptr() not in self._known for t in tensors_among(call.args))
        return name not in ADDS or getattr(call.args[0], "dtype", None) not in HALF

    def op(self, event: Op) -> None:
        """Check an addition, and forget one to a weight that is copied or read."""
        call, place = event
        name = call.info.name
        is_addition = name in ADDS or name in ADDS_TO_MANY
        read = call.args[1:] if is_addition else call.args
        if self._added or name in COPIES:
            # What a module does with its weights is no update.
            is_copied = name in COPIES and not place.is_inside
            self._let_go(tensors_among(read), is_copied=is_copied)
        if is_addition:
            self._add(event)

    def _let_go(self, read: Sequence[Tensor], *, is_copied: bool) -> None:
        """Forget additions to weights that an op reads, if what they have lost may be kept by that."""
        is_by_optimizer = bool(self._added) and is_in_optimizer()
        for tensor in read:
            address = tensor.data_ptr() if is_plain(tensor) else 0
            if address not in self._known:
                continue
            if is_copied:
                self._copied.add(address)
            added = self._added.get(address)
            if added is not None and (is_by_optimizer if added.is_by_optimizer else is_copied):
                del self._added[address]

    def _add(self, op: Op) -> None:
        name = op.call.info.name.removeprefix("_foreach_")
        factor = _factor_of(op.call, name)
        operands = (0, 1, 2) if name.startswith("addc") else (0, 1)
        for weight, *others, _ in rows_of(op.call, *operands) if factor is not None else ():
            address = weight.data_ptr()
            if weight.dtype in HALF and address in self._known and address not in self._copied:
                added = _product(weight, others, factor or 0.0, is_ratio=name == "addcdiv_")
                if added is not None:
                    self._check(op, weight, added, name)

    def _check(self, op: Op, weight: Tensor, added: Tensor, name: str) -> None:
        address, is_by_optimizer = weight.data_ptr(), is_in_optimizer()
        # An iteration has no end where hooks update each weight and no optimizer steps.
        if address in self._added and not is_by_optimizer:
            self._report(self._added[address])
        where, phase = f"param:{self._known[address]}", op.place.phase.label
        site = OpSite(self._step, where, name, phase, user_source())
        now = now_of(weight, SAMPLED)
        stuck, nonzero = is_stuck(now, added), added != 0
        self._added[address] = _Addition(now, stuck, nonzero, site, is_by_optimizer)

    def _report(self, seen: _Addition) -> None:
        now, site = seen.now, seen.site
        step, before = self._before.get(site.where, (0, None))
        if before is None or before.now.shape != now.shape or before.now.device != now.device:
            self._before[site.where] = site.step, Shadow(now)
            return
        before.additions += 1
        steps, additions, compared = site.step - step, before.additions, len(now)
        if max(steps, additions) < UPDATE_SPAN:
            return
        self._before[site.where] = site.step, Shadow(now)
        dtype, same = name_of(now.dtype), (now == before.now) & seen.nonzero

        def judge(read: list[float]) -> None:
            nonzero, *stuck = read
            lost, same = (share / nonzero for share in stuck) if nonzero else (0.0, 0.0)
            found = Stuck(site, What.WEIGHT, dtype, additions, lost, same=same, steps=steps)
            self._observe(found._replace(changing=nonzero / compared))

        self._read(judge, seen.nonzero.sum(), (seen.stuck & seen.nonzero).sum(), same.sum())


def _factor_of(call: OpCall, name: str) -> float | None:
    """Return the number that an op multiplies what it adds by; ``None`` if the host does not know it."""
    factor = call.kwargs.get("alpha", 1.0)
    if name.startswith("addc"):
        factor = call.kwargs.get("value", call.kwargs.get("scalars"))
        if factor is None:
            factor = call.args[3] if len(call.args) > 3 else 1.0
    number = number_of(factor) if len(call.args) > 1 else None
    return -number if number is not None and name == "sub_" else number


def _product(weight: Tensor, others: list[Any], factor: float, *, is_ratio: bool) -> Tensor | None:
    """Return what is added to some elements of a weight, in float32; ``None`` if it cannot be read."""
    product: Any = factor
    for place, other in enumerate(others):
        part = added_of(other, weight, SAMPLED) if is_plain(other) else None
        if part is None:
            return None
        product = product / part.float() if is_ratio and place else product * part.float()
    return product  # type: ignore[no-any-return]
