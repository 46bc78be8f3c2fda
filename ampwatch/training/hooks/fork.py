"""Notice of forks, for an open profiler window, and for what an op asks of its process.

A child that was forked under a recording would inherit it: the workers of a ``DataLoader`` would
record into their memory until they end, and a child that ends the recording hangs or is aborted.
Hence the window is given up just before.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# State of the process and not of a monitor: os.register_at_fork is the only way to notice a fork
# before it happens, and nothing can be unregistered there (docs.python.org, os.register_at_fork).
_is_registered = False
_about_to: weakref.WeakMethod[Callable[[], None]] | None = None
_process = os.getpid()


def process() -> int:
    """Return ``os.getpid()``, without a system call: one takes 2 us where the kernel is emulated (gVisor)."""
    return _process


def _begin_process() -> None:
    global _process  # noqa: PLW0603 - of the process, as forking is
    _process = os.getpid()


os.register_at_fork(after_in_child=_begin_process)


def hold(about_to: Callable[[], None]) -> None:
    """Have a method called before each fork, by the thread that forks, until ``let_go``.

    From the first window on one function of this module stays registered in the process. It does
    nothing while no window is open.

    Args:
        about_to: A method, held weakly. There is one at a time, as there is one recording. Must
            not raise.
    """
    global _is_registered, _about_to  # noqa: PLW0603 - of the process, as forking is
    if not _is_registered:
        os.register_at_fork(before=_before)
        _is_registered = True
    _about_to = weakref.WeakMethod(about_to)


def let_go() -> None:
    """Stop calling the method."""
    global _about_to  # noqa: PLW0603 - of the process, as forking is
    _about_to = None


def _before() -> None:
    # What it raised would be printed as unraisable, in the middle of the user's fork.
    about_to = None if _about_to is None else _about_to()
    if about_to is not None:
        about_to()
