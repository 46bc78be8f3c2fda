"""Calls that PyTorch computes otherwise while any dispatch mode is on, seen before they are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ampwatch.training.hooks.taps import Listener, listen_to_function

if TYPE_CHECKING:
    from collections.abc import Callable

ALWAYS = ("svdvals", "eigvalsh", "pinv", "cond", "matrix_rank")
"""Functions of ``torch.linalg`` that decide above the dispatcher which vectors nobody needs."""

NORMS = ("norm", "matrix_norm")
"""Those of which some norms are made of singular values."""

OF_SINGULAR_VALUES = ("nuc", 2, -2)


class AlteredCalls:
    """Hears of such calls before they are made, wherever Python makes them by the usual name.

    Args:
        called: Called with the name of the function. Must not raise.
    """

    def __init__(self, called: Callable[[str], None]) -> None:
        self._called = called
        self._listeners: list[Listener] = []

    def install(self) -> None:
        """Listen to the functions."""
        for name in ALWAYS:
            self._listen(torch.linalg, name, lambda *_, name=name: self._called(name))
        self._listen(torch, "pinverse", lambda *_: self._called("pinverse"))
        for name in NORMS:
            self._listen(torch.linalg, name, self._before_norm)

    def _listen(self, module: Any, name: str, before: Callable[..., None]) -> None:
        if hasattr(module, name):
            self._listeners.append(listen_to_function(module, name, before=before))

    def remove(self) -> None:
        """Stop listening."""
        for listener in self._listeners:
            listener.remove()
        self._listeners.clear()

    def _before_norm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = args[1] if len(args) > 1 else kwargs.get("ord")
        if isinstance(given, (str, int, float)) and given in OF_SINGULAR_VALUES:
            self._called("norm")
