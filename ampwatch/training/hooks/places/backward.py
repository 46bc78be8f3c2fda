"""The places at which gradients are computed."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.training.hooks.events import BackwardBegan, BackwardEnded, GradientsTaken
from ampwatch.training.hooks.taps import listen_to_function
from ampwatch.training.native import timed
from ampwatch.training.private import RUNS_BACKWARD, graph_task, tracing_state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.guard import Guard
    from ampwatch.training.hooks.bus import Bus

CREATES_GRAPH = 3
"""Place of ``create_graph`` among the arguments of what runs backward."""


def _timed(bus: Bus) -> Callable[..., Any] | None:
    """Return what makes a call of which only the moments are wanted, in C; ``None`` where that is not built."""
    if timed is None:
        return None
    given = bus, bus.ownership, bus.channel(BackwardBegan), BackwardBegan, BackwardEnded
    call: Callable[..., Any] = timed.TimedBackward(given).call
    return call


def place_backward(bus: Bus, handles: list[Any]) -> None:
    """Hear every outermost backward begin and end."""
    # Every Tensor.backward goes through torch.autograd.backward. One within another one is part
    # of that: activation checkpointing computes its piece of the forward pass again there.
    channel = bus.channel(BackwardBegan)
    # By thread what is to be called at the end of the backward that is running; of another training's
    # nothing is emitted.
    running: dict[int, Sequence[tuple[Guard, Callable[[], object]]] | None] = {}

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if graph_task() != -1 or tracing_state() is not None:
            return
        me = get_ident()
        running.pop(me, None)
        is_alone = not running
        running[me] = None
        roots = listed(args[0] if args else kwargs.get("tensors"))
        if bus.is_graph_of_another(roots):
            return
        bus.note(BackwardBegan)
        given = listed(args[1] if len(args) > 1 else kwargs.get("grad_tensors"))
        running[me] = channel.emit(BackwardBegan(roots, given, is_alone))

    def after(_args: Any, _kwargs: Any) -> None:
        if graph_task() != -1:
            return
        me = get_ident()
        ends = running.pop(me, None)
        if ends is not None:
            bus.note(BackwardEnded)
            for guard, end in ends:
                guard.run(end)

    def failed() -> None:
        if graph_task() == -1:
            running.pop(get_ident(), None)

    handles.append(
        listen_to_function(
            torch.autograd,
            "backward",
            before=before,
            after=after,
            failed=failed,
            around=_timed(bus),
        )
    )


def place_gradients(bus: Bus, handles: list[Any]) -> None:
    """Hear which gradients ``torch.autograd.grad`` has made a graph of.

    Many programs have imported ``grad`` by name: it calls what runs backward by a name of its module.
    """
    if not hasattr(torch.autograd, RUNS_BACKWARD):
        return
    channel = bus.channel(GradientsTaken)

    def returned(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # As PyTorch calls it: (outputs, gradients of outputs, retain_graph, create_graph, ...).
        if len(args) > CREATES_GRAPH and args[CREATES_GRAPH] and not kwargs.get("accumulate_grad"):
            channel.emit(GradientsTaken(*map(listed, (*args[:2], result))))

    handles.append(listen_to_function(torch.autograd, RUNS_BACKWARD, returned=returned))


def listed(given: object) -> tuple[Any, ...]:
    """Return the tensors that are given, be it one alone, several or none."""
    if given is None:
        return ()
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)
