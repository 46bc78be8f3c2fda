"""The dispatch mode through which every op of an iteration can be seen, one by one."""

from __future__ import annotations

import os
import threading
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Note = Callable[[Any, Sequence[Any], dict[str, Any], Any], None]


class OpMode(TorchDispatchMode):  # type: ignore[no-untyped-call] # PyTorch's is not typed
    """Tells of every op of the threads that it is on, and changes nothing.

    It is put on and taken off below the modes of the user, not as a context manager: these may
    be entered and left before, between and after the two.

    Args:
        note: Called with ``(func, args, kwargs, out)`` after each op. Must not raise.
        ignored: Ops that it is not called for.

    Attributes:
        threads: Identities of the threads that it was put on in and not yet taken off.

    Cost: 2 to 3 us an op in a loop, 10 to 30 between the kernels of a training, besides what
    ``note`` takes; nothing while it is off.
    """

    supports_higher_order_operators = True

    def __init__(self, note: Note, ignored: Iterable[Any] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._note: Note | None = note
        self._ignored = set(ignored)
        self._pid = os.getpid()
        self.threads: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op, then tell of it."""
        if types and any(t is not torch.nn.Parameter and t is not torch.Tensor for t in types):
            # A subclass first turns its op into those of the tensors it is made of.
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        note = self._note
        if note is not None and func not in self._ignored and self._pid == os.getpid():
            note(func, args, kwargs or {}, out)
        return out

    def ignore(self, func: Any) -> None:
        """Do not tell of ``func`` any more."""
        self._ignored.add(func)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else the first op would import all of torch._dynamo, to keep it away from here.
        return False

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Tell torch.compile that it may compile although this mode is on."""
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Tell torch.compile to leave this mode out of what it traces."""
        return True

    def put_on(self) -> None:
        """See the ops of the calling thread from now on, below the modes that it is in.

        There it stays where it is when the user leaves modes that were entered before. Nothing
        is done if it is on already, or while PyTorch traces.
        """
        modes = _modes()
        if any(mode is self or getattr(mode, "_mode_key", None) is not None for mode in modes):
            return
        above = [_pop_mode() for _ in modes]
        for mode in (self, *reversed(above)):
            _push_mode(mode)
        self.threads.add(get_ident())

    def take_off(self) -> None:
        """See them no more, whatever modes were put above meanwhile."""
        self.threads.discard(get_ident())
        if not any(mode is self for mode in _modes()):
            return
        above = []
        while (mode := _pop_mode()) is not self:
            above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)

    def silence(self) -> None:
        """Tell of nothing any more, and leave the calling thread.

        Others it leaves as soon as they call a module: only from within a thread can a mode be
        taken off.
        """
        self._note = None
        self.take_off()
        if self.threads:
            _Farewell(self)


class _Farewell:
    """Hooks that take a mode off in the threads where it still is, and then go as well."""

    def __init__(self, mode: OpMode) -> None:
        self._mode = mode
        self._handles = [
            register_module_forward_pre_hook(self._meet),
            register_module_forward_hook(self._meet, always_call=True),
        ]

    def _meet(self, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._mode.take_off()
        alive = {thread.ident for thread in threading.enumerate()}
        if not self._mode.threads & alive:
            for handle in self._handles:
                handle.remove()


def _modes() -> list[Any]:
    count = torch._C._len_torch_dispatch_stack()  # noqa: SLF001 - no public name for it
    return [torch._C._get_dispatch_stack_at(index) for index in range(count)]  # noqa: SLF001
