"""Places at functions of torch: those that clip, that load a batch, and that any dispatch mode would alter."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import clip_grad

from ampwatch.training.hooks import tapped_call, taps
from ampwatch.training.hooks.events import (
    AlteredCalled,
    BatchArrived,
    BatchAwaited,
    ClipBegan,
    ClipEnded,
    ClippingByNorm,
    ClippingByValue,
    ExitCalled,
)
from ampwatch.training.hooks.taps import listen, listen_to_function
from ampwatch.training.private import (
    CLIP,
    CLIP_BY_VALUE,
    CLIP_NORM,
    LOADER_ITERATOR,
    LOADER_WORKERS,
    tracing_state,
)

if TYPE_CHECKING:
    from types import FrameType

    from ampwatch.training.hooks.bus import Bus


BY_VALUE = "clip_grad_value_"

TAPS = (taps.__name__, tapped_call.__name__)
"""Modules whose frames stand between a listener and the caller."""


def place_clip(bus: Bus, handles: list[Any]) -> None:
    """Hear which gradients are about to be clipped, and to what."""
    # What is replaced is what the public functions look up when they are called: so they are
    # seen also where a user has imported them by name.
    by_norm, by_value = bus.channel(ClippingByNorm), bus.channel(ClippingByValue)

    def before_norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if tracing_state() is not None:
            return
        limit = args[1] if len(args) > 1 else kwargs.get("max_norm")
        norm = args[2] if len(args) > 2 else kwargs.get("total_norm")
        by_norm.emit(ClippingByNorm(args[0] if args else kwargs.get("parameters"), limit, norm))

    def before_grouping(args: tuple[Any, ...], _kwargs: Any) -> None:
        # All of them group gradients; clipping by value has no function of its own to call.
        caller: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, and in each step that clips
        while caller is not None and caller.f_globals["__name__"] in TAPS:
            caller = caller.f_back
        if args and caller and caller.f_code.co_name == BY_VALUE and tracing_state() is None:
            by_value.emit(ClippingByValue(args[0][0], caller.f_locals.get("clip_value")))

    if hasattr(clip_grad, CLIP):
        names = [(clip_grad, CLIP), (nn.utils, "clip_grads_with_norm_")]
    else:  # a version in which the function is in one piece
        names = [(clip_grad, "clip_grad_norm_"), (nn.utils, "clip_grad_norm_")]
    for module, name in names:
        if hasattr(module, name):
            handles.append(listen_to_function(module, name, before=before_norm))
    if hasattr(clip_grad, CLIP_BY_VALUE):
        handles.append(listen_to_function(clip_grad, CLIP_BY_VALUE, before=before_grouping))


TIMED_CLIPS = (CLIP_NORM, CLIP, "clip_grad_value_")
"""Functions of ``torch.nn.utils.clip_grad`` whose time is that of clipping: the first two are what
``clip_grad_norm_`` consists of, and looks up when it is called."""


def place_clip_times(bus: Bus, handles: list[Any]) -> None:
    """Note when clipping begins and ends."""

    def before(_args: Any, _kwargs: Any) -> None:
        if tracing_state() is None:
            bus.note(ClipBegan)

    def after(*_: Any) -> None:
        bus.note(ClipEnded)

    places = [(clip_grad, name) for name in TIMED_CLIPS]
    public = ("get_total_norm", "clip_grads_with_norm_", "clip_grad_value_")
    places += [(nn.utils, name) for name in public]
    for module, name in places:
        if hasattr(module, name):
            handles.append(
                listen_to_function(module, name, before=before, after=after, failed=after)
            )


def place_batches(bus: Bus, handles: list[Any]) -> None:
    """Note when a batch of a ``DataLoader`` is awaited, and when it is there."""
    # Where the first DataLoader is made its module has been imported: by torch itself.
    if LOADER_ITERATOR is None:
        return

    def before(loader: Any, _args: Any, _kwargs: Any) -> None:
        # From where PyTorch has put it: a class of the user's may have a property of the name.
        workers = vars(loader).get(LOADER_WORKERS, -1)
        bus.note(BatchAwaited, workers)

    def after(_loader: Any, *_: Any) -> None:
        bus.note(BatchArrived)

    handles.append(listen(LOADER_ITERATOR, "__next__", before=before, after=after, failed=after))


def place_exit(bus: Bus, handles: list[Any]) -> None:
    """Hear that the program ends itself as failed: when exit handlers run the model may be gone."""
    channel = bus.channel(ExitCalled)

    def before(args: tuple[Any, ...], _kwargs: Any) -> None:
        # Another object is printed, and the status is 1 as well; but its class may compare as it likes.
        if args and isinstance(args[0], (int, str)) and args[0]:
            channel.emit(ExitCalled())

    handles.append(listen_to_function(sys, "exit", before=before))


is_compiling = torch.compiler.is_compiling

# PyTorch computes these otherwise while any dispatch mode is on. They decide above the dispatcher
# whether anybody needs the vectors, and isTensorSubclassLike (ATen/TensorSubclassLikeUtils.h), which
# they ask, is true of every tensor then.
ALTERED_FUNCTIONS: tuple[tuple[Any, str], ...] = (
    (torch.linalg, "svdvals"),
    (torch.linalg, "eigvalsh"),
    (torch.linalg, "pinv"),
    (torch.linalg, "cond"),
    (torch.linalg, "matrix_rank"),
    (torch, "pinverse"),
    # Forward-mode AD, also that of torch.func.jvp, jacfwd and hessian: its zeros have no memory, and to
    # add a number to them raises while a mode is on. A mode cannot leave at the op that makes them: the
    # transform restores the dispatcher's state of before, and runs into a stack without modes.
    (forward_ad, "enter_dual_level"),
)
"""Modules and names of functions that are altered by any dispatch mode at every call."""

ALTERED_NORMS: tuple[tuple[Any, str], ...] = ((torch.linalg, "norm"), (torch.linalg, "matrix_norm"))
"""Modules and names of norms that are altered for orders in ``OF_SINGULAR_VALUES``."""

OF_SINGULAR_VALUES = ("nuc", 2, -2)


def _is_altered_norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call of one of ``ALTERED_NORMS`` asks for a norm of singular values."""
    given = args[1] if len(args) > 1 else kwargs.get("ord")
    return isinstance(given, (str, int, float)) and given in OF_SINGULAR_VALUES


def place_altered(bus: Bus, handles: list[Any]) -> None:
    """Hear calls of what a dispatch mode would alter."""
    channel = bus.channel(AlteredCalled)

    def before(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not is_compiling() and (name != "norm" or _is_altered_norm(args, kwargs)):
            channel.emit(AlteredCalled(name))

    functions = [(module, name, name) for module, name in ALTERED_FUNCTIONS]
    functions += [(module, name, "norm") for module, name in ALTERED_NORMS]
    for module, name, reported in functions:
        if hasattr(module, name):
            handles.append(listen_to_function(module, name, before=partial(before, reported)))
