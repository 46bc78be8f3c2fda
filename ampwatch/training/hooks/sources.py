"""The place in the user's code that something was called from."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.optim import Optimizer

from ampwatch.guard import unbroken

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

MAX_FILES = 4096
"""File names that are remembered; code that is made anew in each step has new ones."""

GENERATED = "torch._inductor.runtime.compile_tasks."
"""How the names of the modules begin that inductor generates; their files lie in a cache anywhere."""

INTERACTIVE = ("<stdin>", "<ipython-input", "<doctest")
"""How the names of what is typed in begin. Other names in angle brackets are generated code."""


def _folder(path: str | None) -> str:
    return str(Path(path).resolve()) + "/" if path else ""


_FOREIGN = (
    _folder(str(Path(torch.__file__).parent)),
    _folder(str(Path(__file__).parents[2])),
)
_DEMO = _folder(str(Path(__file__).parents[2] / "demo"))
"""A training like a user's, though it comes with ampwatch."""

_STANDARD = tuple(
    {_folder(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")} - {""},
)
_INSTALLED = tuple(
    {_folder(sysconfig.get_path(name)) for name in ("purelib", "platlib")} - {""},
)
_SITES = ("/site-packages/", "/dist-packages/")

_OPTIMIZER_FILE = str(sys.modules[Optimizer.__module__].__file__)

_is_users: dict[str, bool] = {}


def user_source() -> str:
    """Return ``file:line`` of the innermost frame of the calling thread that is the user's.

    Returns:
        The name of the file as Python knows it, and the line; empty where no frame is the
        user's, as in a thread of autograd.

    Cost: 0.1 us a frame; no string is made before the frame is found.
    """
    frame = user_frame()
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def user_frame() -> FrameType | None:
    """Return the innermost frame of the calling thread that is the user's; ``None`` without one.

    Those of PyTorch, of ampwatch, of the standard library and of generated code are passed over;
    other installed packages count as the user's: a model often lives in one.

    Cost: 0.1 us a frame.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, and the only way
    while frame is not None and not is_of_user(frame):
        frame = frame.f_back
    return frame


def frames() -> Iterator[FrameType]:
    """Yield the frames of the calling thread from the one that asks outwards.

    Cost: 0.1 us each, a third more than a loop of one's own, as at ops.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, and the only way
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_in_users_hook() -> bool:
    """Whether backward has called a function of the user's that is running in the calling thread.

    A hook of a tensor runs while PyTorch's current node is the one that the gradient goes to; only the
    frames tell what a hook computes from what the node does.

    Cost: 0.1 us a frame.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, and the only way
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":
        if is_of_user(frame):
            return True
        frame = frame.f_back
    return False


def is_unscaling() -> bool:
    """Whether the code that runs is that of PyTorch's own ``GradScaler.unscale_``, in the calling thread.

    Cost: 0.1 us a frame.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, and the only way
    while frame is not None and not is_of_user(frame):
        if frame.f_code.co_name == "unscale_":
            return True
        frame = frame.f_back
    return False


def is_of_user(frame: FrameType) -> bool:
    """Whether a frame runs code of the user's, or of an installed package that is not PyTorch."""
    name = frame.f_code.co_filename
    known = _is_users.get(name)
    return _classify(name, frame) if known is None else known


def _classify(name: str, frame: FrameType) -> bool:
    # Resolving a path costs several system calls; a frame is looked up in every step.
    if len(_is_users) >= MAX_FILES:
        _is_users.clear()
    is_generated = str(frame.f_globals.get("__name__", "")).startswith(GENERATED)
    _is_users[name] = not is_generated and is_users_file(name)
    return _is_users[name]


def is_users_file(name: str) -> bool:
    """Whether code of a file of this name is the user's.

    Args:
        name: As in ``code.co_filename``.
    """
    if name.startswith("<"):
        return name.startswith(INTERACTIVE)
    path = _resolved(name)
    if path.startswith(_FOREIGN):
        return path.startswith(_DEMO)
    # Installed packages lie below the standard library's folder.
    is_installed = path.startswith(_INSTALLED) or any(site in path for site in _SITES)
    return is_installed or not path.startswith(_STANDARD)


@unbroken
def _resolved(name: str) -> str:
    # Unbroken: Python passes over each OSError on the way, and the TimeoutError of a time limit is one.
    return str(Path(name).resolve())


def line_of(file: str, number: int) -> str:
    """Return a line of a source file with its end, as ``linecache.getline`` does.

    Cost: 1 us, where the file has been read before.
    """
    if file not in linecache.cache:
        _read(file)
    return linecache.getline(file, number)


@unbroken
def _read(file: str) -> None:
    linecache.getlines(file)  # passes over each OSError as well


def is_in_optimizer() -> bool:
    """Whether an optimizer is stepping in the calling thread, one of PyTorch's or its user's.

    Cost: 0.1 us a frame.
    """
    # By file: Optimizer.__init__ wraps `step` of every class in profile_hook_step, whose frame has
    # the file of torch/optim/optimizer.py also for optimizers that the user has written.
    return is_in_file(_OPTIMIZER_FILE)


def is_in_file(name: str) -> bool:
    """Whether a function of a file is running in the calling thread.

    Args:
        name: As in ``code.co_filename``.

    Cost: 0.1 us a frame.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, and the only way
    while frame is not None:
        if frame.f_code.co_filename == name:
            return True
        frame = frame.f_back
    return False
