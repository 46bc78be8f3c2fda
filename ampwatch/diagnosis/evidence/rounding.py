"""Observations of single ops whose values a format could not hold. No torch."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class OpSite(NamedTuple):
    """Place and time at which an op ran.

    Attributes:
        step: Index of the iteration, from 0.
        where: Its place, as of ``Finding.where``.
        op: Base name of the ATen op.
        phase: The part of the iteration.
        source: ``file:line`` of the user's code; empty if unknown.
    """

    step: int
    where: str
    op: str
    phase: str
    source: str = ""


class LossyCast(NamedTuple):
    """Numbers, integers as a rule, were made numbers of a format that cannot keep all of them distinct.

    Attributes:
        site: The op.
        dtype: Name of the dtype that cannot hold them.
        num_values: Numbers that were compared.
        distinct: Different ones before.
        kept: Different ones after.
        rounded: Numbers that were changed.
        largest: Largest magnitude.
        is_ordered: They run up or down, as positions and counts do.
        angle: They are no integers, and become the angle of a sine or cosine, which that makes wrong by so
            much at most. Unit: rad; 0 for integers.
    """

    site: OpSite
    dtype: str
    num_values: int
    distinct: int
    kept: int
    rounded: int
    largest: float
    is_ordered: bool
    angle: float = 0.0


class Fp8Cast(NamedTuple):
    """Numbers were cast to an FP8 format.

    Attributes:
        site: The op.
        dtype: Name of the format.
        num_values: Finite numbers that are not zero.
        clipped: How many of them are beyond the largest number of the format.
        flushed: How many of them became zero.
        largest: Largest finite magnitude, as handed to the cast.
        is_first: It is the first cast of the training at this place.
    """

    site: OpSite
    dtype: str
    num_values: int
    clipped: int
    flushed: int
    largest: float
    is_first: bool


class BrokenScale(NamedTuple):
    """Numbers cast to an FP8 format were not finite since their scale was not.

    Attributes:
        site: The op that made the scale out of finite numbers.
        dtype: Name of the format.
        cast_in: Place of the cast.
        num_values: Numbers that were not finite.
    """

    site: OpSite
    dtype: str
    cast_in: str
    num_values: int


class SumSeen(NamedTuple):
    """A small tensor in half precision was added to, which may be a running sum."""

    step: int


class What(Enum):
    """A tensor in half precision that loses what is added to it, by what that is."""

    RUNNING_SUM = "running sum"
    LOOP_SUM = "sum of a loop"
    GRADIENT_SUM = "sum of gradients"
    WEIGHT_AVERAGE = "average of weights"
    DATA_AVERAGE = "average of data"
    WEIGHT = "weight"

    @property
    def is_average(self) -> bool:
        """Whether a share of it is replaced, and nothing added up."""
        return self in (What.WEIGHT_AVERAGE, What.DATA_AVERAGE)


class Stuck(NamedTuple):
    """What half precision has lost of what was added to a tensor, as far as some of its elements show it.

    Attributes:
        site: The newest addition.
        what: What it was added to.
        dtype: Name of the dtype of that.
        additions: Tensors, or rows of one, in a sum, or additions to a weight; of a running sum, and of averages, those in a row that had
            no effect.
        lost: Share of the elements that the newest addition was to change, and has left as they were; of an average of
            data, of those that float32 would have made another number by now.
        changing: Share of the elements that it was to change.
        error: Distance to what float32 makes of the same, relative to that; of an average of weights, to the weights.
        weight: Share of what is new in an average.
        grown: Additions to a running sum that had an effect.
        total: A running sum, its first element; of one of a loop the norm, as a share of that in float32.
        addend: What was added last to a running sum, its first element.
        same: Share of the elements of a weight, of those that the newest addition was to change, that are as they were.
        steps: Iterations since then.
    """

    site: OpSite
    what: What
    dtype: str
    additions: int
    lost: float = 1.0
    changing: float = 1.0
    error: float = 0.0
    weight: float = 1.0
    grown: int = 0
    total: float = 0.0
    addend: float = 0.0
    same: float = 0.0
    steps: int = 0


class FlushedGradients(NamedTuple):
    """Elements of gradients were zero at the step, and were not when they had been unscaled.

    Attributes:
        step: Index of the iteration.
        parameter: Name of the parameter that has lost the largest share.
        share: That share.
        compared: Elements of all parameters that were not zero before.
        lost: How many of them were zero after.
        lost_above: How many of those are too large for float16 to make them zero.
        kept_below: How many are small enough, and were kept.
    """

    step: int
    parameter: str
    share: float
    compared: int
    lost: int
    lost_above: int
    kept_below: int


UPDATE_SPAN = 8
"""Iterations over which updates must have left a weight as it is, or additions where an iteration has several:
what one of them loses by rounding to nearest, all of them lose."""
