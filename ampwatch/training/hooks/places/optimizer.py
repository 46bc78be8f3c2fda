"""Places at optimizers: their steps, their state and the gradients that they zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ampwatch.training.devices import captures, is_ignored
from ampwatch.training.hooks.compiling import uncompiled
from ampwatch.training.hooks.events import (
    OptimizerLoaded,
    OptimizerStepped,
    OptimizerStepping,
    Zeroed,
)
from ampwatch.training.hooks.taps import listen

if TYPE_CHECKING:
    from ampwatch.training.hooks.bus import Bus


def place_load_optimizer(bus: Bus, handles: list[Any]) -> None:
    """Hear the state of an optimizer being loaded."""
    channel = bus.channel(OptimizerLoaded)

    def after(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        channel.emit(OptimizerLoaded(optimizer))

    handles.append(listen(Optimizer, "load_state_dict", after=after))


def place_optimizer_step(bus: Bus, handles: list[Any]) -> None:
    """Hear all optimizers before and after their steps."""
    # PyTorch's global hooks, not those of an instance: they find optimizers made after
    # ``monitor()`` as well and leave no trace in an optimizer that is copied. They do not tell
    # skipped steps from applied ones (fused optimizers are called for both).
    stepping, stepped = bus.channel(OptimizerStepping), bus.channel(OptimizerStepped)

    def before(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        # A step that is being captured must not get our code into its graph.
        if (captures and is_ignored()) or bus.is_of_another(optimizer):
            return
        if bus.outermost is None or id(optimizer) in bus.stepping:
            # A step that raised never returned: what begins again is not inside of it.
            bus.outermost = id(optimizer)
            bus.stepping.clear()
        bus.stepping.add(id(optimizer))
        bus.is_optimizer_stepping = True
        bus.note(OptimizerStepping)
        if stepping.subscribers:
            stepping.emit(OptimizerStepping(optimizer))

    def after(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if (captures and is_ignored()) or bus.is_of_another(optimizer):
            return
        is_outermost = bus.outermost == id(optimizer)
        if is_outermost:
            bus.outermost = None
            bus.stepping.clear()
            bus.note(OptimizerStepped)
        bus.is_optimizer_stepping = False
        stepped.emit(OptimizerStepped(optimizer, bus.is_stepping, is_outermost))
        if bus.at_boundary:
            bus.settle()

    listen_before, listen_after = (
        uncompiled(bus.replace_listener(name, listener))
        for name, listener in (("optimizer_before", before), ("optimizer_after", after))
    )
    handles.append(register_optimizer_step_pre_hook(listen_before))
    handles.append(register_optimizer_step_post_hook(listen_after))


def place_zero_grad(bus: Bus, handles: list[Any]) -> None:
    """Hear gradients being zeroed, by an optimizer or by a module."""
    channel = bus.channel(Zeroed)

    def after(owner: Optimizer | nn.Module, _args: Any, _kwargs: Any) -> None:
        if not bus.is_of_another(owner):
            channel.emit(Zeroed(owner))

    handles.append(listen(Optimizer, "zero_grad", after=after, channel=channel))
    handles.append(listen(nn.Module, "zero_grad", after=after, channel=channel))
