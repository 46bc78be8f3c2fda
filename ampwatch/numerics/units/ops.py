"""Kinds of PyTorch ops, and reasons for the dtypes they ran in. No torch here.

ATen has some two thousand ops. What matters about one is whether it multiplies matrices
(then tensor cores can run it), whether it is a cast (then it is the price of mixed
precision), or what it is otherwise.
"""

from __future__ import annotations

from ampwatch.numerics.formats import HALF, PLAIN, FormatFamily
from ampwatch.numerics.written import Labelled


class OpKind(Labelled):
    """A kind of op, as far as precision is concerned.

    ``MATMUL``, ``CONVOLUTION``, ``ATTENTION``: what tensor cores are for. ``CAST``: to another
    dtype. ``COPY``: moves or fills memory. ``OTHER``: what is in none of the lists.
    """

    MATMUL = 0
    CONVOLUTION = 1
    ATTENTION = 2
    NORMALIZATION = 3
    LOSS = 4
    REDUCTION = 5
    POINTWISE = 6
    CAST = 7
    COPY = 8
    OTHER = 9

    @property
    def has_flops(self) -> bool:
        """Whether tensor cores can run it; only of these the FLOPs are counted."""
        return self <= OpKind.ATTENTION


class Fallback(Labelled):
    """A reason for which an op of the forward pass ran in float32 although autocast is used.

    ``NONE``: it did not. ``FP32_LIST``: autocast runs this op in float32. ``NOT_LISTED``:
    autocast leaves this op alone, and its input was float32. ``PROMOTED``: its inputs had
    different dtypes. ``DISABLED_REGION``: inside ``autocast(enabled=False)``.
    ``OUTSIDE_REGION``: outside every autocast region. ``OTHER_THREAD``: in a thread without a
    region of its own, while another thread is in one. ``DEVICE_TYPE``: inside a region for
    another type of device. ``CUSTOM_FUNCTION``: inside an ``autograd.Function`` whose
    ``custom_fwd`` asks for float32, or by an op that is not PyTorch's own.
    """

    NONE = 0
    FP32_LIST = 1
    NOT_LISTED = 2
    PROMOTED = 3
    DISABLED_REGION = 4
    OUTSIDE_REGION = 5
    OTHER_THREAD = 6
    DEVICE_TYPE = 7
    CUSTOM_FUNCTION = 8


class Phase(Labelled):
    """A part of an iteration. What is computed again in backward is ``BACKWARD``."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    EVAL = 3


HALF_DTYPES = frozenset(HALF)
"""The dtypes autocast casts to."""

FP8_DTYPES = frozenset(fmt.name for fmt in PLAIN if fmt.family is FormatFamily.FLOAT8)

TENSOR_DTYPES = frozenset(fmt.name for fmt in PLAIN if fmt.alignment)
"""The dtypes in which a matmul can run on tensor cores."""

ALIGNMENT = {fmt.name: fmt.alignment for fmt in PLAIN if fmt.name in HALF_DTYPES | FP8_DTYPES}
"""Numbers that the dimensions of a matmul have to be multiples of for full-speed tensor-core kernels,
by dtype of low precision. TF32 has none here: an odd dimension is no reason to complain to somebody
who has not asked for tensor cores."""
