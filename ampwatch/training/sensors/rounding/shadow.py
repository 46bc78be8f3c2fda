"""What sensors of rounding share: their base, and the float32 shadow of a tensor in half precision that is added to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ampwatch.diagnosis.evidence.rounding import OpSite
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.kernels.admission import is_plain
from ampwatch.training.ops.events import OpSensor
from ampwatch.training.ops.operands import names_by_address, place_name, thinned
from ampwatch.training.ops.storage import Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from torch import Tensor

    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op, OpPlace, OpsBegan, OpsEnded


MAX_VAIN = 3
"""Ops alike that are checked in vain, after which they are checked rarely."""

RARELY = 16
"""Iterations of which one checks ops that were checked in vain."""

MAX_SIGNATURES = 4096
"""Kinds of ops that are distinguished."""


class VainChecks:
    """Counts checks that have shown nothing, by a signature: what the ops have in common."""

    def __init__(self) -> None:
        self._times: dict[Hashable, int] = {}

    def are_enough(self, signature: Hashable, step: int) -> bool:
        """Whether ops alike were checked in vain, and it is not their turn again in iteration ``step``."""
        return self._times.get(signature, 0) >= MAX_VAIN and step % RARELY != 0

    def add(self, signature: Hashable) -> None:
        """Count a check in vain."""
        if len(self._times) >= MAX_SIGNATURES:
            self._times.clear()
        self._times[signature] = self._times.get(signature, 0) + 1


def number_of(value: Any) -> float | None:
    """Return a factor that is known on the host, ``None`` for every other."""
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, (list, tuple)) and value and len(set(map(type, value))) == 1:
        numbers = {number_of(item) for item in value}
        return numbers.pop() if len(numbers) == 1 else None
    if is_plain(value) and value.numel() == 1 and value.device.type == "cpu":
        return float(value.detach().reshape(-1).tolist()[0])
    return None


CASTS = ("_to_copy", "to", "copy_")
"""Ops that cast."""


def cast_by(call: OpCall) -> tuple[Any, Any]:
    """Return what an op casts, and what becomes of it."""
    return (call.args[1], call.args[0]) if call.info.name == "copy_" else (call.args[0], call.out)


def listed(value: Any) -> Sequence[Any]:
    """Return a list as it is, and anything else as the only one of a list."""
    return value if isinstance(value, (list, tuple)) else [value]


def rows_of(call: OpCall, *places: int) -> list[tuple[Any, ...]]:
    """Return the tensors of an op in rows, one for each place in its lists.

    With a second list the result comes last in a row; of a copy it is the first already.
    """
    columns = [listed(call.args[place]) for place in places]
    if len(places) > 1 and call.info.name not in ("copy_", "_foreach_copy_"):
        in_place = call.info.name.endswith("_")
        columns.append(columns[0] if in_place else listed(call.out))
    longest = max(map(len, columns))
    columns = [list(c) * longest if len(c) == 1 else c for c in columns]
    return [row for row in zip(*columns, strict=False) if is_plain(row[0])]


TINY = 1e-30
"""What a distance is divided by at least."""


class Shadow:
    """Some elements of a tensor in half precision, and beside them what float32 makes of the same additions.

    All of it is computed on the device of the tensor: to read a number there would be a sync.

    Args:
        now: The elements; ``None`` where they are not compared with later ones.
        exact: The same in float32; ``None`` where nothing is added up beside them yet.
        additions: How many additions have made them.

    Attributes:
        now: The elements after the newest addition, in the dtype of the tensor.
        exact: What they would be in float32.
        additions: How many since the two were the same; or how many in a row had no effect.
        seen: Additions that were seen.
        grown: Those of a running sum that had an effect.
        source: ``file:line`` that adds to a running sum.
        memory: Where the tensor lies, if it is known by that.
    """

    __slots__ = ("additions", "exact", "grown", "memory", "now", "seen", "source")

    def __init__(
        self, now: Tensor | None = None, exact: Tensor | None = None, additions: Any = 0
    ) -> None:
        self.now: Any = now
        self.exact: Any = exact
        self.additions = additions
        self.seen = 1
        self.grown = 0
        self.source = ""
        self.memory: Memory | None = None

    def add(self, now: Tensor, added: Tensor, alpha: float = 1.0) -> None:
        """Take in an addition of ``added`` times ``alpha``, after which the elements are ``now``."""
        self.now, self.exact = now, torch.add(self.exact, added, alpha=alpha)
        self.additions, self.seen = self.additions + 1, self.seen + 1

    def begin(self, where: Tensor, additions: Any = 0) -> None:
        """Begin anew, where a condition holds, with what is there now, and that many additions."""
        self.exact = torch.where(where, self.now.float(), self.exact)
        self.additions = torch.where(where, additions, self.additions)

    @property
    def error(self) -> Tensor:
        """Norm of the difference between the two, relative to that in float32."""
        error: Tensor = (self.now - self.exact).norm() / self.exact.norm().clamp(min=TINY)
        return error


def distance_of(now: Tensor, exact: Tensor) -> Tensor:
    """Return the mean difference of elements to others, relative to their mean magnitude."""
    now = now.float()
    return (exact.float() - now).abs().mean() / now.abs().mean().clamp(min=TINY)


def is_stuck(now: Tensor, added: Tensor, alpha: float = 1.0) -> Tensor:
    """Return where adding as much once more changes nothing, as it does wherever adding it has changed nothing."""
    return torch.add(now, added, alpha=alpha).to(now.dtype) == now


def now_of(tensor: Tensor, most: int) -> Tensor:
    """Return a copy of some elements of a tensor; ``thinned`` may return a view, which additions change."""
    return thinned(tensor.detach(), most).clone()


def added_of(addend: Any, out: Tensor, most: int) -> Tensor | None:
    """Return what a number, or a tensor that is expanded, adds to ``now_of(out, most)``; ``None`` where that waits."""
    if isinstance(addend, torch.Tensor):
        if addend.device == out.device:
            return thinned(addend.detach().expand(out.shape), most)
        # A scalar in host memory can be added to a tensor on a device; reading it is no sync.
        is_number = addend.ndim == 0 and addend.device.type == "cpu"
        addend = addend.detach().tolist() if is_number else None
    if not isinstance(addend, (int, float)):
        return None
    # Filled by a kernel: ``torch.as_tensor`` would copy from the host, and wait.
    return torch.full_like(thinned(out.detach(), most), addend, dtype=torch.float32)


class Shadows:
    """Shadows by owner and place: a tensor that is gone, or that somebody else adds to, has none.

    Args:
        most: How many.
        drops: Whether the one that was added to longest ago makes room, and not only those of tensors that are gone.
    """

    def __init__(self, most: int, *, drops: bool = False) -> None:
        self._most = most
        self._drops = drops
        self.known: dict[tuple[Hashable, int], Shadow] = {}

    def of(self, tensor: Tensor, owner: Hashable = "", address: int = 0) -> Shadow | None:
        """Return the shadow of a plain tensor, or of one of its shape that lies at an address."""
        known = self.known.get((owner, address or tensor.data_ptr()))
        is_it = known is not None and known.memory is not None and known.memory.is_of(tensor)
        return known if is_it else None

    def of_sum(self, call: OpCall, owner: Hashable = "") -> tuple[Shadow | None, Tensor, Any]:
        """Return the shadow of what an op adds to, that tensor, and what is added to it."""
        before, addend = call.args[:2]
        known = self.of(before, owner)
        if known is None and call.info.name == "add" and is_plain(addend):
            known = self.of(addend, owner)  # ``term + total``
            if known is not None:
                return known, addend, before
        return known, before, addend

    def put(self, out: Tensor, shadow: Shadow, owner: Hashable = "") -> bool:
        """Take in a shadow, or have it follow its tensor to where that is now; return whether there was room."""
        key = owner, out.data_ptr()
        if self.known.get(key) is shadow and not self._drops:
            return True
        if shadow.memory is not None:
            self.known.pop((owner, shadow.memory.address), None)
        if shadow.memory is None or shadow.memory.address != key[1]:
            shadow.memory = Memory(out)
        if len(self.known) >= self._most:
            if self._drops:
                del self.known[next(iter(self.known))]
            else:
                alive = [(k, s) for k, s in self.known.items() if s.memory and s.memory.is_alive]
                self.known = dict(alive)
        has_room = len(self.known) < self._most
        if has_room:
            self.known[key] = shadow
        return has_room


class RoundingSensor(OpSensor):
    """A sensor of single ops that round. What it knows of an iteration ends with that."""

    is_thread_safe = True

    def __init__(self, context: Context) -> None:
        self._names = context.names
        self._deferred = context.deferred
        self._observe = context.observe
        self._step = 0
        self._buffers: dict[int, str] | None = None

    def ops_began(self, event: OpsBegan) -> None:
        """Begin an iteration."""
        self._step = event.step
        self._deferred.poll()
        self._buffers = None
        self._forget()
        self._begin()

    def ops_ended(self, _event: OpsEnded) -> None:
        """Report what is left to report, and forget what belongs to the iteration."""
        self._deferred.poll()
        self._finish()
        self._forget()

    def _begin(self) -> None:
        """Take in what the model has in this iteration: wrappers replace parameters and their memory."""

    def _finish(self) -> None:
        """Report what is left to report of it."""

    def _forget(self) -> None:
        """Forget what belongs to it."""

    def _read(self, judge: Callable[[list[float]], None], *numbers: Tensor) -> None:
        """Have numbers judged once they are on the host."""
        self._deferred.read(torch.stack([number.to(torch.float32) for number in numbers]), judge)

    def _place(self, call: OpCall, place: OpPlace) -> OpSite:
        name, phase = call.info.name, place.phase.label
        return OpSite(self._step, place_name(place), name, phase, user_source())

    def _site(self, op: Op, out: Tensor, where: str = "", source: str = "") -> OpSite:
        """Return the place of an op that has made ``out``, which may be a buffer; and what else is not given of it."""
        call, place = op
        if self._buffers is None:
            self._buffers = names_by_address(self._names.buffers())
        where = where or place_name(place, self._buffers.get(out.data_ptr()))
        phase = place.phase if place.phase in (Phase.EVAL, Phase.BACKWARD) else Phase.FORWARD
        return OpSite(self._step, where, call.info.name, phase.label, source or user_source())
