"""Places where code becomes a graph: one of ``torch.compile``, or one that a device captures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn.modules import module

from ampwatch.training.devices import capture_began, capture_ended, captures, graph_classes
from ampwatch.training.hooks.compiling import keep_from_compiler, may_compile
from ampwatch.training.hooks.events import CompileCalled, CompiledEntering, GraphCaptured
from ampwatch.training.hooks.taps import listen, listen_to_function
from ampwatch.training.private import (
    ASKS_FOR_HOOKS,
    BACKENDS,
    ENTERS_COMPILED,
    SEES_COMPILED,
    eval_frame,
)

if TYPE_CHECKING:
    from ampwatch.training.hooks.bus import Bus


class Entrance:
    """Tells the sensors of a bus, once, that compiled code is about to run.

    Once only: what is compiled while hooks are on modules, and called when they are gone, or the
    other way round, is compiled twice. So they go before it is compiled, and for good.

    Args:
        bus: The bus.
        handles: Gets what takes the taps off.
    """

    def __init__(self, bus: Bus, handles: list[Any]) -> None:
        self._bus = bus
        self._handles = handles
        self._channel = bus.channel(CompiledEntering)
        self._is_listening = False
        if not self.subscribe() and (not SEES_COMPILED or eval_frame() is not None):
            bus.runs_compiled = bus.runs_compiled or may_compile()

    def subscribe(self) -> bool:
        """Listen where compiled code is entered; return whether that can be seen."""
        # Whoever calls torch.compile has imported it; importing it here would take a second.
        frames = eval_frame()
        if not (
            SEES_COMPILED and hasattr(frames, ENTERS_COMPILED) and hasattr(module, ASKS_FOR_HOOKS)
        ):
            return False
        if not self._is_listening:
            self._is_listening = True
            # Not the module's __call__: compiled autograd would compile what replaces that.
            self._handles.append(
                listen_to_function(module, ASKS_FOR_HOOKS, before=self._before_module)
            )
            self._handles.append(
                listen_to_function(frames, ENTERS_COMPILED, before=self._before_code)
            )
        return True

    def compile_called(self, _backend: Any, _args: Any, _kwargs: Any) -> None:
        """Listen from now on, or expect the worst: ``torch.compile`` has made a backend."""
        if not self.subscribe():
            self._enter()

    def _before_module(self, _args: Any, _kwargs: Any) -> None:
        self._enter()

    def _before_code(self, args: tuple[Any, ...], _kwargs: Any) -> None:
        if args and callable(args[0]):
            self._enter()

    def _enter(self) -> None:
        if not self._bus.runs_compiled:
            self._bus.runs_compiled = True
            self._channel.emit(CompiledEntering())


def _backends() -> list[type]:
    # torch.compile itself may have been imported by name; and PyTorch warns whoever has hooks on
    # all modules when something compiled runs.
    return [getattr(torch, name) for name in BACKENDS if hasattr(torch, name)]


def place_compile(bus: Bus, handles: list[Any]) -> None:
    """Hear calls of ``torch.compile``, and compiled code that is about to run."""
    called = bus.channel(CompileCalled)
    entrance = Entrance(bus, handles)

    def before(backend: Any, args: Any, kwargs: Any) -> None:
        bus.compile_called()
        called.emit(CompileCalled())
        entrance.compile_called(backend, args, kwargs)

    handles += [listen(backend, "__init__", before=before) for backend in _backends()]


def place_capture(bus: Bus, handles: list[Any]) -> None:
    """Hear which graphs ``torch.compile`` has made."""
    captured = bus.channel(GraphCaptured)

    def before(_backend: Any, args: Any, _kwargs: Any) -> None:
        if len(args) > 1:  # PyTorch passes both by position
            captured.emit(GraphCaptured(*args[:2]))

    handles += [
        listen(backend, "__call__", before=before, also_in_capture=True) for backend in _backends()
    ]


def place_keep_from_compiler(_bus: Bus, handles: list[Any]) -> None:
    """Keep what ampwatch replaces from being compiled."""
    # Now, if the compiler is there already; else whoever calls torch.compile has just imported it.
    keep_from_compiler()

    def before(_backend: object, _args: Any, _kwargs: Any) -> None:
        keep_from_compiler()

    handles += [listen(backend, "__init__", before=before) for backend in _backends()]


class _ForgetCaptures:
    """Forgets the captures when no monitor listens any more: their ends would go unseen."""

    num_listening: ClassVar[int] = 0

    def __init__(self) -> None:
        _ForgetCaptures.num_listening += 1

    def remove(self) -> None:
        _ForgetCaptures.num_listening -= 1
        if not self.num_listening:
            captures.clear()


def place_graph(_bus: Bus, handles: list[Any]) -> None:
    """Know from its two ends when a device captures a graph."""

    def before(graph: object, _args: Any, _kwargs: Any) -> None:
        capture_began(graph)

    def after(graph: object, _args: Any, _kwargs: Any) -> None:
        capture_ended(graph)

    handles.append(_ForgetCaptures())
    for kind in graph_classes():
        handles.append(
            listen(kind, "capture_begin", before=before, failed=capture_ended, also_in_capture=True)
        )
        handles.append(
            listen(kind, "capture_end", after=after, failed=capture_ended, also_in_capture=True)
        )
