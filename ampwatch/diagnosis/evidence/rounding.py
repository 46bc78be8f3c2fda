"""Observations of single ops whose values a format could not hold. No torch."""

from __future__ import annotations

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
    """Integers were made numbers of a format that cannot keep all of them distinct.

    Attributes:
        site: The op.
        dtype: Name of the dtype that cannot hold them.
        num_values: Numbers that were compared.
        distinct: Different ones before.
        kept: Different ones after.
        rounded: Numbers that were changed.
        largest: Largest magnitude.
        is_ordered: They run up or down, as positions and counts do.
        is_back: They were made integers again, out of that dtype; what they were before it is not
            known, and ``rounded`` are those that are too large to be kept distinct.
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
    is_back: bool = False
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
    """A small tensor in half precision was added to, which may be a running sum.

    Attributes:
        step: The iteration.
    """

    step: int


class StuckSum(NamedTuple):
    """Additions to a running sum had no effect.

    Attributes:
        site: The addition.
        dtype: Name of the dtype of the sum.
        additions: How many in a row had none, although what was added is not zero.
        grown: How many had one before.
        total: The sum, its first element.
        addend: What was added last, its first element.
    """

    site: OpSite
    dtype: str
    additions: int
    grown: int
    total: float
    addend: float


class LoopSum(NamedTuple):
    """Tensors were added up in one module, in one iteration.

    Attributes:
        site: The newest addition.
        dtype: Name of the dtype of the sum.
        additions: Tensors in the sum.
        error: Norm of its difference to a float32 sum of the same, relative to that.
        share: Its norm, as a share of that of the float32 sum.
    """

    site: OpSite
    dtype: str
    additions: int
    error: float
    share: float


class StuckAverage(NamedTuple):
    """Updates of a moving average of weights had no effect.

    Attributes:
        site: The last write to the average.
        dtype: Name of the dtype of the average.
        weight: Share of the parameter in the new average, one minus the decay.
        updates: How many in a row had none.
        compared: Elements that were compared.
        differing: How many of them differ from the parameter, rounded to the dtype.
        unchanged: How many of the differing ones did not change in the last update.
        distance: Mean difference to the parameter, relative to the mean magnitude.
    """

    site: OpSite
    dtype: str
    weight: float
    updates: int
    compared: int
    differing: int
    unchanged: int
    distance: float


class StillAverage(NamedTuple):
    """Updates of a moving average of data had no effect on most of its elements.

    Attributes:
        site: The last update.
        dtype: Name of the dtype of the average.
        weight: Share of the data in the new average.
        updates: How many in a row have had none.
        compared: Elements that were compared.
        stuck: How many of them would be another number of the dtype by now, in float32.
        distance: Mean distance to what they would be in float32, relative to their mean magnitude.
    """

    site: OpSite
    dtype: str
    weight: float
    updates: int
    compared: int
    stuck: int
    distance: float


MIN_RATIO = 100.0
"""How many times the learning rate a step must have moved a weight by, for the squares of its optimizer to be in question.
One that divides by the root of squares moves it by some 10 times at most."""


class LostSquares(NamedTuple):
    """An optimizer keeps squares of gradients that are zero where it divides by them.

    Attributes:
        step: Index of the iteration.
        parameter: Name of the parameter.
        dtype: Name of the dtype of the squares.
        eps: What the optimizer adds to what it divides by.
        share: Share of the elements whose square is zero, of those whose gradient, or an average of it, is far above
            ``eps``.
        ratio: How far the step has moved the parameter, at most, in units of the learning rate.
    """

    step: int
    parameter: str
    dtype: str
    eps: float
    share: float
    ratio: float


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


class LostUpdate(NamedTuple):
    """Something was added to a weight, and most of the weight may be as it was.

    Attributes:
        site: The addition.
        dtype: Name of the dtype of the weight.
        steps: Iterations since the weight was compared before.
        additions: Additions since then, of those that were observed.
        compared: Elements that were looked at.
        nonzero: How many of them something was added to.
        lost: How many of those the addition has left as they were.
        same: How many of those are as they were then.
    """

    site: OpSite
    dtype: str
    steps: int
    additions: int
    compared: int
    nonzero: int
    lost: int
    same: int


class GradientSum(NamedTuple):
    """Gradients of several backward passes were added up, or terms of one within a custom backward.

    Attributes:
        site: The addition.
        dtype: Name of the dtype of the sum.
        additions: Gradients, or terms, in the sum.
        error: Norm of its difference to a float32 sum of the same, relative to that.
        lost_share: Share of the non-zero elements of the newest gradient without effect.
    """

    site: OpSite
    dtype: str
    additions: int
    error: float
    lost_share: float
