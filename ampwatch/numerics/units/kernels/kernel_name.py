"""A GPU kernel as far as its name tells: the unit it multiplies on, and the details."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


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
            ``float8`` for all of its formats, ``mx`` for block-scaled ones; empty if not said.
        arch: NVIDIA architecture the kernel was written for, 80 for sm80; ``None`` if not said.
        align: What its matrices are aligned to. Unit: elements. ``None`` if not said.
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
