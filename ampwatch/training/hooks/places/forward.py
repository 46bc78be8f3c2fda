"""Places at the forward pass of the models and of their modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ampwatch.training.hooks.compiling import is_traced
from ampwatch.training.hooks.events import (
    AutocastEntering,
    AutocastLeft,
    ForwardBegan,
    ForwardEnded,
    ForwardReturned,
    SavedTensorsHooked,
    TensorsSwapping,
)
from ampwatch.training.hooks.roots import RootCalls
from ampwatch.training.hooks.taps import listen, listen_to_function

if TYPE_CHECKING:
    from ampwatch.training.hooks.bus import Bus


def place_autocast(bus: Bus, handles: list[Any]) -> None:
    """Hear regions of autocast being entered and left."""
    entering, left = bus.channel(AutocastEntering), bus.channel(AutocastLeft)

    def before(region: torch.autocast, _args: Any, _kwargs: Any) -> None:
        entering.emit(AutocastEntering(region))

    def after(_region: torch.autocast, _args: Any, _kwargs: Any) -> None:
        left.emit(AutocastLeft())

    handles.append(listen(torch.autocast, "__enter__", before=before, channel=entering))
    handles.append(listen(torch.autocast, "__exit__", after=after, channel=left))


def place_before_forward(bus: Bus, handles: list[Any]) -> None:
    """Hear every module before its forward."""
    channel = bus.channel(ForwardBegan)

    def began(module: nn.Module, args: Any) -> None:
        # What is traced or compiled must not get our code into its graph.
        if not is_traced():
            channel.emit(ForwardBegan(module, args))

    handles.append(register_module_forward_pre_hook(began))


def place_after_forward(bus: Bus, handles: list[Any]) -> None:
    """Hear what the forward of every module has returned."""
    channel = bus.channel(ForwardReturned)
    # Once: the place comes and goes with the iterations whose outputs are measured.
    of_others = bus.ownership.modules_of_others()

    def returned(module: nn.Module, args: Any, output: Any) -> None:
        if id(module) not in of_others and not is_traced():
            channel.emit(ForwardReturned(module, args, output))

    handles.append(register_module_forward_hook(returned))


def place_end_of_forward(bus: Bus, handles: list[Any]) -> None:
    """Hear the forward of every module end, by an exception as well."""
    channel = bus.channel(ForwardEnded)

    def ended(module: nn.Module, _args: Any, _output: Any) -> None:
        if not is_traced():
            channel.emit(ForwardEnded(module))

    handles.append(register_module_forward_hook(ended, always_call=True))


def place_saved_tensors(bus: Bus, handles: list[Any]) -> None:
    """Hear hooks on saved tensors being entered."""
    channel = bus.channel(SavedTensorsHooked)

    def before(_hooks: Any, _args: Any, _kwargs: Any) -> None:
        channel.emit(SavedTensorsHooked())

    handles.append(listen(torch.autograd.graph.saved_tensors_hooks, "__enter__", before=before))


def place_roots(bus: Bus, handles: list[Any]) -> None:
    """Hear the calls of the watched models themselves."""
    handles.append(RootCalls(bus, bus.models(), settled=bus.is_compiling_settled))


def place_swap(bus: Bus, handles: list[Any]) -> None:
    """Hear that tensors are about to be swapped."""
    channel = bus.channel(TensorsSwapping)

    def before(_args: Any, _kwargs: Any) -> None:
        channel.emit(TensorsSwapping())

    handles.append(listen_to_function(torch.utils, "swap_tensors", before=before))
