"""Detection of other profilers, of captures of CUDA graphs and of evaluation beside a window."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.autograd import profiler, profiler_legacy

from ampwatch.guard import unbroken
from ampwatch.training.devices import graph_classes
from ampwatch.training.hooks.taps import listen
from ampwatch.training.private import is_profiled
from ampwatch.wire.records import WindowSkip

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.training.hooks.taps import Listener

OTHER_TOOLS = ("KINETO_USE_DAEMON", "NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH")
"""Variables of the environment that say that somebody profiles from outside: a recording would
end that of dynolog, and Nsight and CUPTI's other users admit no second one."""

STARTS: tuple[tuple[type, str], ...] = (
    (profiler.profile, "_prepare_trace"),
    (profiler.emit_nvtx, "__enter__"),
    (profiler.emit_itt, "__enter__"),
    (profiler_legacy.profile, "__enter__"),
)
"""The methods that begin somebody else's recording. ``_prepare_trace`` comes before Kineto starts, so
that a recording of ours can still be ended in it."""


class OtherProfilers:
    """Detects whether somebody else profiles, and reports it before anybody begins.

    Args:
        about_to: Called before somebody else begins a recording, and while ours is open before
            the training captures a CUDA graph (with the reason) or turns to evaluation
            (``None``). On their thread. Must not raise.
    """

    def __init__(self, about_to: Callable[[WindowSkip | None], None]) -> None:
        self._about_to = about_to
        self._listeners: list[Listener] = []
        self._while_open: list[Listener] = []
        self._prepared: weakref.ref[Any] | None = None
        self._mine: Any = None

    @unbroken
    def install(self) -> None:
        """Begin to listen."""
        # Only of `profile` the end is seen, for it can be prepared and not started; whether one of the
        # others is on, PyTorch itself can be asked.
        taps = [listen(owner, name, before=self._starting) for owner, name in STARTS]
        self._listeners = [*taps, listen(profiler.profile, "__exit__", after=self._ended)]

    @unbroken
    def remove(self) -> None:
        """Stop listening. Idempotent."""
        self.let_go()
        _remove_all(self._listeners)

    @unbroken
    def hold(self, mine: Any) -> None:
        """Listen to captures and evaluation as well, while our recording is open.

        Args:
            mine: The PyTorch object of our own recording.
        """
        self._mine = mine
        self._while_open = [
            *(listen(kind, "capture_begin", before=self._capturing) for kind in graph_classes()),
            listen(nn.Module, "train", before=self._turning),
        ]

    @unbroken
    def let_go(self) -> None:
        """Stop listening to captures and evaluation: our recording is over. Idempotent."""
        self._mine = None
        _remove_all(self._while_open)

    @property
    def are_active(self) -> bool:
        """Whether somebody else profiles, or is about to."""
        return self.have_begun or is_profiled() or any(os.environ.get(name) for name in OTHER_TOOLS)

    @property
    def have_begun(self) -> bool:
        """Whether somebody else has begun, since this listens, and has not ended."""
        return self._prepared is not None and self._prepared() is not None

    def _starting(self, instance: Any, _args: Any, _kwargs: Any) -> None:
        if instance is self._mine:
            return
        self._about_to(WindowSkip.PROFILER)
        if isinstance(instance, profiler.profile):
            # Weak: a schedule may prepare a trace and be dropped without ever ending it.
            self._prepared = weakref.ref(instance)

    def _ended(self, instance: Any, _args: Any, _kwargs: Any) -> None:
        if self._prepared is not None and instance is self._prepared():
            self._prepared = None

    def _capturing(self, _instance: Any, _args: Any, _kwargs: Any) -> None:
        self._about_to(WindowSkip.CAPTURE)

    def _turning(self, _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Module.eval() calls train(False), and train() calls itself for each child.
        mode = args[0] if args else kwargs.get("mode", True)
        if not mode:
            self._about_to(None)


def _remove_all(listeners: list[Listener]) -> None:
    for listener in listeners:
        listener.remove()
    listeners.clear()
