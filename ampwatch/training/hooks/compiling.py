"""Questions about ``torch.compile``: whether it is at work in this process, or in this thread."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from ampwatch.training.devices import captures, is_ignored
from ampwatch.training.hooks.sources import frames
from ampwatch.training.native import core
from ampwatch.training.private import (
    CACHED_BACKENDS,
    IS_COMPILING,
    NOT_TRACED,
    SEES_COMPILED,
    SKIP_CODE,
    STANCE,
    TRACED_AS,
    eval_frame,
    set_eval_frame,
    tracing_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_F = TypeVar("_F", bound="Callable[..., Any]")

SETTLED = 2
"""Iterations after which whatever is compiled and used has been called, and so traced.

A function that is compiled may call the model. If it was traced while a class was replaced it is traced
once more when that ends; if it was traced before, it passes the replacement by."""


def has_compiled() -> bool:
    """Whether ``torch.compile`` has compiled anything in this process."""
    # Importing it only to ask takes a second; whoever compiles has imported it.
    dynamo = sys.modules.get("torch._dynamo.utils")
    return bool(dynamo is not None and dynamo.counters["frames"])


def may_compile() -> bool:
    """Whether ``torch.compile`` was called in this process, even if nothing has run yet.

    PyTorch keeps each backend that ``torch.compile`` was called with.
    """
    frames = eval_frame()
    if frames is None:
        return False
    backends = getattr(frames, CACHED_BACKENDS, None)
    if backends is None:
        return True  # a version that keeps them elsewhere: better no census than no compiled code
    # A copy, for another thread may be compiling. torch._dynamo.reset() clears the dictionary, and
    # what was compiled before that shows in the counters only.
    return any(callable(backend) for backend in list(backends.values())) or has_compiled()


def _leave_compiler(_compiler: Any) -> None:
    """Stand for ``set_compiler`` where to change it in compiled code crashes: seen with torch 2.6."""


set_compiler: Callable[[Any], Any] = set_eval_frame if SEES_COMPILED else _leave_compiler
"""Sets what compiles the Python functions that the calling thread calls from now on, and returns what
did; ``None`` compiles none.

Where compiled code has a graph break, whatever is called in between is compiled, be it called by
PyTorch: without this, so is what ampwatch does at an op."""


is_traced_here: Callable[[], bool] = (
    torch.compiler.is_dynamo_compiling
    if hasattr(torch.compiler, IS_COMPILING)
    else torch.compiler.is_compiling
)
"""Whether the compiler traces the function that asks: it takes the answer for a constant, ``True``, and does not
even trace what comes after it. Where a function runs the answer is ``False``, also while code is exported without
being traced; then ``is_exporting`` says so, which is a tenth of the cost in C. A PyTorch without the flag that
it reads is asked for both at once."""


def is_exporting() -> bool:
    """Whether a compiler is at work in this process, in code that is not traced but run."""
    return bool(getattr(torch.compiler, IS_COMPILING, False))


_never_compiled: dict[int, Any] = {}
"""Code objects by identity: they compare by value."""

_stand_ins: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""Functions that stand before others, and these: those of which the compiler was not asked yet."""


def never_compiled(function: _F) -> _F:
    """Have the frame of a function never be compiled, although its code may become part of a graph.

    What it calls may be compiled: see ``set_compiler``.
    """
    code = function.__code__
    if id(code) not in _never_compiled:
        _never_compiled[id(code)] = code
        _skip(code)
    return function


def uncompiled(hook: _F) -> _F:
    """Have a hook of PyTorch's that returns nothing be run as it is, with all that it calls.

    Where a compiler traces the hook, nothing is done: our code must not get into a graph.
    """
    call = call_uncompiled if core is None else core.call_uncompiled

    @never_compiled
    @functools.wraps(hook)
    def called(*args: Any) -> None:
        if not is_traced_here():
            call(hook, args)

    return cast("_F", called)


def call_uncompiled(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call a function with nothing that it calls being compiled, unless a compiler is at work.

    As that of `native/taps.c`, for where that is not built.
    """
    if is_exporting():
        return None
    compiler = set_compiler(None)
    try:
        return function(*args)
    finally:
        set_compiler(compiler)


def as_stand_in(stand_in: _F, original: Callable[..., Any]) -> _F:
    """Have a graph break at a function where it would break at the one that it calls, and once only.

    Most of what ampwatch replaces is called by compiled code between two graphs, and not traced. A
    function of ours in its place would be traced, only to break a graph in it, and another one where
    what is left of it runs.
    """
    if not _take_after(stand_in, original):
        _stand_ins[stand_in] = original
    return never_compiled(stand_in)


def forget_stand_in(stand_in: Any) -> None:
    """Forget a function that is in place of no other one any more. Idempotent."""
    # Not left to the weak reference: Python swallows an interrupt that comes in its callback.
    _stand_ins.pop(stand_in, None)


def keep_from_compiler() -> None:
    """Tell the compiler which functions it is to run as they are. To be called once it is there."""
    for code in list(_never_compiled.values()):
        _skip(code)
    for stand_in, original in list(_stand_ins.items()):
        if _take_after(stand_in, original):
            forget_stand_in(stand_in)


def _skip(code: Any) -> None:
    skip = getattr(eval_frame(), SKIP_CODE, None)
    if skip is not None:
        skip(code)


def _take_after(stand_in: Any, original: Callable[..., Any]) -> bool:
    """Have a function not be traced where the compiler breaks its graph at another.

    Returns:
        Whether the compiler is there and was asked.
    """
    ask = getattr(sys.modules.get("torch._dynamo.trace_rules"), TRACED_AS, None)
    if ask is None:
        return False
    # One that is not written in Python, or is asked for otherwise.
    with contextlib.suppress(AttributeError, TypeError, AssertionError):
        if ask(original, is_inlined_call=True):
            # What torch.compiler.disable sets, which needs the compiler, and compiles nothing that is called inside.
            setattr(stand_in, NOT_TRACED, True)
    return True


def is_in_compiled() -> bool:
    """Whether compiled code has been entered in the calling thread, and not been left.

    Cost: 0.1 us a frame.
    """
    compiler = eval_frame()
    return compiler is not None and any(
        code.co_filename == compiler.__file__
        and (code.co_name == "compile_wrapper" or "saved_include_set" in code.co_varnames)
        for code in (frame.f_code for frame in frames())
    )


def is_traced() -> bool:
    """Whether what this thread does is written down, and not done.

    By a compiler, by ``torch.jit.trace``, or by the capture of a graph.
    """
    return (
        torch.compiler.is_compiling()
        or tracing_state() is not None
        or (bool(captures) and is_ignored())
    )


class ForcedEager:
    """Has whatever was compiled run eagerly, from now on until ``end``."""

    def __init__(self) -> None:
        # set_stance acts at construction already (torch/_dynamo/decorators.py), and its __exit__ sets
        # the stance of before. There is one stance per process, not one per thread.
        self._stance = torch.compiler.set_stance("force_eager")
        self._set = _stance()

    def end(self) -> None:
        """Have it run compiled again, unless the user has set another stance meanwhile.

        Nothing has to be compiled anew.
        """
        # By identity: a stance that the user has set meanwhile may be equal, and is not ours to end.
        if _stance() is self._set:
            self._stance.__exit__(None, None, None)


def _stance() -> object:
    return getattr(eval_frame(), STANCE, None)
