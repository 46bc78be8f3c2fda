"""Calls of ``backward``: what all that listen to them share."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.sensors.compiling import is_traced
from ampwatch.sensors.taps import Listener, listen_to_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.sensors.guard import Guard


class BackwardCall(NamedTuple):
    """What a user has handed to ``Tensor.backward`` or ``torch.autograd.backward``.

    Attributes:
        tensors: Where it begins.
        gradients: The gradients given by hand, empty without any.
    """

    tensors: tuple[Any, ...]
    gradients: tuple[Any, ...]


def listen_to_backward(
    guard: Guard, before: Callable[[BackwardCall], None], after: Callable[[], None]
) -> Listener:
    """Have ``before`` and ``after`` called around every backward that a user calls.

    Every ``Tensor.backward`` goes through ``torch.autograd.backward``. One within another one is
    part of that: activation checkpointing computes its piece of the forward pass again there. One
    of another thread at the same time goes by unheard: it is another training's.

    Args:
        guard: The fail-open boundary.
        before: Called with what is handed to it.
        after: Called once it has returned.
    """
    busy: list[int] = []

    def on_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        me = get_ident()
        # Where one has raised, it has not returned: the thread begins another.
        if busy in ([], [me]) and _is_outermost():
            busy[:] = [me]
            guard.run(_unpack, before, args, kwargs)

    def on_return(_args: Any, _kwargs: Any) -> None:
        if busy == [get_ident()] and _is_outermost():
            busy.clear()
            guard.run(after)

    return listen_to_function(torch.autograd, "backward", before=on_call, after=on_return)


def _unpack(
    before: Callable[[BackwardCall], None], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    tensors = args[0] if args else kwargs.get("tensors")
    gradients = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
    before(BackwardCall(_listed(tensors), _listed(gradients)))


def _is_outermost() -> bool:
    return torch._C._current_graph_task_id() == -1 and not is_traced()  # noqa: SLF001 - no public name for it


def _listed(given: object) -> tuple[Any, ...]:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)
