"""Functions that PyTorch computes otherwise while any dispatch mode is on."""

from __future__ import annotations

from typing import Any

import torch

# They decide above the dispatcher which vectors nobody needs.
ALTERED_FUNCTIONS: tuple[tuple[Any, str], ...] = (
    (torch.linalg, "svdvals"),
    (torch.linalg, "eigvalsh"),
    (torch.linalg, "pinv"),
    (torch.linalg, "cond"),
    (torch.linalg, "matrix_rank"),
    (torch, "pinverse"),
)
"""Modules and names of those that always are."""

ALTERED_NORMS: tuple[tuple[Any, str], ...] = ((torch.linalg, "norm"), (torch.linalg, "matrix_norm"))
"""Those of which some norms are, being made of singular values."""

OF_SINGULAR_VALUES = ("nuc", 2, -2)


def is_altered_norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call of one of ``ALTERED_NORMS`` asks for a norm of singular values."""
    given = args[1] if len(args) > 1 else kwargs.get("ord")
    return isinstance(given, (str, int, float)) and given in OF_SINGULAR_VALUES
