"""Places at the scaler of the loss: at torch's ``GradScaler``, or at one that is not torch's."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.training.hooks.events import (
    EndCalled,
    EndReturned,
    Scaled,
    ScaleRead,
    ScalerLoaded,
    StepBegan,
    StepEnded,
    Unscaled,
    Unscaling,
    Updated,
    Updating,
)
from ampwatch.training.hooks.places.backward import listed
from ampwatch.training.hooks.taps import listen
from ampwatch.training.private import IS_ENABLED, tracing_state
from ampwatch.training.scalers.loss_scaler import Reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.training.hooks.bus import Bus
    from ampwatch.training.scalers.loss_scaler import LossScaler


class Ends:
    """Emits ``EndCalled`` and ``EndReturned`` for the calls that a ``LossScaler`` names.

    Of calls within one another the outermost counts: an optimizer of several steps each of them.

    Args:
        bus: Gets the events.
        scaler: The scaler.
        handles: What takes it off is added here.

    Cost: 0.5 us a call, and what the scaler's own functions take.
    """

    def __init__(self, bus: Bus, scaler: LossScaler, handles: list[Any]) -> None:
        self._bus = bus
        self._called, self._returned = bus.channel(EndCalled), bus.channel(EndReturned)
        self._reader = Reader(scaler)
        self._depth = 0
        for owner, method, raises in scaler.calls:
            handles.append(
                listen(
                    type(owner),
                    method,
                    instance=owner,
                    before=self._before,
                    returned=self._after if raises is None else self._passed,
                    failed=partial(self._failed, raises),
                )
            )

    def _before(self, _owner: Any, _args: Any, _kwargs: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._called.emit(EndCalled(self._reader.scale()))

    def _after(self, _owner: Any, result: object, _args: Any, _kwargs: Any) -> None:
        # The answer of an inner call is nobody's: the outer one may go on to another one.
        self._leave(self._reader.outcome(result) if self._depth == 1 else None)

    def _passed(self, _owner: Any, _result: object, _args: Any, _kwargs: Any) -> None:
        self._leave(None)

    def _failed(self, raises: type[BaseException] | None, _owner: Any) -> None:
        is_skip = raises is not None and isinstance(sys.exc_info()[1], raises)
        self._leave(True if is_skip else None)

    def _leave(self, outcome: object) -> None:
        # Put on within a call, its return is seen without its beginning.
        self._depth = max(0, self._depth - 1)
        if self._depth == 0 and outcome is not None:
            self._returned.emit(EndReturned(self._reader.scale(), outcome))
            if self._bus.at_boundary:
                self._bus.settle()


GradScaler = torch.amp.GradScaler


def _optimizer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the optimizer that a method of a scaler is called with; ``None`` is the user's error."""
    return args[0] if args else kwargs.get("optimizer")


def _definer(kind: type, name: str) -> type:
    return next(c for c in kind.__mro__ if name in c.__dict__)


def _on_scaler(
    bus: Bus,
    handles: list[Any],
    name: str,
    *,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
    returned: Callable[..., None] | None = None,
    failed: Callable[..., None] | None = None,
) -> None:
    """Replace a method for all scalers: another one may take over from the watched one.

    A class of the user's that has a method of its own, which may call that of GradScaler or may
    not, is seen once: at its own.
    """
    base = _definer(GradScaler, name)
    own = base if bus.scaler is None else _definer(type(bus.scaler), name)
    if own is base:
        handles.append(
            listen(base, name, before=before, after=after, returned=returned, failed=failed)
        )
        return
    watched = bus.scaler
    handles.append(
        listen(
            own,
            name,
            instance=watched,
            before=before,
            after=after,
            returned=returned,
            failed=failed,
        )
    )

    def others(advice: Callable[..., None] | None) -> Callable[..., None] | None:
        if advice is None:
            return None
        return lambda scaler, *rest: None if scaler is watched else advice(scaler, *rest)

    handles.append(
        listen(base, name, before=others(before), after=others(after), returned=others(returned))
    )


def place_scale(bus: Bus, handles: list[Any]) -> None:
    """Hear what scalers multiply by their scale."""
    scaled, others = bus.channel(Scaled), bus.of_other_scalers(Scaled)

    def returned(scaler: GradScaler, result: object, args: Any, kwargs: Any) -> None:
        # The tap has seen that nothing is compiled.
        if tracing_state() is None:
            outputs = args[0] if args else kwargs.get("outputs")
            event = Scaled(scaler, outputs, result)
            if scaler is bus.scaler:
                scaled.emit(event)
                return
            # As a rule that of another training, watched or not; or the one that nobody handed in.
            bus.ownership.has_company = True
            if not bus.is_graph_of_another(listed(outputs)):
                others.emit(event)

    _on_scaler(bus, handles, "scale", returned=bus.replace_listener("scaled", returned))


def place_get_scale(bus: Bus, handles: list[Any]) -> None:
    """Hear the watched scaler being asked for its scale."""
    channel = bus.channel(ScaleRead)

    def before(scaler: GradScaler, _args: Any, _kwargs: Any) -> None:
        if scaler is bus.scaler:
            channel.emit(ScaleRead(scaler))

    _on_scaler(bus, handles, "get_scale", before=before)


def place_unscale(bus: Bus, handles: list[Any]) -> None:
    """Hear gradients being unscaled outside of a step of the scaler."""
    unscaling, unscaled = bus.channel(Unscaling), bus.channel(Unscaled)

    # scaler.step unscales as well; then sensors are notified of the step.
    def before(scaler: GradScaler, args: Any, kwargs: Any) -> None:
        if scaler is bus.scaler and not bus.is_stepping:
            optimizer = _optimizer(args, kwargs)
            if optimizer is not None:
                bus.note(Unscaling)
                if unscaling.subscribers:
                    unscaling.emit(Unscaling(scaler, optimizer))

    def after(scaler: GradScaler, args: Any, kwargs: Any) -> None:
        if scaler is bus.scaler and not bus.is_stepping:
            bus.note(Unscaled)
            if unscaled.subscribers:
                unscaled.emit(Unscaled(scaler, _optimizer(args, kwargs)))

    _on_scaler(bus, handles, "unscale_", before=before, after=after)


def place_step(bus: Bus, handles: list[Any]) -> None:
    """Hear scalers step optimizers, and know while the watched one does."""
    began, ended = bus.channel(StepBegan), bus.channel(StepEnded)
    others_began, others_ended = bus.of_other_scalers(StepBegan), bus.of_other_scalers(StepEnded)

    def before(scaler: GradScaler, args: Any, kwargs: Any) -> None:
        optimizer = _optimizer(args, kwargs)
        if optimizer is None:
            return  # the call is about to raise
        event = StepBegan(scaler, optimizer)
        if scaler is not bus.scaler:
            others_began.emit(event)
            # It may have taken over with this very step.
            if scaler is not bus.scaler:
                return
        bus.note(StepBegan)
        began.emit(event)
        # What step() itself reads: a method of the user's may raise, and not because of the user.
        bus.is_stepping = getattr(scaler, IS_ENABLED, True)

    def after(scaler: GradScaler, args: Any, kwargs: Any) -> None:
        channel = others_ended
        if scaler is bus.scaler:
            bus.note(StepEnded)
            bus.is_stepping = False
            channel = ended
        if channel.subscribers:
            channel.emit(StepEnded(scaler, _optimizer(args, kwargs)))

    def failed(scaler: GradScaler) -> None:
        if scaler is bus.scaler:
            bus.is_stepping = False

    before, after = (
        bus.replace_listener("step_before", before),
        bus.replace_listener("step_after", after),
    )
    _on_scaler(bus, handles, "step", before=before, after=after, failed=failed)


def place_update(bus: Bus, handles: list[Any]) -> None:
    """Hear scalers update their scale."""
    updating, updated = bus.channel(Updating), bus.channel(Updated)
    others = bus.of_other_scalers(Updating)

    def before(scaler: GradScaler, _args: Any, _kwargs: Any) -> None:
        if scaler is bus.scaler:
            updating.emit(Updating(scaler))
        else:
            others.emit(Updating(scaler))

    def after(scaler: GradScaler, args: Any, kwargs: Any) -> None:
        if scaler is bus.scaler:
            updated.emit(
                Updated(scaler, (args[0] if args else kwargs.get("new_scale")) is not None)
            )
            if bus.at_boundary:
                bus.settle()

    before, after = (
        bus.replace_listener("update_before", before),
        bus.replace_listener("update_after", after),
    )
    _on_scaler(bus, handles, "update", before=before, after=after)


def place_ends(bus: Bus, handles: list[Any]) -> None:
    """Hear what ends an iteration, where the scaler is not torch's."""
    if bus.loss_scaler is not None:
        Ends(bus, bus.loss_scaler, handles)


def place_load_scaler(bus: Bus, handles: list[Any]) -> None:
    """Hear the state of a scaler being loaded."""
    loaded, others = bus.channel(ScalerLoaded), bus.of_other_scalers(ScalerLoaded)

    def after(scaler: GradScaler, _args: Any, _kwargs: Any) -> None:
        (loaded if scaler is bus.scaler else others).emit(ScalerLoaded(scaler))

    _on_scaler(bus, handles, "load_state_dict", after=after)
