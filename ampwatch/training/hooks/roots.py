"""Calls of the watched models themselves: what each of them is called with.

A hook on every module costs more than a quiet step may, and a hook on an instance travels with its
copies. So ``__call__`` is replaced on the class of a watched model while somebody wants to know.
What ``torch.compile`` traces must not come through there, so a model that is compiled is seen where
its compiled code is called from, and a class is left alone until what was compiled has been traced.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from inspect import getattr_static
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ampwatch.guard import is_of_a_signal
from ampwatch.training.hooks.compiling import is_traced, may_compile
from ampwatch.training.hooks.events import RootCalled, RootReturned
from ampwatch.training.hooks.taps import listen
from ampwatch.training.native import timed
from ampwatch.training.private import (
    GUARDS_CLASSES,
    OPTIMIZED_MODULE,
    ORIGINAL_MODULE,
    eval_frame,
    tracing_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ampwatch.training.hooks.bus import Bus

COMPILED_CALL = "_compiled_call_impl"
"""Attribute in which ``Module.compile()`` keeps what it has compiled. It is not copied or pickled."""

MAX_PARTS = 8
"""Parts of a model without a forward of its own that are seen instead of it."""


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module that wrappers call: ``DistributedDataParallel``, ``torch.compile(module)``."""
    inner: Any = model
    while True:
        if isinstance(inner, nn.parallel.DistributedDataParallel):
            inner = inner.module
        elif isinstance(inner, _optimized_module()):
            inner = getattr(inner, ORIGINAL_MODULE)
        else:
            module: nn.Module = inner
            return module


def _optimized_module() -> Any:
    """Return the class of what ``torch.compile(module)`` returns; no class before it is loaded."""
    # Importing it only to ask takes a second; whoever compiles has imported it.
    return getattr(eval_frame(), OPTIMIZED_MODULE, ())


def called_in(model: nn.Module) -> list[nn.Module]:
    """Return the modules that a training calls: the model, or its parts where it cannot be called.

    A ``ModuleDict`` of two towers, or a module that only holds others, has no forward of its own. With
    more than ``MAX_PARTS`` parts none is seen: each call of each would cost, and keep its inputs.
    """
    inner = unwrapped(model)
    if isinstance(inner, torch.jit.ScriptModule):
        return []  # its forward is no Python, and cannot be made again op by op in its modules
    owner = next(kind for kind in type(inner).__mro__ if "forward" in vars(kind))
    if owner is not nn.Module or "forward" in inner.__dict__:
        return [inner]
    parts = [part for child in inner.children() for part in called_in(child)]
    return parts if len(parts) <= MAX_PARTS else []


class RootCalls:
    """Emits ``RootCalled`` and ``RootReturned`` for calls of the watched models, until it is removed.

    Args:
        bus: Gets the events.
        models: The watched models.
        settled: Whether what is compiled has been traced.

    Cost: 0.5 us a call of a module whose class is that of a watched model.
    """

    def __init__(self, bus: Bus, models: Iterable[nn.Module], *, settled: bool) -> None:
        self._bus = bus
        self._called, self._returned = bus.channel(RootCalled), bus.channel(RootReturned)
        self._handles: list[Any] = []
        roots = [root for model in models for root in called_in(model)]
        self._roots = {id(root): weakref.ref(root) for root in roots}
        for root in roots:
            if root.__dict__.get(COMPILED_CALL) is not None:
                self._handles.append(_CompiledCall(self, root))
            elif not may_compile() or (settled and not _is_compiled_again(root)):
                self._tap(type(root))
        wrapper = _optimized_module()
        if wrapper:
            # In torch 2.6 it inherits the method, and so do all other modules.
            self._handles.append(
                listen(wrapper, "__call__", before=self._before, returned=self._after, at=wrapper)
            )

    def _tap(self, kind: type) -> None:
        """Replace ``__call__`` of a class, if it is a plain function and classes may be changed."""
        if not isinstance(getattr_static(kind, "__call__"), FunctionType):
            return
        with suppress(TypeError, AttributeError):  # a metaclass of the user's may forbid it
            self._handles.append(
                listen(
                    kind,
                    "__call__",
                    before=self._before,
                    returned=self._after,
                    around=self._timed_call(kind),
                    at=kind,
                )
            )

    def remove(self) -> None:
        """Put everything back. Idempotent."""
        while self._handles:
            self._handles.pop().remove()
        self._roots.clear()

    def _root(self, called: Any) -> nn.Module | None:
        """Return the watched model that is called, by itself or through what wraps it."""
        if tracing_state() is not None:  # of other ways to write down what is done the caller knows
            return None
        # As a rule it is called by itself.
        known = self._roots.get(id(called))
        if known is not None and known() is called:
            return known()
        module: nn.Module = unwrapped(called)
        known = self._roots.get(id(module))
        return module if known is not None and known() is module else None

    def _before(self, called: Any, args: Any, kwargs: Any) -> None:
        root = self._root(called)
        if root is None:
            return
        self._note(root, args, kwargs)
        if self._called.subscribers:
            self._called.emit(RootCalled(root, args, kwargs))

    def _note(self, root: nn.Module, args: Any, kwargs: Any) -> None:
        """Have the call noted, without the bookkeeping of a guard: it takes longer than what is done."""
        try:
            self._bus.note_call(root, args, kwargs)
        except Exception as error:
            if not self._switch_off(error):
                raise

    def _switch_off(self, error: Exception) -> bool:
        """Switch off what notes calls, unless an error is the program's. Return whether that was done."""
        timing = self._bus.timing
        if timing is None or is_of_a_signal(error):
            return False
        timing.switch_off(error)
        return True

    def _timed_call(self, kind: Any) -> Callable[..., Any] | None:
        """Return what makes the call of a root, in C; ``None`` where that is not built."""
        if timed is None:
            return None
        inherits = None if "__call__" in vars(kind) else kind
        events = self._called, self._returned, RootCalled, RootReturned
        given = self._bus, *events, self._roots, inherits, self._switch_off
        call: Callable[..., Any] = timed.TimedRoot(given).call
        return call

    def _after(self, called: Any, output: Any, _args: Any, _kwargs: Any) -> None:
        if not self._returned.subscribers:
            return
        root = self._root(called)
        if root is not None:
            self._returned.emit(RootReturned(root, output))


def _is_compiled_again(root: nn.Module) -> bool:
    """Whether what is compiled may have to be once more when the class of the model is replaced.

    A part of the model may be called through the same class.
    """
    return GUARDS_CLASSES or any(type(part) is type(root) for part in list(root.modules())[1:])


class _CompiledCall:
    """Stands before what ``root.compile()`` has compiled."""

    def __init__(self, calls: RootCalls, root: nn.Module) -> None:
        self._root = weakref.ref(root)
        self._compiled = compiled = root.__dict__[COMPILED_CALL]
        reference = self._root

        def notifying(*args: Any, **kwargs: Any) -> Any:
            module = reference()
            if module is None or is_traced():
                return compiled(*args, **kwargs)
            calls._before(module, args, kwargs)  # noqa: SLF001 - of this module
            output = compiled(*args, **kwargs)
            calls._after(module, output, args, kwargs)  # noqa: SLF001
            return output

        self._notifying = root.__dict__[COMPILED_CALL] = notifying

    def remove(self) -> None:
        """Put back what was compiled, unless somebody has replaced it since."""
        root = self._root()
        if root is not None and root.__dict__.get(COMPILED_CALL) is self._notifying:
            root.__dict__[COMPILED_CALL] = self._compiled
