"""Casts of weights that autocast has kept although the weights have changed."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.diagnosis.evidence.scaler import StaleCast
from ampwatch.training.hooks.regions import is_in_autocast
from ampwatch.training.hooks.taps import Listener, listen
from ampwatch.training.model.dtypes import name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

    from ampwatch.guard import Guard
    from ampwatch.training.iteration.ledger import IterationLedger
    from ampwatch.training.model.names import Names

MAX_NODES = 20000
"""Nodes of a graph that are looked at."""

MAX_LOOKS = 64
"""Graphs that are looked at in a run: a program that steps inside of autocast and is right about it
(it clears the cache) is not to pay for it for ever."""

CAST = "ToCopyBackward"


class StaleCastSensor:
    """Proves from the graph of a loss that a cast is older than the weight that it was made of.

    Nodes of a graph are numbered in the order in which their ops ran. A cast of a weight from
    before the last step of its optimizer, that is used by an op from after it, is stale. Graphs
    are looked at only after an optimizer has stepped inside of an autocast region that keeps
    casts, and until that region is left.

    Args:
        names: Names of the parameters.
        ledger: Says which iteration is open.
        guard: The fail-open boundary.
        observe: Told of stale casts.
    """

    name = "stale_casts"

    def __init__(
        self,
        names: Names,
        ledger: IterationLedger,
        guard: Guard,
        observe: Callable[[object], None],
    ) -> None:
        self._names = names
        self._ledger = ledger
        self._guard = guard
        self._observe = observe
        self._stepped: dict[int, dict[int, int]] = {}
        self._looks = 0
        self._listener: Listener | None = None

    def install(self) -> None:
        """Listen to autocast regions that are left."""
        self._listener = listen(torch.autocast, "__exit__", after=self._exit)

    def remove(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.remove()
            self._listener = None
        self._stepped.clear()

    def _exit(self, _region: Any, _args: Any, _kwargs: Any) -> None:
        if self._stepped and not is_in_autocast():
            # With the outermost region the cache goes.
            self._stepped.pop(get_ident(), None)

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped; parameters that it holds have changed."""
        if not (is_in_autocast() and torch.is_autocast_cache_enabled()):
            return
        now = _newest_node()
        changed = self._stepped.setdefault(get_ident(), {})
        for group in optimizer.param_groups:
            changed.update({id(p): now for p in group["params"]})

    @property
    def has_changes(self) -> bool:
        """Whether an optimizer has stepped inside of a region that is still open."""
        return bool(self._stepped) and self._looks < MAX_LOOKS

    def backward(self, root: torch.Tensor) -> None:
        """A backward from ``root`` is about to begin."""
        changed = self._stepped.get(get_ident())
        if not changed or self._looks >= MAX_LOOKS or getattr(root, "grad_fn", None) is None:
            return
        self._looks += 1
        stale = _stale(root.grad_fn, changed)
        if stale:
            named = {id(p): name for name, p in self._names.parameters()}
            ordered = [name for key, name in named.items() if key in stale]
            device = next(iter(stale.values())).device.type
            self._observe(
                StaleCast(
                    step=self._ledger.step,
                    parameter=ordered[0] if ordered else "",
                    casts=len(stale),
                    dtype=name_of(torch.get_autocast_dtype(device)),
                )
            )


def _stale(root: Any, changed: dict[int, int]) -> dict[int, torch.Tensor]:
    """Return the changed parameters that newer ops of a graph use through older casts."""
    found: dict[int, torch.Tensor] = {}
    seen: set[Any] = {root}
    queue = [root]
    while queue and len(seen) < MAX_NODES:
        node = queue.pop()
        for below, _ in node.next_functions:
            if below is None:
                continue
            parameter = _cast_parameter(below)
            if parameter is not None:
                changed_at = changed.get(id(parameter))
                if (
                    changed_at is not None
                    and below._sequence_nr() < changed_at <= node._sequence_nr()  # noqa: SLF001 - no public name for it
                ):
                    found[id(parameter)] = parameter
            if below not in seen:
                seen.add(below)
                queue.append(below)
    return found


def _cast_parameter(node: Any) -> torch.Tensor | None:
    """Return the leaf that ``node`` casts; ``None`` if it is anything else."""
    if CAST not in node.name() or not node.next_functions:
        return None
    leaf: torch.Tensor | None = getattr(node.next_functions[0][0], "variable", None)
    return leaf


def _newest_node() -> int:
    """Return the number that the next node of the calling thread will have."""
    return int(torch._C._autograd._get_sequence_nr())  # noqa: SLF001 - no public name for it
