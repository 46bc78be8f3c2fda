"""Calls of ``backward`` inside an autocast region."""

from __future__ import annotations

from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.diagnosis.evidence.calls import AutocastBackward
from ampwatch.training.hooks.regions import is_in_autocast
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.hooks.taps import listen
from ampwatch.training.model.dtypes import name_of
from ampwatch.training.sensors.calls.gradient_contents import GradContents, Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.guard import Guard
    from ampwatch.training.hooks.backward import BackwardCall, BackwardTap, Handle
    from ampwatch.training.hooks.taps import Listener
    from ampwatch.training.model.trained import Trained


HELD = 2
"""Iterations that end inside of a region from which it is held from one to the next."""


class AutocastBackwardSensor:
    """Tells of every backward under autocast that fills gradients of this training.

    The usual slip is a ``backward()`` that stands in the block of the forward pass, which is
    entered anew each time; a region around a whole epoch is something else. Which it was is known
    when the region is left, and told then, or in the iteration that shows that it goes on.

    Args:
        trained: The parameters of this training; without any every backward counts.
        step: Returns the index of the open iteration.
        observe: Takes what was found.
        backwards: Hears of backwards.
        guard: The fail-open boundary.

    Cost:
        A question about autocast a call, and one each time a region is entered or left; a look at
        every gradient before and after in the first calls that are under autocast, until one has
        filled any.
    """

    name = "autocast_backward"

    def __init__(
        self,
        trained: Trained,
        step: Callable[[], int],
        observe: Callable[[object], None],
        backwards: BackwardTap,
        guard: Guard,
    ) -> None:
        self._trained = trained
        self._step = step
        self._observe = observe
        self._backwards = backwards
        self._guard = guard
        self._listeners: list[Listener | Handle] = []
        self._entered: dict[int, int] = {}
        self._untold: dict[int, AutocastBackward] = {}
        self._since = 0
        self._is_ours = False

    def install(self) -> None:
        """Listen to backward, and to autocast regions."""
        self._since = self._step()
        self._listeners = [
            self._backwards.listen(self._guard, self.before, is_in_autocast),
            listen(torch.autocast, "__enter__", before=self._enter),
            listen(torch.autocast, "__exit__", after=self._exit),
        ]

    def remove(self) -> None:
        """Stop listening."""
        for listener in self._listeners:
            listener.remove()
        self._listeners.clear()
        self._entered.clear()
        self._untold.clear()

    def _enter(self, _region: Any, _args: Any, _kwargs: Any) -> None:
        if not is_in_autocast():
            self._entered[get_ident()] = self._step()

    def _exit(self, _region: Any, _args: Any, _kwargs: Any) -> None:
        if self._untold and not is_in_autocast():
            self._guard.run(self.left)

    def left(self) -> None:
        """The outermost region of this thread has been left."""
        seen = self._untold.pop(get_ident(), None)
        if seen is not None and not self._is_held():
            self._observe(seen)

    def _is_held(self) -> bool:
        return self._step() - self._entered.get(get_ident(), self._since) >= HELD

    def before(self, call: BackwardCall) -> Callable[[], None] | None:
        """A backward begins; return what is to be called when it has ended."""
        dtype = _dtype_of_region(call.tensors[0] if call.tensors else None)
        if not (dtype and call.is_alone and (self._is_ours or self._trained.is_mine)):
            return None
        seen = [] if self._is_ours else GradContents().before(self._trained.parameters())
        return partial(self.after, dtype, seen)

    def after(self, dtype: str, before: Sequence[Seen]) -> None:
        """It has ended."""
        if not self._is_ours:
            self._is_ours = not before or GradContents().after(before, frozenset()) > 0
        if not self._is_ours:
            return
        seen = AutocastBackward(self._step(), dtype, user_source())
        if self._is_held():
            self._untold.pop(get_ident(), None)
            self._observe(seen._replace(is_held=True))
        else:
            self._untold[get_ident()] = seen


def _dtype_of_region(root: object) -> str:
    """Return what autocast around here asks for, for the device of ``root``; empty if nothing."""
    if not isinstance(root, torch.Tensor):
        return ""
    device = root.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return ""
    dtype = torch.get_autocast_dtype(device)
    return "" if dtype in (torch.float32, torch.float64) else name_of(dtype)
