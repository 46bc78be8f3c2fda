"""Calls of ``backward``: what all that listen to them share."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.training.hooks.compiling import is_traced
from ampwatch.training.hooks.taps import Listener, listen_to_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.guard import Guard

    Ended = Callable[[], None]


class BackwardCall(NamedTuple):
    """What a user has handed to ``Tensor.backward`` or ``torch.autograd.backward``.

    Attributes:
        tensors: Where it begins.
        gradients: The gradients given by hand, empty without any.
        is_alone: Whether no other thread is in one; otherwise that may be another training's.
    """

    tensors: tuple[Any, ...]
    gradients: tuple[Any, ...]
    is_alone: bool = True


class _Hearer(NamedTuple):
    """One who listens.

    Attributes:
        guard: The fail-open boundary.
        wants: Whether to call ``began`` at all; a question that cannot fail.
        began: Called with what backward is handed; returns what to do once it has returned.
    """

    guard: Guard
    wants: Callable[[], bool]
    began: Callable[[BackwardCall], Ended | None]


class BackwardTap:
    """Hears every backward that a user calls, and tells those who want to know.

    Every ``Tensor.backward`` goes through ``torch.autograd.backward``. One within another one is
    part of that: activation checkpointing computes its piece of the forward pass again there.

    What a listener needs at the end it returns at the beginning, and it is dropped with the call
    also where backward raises: nothing of a graph outlives its backward here.

    Cost: about 2 us a call, and what those do who want to know.
    """

    def __init__(self) -> None:
        # Replaced as a whole: a call in another thread iterates over what it has read.
        self._hearers: tuple[_Hearer, ...] = ()
        self._open: dict[int, list[tuple[Guard, Ended]]] = {}
        self._listener: Listener | None = None

    def listen(
        self,
        guard: Guard,
        began: Callable[[BackwardCall], Ended | None],
        wants: Callable[[], bool] = lambda: True,
    ) -> Handle:
        """Have ``began`` called before every backward, and what it returns after it.

        Args:
            guard: The fail-open boundary.
            began: Called with what is handed to it. What it returns is called once backward has
                returned; not where it has raised.
            wants: Asked before, outside of the guard; must not raise.

        Returns:
            What ends it: ``handle.remove()``.
        """
        hearer = _Hearer(guard, wants, began)
        if self._listener is None:
            self._listener = listen_to_function(
                torch.autograd,
                "backward",
                before=self._on_call,
                after=self._on_return,
                failed=self._on_failure,
            )
        self._hearers = (*self._hearers, hearer)
        return Handle(self, hearer)

    def drop(self, hearer: _Hearer) -> None:
        """Tell one of them no more; without any the function is the original again."""
        self._hearers = tuple(h for h in self._hearers if h is not hearer)
        if not self._hearers and self._listener is not None:
            self._listener.remove()
            self._listener = None
            self._open.clear()

    def _on_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not _is_outermost():
            return
        me = get_ident()
        self._open.pop(me, None)
        is_alone = not self._open
        ended = self._open[me] = []
        for guard, wants, began in self._hearers:
            if wants():
                then = guard.run(_tell, began, args, kwargs, is_alone)
                if then is not None:
                    ended.append((guard, then))

    def _on_return(self, _args: Any, _kwargs: Any) -> None:
        if _is_outermost():
            for guard, then in self._open.pop(get_ident(), ()):
                guard.run(then)

    def _on_failure(self) -> None:
        if _is_outermost():
            self._open.pop(get_ident(), None)


class Handle:
    """Ends listening."""

    __slots__ = ("_hearer", "_tap")

    def __init__(self, tap: BackwardTap, hearer: _Hearer) -> None:
        self._tap = tap
        self._hearer = hearer

    def remove(self) -> None:
        """Stop listening. Idempotent."""
        self._tap.drop(self._hearer)


def _tell(
    began: Callable[[BackwardCall], Ended | None],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    is_alone: bool,  # noqa: FBT001 - Guard.run hands on positional arguments
) -> Ended | None:
    tensors = args[0] if args else kwargs.get("tensors")
    gradients = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
    return began(BackwardCall(_listed(tensors), _listed(gradients), is_alone))


def _is_outermost() -> bool:
    return torch._C._current_graph_task_id() == -1 and not is_traced()  # noqa: SLF001 - no public name for it


def _listed(given: object) -> tuple[Any, ...]:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)
