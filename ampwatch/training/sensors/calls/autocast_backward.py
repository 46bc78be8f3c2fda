"""Calls of ``backward`` inside an autocast region."""

from __future__ import annotations

from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING

import torch

from ampwatch.diagnosis.evidence.calls import AutocastBackward
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.hooks.sources import frames, user_source
from ampwatch.training.kernels.dtypes import name_of
from ampwatch.training.private import is_in_autocast
from ampwatch.training.sensors.calls.gradient_contents import GradContents, GradientBefore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.training.hooks import events as on
    from ampwatch.training.iteration.context import Context

HELD = 2
"""Iterations that end inside of a region, from which on it counts as held across iterations."""

LIGHTNING = ("lightning", "pytorch_lightning")
"""Packages whose Trainer runs all of ``training_step`` under autocast."""


class AutocastBackwardSensor(Sensor):
    """Reports every backward under autocast that fills gradients of this training.

    The usual slip is a ``backward()`` in the block of the forward pass, which is entered anew each
    time; a region around a whole epoch is something else. It is known which of the two it was, and
    reported, when the region is left, or in the iteration that shows that it goes on.

    Cost:
        One question about autocast a call, and one each time a region is entered or left. In the
        first calls under autocast, until one has filled a gradient, identity and version of every
        gradient before and after.
    """

    name = "autocast_backward"
    # Dormant while there is nothing to report: then it does not matter that a region is left.
    waking = frozenset({"autocast_entering", "backward_began"})
    is_dormant = True
    rests = True

    def __init__(self, context: Context) -> None:
        self._trained = context.trained
        self._iteration = context.iteration
        self._observe = context.observe
        self._entered: dict[int, int] = {}
        self._pending: dict[int, AutocastBackward] = {}
        self._since = 0
        self._is_ours = False

    def installed(self) -> None:
        """Note the iteration from which regions that are entered already are counted."""
        self._since = self._iteration.step

    def may_rest(self) -> bool:
        """Whether no region has to be left before a backward is reported."""
        return not self._pending

    def woken(self) -> None:
        """Forget the regions: those that were entered unseen count from now on."""
        self._entered.clear()
        self._since = self._iteration.step

    def removed(self) -> None:
        """Forget the regions."""
        self._entered.clear()
        self._pending.clear()

    def autocast_entering(self, _event: on.AutocastEntering) -> None:
        """Note in which iteration this thread enters its outermost region."""
        if not is_in_autocast():
            self._entered[get_ident()] = self._iteration.step

    def autocast_left(self, _event: on.AutocastLeft) -> None:
        """Report a backward in the outermost region of this thread, which is over."""
        if not is_in_autocast():
            seen = self._pending.pop(get_ident(), None)
            self.is_dormant = not self._pending
            if seen is not None and not self._is_held():
                self._observe(seen)

    def _is_held(self) -> bool:
        return self._iteration.step - self._entered.get(get_ident(), self._since) >= HELD

    def backward_began(self, call: on.BackwardBegan) -> Callable[[], None] | None:
        """Have gradients compared around a backward that begins under autocast."""
        if not is_in_autocast():
            return None
        dtype = _dtype_of_region(call.tensors[0] if call.tensors else None)
        # While another thread is in a backward, its gradients would be taken for this one's.
        if not (dtype and call.is_alone and (self._is_ours or self._trained.thread == get_ident())):
            return None
        seen = [] if self._is_ours else GradContents().before(self._trained.parameters())
        return partial(self._backward_ended, dtype, seen)

    def _backward_ended(self, dtype: str, before: Sequence[GradientBefore]) -> None:
        if not self._is_ours:
            # Without a known parameter there is nothing to compare, and the backward counts.
            self._is_ours = not before or GradContents().after(before, frozenset()) > 0
        if not self._is_ours:
            return
        self._report(
            AutocastBackward(
                self._iteration.step, dtype, user_source(), region_of=_owner_of_region()
            )
        )

    def _report(self, seen: AutocastBackward) -> None:
        """Report what was seen now if its region is held, and when the region is left otherwise."""
        if self._is_held():
            self._pending.pop(get_ident(), None)
            self._observe(seen._replace(is_held=True))
        else:
            self._pending[get_ident()] = seen
            self.is_dormant = False


def _owner_of_region() -> str:
    """Return the framework around whose call of backward the region is; empty for the user's own.

    In Lightning's manual optimization ``training_step`` calls ``manual_backward``, inside of the region
    that the Trainer has entered: the call has no block that its author could leave.
    """
    for frame in frames():
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in LIGHTNING and frame.f_code.co_name == "manual_backward":
            trainer = getattr(frame.f_locals.get("self"), "trainer", None)
            # Only the plugins of mixed precision have a region.
            plugin = getattr(trainer, "precision_plugin", None)
            return "Lightning's Trainer" if hasattr(plugin, "autocast_context_manager") else ""
    return ""


def _dtype_of_region(root: object) -> str:
    """Return the dtype that autocast asks for on the device of ``root``; empty without one."""
    if not isinstance(root, torch.Tensor):
        return ""
    device = root.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return ""
    dtype = torch.get_autocast_dtype(device)
    return "" if dtype in (torch.float32, torch.float64) else name_of(dtype)
