"""Which GradScaler a training uses: a resumed one may go on with another object or state."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ampwatch.diagnosis.evidence.scaler import ScalerChange
from ampwatch.training.hooks.taps import Listener, listen

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

    from ampwatch.guard import Guard
    from ampwatch.training.iteration.ledger import IterationLedger


class Follower(Protocol):
    """Watches one scaler at a time."""

    def follow(self, scaler: torch.amp.GradScaler) -> None:
        """Watch another scaler from now on."""

    def before_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The scaler is about to step an optimizer."""


class ScalerSuccession:
    """Follows the training to a scaler that takes over from the watched one.

    A scaler takes over when it steps an optimizer that the watched one has stepped, or another
    one of the same parameters. If the older one then steps again, both are in use, each with a
    purpose, and it is the older one that is watched from there on.

    Args:
        scaler: The watched scaler.
        follower: Watches it, and then its successor.
        ledger: Says which iteration is open.
        guard: The fail-open boundary.
        observe: Told of changes.
        followed: Called with a scaler that is watched from now on.
    """

    name = "succession"

    def __init__(
        self,
        scaler: torch.amp.GradScaler,
        follower: Follower,
        ledger: IterationLedger,
        guard: Guard,
        observe: Callable[[object], None],
        followed: Callable[[torch.amp.GradScaler], None],
    ) -> None:
        self._first = self._current = scaler
        self._follower = follower
        self._ledger = ledger
        self._guard = guard
        self._observe = observe
        self._followed = followed
        self._is_settled = False
        self._is_taking_over = False
        self._is_untouched = scaler.is_enabled() and _is_new(scaler)
        # By identity: a set compares, and tensors compare by element.
        self._parameters: dict[int, weakref.ref[torch.Tensor]] = {}
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._restored: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._loaded: weakref.WeakSet[torch.amp.GradScaler] = weakref.WeakSet()
        self._strangers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._newest: Callable[[], Optimizer | None] = lambda: None
        self._listeners: list[Listener] = []

    def install(self) -> None:
        """Listen to steps and to states that are loaded, of any scaler."""
        run = self._guard.run
        self._listeners = [
            listen(torch.amp.GradScaler, "step", before=self._on_step, after=self._on_step_end),
            listen(
                torch.amp.GradScaler,
                "load_state_dict",
                after=lambda scaler, _args, _kwargs: run(self.loaded, scaler),
            ),
            listen(
                torch.optim.Optimizer,
                "load_state_dict",
                after=lambda optimizer, _args, _kwargs: run(self.restored, optimizer),
            ),
        ]

    def remove(self) -> None:
        """Stop listening."""
        for listener in self._listeners:
            listener.remove()
        self._listeners.clear()
        self._parameters.clear()

    def _on_step(self, scaler: Any, args: Any, kwargs: Any) -> None:
        # Nearly always the same scaler steps the same optimizer once more.
        is_known = scaler is self._current and args and self._newest() is args[0]
        if not is_known:
            self._guard.run(self.before_step, scaler, args, kwargs)

    def _on_step_end(self, scaler: Any, _args: Any, _kwargs: Any) -> None:
        if self._is_taking_over:
            self._guard.run(self.after_step, scaler)

    def loaded(self, scaler: torch.amp.GradScaler) -> None:
        """A state was loaded into a scaler."""
        self._loaded.add(scaler)
        if scaler is self._current:
            self._observe(ScalerChange(self._ledger.step, loaded=True, resumed=True))

    def restored(self, optimizer: Optimizer) -> None:
        """A state was loaded into an optimizer."""
        self._restored.add(optimizer)

    def before_step(
        self, scaler: torch.amp.GradScaler, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """A scaler is about to step an optimizer."""
        optimizer = args[0] if args else kwargs["optimizer"]
        if scaler is self._current:
            if optimizer not in self._optimizers:
                self._meet(optimizer)
        elif not self._is_settled and scaler.is_enabled():
            if scaler is self._first:
                # The older one goes on: the other was not its successor.
                self._is_settled = True
                self._follow(scaler, args, kwargs)
            elif optimizer not in self._strangers and self._is_ours(optimizer):
                known = optimizer in self._optimizers
                resumed = known or bool(optimizer.state) or optimizer in self._restored
                loaded = scaler in self._loaded
                self._observe(ScalerChange(self._ledger.step, loaded=loaded, resumed=resumed))
                self._meet(optimizer)
                self._follow(scaler, args, kwargs)

    def after_step(self, scaler: torch.amp.GradScaler) -> None:
        """The step in which a scaler took over has returned."""
        if scaler is self._current:
            self._is_taking_over = False
            self._ledger.end_scaled_step()

    def _follow(
        self,
        scaler: torch.amp.GradScaler,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._current = scaler
        self._follower.follow(scaler)
        self._followed(scaler)
        # This call has begun, and the follower only hears of the next.
        self._follower.before_step(args, kwargs)
        self._is_taking_over = True

    def _meet(self, optimizer: Optimizer) -> None:
        if self._is_untouched and not self._optimizers and optimizer.state:
            change = ScalerChange(self._ledger.step, loaded=False, resumed=True, known_before=False)
            self._observe(change)
        self._is_untouched = False
        self._optimizers.add(optimizer)
        self._newest = weakref.ref(optimizer)
        for group in optimizer.param_groups:
            self._parameters.update({id(p): weakref.ref(p) for p in group["params"]})

    def _is_ours(self, optimizer: Optimizer) -> bool:
        """Whether it is an optimizer of this training, or holds parameters of one."""
        if optimizer in self._optimizers:
            return True
        ours = any(
            (known := self._parameters.get(id(p))) is not None and known() is p
            for group in optimizer.param_groups
            for p in group["params"]
        )
        if not ours:
            self._strangers.add(optimizer)
        return ours


def _is_new(scaler: torch.amp.GradScaler) -> bool:
    """Whether a scaler has neither been used nor been given a state."""
    untouched = scaler._scale is None  # noqa: SLF001 - no public name for it
    return untouched and not scaler._init_growth_tracker  # noqa: SLF001
