"""Taps on methods of a class, for chosen instances, and on functions of a module.

A tap replaces a method on the class that defines it, once, however many
listeners there are; the last listener to leave puts the original back. Nothing
is stored on an instance, so a copied, pickled or saved instance is exactly what
it would be without ampwatch, and the copy is not listened to. A function is
replaced under its name in its module: whoever has imported it by name goes by
unseen, unless it is one that another function looks up when it is called.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

from ampwatch.guard import leave_out_own_frames
from ampwatch.training.hooks.compiling import (
    as_stand_in,
    forget_stand_in,
    is_traced_here,
    never_compiled,
)
from ampwatch.training.hooks.tapped_call import TappedCall
from ampwatch.training.private import builtin_table, find_builtin, register_builtin

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from ampwatch.training.hooks.channel import Channel
    from ampwatch.training.hooks.tapped_call import Plan


_lock = threading.RLock()
"""Reentrant: whatever Python frees while it is held may close a monitor."""

_taps: dict[tuple[type | ModuleType, str], _Tap] = {}


class Listener:
    """One set of advices on one method, for one instance or for all, or on one function.

    Attributes:
        instance: The instance listened to, or ``None`` for every instance. Held, so
            that its ``id`` is not given to another object meanwhile.
        before: Called before the method, or ``None``.
        after: Called after the method returned, or ``None``; not called if it raised.
        returned: Called with what the method returned, or ``None``; not called if it raised.
        failed: Called with the instance if the method raised, without anything if the function did;
            or ``None``.
        around: Asked, while nobody else listens, to make the call in its own way, or ``None``: to note
            when it begins and ends takes a third of the time there. There is one in C only.
        channel: Where all of it goes: while that has no subscribers, neither ``before`` nor ``after`` nor
            ``returned`` is called; ``failed`` and ``around`` are. Or ``None``.
    """

    __slots__ = ("_tap", "after", "around", "before", "channel", "failed", "instance", "returned")

    def __init__(
        self,
        tap: _Tap,
        instance: object | None,
        before: Callable[..., None] | None,
        after: Callable[..., None] | None,
        returned: Callable[..., None] | None = None,
        failed: Callable[..., None] | None = None,
        around: Callable[..., Any] | None = None,
        channel: Channel | None = None,
    ) -> None:
        self._tap = tap
        self.channel = channel
        self.around = around
        self.instance = instance
        self.before = before
        self.after = after
        self.returned = returned
        self.failed = failed

    def remove(self) -> None:
        """Stop listening; the last listener of a method restores it. Idempotent."""
        with _lock:
            self._tap.drop(self)


def _planned(listeners: tuple[Listener, ...]) -> Plan:
    return (
        tuple((x.before, x.channel, x.instance) for x in listeners if x.before is not None),
        tuple(
            (x.after, x.returned, x.channel, x.instance)
            for x in listeners
            if x.after is not None or x.returned is not None
        ),
        tuple((x.failed, None, x.instance) for x in listeners if x.failed is not None),
    )


class _Tap:
    """One replaced method."""

    __slots__ = ("_call", "_is_inherited", "_listeners", "_name", "_original", "_owner", "_wrapper")

    def __init__(
        self, owner: type | ModuleType, name: str, *, also_in_capture: bool = False
    ) -> None:
        self._owner = owner
        self._name = name
        # From __dict__ and not by getattr: a staticmethod would come unwrapped, and the last listener
        # has to put back the very object that was there.
        self._is_inherited = name not in owner.__dict__
        self._original = _inherited(owner, name) if self._is_inherited else owner.__dict__[name]
        self._call = TappedCall()
        self._call.also_in_capture = also_in_capture
        self._set(())
        self._wrapper = self._wrap()

    def put_on(self) -> None:
        """Replace the method. Idempotent."""
        setattr(self._owner, self._name, self._wrapper)

    def _wrap(self) -> Callable[..., Any]:
        # Locals of the closure cost one load less in each call than attributes.
        original, call = self._original, self._call.call
        also_in_capture = self._call.also_in_capture

        @functools.wraps(original)
        def wrapper(instance: Any, /, *args: Any, **kwargs: Any) -> Any:
            # A call that is being compiled must not get our code into its graph.
            if not also_in_capture and is_traced_here():
                return original(instance, *args, **kwargs)
            try:
                return call(original, instance, args, kwargs)
            except BaseException as error:
                leave_out_own_frames(error)
                raise

        return as_stand_in(wrapper, original)

    @property
    def is_in_place(self) -> bool:
        """Whether calls still come through here; others may have wrapped the wrapper."""
        method = self._owner.__dict__.get(self._name)
        # A wrapper made without functools.wraps hides ours. Then a new tap goes on top of it, and
        # the listeners of this one still receive through it.
        while method is not None and method is not self._wrapper:
            method = getattr(method, "__wrapped__", None)
        return method is not None

    def _set(self, listeners: tuple[Listener, ...]) -> None:
        # Replaced as a whole, never changed in place: a call in another thread goes through what it has read.
        self._listeners = listeners
        self._call.plan = _planned(listeners)
        self._call.around = listeners[0].around if len(listeners) == 1 else None

    def add(self, listener: Listener) -> None:
        self._set((*self._listeners, listener))

    def drop(self, listener: Listener) -> None:
        self._set(tuple(x for x in self._listeners if x is not listener))
        # Somebody may have wrapped the method after us; then taking ours out would
        # take theirs out too. Without listeners ours only passes calls on.
        if not self._listeners and self._owner.__dict__.get(self._name) is self._wrapper:
            if self._is_inherited:
                delattr(self._owner, self._name)
            else:
                setattr(self._owner, self._name, self._original)
            _taps.pop((self._owner, self._name), None)
            forget_stand_in(self._wrapper)


def _inherited(owner: type | ModuleType, name: str) -> Callable[..., Any]:
    """Return what calls the method that a class inherits, whichever that is at the time."""

    # Looked up at each call: torch.fx replaces __call__ of nn.Module while it traces.
    @never_compiled
    @functools.wraps(getattr(owner, name))
    def inherited(instance: Any, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(owner, instance), name)(*args, **kwargs)

    return inherited


class _FunctionTap(_Tap):
    """One replaced function of a module.

    ``torch.jit.script`` finds the operator of a function by ``id`` in the table of
    ``torch/jit/_builtins.py``. The wrapper is entered there beside the original; without that
    ``torch.jit.script`` would try to compile the wrapper, and fail.
    """

    __slots__ = ()

    def _wrap(self) -> Callable[..., Any]:
        original, call = self._original, self._call.call
        # Before the wrapper is in place: the table lists what is in PyTorch's modules when it is asked
        # for the first time, and would list the wrapper in place of the original for good.
        builtin = find_builtin(original)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if is_traced_here():  # as above
                return original(*args, **kwargs)
            try:
                return call(original, args, kwargs)
            except BaseException as error:
                leave_out_own_frames(error)
                raise

        as_stand_in(wrapper, original)
        if builtin is not None:
            register_builtin(wrapper, builtin)
        return wrapper

    def drop(self, listener: Listener) -> None:
        super().drop(listener)
        # The table has no weak keys: the id of a wrapper that is gone may become another function's.
        if self._owner.__dict__.get(self._name) is self._original:
            builtin_table().pop(id(self._wrapper), None)


def listen(  # noqa: PLR0913 - all but two by keyword
    owner: type,
    name: str,
    *,
    instance: object | None = None,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
    returned: Callable[..., None] | None = None,
    failed: Callable[..., None] | None = None,
    around: Callable[..., Any] | None = None,
    channel: Channel | None = None,
    also_in_capture: bool = False,
    at: type | None = None,
) -> Listener:
    """Call ``before`` and ``after`` around a method until the listener is removed.

    Args:
        owner: The class whose method it is; the class in its MRO that defines the
            method is the one that is tapped.
        name: Name of the method.
        instance: Listen to this instance only; ``None`` listens to all of them.
        before: Called with ``(instance, args, kwargs)`` before the method. Must not raise.
        after: Called with ``(instance, args, kwargs)`` after the method has returned. Must not raise.
        returned: Called with ``(instance, result, args, kwargs)`` after that. Must not raise.
        failed: Called with the instance if the method has raised instead. Must not raise.
        around: Called with ``(original, instance, args, kwargs)`` in place of all these while no other
            listener is there. Returns what it has called the original for, or ``NOT_TAKEN``; then it has
            done nothing. Must not raise of itself. It is not kept from compilers as the others are.
        channel: While it has no subscribers, neither ``before`` nor ``after`` nor ``returned`` is called.
        also_in_capture: Also while a compiler or a capture writes down what the method does.
        at: The class to tap instead, also where it inherits the method: what other classes
            inherit is left alone.

    Returns:
        The handle that ends it: ``listener.remove()``.

    Raises:
        AttributeError: If no class in the MRO of ``owner`` defines the method.

    Cost:
        About 0.3 us a call of the method, on the caller's thread.
    """
    definer = next((c for c in owner.__mro__ if name in c.__dict__), None)
    if definer is None:
        msg = f"expected a method of {owner.__name__}, got {name!r}"
        raise AttributeError(msg)
    definer = at or definer
    with _lock:
        tap = _taps.get((definer, name))
        if tap is None or not tap.is_in_place:
            tap = _taps[definer, name] = _Tap(definer, name, also_in_capture=also_in_capture)
            tap.put_on()
        listener = Listener(tap, instance, before, after, returned, failed, around, channel)
        tap.add(listener)
    return listener


def listen_to_function(
    module: ModuleType,
    name: str,
    *,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
    returned: Callable[..., None] | None = None,
    failed: Callable[[], None] | None = None,
    around: Callable[..., Any] | None = None,
) -> Listener:
    """Call ``before`` and ``after`` around a function until the listener is removed.

    Args:
        module: The module in which it is looked up.
        name: Its name there.
        before: Called with ``(args, kwargs)`` before the function. Must not raise.
        after: Called with ``(args, kwargs)`` after the function has returned. Must not raise.
        returned: Called with ``(result, args, kwargs)`` after the function has returned. Must not raise.
        failed: Called, without anything, if it has raised instead. Must not raise.
        around: As of ``listen``, with ``(original, args, kwargs)``.

    Returns:
        The handle that ends it: ``listener.remove()``.

    Raises:
        AttributeError: If the module does not have the name.

    Cost:
        About 0.3 us a call of the function, on the caller's thread.
    """
    if name not in vars(module):
        msg = f"expected a function of {module.__name__}, got {name!r}"
        raise AttributeError(msg)
    with _lock:
        tap = _taps.get((module, name))
        if tap is None or not tap.is_in_place:
            tap = _taps[module, name] = _FunctionTap(module, name)
            tap.put_on()
        listener = Listener(tap, None, before, after, returned, failed, around)
        tap.add(listener)
    return listener
