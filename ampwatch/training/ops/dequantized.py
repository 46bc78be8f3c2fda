"""Numbers of FP8 formats in tensors of a wider dtype: what an emulated product multiplies."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ampwatch.numerics.units.ops import FP8_DTYPES, OpKind
from ampwatch.training.kernels.admission import is_ordinary
from ampwatch.training.kernels.dtypes import NAMES
from ampwatch.training.ops.info import operands_of
from ampwatch.training.ops.storage import WeakStorage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ampwatch.training.ops.info import OpInfo

FP8 = frozenset(dtype for dtype, name in NAMES.items() if name in FP8_DTYPES)

SCALINGS = frozenset({"mul", "mul_", "div", "div_", "true_divide", "multiply", "divide"})
"""Ops that apply a scale, or take it off."""

MAX_REMEMBERED = 4096
"""Tensors that are remembered at a time; a model of a thousand layers has some in each."""


class _Origin(NamedTuple):
    """What a storage holds numbers of.

    Attributes:
        storage: No reference: it dies with its tensors, and its address is used again.
        dtype: The FP8 format.
    """

    storage: WeakStorage
    dtype: torch.dtype


class Dequantized:
    """Follows tensors that were cast from FP8 to a wider dtype, up to the products that they go into.

    A GPU multiplies FP8 matrices as they are, and applies their scales to the result. Where it cannot
    (a CPU, an older GPU) libraries emulate that: they cast both matrices up, take the scales off,
    and multiply in float32 or bfloat16. Such a product is known by where its two operands come from:
    from a cast out of an FP8 format, through nothing but copies, views and scales that several
    numbers share. Anything else that an op computes is a number of its own.

    By storage, since views make no event. Thread-safe, as each step is one call on a dictionary.

    Cost:
        0.1 us an op until something was cast from FP8; then 1 to 2 us.
    """

    def __init__(self) -> None:
        self._origins: dict[int, _Origin] = {}

    def clear(self) -> None:
        """Forget all tensors."""
        self._origins.clear()

    def see(
        self, info: OpInfo, kind: OpKind, given: Sequence[Tensor], made: Sequence[Tensor]
    ) -> None:
        """Take in an op that has returned.

        Args:
            info: The op.
            kind: Its kind, a cast without effect being a copy.
            given: The tensors that it has read.
            made: Those that it has returned, or written.
        """
        is_cast = kind is OpKind.CAST and bool(given) and given[0].dtype in FP8
        if not is_cast and not self._origins:
            return
        dtype = self._carried(info, kind, given, made)
        for tensor in made:
            self._note(tensor, dtype)

    def formats(self, info: OpInfo, given: Sequence[Tensor]) -> tuple[torch.dtype, ...]:
        """Return the FP8 formats whose numbers a product multiplies in a wider dtype.

        Args:
            info: The op.
            given: The tensors that it has read.

        Returns:
            One for each operand; empty unless it is a product whose operands both hold such numbers.
        """
        if not self._origins or info.kind is not OpKind.MATMUL:
            return ()
        operands = operands_of(info, given)
        if len(operands) < 2 or any(tensor.dtype in FP8 for tensor in operands):
            return ()
        found = [dtype for dtype in map(self._origin, operands) if dtype is not None]
        return tuple(found) if len(found) == len(operands) else ()

    def _carried(
        self, info: OpInfo, kind: OpKind, given: Sequence[Tensor], made: Sequence[Tensor]
    ) -> torch.dtype | None:
        """Return the format whose numbers an op has passed on; ``None`` if it made others."""
        if kind in (OpKind.CAST, OpKind.COPY):
            origins = [self._origin(tensor) for tensor in given if tensor.is_floating_point()]
            return None if None in origins or not origins else origins[0]
        if info.name not in SCALINGS or not given or not made:
            return None
        values, *scales = given
        if len(scales) == 1 and scales[0].numel() > values.numel() and info.name.startswith("mul"):
            values, scales = scales[0], [values]
        # One number for each would be no scale but numbers that are multiplied with numbers.
        is_shared = all(s.numel() < values.numel() or s.numel() == 1 for s in scales)
        return self._origin(values) if is_shared and values.shape == made[0].shape else None

    def _origin(self, tensor: Tensor) -> torch.dtype | None:
        if tensor.dtype in FP8:
            return tensor.dtype
        if not _has_place(tensor):
            return None
        address = tensor.untyped_storage().data_ptr()
        origin = self._origins.get(address)
        return None if origin is None or _is_gone(origin) else origin.dtype

    def _note(self, tensor: Tensor, dtype: torch.dtype | None) -> None:
        if tensor.dtype in FP8 or not _has_place(tensor):
            return
        storage = tensor.untyped_storage()
        if dtype is None:
            self._origins.pop(storage.data_ptr(), None)
            return
        if len(self._origins) >= MAX_REMEMBERED:
            self._origins.clear()
        self._origins[storage.data_ptr()] = _Origin(WeakStorage(storage), dtype)


def _has_place(tensor: Tensor) -> bool:
    return (
        is_ordinary(tensor)
        and tensor.is_floating_point()
        and tensor.layout is torch.strided
        and not (tensor.is_meta or tensor.is_nested)
    )


def _is_gone(origin: _Origin) -> bool:
    return origin.storage.expired()
