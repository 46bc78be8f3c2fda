"""Places at functions of torch that compute otherwise while any dispatch mode is on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from ampwatch.training.hooks.events import AlteredCalled
from ampwatch.training.hooks.taps import listen_to_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.training.hooks.bus import Bus

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

    def before(name: str) -> Callable[..., None]:
        def before_call(_args: Any, _kwargs: Any) -> None:
            if not is_compiling():
                channel.emit(AlteredCalled(name))

        return before_call

    def before_norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not is_compiling() and _is_altered_norm(args, kwargs):
            channel.emit(AlteredCalled("norm"))

    for module, name in ALTERED_FUNCTIONS:
        if hasattr(module, name):
            handles.append(listen_to_function(module, name, before=before(name)))
    for module, name in ALTERED_NORMS:
        if hasattr(module, name):
            handles.append(listen_to_function(module, name, before=before_norm))
