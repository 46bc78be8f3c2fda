"""The loss scale, the verdict on each optimizer's gradients, and the loss, from ``GradScaler``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ampwatch.diagnosis.evidence.iteration import ScalerSettings
from ampwatch.errors import AttachError
from ampwatch.training.hooks.taps import Listener, listen
from ampwatch.training.iteration.ledger import NOT_STEPPED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ampwatch.guard import Guard
    from ampwatch.training.iteration.ledger import IterationLedger
    from ampwatch.training.model.optimizers import OptimizerRegistry

# The private state that holds the truth; there is no public way to it without a sync.
_STATE = (
    "_scale",
    "_growth_tracker",
    "_per_optimizer_states",
    "_growth_factor",
    "_backoff_factor",
    "_growth_interval",
)

DEVICES = ("cpu", "cuda", "xpu")
"""Backends with streams and events that values can be read back by without waiting."""


def check_scaler(scaler: object) -> torch.amp.GradScaler:
    """Return ``scaler`` if it is a GradScaler whose state is where it is expected.

    Raises:
        AttachError: If it is of an unknown class, or its private state has changed.
    """
    if not isinstance(scaler, torch.amp.GradScaler):
        msg = (
            f"`scaler`: expected a torch.amp.GradScaler or a subclass, got"
            f" {type(scaler).__module__}.{type(scaler).__qualname__}; pass scaler=None to watch the"
            f" steps without it"
        )
        raise AttachError(msg)
    if scaler.is_enabled() and scaler._device not in DEVICES:  # noqa: SLF001 - no public name
        msg = (
            f"`scaler`: expected a GradScaler for one of {', '.join(DEVICES)}, got one for"
            f" {scaler._device!r}; pass scaler=None to watch the steps without it"  # noqa: SLF001
        )
        raise AttachError(msg)
    missing = [name for name in _STATE if not hasattr(scaler, name)]
    if scaler.is_enabled() and missing:
        msg = (
            f"`scaler`: expected the state of torch.amp.GradScaler as in torch 2.13, but"
            f" {type(scaler).__qualname__} of torch {torch.__version__} has no {', '.join(missing)};"
            f" pass scaler=None to watch the steps without it, or upgrade ampwatch"
        )
        raise AttachError(msg)
    return scaler


class LossScaleSensor:
    """Watches one ``GradScaler`` through its own calls.

    ``found_inf`` is taken before ``update`` and the scale after it: ``update``
    sums the verdicts in place and then forgets them.

    Args:
        scaler: An enabled or disabled GradScaler.
        ledger: Where the observations go.
        registry: Numbers the optimizers.
        guard: The fail-open boundary.
        changed: Called after an update at which the scaler's settings are new.
    """

    name = "loss_scale"

    def __init__(
        self,
        scaler: torch.amp.GradScaler,
        ledger: IterationLedger,
        registry: OptimizerRegistry,
        guard: Guard,
        changed: Callable[[], None],
    ) -> None:
        self._scaler = scaler
        self._ledger = ledger
        self._registry = registry
        self._guard = guard
        self._changed = changed
        self._settings: ScalerSettings | None = None
        self._numbers: dict[int, int] = {}
        self._listeners: list[Listener] = []

    def install(self) -> None:
        """Listen to ``scale``, ``step`` and ``update`` of this scaler."""
        owner, run = type(self._scaler), self._guard.run
        for name, before, after in (
            ("scale", self.before_scale, None),
            ("step", self.before_step, self.after_step),
            ("update", self.before_update, self.after_update),
        ):
            self._listeners.append(
                listen(
                    owner,
                    name,
                    instance=self._scaler,
                    before=_guarded(run, before),
                    after=_guarded(run, after) if after is not None else None,
                )
            )

    def remove(self) -> None:
        """Stop listening."""
        for listener in self._listeners:
            listener.remove()
        self._listeners.clear()

    def follow(self, scaler: torch.amp.GradScaler) -> None:
        """Watch another scaler from now on: it has taken over."""
        self.remove()
        self._scaler = scaler
        self._numbers.clear()
        self.install()

    def before_scale(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the loss before it is scaled."""
        self._ledger.losses.add(args[0] if args else kwargs.get("outputs"))

    def before_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Learn which optimizer is about to step."""
        if not self._scaler.is_enabled():
            return
        optimizer = args[0] if args else kwargs["optimizer"]
        self._numbers[id(optimizer)] = self._registry.admit(optimizer)
        self._ledger.begin_scaled_step(optimizer)

    def after_step(self, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        """The optimizer's turn is over."""
        self._ledger.end_scaled_step()

    def before_update(self, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        """Take the verdicts while they are there."""
        scaler = self._scaler
        if scaler.is_enabled() and scaler._scale is not None:  # noqa: SLF001 - see _STATE
            self._ledger.take_verdicts(scaler._scale, list(self._verdicts()))  # noqa: SLF001

    def _verdicts(self) -> Iterator[tuple[int, torch.Tensor]]:
        for optimizer_id, state in self._scaler._per_optimizer_states.items():  # noqa: SLF001 - see _STATE
            stepped = state["stage"].name == "STEPPED"
            index = self._numbers.get(optimizer_id, NOT_STEPPED) if stepped else NOT_STEPPED
            for found_inf in state["found_inf_per_device"].values():
                yield index, found_inf

    def after_update(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the new scale; the iteration is over."""
        scaler = self._scaler
        if not scaler.is_enabled():
            return
        scale, tracker = scaler._scale, scaler._growth_tracker  # noqa: SLF001 - see _STATE
        if scale is None or tracker is None:
            return
        self._numbers.clear()
        settings = ScalerSettings(
            scaler._growth_factor,  # noqa: SLF001
            scaler._backoff_factor,  # noqa: SLF001
            scaler._growth_interval,  # noqa: SLF001
        )
        given = (args[0] if args else kwargs.get("new_scale")) is not None
        self._ledger.close_scaled(scale, tracker, settings, scale_given=given)
        if settings != self._settings:
            self._settings = settings
            self._changed()


def _guarded(run: Any, work: Any) -> Any:
    def advice(_instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        run(work, args, kwargs)

    return advice
