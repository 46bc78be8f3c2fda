"""Places where code becomes a graph: one of ``torch.compile``, or one that a device captures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ampwatch.training.devices import capture_began, capture_ended, captures, graph_classes
from ampwatch.training.hooks.compiling import keep_from_compiler
from ampwatch.training.hooks.entering import Entrance
from ampwatch.training.hooks.events import CompileCalled, GraphCaptured
from ampwatch.training.hooks.taps import listen
from ampwatch.training.private import BACKENDS

if TYPE_CHECKING:
    from ampwatch.training.hooks.bus import Bus


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
        listen(backend, "__call__", before=before, always_heard=True) for backend in _backends()
    ]


def place_keep_from_compiler(_bus: Bus, handles: list[Any]) -> None:
    """Keep what ampwatch replaces from being compiled."""
    # Now, if the compiler is there already; else whoever calls torch.compile has just imported it.
    keep_from_compiler()

    def before(_backend: object, _args: Any, _kwargs: Any) -> None:
        keep_from_compiler()

    handles += [listen(backend, "__init__", before=before) for backend in _backends()]


class _ForgetCaptures:
    """Forgets the captures when no monitor listens any more: their ends would go unheard."""

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
            listen(kind, "capture_begin", before=before, failed=capture_ended, always_heard=True)
        )
        handles.append(
            listen(kind, "capture_end", after=after, failed=capture_ended, always_heard=True)
        )
