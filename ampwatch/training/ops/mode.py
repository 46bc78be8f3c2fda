"""The dispatch mode through which every op of an iteration can be seen, one by one."""

from __future__ import annotations

import sys
import threading
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.guard import Account, Modes, is_of_a_signal, leave_out_own_frames, unbroken
from ampwatch.training.hooks.compiling import is_in_compiled, never_compiled, set_compiler
from ampwatch.training.hooks.fork import process
from ampwatch.training.hooks.place import before_any_forward
from ampwatch.training.kernels.admission import has_parts, is_bare, is_fake_class
from ampwatch.training.ops.call import tensors_among
from ampwatch.training.ops.info import keys_passed
from ampwatch.training.private import (
    MODE_KEY,
    DispatchKeySet,
    ForcedKeys,
    StateOfCaller,
    TorchDispatchMode,
    dispatch_modes,
    excluded_keys,
    graph_task,
    included_keys,
    num_dispatch_modes,
    num_function_modes,
    pop_mode,
    push_mode,
    schema_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ampwatch.training.hooks.place import Handle

    Note = Callable[[Any, Sequence[Any], dict[str, Any], Any], None]


TRANSFORMS = "torch._functorch."
"""How the names of the modules begin that transform functions; each has its frame while one runs."""

REFUSES_NUMBER = "Expected a value of type 'Tensor'"
"""Part of what an op raises, before it does anything, that is given a number for a tensor.

A mode gets the constants of code that ``torch.jit.trace`` has made as numbers, and not every op takes
those back: ``equal`` and ``item``, which TorchScript calls while it optimizes, do not."""


class OpMode(TorchDispatchMode):  # type: ignore[no-untyped-call] # PyTorch's is not typed
    """Reports every op of the threads that it is on, and changes nothing.

    It is put on and taken off below the modes of the user, not as a context manager: these may
    be entered and left before, between and after the two.

    An op of a tensor subclass that says which tensors it is made of (``has_parts``: ``DTensor``, tensors
    in FP8) is left to that class, and the ops on those are reported. An op of another one, and what
    runs below a mode of PyTorch's own that traces (fake tensors, proxies), is let through and not
    reported, nor are the ops that it is made of: tensors there may hold nothing.

    What enters compiled code restores the dispatcher's state when it leaves it, this mode's share
    included. So inside the mode is neither put on nor taken off, and has to be taken off later.
    A transform of ``torch.func`` does so with each op: there it is not taken off within an op.

    Autograd gives every node the modes that its thread had when backward was called, and after
    an op its mode is put back. What is taken off inside of these comes again, so
    ``threads`` keeps the identity of that thread, and ``take_off`` has to be called there once
    more.

    Args:
        note: Called with ``(func, args, kwargs, out)`` after each op. Must not raise.
        ignored: Ops that it is not called for.
        is_altered: Called with each op that comes for the first time and its arguments, before it
            runs: whether PyTorch computes it, or its backward, otherwise while a mode is on. If it
            does, the mode is silent from then on and leaves. ``None`` says that this call is not,
            and that others may be. Must not raise.
        closed: Where the names of the tensor subclasses go whose ops are let through unseen.

    Attributes:
        threads: Identities of the threads that it was put on in and not yet taken off.
        closed: The names there so far.

    Cost: 2 to 3 us an op in a loop, 10 to 30 between the kernels of a training, besides what
    ``note`` takes; nothing while it is off.
    """

    # Else a higher-order op (flex_attention, checkpointing in a graph) raises below any mode
    # (torch/_ops.py, HigherOrderOperator.dispatch).
    supports_higher_order_operators = True

    def __init__(
        self,
        note: Note,
        ignored: Iterable[Any] = (),
        is_altered: Callable[[Any, Sequence[Any]], bool | None] = lambda _func, _args: False,
        closed: set[str] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note: Note | None = note
        self._ignored = set(ignored)
        self._is_altered = is_altered
        self._keys: dict[Any, tuple[Any, ...]] = {}
        self._inside: set[int] = set()
        self._farewell: Handle | None = None
        self._may_hook = True
        self._pid = process()
        self.threads: set[int] = set()
        self.closed: set[str] = set() if closed is None else closed

    @never_compiled
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op, then report it."""
        compiler = set_compiler(None)
        try:
            return self._dispatch(func, types, args, kwargs, compiler)
        except BaseException as error:
            leave_out_own_frames(error)
            raise
        finally:
            set_compiler(compiler)

    def _dispatch(self, func: Any, types: Any, args: Any, kwargs: Any, compiler: Any) -> Any:
        # PyTorch has taken this mode off the stack for the time of the call, so nothing that is
        # called here comes back to it, and puts it back after the return, whatever happened.
        if types and not self.is_inherited and _is_of_parts(args, kwargs):
            # Its class is asked next, with this mode back on the stack (CommDebugMode does likewise).
            return NotImplemented
        me = get_ident()
        try:
            self._inside.add(me)
            if self.is_inherited:
                self._note = None
            if self._is_apart(types):
                set_compiler(compiler)
                return func(*args, **(kwargs or {}))
            keys = self._keys.get(func)
            if keys is None:
                keys = keys_passed(func)
                altered = self._note is not None and self._is_altered(func, args)
                if altered is not None:  # else it is asked again the next time
                    self._keys[func] = keys
                if altered:
                    self._note = None
            out = self.run(func, args, kwargs or {}, keys, compiler)
            set_compiler(None)
            note = self._note
            if note is not None and func not in self._ignored:
                note(func, args, kwargs or {}, out)
            return out
        finally:
            self._inside.discard(me)
            if self._note is None and kwargs is not None:
                # The mode cannot leave while it is off the stack: PyTorch would put it back. It lets
                # go of the dictionary after that, and whatever dies with the dictionary runs then.
                kwargs[_Leaving.__name__] = _Leaving(self)

    def run(
        self, func: Any, args: Any, kwargs: dict[str, Any], keys: tuple[Any, ...], compiler: Any
    ) -> Any:
        """Run an op as it would run without this mode.

        Args:
            func: The overload.
            args: Its arguments.
            kwargs: Its keyword arguments.
            keys: Dispatch keys that apply to what the op calls in its turn: ``keys_passed``.
            compiler: Compiles what the op calls; see ``set_compiler``.
        """
        try:
            return _run(func, args, kwargs, keys, compiler)
        except RuntimeError as error:
            if REFUSES_NUMBER not in str(error):
                raise
            return _run(func, _with_tensors(func, args), kwargs, keys, compiler)

    def _is_apart(self, types: Any) -> bool:
        """Whether an op on tensors of these types, here and now, is not one to report."""
        closed = [t for t in types if t is not torch.nn.Parameter and t is not torch.Tensor]
        if closed:
            if self._note is not None and not _traces(dispatch_modes()):
                self.closed.update(t.__name__ for t in closed if not is_fake_class(t))
            return True
        # Asked first: as a rule there is no other mode, and this runs at each op.
        return num_dispatch_modes() > 0 and _traces(dispatch_modes())

    def ignore(self, func: Any) -> None:
        """Stop reporting ``func``."""
        self._ignored.add(func)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else the first op would import all of torch._dynamo, to keep it away from here.
        return False

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Allow torch.compile to compile although this mode is on."""
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Have torch.compile leave this mode out of what it traces."""
        return True

    @property
    def is_inherited(self) -> bool:
        """Whether this is a process that was forked while the mode was on."""
        return self._pid != process()

    def put_on(self) -> None:
        """See the ops of the calling thread from now on, below the modes that it is in.

        There it stays where it is when the user leaves modes that were entered before. Nothing
        is done if it is on already, inside of an op that it has let through or of compiled code,
        or while PyTorch traces.
        """
        modes = dispatch_modes()
        if any(mode is self for mode in modes) or _traces(modes) or get_ident() in self._inside:
            return
        if is_in_compiled():
            return
        # In a node of the graph autograd restores the modes of before when the node is done.
        if not _is_backward():
            self.threads.add(get_ident())
        # Not by `with`: its exit pops whatever is on top, which may be a mode of the user by then.
        _stack_up([self, *modes])

    def take_off(self) -> None:
        """Leave the calling thread, whatever modes were put above meanwhile."""
        me = get_ident()
        is_on = any(mode is self for mode in dispatch_modes())
        if is_on and is_in_compiled():
            return
        if is_on:
            _stack_up([mode for mode in dispatch_modes() if mode is not self])
        if me in self._inside or _is_backward():
            return
        self.threads.discard(me)
        if self._farewell is not None:
            # A thread that has ended took its stack of modes along, and will never call again.
            alive = {thread.ident for thread in threading.enumerate()}
            if not self.threads & alive:
                self._farewell.remove()
                self._farewell = None

    def silence(self) -> None:
        """Report nothing any more, and leave the calling thread.

        Other threads it leaves as soon as they call a module, for the stack of modes belongs to the
        thread. The calling thread is left in this way, too, where it cannot be left at once.
        """
        self._note = None
        self.take_off()
        if self.threads and self._farewell is None and self._may_hook:
            # Before modules: the hooks after them PyTorch walks over in place where a module has
            # raised, and one that came or went meanwhile would replace the user's exception.
            self._farewell = before_any_forward(self._meet)

    def do_without_hooks(self) -> None:
        """Place no hook on modules to leave other threads by: stay there, silent."""
        self._may_hook = False
        if self._farewell is not None:
            self._farewell.remove()
            self._farewell = None

    def _meet(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self.take_off()


class _Leaving:
    """Takes a mode off when nobody holds this object any more.

    Not below a transform of ``torch.func``, nor in a thread of autograd, where one is not to be seen:
    the transform restores the dispatcher's state of before the op, which calls for a mode, and
    without one on the stack the next op raises. The mode stays, silent, and is taken off later.
    """

    def __init__(self, mode: OpMode) -> None:
        self._mode = mode

    @never_compiled
    def __del__(self) -> None:
        # CPython counts references, so this runs at once and in the same thread; it must not raise.
        if get_ident() not in self._mode.threads or _is_in_transform():
            return
        compiler = set_compiler(None)
        self._mode.take_off()
        set_compiler(compiler)


@unbroken
def _stack_up(wanted: list[Any]) -> None:
    """Have the calling thread be in these modes, outermost first, and in no others."""
    try:
        _restack(wanted)
    except BaseException:
        _restack(wanted)
        raise


def _restack(wanted: list[Any]) -> None:
    while dispatch_modes():
        pop_mode()
    for mode in wanted:
        push_mode(mode)


def _run(func: Any, args: Any, kwargs: dict[str, Any], keys: tuple[Any, ...], compiler: Any) -> Any:
    """Run an op, with what applies without a mode to the ops that it calls."""
    if keys:
        # The keys above Python's are excluded here: to the dispatcher they have been applied. Those that
        # have no kernel for an op were only passed through, and without a mode would apply to the ops
        # that it calls. The snapshot is the state in which the op was called
        # (ATen/core/PythonFallbackKernel.h): some may have been excluded there.
        with StateOfCaller():
            excluded = excluded_keys()
        wanted = [key for key in keys if not excluded.has(key)]
        if wanted and not _is_in_other_mode():
            excluded = excluded_keys()
            for key in wanted:
                excluded = excluded - DispatchKeySet(key)
            included = included_keys()
            with ForcedKeys(included, excluded):
                set_compiler(compiler)
                return func(*args, **kwargs)
    set_compiler(compiler)
    return func(*args, **kwargs)


def _with_tensors(func: Any, args: Sequence[Any]) -> list[Any]:
    """Return the arguments of an op, with tensors in place of numbers where its schema has tensors."""
    # In the dtypes that PyTorch gives to numbers itself.
    dtypes = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
    return [
        torch.tensor(arg, dtype=dtypes[type(arg)], device="cpu")
        if row.type.kind() == "TensorType" and type(arg) in dtypes
        else arg
        for arg, row in zip(args, schema_of(func).arguments, strict=False)
    ]


def has_modes_of_user() -> bool:
    """Whether the calling thread is in a mode that is not ampwatch's, if it is put aside just now."""
    others = any(not isinstance(mode, OpMode) for mode in dispatch_modes())
    return others or get_ident() in Account.aside or num_function_modes() > 0


def _others() -> list[Any]:
    modes = dispatch_modes()
    # Where PyTorch traces nothing is put aside: what is traced is no tensor without its mode.
    return [] if _traces(modes) else [mode for mode in modes if not isinstance(mode, OpMode)]


def _take_off(others: list[Any]) -> None:
    _restack([mode for mode in dispatch_modes() if not any(mode is other for other in others)])


def _put_on(others: list[Any]) -> None:
    # On top: a mode of ampwatch's that was put on meanwhile lies below, as always.
    _restack([*dispatch_modes(), *others])


USERS_MODES = Modes(num_dispatch_modes, _others, _take_off, _put_on)
"""The dispatch modes of the user."""


def _is_in_other_mode() -> bool:
    """Whether an op comes from a mode of the user, in which autocast is excluded anyway."""
    # By f_back: in a thread of autograd nothing of Python is below the mode's own frames, and a
    # depth that is not there raises.
    frame = sys._getframe(1).f_back  # noqa: SLF001 - documented, and the only way
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__torch_dispatch__" and code is not OpMode.__torch_dispatch__.__code__:
            return True
        frame = frame.f_back
    return False


def _is_in_transform() -> bool:
    """Whether a transform of ``torch.func`` is at work in the calling thread.

    Cost: 0.1 us a frame.
    """
    # By frames: below a transform, where ops of the tensors themselves arrive, its level is off the stack
    # of levels, and nothing else tells.
    frame = sys._getframe(1).f_back  # noqa: SLF001 - documented, and the only way
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(TRANSFORMS):
            return True
        frame = frame.f_back
    return False


def _is_backward() -> bool:
    # Of this thread: a node may run in the thread that called backward, or in one of autograd.
    return graph_task() != -1


def _is_of_parts(args: Sequence[Any], kwargs: dict[str, Any] | None) -> bool:
    """Whether all tensors of other classes among arguments are made of quiet ones that hold something."""
    tensors = [t for t in tensors_among((*args, *(kwargs or {}).values())) if not is_bare(t)]
    try:
        is_open = bool(tensors) and all(map(has_parts, tensors))
    except Exception as error:  # code of the user's class: an op must not end by our asking
        if is_of_a_signal(error):
            raise
        return False
    return is_open and not _traces(dispatch_modes())


def _traces(modes: list[Any]) -> bool:
    # Only PyTorch's own modes have a key (_TorchDispatchModeKey: FAKE, PROXY, FUNCTIONAL).
    return any(getattr(mode, MODE_KEY, None) is not None for mode in modes)
