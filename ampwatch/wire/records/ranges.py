"""Records of sampled iterations: exponents of modules, and the totals of sampling."""

from __future__ import annotations

from msgspec import Struct

from ampwatch.numerics.blocks import BlockHistogram
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.numerics.written import Labelled
from ampwatch.wire.records.fields import Count, CountOrUnknown


class Topic(Labelled):
    """Tensors whose values a measurement is of.

    ``GRADIENT``: of parameters, before they are unscaled. ``ACTIVATION``: outputs of leaf
    modules. ``ACTIVATION_GRADIENT``: gradients of those. ``WEIGHT``: parameters.
    ``UPDATE``: what an optimizer step changed, as a share of the weight. ``BUFFER``: buffers.
    """

    GRADIENT = 0
    ACTIVATION = 1
    ACTIVATION_GRADIENT = 2
    WEIGHT = 3
    UPDATE = 4
    BUFFER = 5


ALL_MODULES = "*"
"""Stands for all modules together, where a record names a module."""


class RangeRecord(Struct):
    """The exponents of one module's tensors, or of all together, in a sampled iteration.

    Attributes:
        step: Index of the iteration.
        time_ns: Unix time of the measurement. Unit: ns.
        topic: What the values are. Those of ``UPDATE`` are magnitudes of updates as a
            share of the weight, of a subsample; its zeros are elements that did not change.
        module: Qualified name of the module, empty for the root; ``ALL_MODULES`` for the
            sum over all.
        dtype: Name of the dtype of the measured tensors; ``mixed`` if there are several.
        loss_scale: What gradients and gradients of activations are multiplied by; 1
            without loss scaling, and for everything else.
        total_nans: NaN elements seen under this topic and module so far.
        total_infs: Infinite elements seen under this topic and module so far.
        norm: L2 norm of all elements, scaled as they are; NaN of what is no gradient of a parameter, and
            where it is not known. Infinite or NaN where an element is.
        flushed: Zeros of a gradient that were values before its format flushed them; -1 if that
            is not known, as of what never was anything but zeros. 0 for what is no gradient.
        blocks: Elements by their distance from the largest of their block, in blocks along the memory
            of the tensors, of each size; none of samples in which they were not measured.
        before_step: Iteration that the oldest part of ``before`` is of; -1 without one.
        before: Exponents without the loss scale as if nothing was flushed: what was flushed is as
            it was last measured before that. ``None`` if nothing is, or that is not known.
        histogram: The exponents.
    """

    step: Count
    time_ns: Count
    topic: Topic
    module: str
    dtype: str
    loss_scale: float
    total_nans: Count
    total_infs: Count
    norm: float
    flushed: CountOrUnknown
    blocks: tuple[BlockHistogram, ...]
    before_step: CountOrUnknown
    before: ExponentHistogram | None
    histogram: ExponentHistogram


class SamplingRecord(Struct):
    """Totals of sampling so far; written after each sampled iteration.

    Attributes:
        step: Index of the iteration.
        interval: Steps from one sampled iteration to the next, as it is now.
        samples: Sampled iterations so far, per topic in the order of ``Topic``.
        samples_dropped: Measurements so far that were not read, because the device was
            too far behind.
        tensors_refused: Tensors in the newest sample that cannot be measured (integer,
            complex, meta ...).
        modules_left_out: Modules in the newest sample beyond the limit of records.
        gradient_elements: Gradient elements measured so far.
        gradient_zeros: Of those, exact zeros.
        gradient_underflow: Of those, zero only because of the dtype of autocast (their own
            without one) at the loss scale of their time: it would flush them, or has flushed them.
        gradient_subnormal: Of those, subnormal in that dtype at that scale.
        gradient_nans: Of those, NaN.
        gradient_infs: Of those, infinite.
        parameter_nonfinite: NaN and infinite elements of all parameters, by the newest check of each, without
            the infinities that were there before the first step; -1 before the first check.
        buffer_nonfinite: Likewise of buffers, without those that are meant to hold them.
        device_ns: Device time of the measurements so far; 0 on a CPU. Unit: ns.
    """

    step: Count
    interval: Count
    samples: tuple[Count, Count, Count, Count, Count, Count]
    samples_dropped: Count
    tensors_refused: Count
    modules_left_out: Count
    gradient_elements: Count
    gradient_zeros: Count
    gradient_underflow: Count
    gradient_subnormal: Count
    gradient_nans: Count
    gradient_infs: Count
    parameter_nonfinite: CountOrUnknown
    buffer_nonfinite: CountOrUnknown
    device_ns: Count
