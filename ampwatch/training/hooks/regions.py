"""The autocast regions that every thread is in."""

from __future__ import annotations

from itertools import islice
from threading import get_ident
from typing import TYPE_CHECKING, NamedTuple

import torch

from ampwatch.training.devices import autocast_types
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.hooks.sources import frames
from ampwatch.training.kernels.dtypes import NAMES, OTHER, name_of
from ampwatch.training.private import is_enabled_region

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.training.hooks.events import AutocastEntering, AutocastLeft

CALLERS = 8
"""Callers that are searched for ``custom_fwd``; between it and here are five frames of ours."""


class AutocastRegion(NamedTuple):
    """One autocast region that has been entered and not left.

    Attributes:
        device_type: The type of device it is for.
        dtype: Name of the dtype it asks for.
        enabled: Whether it switches autocast on.
        by_function: Entered by the ``custom_fwd`` of an ``autograd.Function``.
    """

    device_type: str
    dtype: str
    enabled: bool
    by_function: bool


class Regions(Sensor):
    """Follows ``torch.autocast`` in every thread.

    Below the dispatcher's autocast key, where ops are counted, PyTorch itself says that
    autocast is off: it has just been applied. A region inside a compiled function is not
    entered by Python and is not seen.
    """

    name = "regions"
    is_thread_safe = True
    rests = True

    def __init__(self) -> None:
        # By thread, because autocast is: its state lives in the thread-local set of dispatch keys.
        # One item of a dict is read or written at a time, which the GIL makes atomic.
        self._of_thread: dict[int, list[AutocastRegion]] = {}
        self._unseen: dict[int, int] = {}

    def woken(self) -> None:
        """Forget the regions: those that are entered already are asked for by ``update``."""
        self.removed()

    def removed(self) -> None:
        """Forget the regions."""
        self._of_thread.clear()
        self._unseen.clear()

    def autocast_entering(self, event: AutocastEntering) -> None:
        """Note that the calling thread is about to be in the region."""
        region = event.region
        dtype = NAMES.get(region.fast_dtype, OTHER)
        enabled = bool(is_enabled_region(region))
        entered = AutocastRegion(
            region.device, dtype, enabled, not enabled and _is_custom_function()
        )
        self._of_thread.setdefault(get_ident(), []).append(entered)

    def autocast_left(self, _event: AutocastLeft) -> None:
        """Note that the calling thread has left the region it entered last."""
        me = get_ident()
        regions = self._of_thread.get(me)
        # Regions that nobody saw being entered are not popped: ``update`` replaces them as a whole.
        if regions and len(regions) > self._unseen.get(me, 0):
            regions.pop()
            if not regions:
                del self._of_thread[me]

    def update(self) -> None:
        """Ask PyTorch for regions that nobody saw being entered: before ampwatch came, or by hand.

        To be called where users' code runs, above the dispatcher's autocast key.
        """
        me = get_ident()
        if len(self._of_thread.get(me, ())) > self._unseen.get(me, 0):
            return
        self._unseen.pop(me, None)
        regions = [
            AutocastRegion(
                device, name_of(torch.get_autocast_dtype(device)), enabled=True, by_function=False
            )
            for device in autocast_types()
            if torch.is_autocast_enabled(device)
        ]
        self._of_thread.pop(me, None)
        if regions:
            self._of_thread[me] = regions
            self._unseen[me] = len(regions)

    def here(self) -> list[AutocastRegion]:
        """Return the regions that the calling thread is in, the innermost last. Not to be kept."""
        return self._of_thread.get(get_ident(), [])

    def elsewhere(self, device_type: str) -> AutocastRegion | None:
        """Return an enabled region for a type of device that another thread is in."""
        me = get_ident()
        for thread, regions in list(self._of_thread.items()):  # others enter and leave meanwhile
            region = region_for(device_type, regions)
            if thread != me and region is not None and region.enabled:
                return region
        return None


def region_for(device_type: str, regions: Sequence[AutocastRegion]) -> AutocastRegion | None:
    """Return the innermost region for a type of device."""
    return next((r for r in reversed(regions) if r.device_type == device_type), None)


def _is_custom_function() -> bool:
    """Whether a region is being entered by PyTorch's ``custom_fwd``."""
    # The wrapper of torch/amp/autocast_mode.py is called so; it leaves no other trace.
    return any(
        frame.f_code.co_name == "decorate_fwd" and frame.f_globals.get("autocast")
        for frame in islice(frames(), CALLERS)
    )
