"""Zeros of gradients that were values before a format flushed them: the one place that decides.

An exact zero does not say why it is one. A dead unit gives zeros beside ordinary gradients;
flushing gives zeros beside subnormal numbers, or a tensor of nothing but zeros that was not
one at a larger scale. So each gradient is remembered as it was before anything of it was
flushed, without the loss scale: shifted to the scale of now it says what must be lost.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.rounding import FlushedGradients
from ampwatch.diagnosis.gradients.kinds import FP16_LOSS_CAPS_SCALE, GRAD_UNDERFLOW
from ampwatch.numerics.exponents import merged, nearest_exponent
from ampwatch.numerics.formats import FORMATS, format_of_gradient, narrowest_half
from ampwatch.numerics.whatif import flushed_zeros
from ampwatch.numerics.written import scale_text
from ampwatch.wire.records import Topic, in_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration, TensorRange
    from ampwatch.diagnosis.steps.steps import StepVerdict
    from ampwatch.numerics.exponents import ExponentHistogram
    from ampwatch.numerics.formats import FloatFormat


FLOAT16 = FORMATS["float16"]

FORGOTTEN_AFTER = 1000
"""Iterations of learning after which what a gradient once was says nothing about what it is.
While every gradient is zero the weights stay, and with them what the gradients would be."""

SUMMED = 2.0**12
"""Multiple of the smallest normal number up to which the largest gradient may have been flushed
whole when the scale has fallen. A gradient of a parameter is a sum over a batch and its
positions: its terms are flushed before the sum is, and are smaller by as much as there are."""

GRADIENTS = frozenset({Topic.GRADIENT, Topic.ACTIVATION_GRADIENT})
"""Topics that formats flush."""

Key = tuple[Topic, str]
"""Topic and name of the parameter or module that a gradient belongs to."""


SIMILAR = 8.0
"""Ratio of the largest magnitudes up to which a gradient of before stands for that of now: what has
shrunk by more since needs another scale."""


class Before(NamedTuple):
    """A gradient as it was last measured without anything of it being flushed.

    Attributes:
        scaled: Exponents as they were measured. All zeros in them are true ones.
        scale: The loss scale that is in them.
        step: The iteration.
    """

    scaled: ExponentHistogram
    scale: float
    step: int

    @property
    def histogram(self) -> ExponentHistogram:
        """Exponents without the loss scale."""
        # On demand: every sample is remembered, and few are ever asked for.
        return self.scaled.shifted(-nearest_exponent(self.scale))


class _Memory(NamedTuple):
    """The newest sample of a gradient that says how large it is.

    Attributes:
        amax: Largest magnitude without the loss scale; 0 of a gradient whose zeros are true.
        scale: The loss scale of that time.
        step: The iteration.
        loss: Magnitude of the loss of that time; NaN if that is not known.
    """

    amax: float
    scale: float
    step: int
    loss: float

    def amax_at(self, loss: float) -> float:
        """Return the largest magnitude that is to be expected at a loss of magnitude ``loss``.

        A gradient is proportional to what the loss is multiplied by, so one that shrinks takes its
        gradients along; one that grows says nothing of that kind.
        """
        return self.amax * loss / self.loss if 0.0 < loss < self.loss else self.amax


class Gradient(Struct):
    """One gradient of a sample, and what is known of its zeros.

    Attributes:
        histogram: Exponents of the scaled gradient.
        scale: The loss scale that is in it.
        format: The format that it came out of; ``None`` if that is not known.
        flushed: Zeros that were values before the format flushed them; ``None`` if that is not
            known, as of a gradient that never was anything but zeros.
        before: The gradient before that; ``None`` where nothing is flushed, or nothing is known.
    """

    histogram: ExponentHistogram
    scale: float
    format: FloatFormat | None = None
    flushed: int | None = 0
    before: Before | None = None

    @property
    def share(self) -> float:
        """Share of the elements that were flushed; 0 if that is not known."""
        return (self.flushed or 0) / self.histogram.binned if self.histogram.binned else 0.0

    @property
    def whole(self) -> ExponentHistogram | None:
        """Exponents without the loss scale as if nothing was flushed; ``None`` if not known."""
        if self.before is not None:
            return self.before.histogram
        return None if self.flushed else self.histogram.shifted(-nearest_exponent(self.scale))

    @property
    def true_amax(self) -> float:
        """Largest finite magnitude without the loss scale, as if nothing was flushed."""
        if self.before is not None:
            then = self.before.scaled.amax / self.before.scale
            return max(then, self.histogram.amax / self.scale)
        return self.histogram.amax / self.scale


Gradients = dict[Key, Gradient]
"""The gradients of one sample."""


class Flush(NamedTuple):
    """What formats have flushed of several gradients together.

    Attributes:
        zeros: Zeros that were values; ``None`` if that is known of none of them.
        whole: All elements without the loss scale as if nothing was flushed; ``None`` if nothing
            is, or if it is not known what some of them were.
        step: Iteration that the oldest part of ``whole`` is of, -1 without one.
    """

    zeros: int | None
    whole: ExponentHistogram | None
    step: int


def flush_of(gradients: Sequence[Gradient]) -> Flush:
    """Return what formats have flushed of these gradients together."""
    known = [g.flushed for g in gradients if g.flushed is not None]
    zeros = sum(known) if known or not gradients else None
    steps = [g.before.step for g in gradients if g.before is not None]
    if not zeros or not steps:
        return Flush(zeros, None, -1)
    wholes = [whole for g in gradients if (whole := g.whole) is not None]
    if len(wholes) < len(gradients):
        return Flush(zeros, None, -1)
    return Flush(zeros, merged(wholes), min(steps))


class LostGradients(Detector):
    """Judges the zeros in the gradients of one training.

    Args:
        shared: What the detectors have in common.

    Attributes:
        judged: The gradients of the newest iteration, judged by those before it.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.judged: Gradients = {}
        self._autocast_dtypes = shared.known.autocast_dtypes
        self._memories: dict[Key, _Memory] = {}
        self._befores: dict[Key, Before] = {}
        self._learnt_at = 0
        self._was_zero_without_reason = False

    def detect(self, iteration: Iteration, _verdict: StepVerdict) -> None:
        """Judge the gradients of one iteration by those before it, and remember them.

        Cost: about 4 us a gradient.
        """
        gradients = self.judged = self._gradients(iteration)
        if iteration.scaler is not None and not 0.0 < iteration.scale_before < math.inf:
            # Times such a scale zeros may have been anything.
            for gradient in gradients.values():
                gradient.flushed = None if gradient.histogram.zeros else 0
            return
        for topic in GRADIENTS:
            sample = {key: g for key, g in gradients.items() if key[0] is topic}
            if sample:
                self._judge(iteration, sample)

    def true_amax(self, name: str) -> float | None:
        """Return the largest magnitude of a parameter's gradient, without the loss scale.

        ``None`` if it has not been seen lately other than zero or non-finite.
        """
        memory = self._memory((Topic.GRADIENT, name))
        return None if memory is None else memory.amax or None

    def scale_needed(self, name: str) -> float | None:
        """Return the scale at which the largest element of a gradient is a normal number.

        ``None`` if it has not been seen lately other than zero or non-finite.
        """
        amax = self.true_amax(name)
        return None if amax is None else FLOAT16.min_normal / amax

    def _gradients(self, iteration: Iteration) -> Gradients:
        """Return each parameter's gradient, and for each module all that came back to it."""
        by_key: dict[Key, list[TensorRange]] = {}
        for r in iteration.ranges:
            if r.topic in GRADIENTS:
                by_key.setdefault((r.topic, r.name), []).append(r)
        if not by_key:
            return {}
        autocast = narrowest_half(self._autocast_dtypes)
        scale = iteration.scale_before if 0.0 < iteration.scale_before < math.inf else 1.0
        # Gradients of a skipped step were measured after they were unscaled; those of an optimizer
        # that steps without the scaler never had a scale.
        is_skip = any(iteration.found_inf.values())
        gradients = {}
        for key, ranges in by_key.items():
            first = ranges[0]
            histogram = merged(r.histogram for r in ranges)
            if is_skip and not first.scaled:
                histogram = histogram.shifted(nearest_exponent(scale))
            is_scaled = is_skip or first.scaled
            dtype = first.dtype if all(r.dtype == first.dtype for r in ranges) else "mixed"
            of_autocast = autocast if first.topic is Topic.GRADIENT else None
            fmt = format_of_gradient(dtype, of_autocast)
            gradients[key] = Gradient(histogram, scale if is_scaled else 1.0, fmt)
        return gradients

    def _judge(self, iteration: Iteration, sample: Mapping[Key, Gradient]) -> None:
        is_empty = not any(g.histogram.amax or g.histogram.nonfinite for g in sample.values())
        if is_empty:
            self._judge_zeros(iteration, sample)
        else:
            self._was_zero_without_reason = False
            if not any(iteration.found_inf.values()):
                self._learnt_at = iteration.step
            largest = max(g.histogram.amax for g in sample.values())
            for key, gradient in sample.items():
                self._judge_one(key, gradient, largest)
        if is_empty and _is_zero_loss(iteration):
            return  # one batch that has nothing to teach says nothing of the next one
        for key, gradient in sample.items():
            self._remember(key, gradient, iteration)

    def _judge_one(self, key: Key, gradient: Gradient, largest: float) -> None:
        """Judge a gradient beside others, of which some are not zero."""
        histogram, fmt = gradient.histogram, gradient.format
        if not histogram.zeros or histogram.nonfinite:
            return
        if fmt is None:
            gradient.flushed = None
            return
        memory = self._memory(key)
        amax = None if memory is None else memory.amax
        if not histogram.nonzero and amax and amax * gradient.scale < fmt.min_normal:
            gradient.flushed = histogram.zeros
        else:
            gradient.flushed = flushed_zeros(histogram, fmt, largest)
        self._compare_with_before(key, gradient, math.nan)

    def _judge_zeros(self, iteration: Iteration, sample: Mapping[Key, Gradient]) -> None:
        """Judge a sample of nothing but zeros: the largest of all decides, as it last was.

        Had that survived at the scale of now, all would be zeros for another reason.
        """
        if _is_zero_loss(iteration):
            return
        loss = _magnitude_of_loss(iteration)
        # What comes to a gradient in float32 has come through the others: it is as zero as they are.
        formats = [g.format for g in sample.values() if g.format is not None]
        fmt = min(formats, key=lambda fmt: fmt.max, default=None)
        foretold = [
            _above_the_floor(g.scale, fmt, memory, loss)
            for key, g in sample.items()
            if fmt is not None and (memory := self._memory(key)) is not None
        ]
        # Zeros that were true at every scale stay so.
        is_flushed: bool | None = 0.0 < max(foretold, default=0.0) < 1.0
        if not foretold:
            is_flushed = self._is_flushed_by_loss(iteration)
            self._was_zero_without_reason |= not is_flushed
        for key, gradient in sample.items():
            if gradient.format is None or is_flushed is None:
                gradient.flushed = None
            elif is_flushed:
                gradient.flushed = gradient.histogram.zeros
                self._compare_with_before(key, gradient, loss)

    def _is_flushed_by_loss(self, iteration: Iteration) -> bool | None:
        """Whether gradients of which nothing but zeros is known were flushed; ``None`` if unknown.

        Without a scaler they were: no loss has no gradient at all. With one a model may be dead;
        but not if even the scaled loss is no normal number of float16, for the gradients of its
        last layer are about as large as it is, and they were not zero at a larger one.
        """
        if iteration.scaler is None:
            return True
        scaled = abs(iteration.loss) * iteration.scale_before
        is_tiny = 0.0 < scaled < FLOAT16.min_normal
        return True if is_tiny and not self._was_zero_without_reason else None

    def _compare_with_before(self, key: Key, gradient: Gradient, loss: float) -> None:
        """Take from the zeros that were flushed those that were there before, and say what was."""
        before = self._before(key)
        if not gradient.flushed or before is None:
            return
        if not gradient.histogram.nonzero:
            share = before.scaled.zero_share
            gradient.flushed = round(gradient.histogram.zeros * (1.0 - share))
        memory = self._memory(key)
        expected = 0.0 if memory is None else memory.amax_at(loss)
        amax = gradient.histogram.amax / gradient.scale or expected
        if gradient.flushed and before.scaled.amax <= SIMILAR * amax * before.scale:
            gradient.before = before

    def _memory(self, key: Key) -> _Memory | None:
        memory = self._memories.get(key)
        return None if memory is None or self._is_forgotten(memory.step) else memory

    def _before(self, key: Key) -> Before | None:
        before = self._befores.get(key)
        return None if before is None or self._is_forgotten(before.step) else before

    def _is_forgotten(self, step: int) -> bool:
        return self._learnt_at - step > FORGOTTEN_AFTER

    def _remember(self, key: Key, gradient: Gradient, iteration: Iteration) -> None:
        histogram, scale, step = gradient.histogram, gradient.scale, iteration.step
        if histogram.nonfinite or not (histogram.amax or gradient.flushed == 0):
            return
        memory = self._memory(key)
        # What is zero at a smaller scale only may be so for a reason that the scale has after all.
        if not (histogram.amax or memory is None or scale >= memory.scale):
            return
        loss = _magnitude_of_loss(iteration)
        self._memories[key] = _Memory(histogram.amax / scale, scale, step, loss)
        if gradient.flushed == 0:
            self._befores[key] = Before(histogram, scale, step)


def _above_the_floor(scale: float, fmt: FloatFormat, memory: _Memory, loss: float) -> float:
    """Return how far above what a format flushes a gradient would be at the scale and loss of now.

    1 is where a gradient that is nothing but zeros cannot have been flushed any more.
    """
    amax = memory.amax_at(loss)
    has_fallen = scale < memory.scale or amax < memory.amax
    floor = fmt.min_normal * (SUMMED if has_fallen else 1.0)
    return amax * scale / floor


def _magnitude_of_loss(iteration: Iteration) -> float:
    """Return the magnitude of the newest loss; NaN without one that is finite."""
    known = iteration.num_losses > 0 and math.isfinite(iteration.loss)
    return abs(iteration.loss) if known else math.nan


def _is_zero_loss(iteration: Iteration) -> bool:
    """Whether the loss is known to be exactly zero, which has no gradient in any format."""
    return iteration.num_losses > 0 and iteration.loss == 0.0


def of_parameters(gradients: Gradients, *, out_of: FloatFormat) -> dict[str, Gradient]:
    """Return the gradients that come out of a format, by name of the parameter."""
    return {
        name: gradient
        for (topic, name), gradient in gradients.items()
        if topic is Topic.GRADIENT and gradient.format is out_of
    }


class LossDtype(Detector):
    """Detects a loss in float16, which no scale of 65536 can multiply."""

    def detect(self, iteration: Iteration, verdict: StepVerdict) -> None:
        """Take in one judged iteration: in backward the scale itself is cast to float16."""
        scale, step = verdict.scale_before, iteration.step
        if not (
            verdict.skipped
            and iteration.loss_dtype == "float16"
            and math.isfinite(iteration.loss)
            and scale >= FLOAT16.overflow_from
        ):
            return

        def says(since: int) -> str:
            return (
                f"The loss is a float16 tensor: a loss scale of {scale_text(scale)} becomes infinite in the"
                f" first op of backward, so step {step} had to be skipped, and so has every step since"
                f" step {since} at a scale above {FLOAT16.max:.6g}"
            )

        self._book.report(
            FP16_LOSS_CAPS_SCALE,
            "loss",
            step,
            summary=says,
            op="mul",
            phase="backward",
            dtype="float16",
            evidence={"loss_scale": scale, "largest_scale": FLOAT16.max},
        )


LOST_OF_ONE = 0.5
"""Share of a parameter's gradient that must be lost."""

MAX_OTHERS = 0.02
"""Share of the elements that do not fit: larger ones that were lost as well, smaller ones that were not."""

MIN_SAMPLES = 2
"""Samples in a row that must agree."""

ADVICE = (
    "Do between scaler.scale(loss).backward() and scaler.unscale_(optimizer) what is done with gradients in float16:"
    " scaled they fit into it. Or do it in bfloat16, which has the range of float32, or in float32."
)


class FlushedLater(Detector):
    """Detects gradients that float16 has made zero between ``unscale_`` and the step.

    Args:
        shared: What the detectors have in common.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._agreeing: list[FlushedGradients] = []

    @takes(FlushedGradients)
    def observe(self, seen: FlushedGradients) -> None:
        """Take in gradients of which some have become zero after they were unscaled."""
        others = (seen.lost_above + seen.kept_below) / seen.compared
        if seen.share < LOST_OF_ONE or others > MAX_OTHERS:
            self._agreeing.clear()
            return
        self._agreeing.append(seen)
        where = f"param:{seen.parameter}"
        made = self._book.of_kind(GRAD_UNDERFLOW.slug)
        if made:
            self._book.again(made[-1], seen.step)
            return
        if len(self._agreeing) < MIN_SAMPLES:
            return
        share = seen.lost / seen.compared
        self._book.report(
            GRAD_UNDERFLOW,
            where,
            seen.step,
            summary=(
                f"{seen.share:.1%} of the gradient elements of {in_words(where)} have become zero between"
                f" scaler.unscale_() and the step, as of step {seen.step}; of all gradients {share:.1%}, those that"
                f" float16 makes zero, below {FORMATS['float16'].flush_at:.2g}: the program has taken them through it"
                " when they were not scaled any more"
            ),
            kind_advice=ADVICE,
            first_step=self._agreeing[0].step,
            phase="optimizer",
            dtype="float16",
            evidence={"lost_share": share, "lost_share_here": seen.share},
        )
