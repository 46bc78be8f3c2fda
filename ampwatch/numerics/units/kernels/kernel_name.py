"""A GPU kernel as far as its name tells: the unit it multiplies on, and the details."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.numerics.units.kernels.symbols import Symbol


class Unit(Enum):
    """The hardware that a kernel multiplies on, as a Prometheus label value.

    ``TENSOR``: tensor cores, on AMD matrix cores. ``CUDA``: a matmul, convolution or attention
    on the general-purpose cores. ``UNKNOWN``: one of these, and the name does not say on what.
    ``OTHER``: none of these.
    """

    TENSOR = "tensor"
    CUDA = "cuda"
    UNKNOWN = "unknown"
    OTHER = "other"


class KernelName(NamedTuple):
    """A kernel, as far as its name tells.

    Attributes:
        unit: The unit on which it multiplies.
        family: Which library's kernel it is, or which kind of helper.
        rule: Id of the rule that decided; ``unlisted`` if none did.
        dtype: Dtype of what is multiplied, in PyTorch's words where it has one: ``tf32``,
            ``float8`` for all of its formats, ``mx`` for block-scaled ones; empty if not stated.
        arch: NVIDIA architecture the kernel was written for, 80 for sm80; ``None`` if not stated.
        align: What its matrices are aligned to. Unit: elements. ``None`` if not stated.
        gemv: Whether one of the matrices is a vector, or nearly so.
        likely: Of ``UNKNOWN`` only, judged by the inputs of the op: ``probable`` if they have a
            dtype of tensor cores, ``possible`` if TF32 is allowed; else empty.
    """

    unit: Unit
    family: str
    rule: str
    dtype: str = ""
    arch: int | None = None
    align: int | None = None
    gemv: bool = False
    likely: str = ""


class Rule(Struct, frozen=True):
    """Patterns of a name, and the class of kernels that match.

    Patterns are compiled when the first kernel is seen, which most trainings have none of.

    Attributes:
        id: Name of the rule.
        family: Which library's kernels, or which kind of helper.
        unit: The unit on which a kernel of that name multiplies.
        why: The evidence for the rule.
        function: Pattern of the function's name, in any case.
        inside: Pattern of its template arguments, where they decide too.
        dtype: The dtype, or what reads it from the name.
        arch: Architecture, where the name does not say it and the family has only one.
        gemv: Whether one matrix is a vector, or nearly so.
    """

    id: str
    family: str
    unit: Unit
    why: str
    function: str
    inside: str = ""
    dtype: str | Callable[[Symbol], str] = ""
    arch: int | None = None
    gemv: bool = False

    def matches(self, symbol: Symbol) -> bool:
        """Return whether the rule applies."""
        return bool(
            re.search(self.function, symbol.function) and re.search(self.inside, symbol.template)
        )

    def read_dtype(self, symbol: Symbol) -> str:
        """Return the dtype of what is multiplied."""
        return self.dtype if isinstance(self.dtype, str) else self.dtype(symbol)


def like(pattern: str) -> str:
    """Return a pattern that takes ASCII letters in either case."""
    # Without ASCII, a k in the pattern would match the sign of Kelvin as well.
    return f"(?ia){pattern}"
