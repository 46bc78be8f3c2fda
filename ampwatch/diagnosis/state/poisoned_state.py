"""Findings about parameters and buffers that are not finite."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.origins import Fault, OpTrace, OriginKind, Writer
from ampwatch.diagnosis.evidence.scaler import BadOption, BrokenWeights, SoundBuffers
from ampwatch.diagnosis.forward.faults import fault_of
from ampwatch.diagnosis.rounding.kinds import FP8_SCALE_NONFINITE
from ampwatch.diagnosis.state.kinds import (
    BUFFER_NONFINITE,
    OPTIMIZER_EPS_UNDERFLOW,
    PARAM_NONFINITE,
)
from ampwatch.numerics.units.ops import Phase
from ampwatch.numerics.written import counted
from ampwatch.wire.records import Topic, in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration, TensorRange
    from ampwatch.diagnosis.kinds.kind import (
        Kind,
    )
    from ampwatch.diagnosis.steps.steps import StepVerdict
    from ampwatch.wire.records import Finding


WERE_BROKEN = (
    "Initialise what the checkpoint does not have: look at the missing keys of load_state_dict, and call"
    " reset_parameters() of those modules. Weights that were never written are what was in memory, in bfloat16 above"
    " all; where the file itself has NaN, load another one."
)
"""Advice where weights were NaN before the first forward."""

MOVED_BY_HAND = (
    "Stop, and restore the last good checkpoint. Where code of your own moves weights by gradients, leave them as they"
    " are if a gradient is not finite: a GradScaler guards them only in scaler.step(optimizer). Call"
    " scaler.unscale_(optimizer) before."
)
"""Advice where weights were moved outside of an optimizer's step, as the ascent of SAM does."""

DIVIDED_BY_ZERO = (
    "Stop, and restore the last good checkpoint. Keep what the line divides by off zero: a parameter without a gradient, as"
    " one that was not used in a step, has a norm, a mean square and moments of 0. Add an eps, or leave such parameters out."
)
"""Advice where code that updates weights has divided by zero."""

BROUGHT_BY_RANK = (
    "Stop, and restore the last good checkpoint. Then look at the findings of the other ranks. Where gradients are"
    " reduced by hand, skip the step in all ranks if any of them is not finite after the reduction."
)
"""Advice where another rank has sent the gradients that were not finite."""

OPTION_NOT_FINITE = (
    "Stop, and restore the last good checkpoint. Then look at what sets {name}: a scheduler that divides by zero steps"
    " of warm-up, a power of a negative number, a value out of a file."
)
"""Advice where an option of the optimizer is not finite; ``name`` is the option."""

BUFFER_WAS_THERE = (
    "Reset the running statistics (module.reset_running_stats()), or load a checkpoint in which they are finite: look"
    " at the file that load_state_dict was given."
)
"""Advice where a buffer was not finite before the first step."""


class NonfiniteState:
    """What is broken in parameters and buffers, by the newest measurement of each.

    One iteration may measure a part of the parameters: this is the whole.
    """

    def __init__(self) -> None:
        self._broken: dict[Topic, dict[str, TensorRange]] = {}

    def observe(self, measured: Iterable[TensorRange], broken: Iterable[TensorRange]) -> None:
        """Take in measurements, and which of them are of something broken."""
        for r in measured:
            self._broken.setdefault(r.topic, {}).pop(r.name, None)
        for r in broken:
            self._broken[r.topic][r.name] = r

    def of(self, topic: Topic) -> list[TensorRange]:
        """Return the tensors that are broken, in the order of measurement."""
        return list(self._broken.get(topic, {}).values())

    def without_meant(self, buffers: Iterable[TensorRange]) -> list[TensorRange]:
        """Return measurements of buffers without what is not finite and meant to be so."""
        broken = self._broken.get(Topic.BUFFER, {})
        every = math.inf, math.inf, math.inf
        return [
            r if r.name in broken else r._replace(histogram=r.histogram.without(*every))
            for r in buffers
        ]

    def num_elements(self, topic: Topic) -> int:
        """Return how many elements of these are not finite; -1 before anything was measured."""
        if topic not in self._broken:
            return -1
        return sum(r.histogram.nonfinite for r in self.of(topic))


class PoisonedState(Detector):
    """Detects NaN and infinities in what outlives a step.

    One finding for all parameters and one for all buffers, at the place where most is broken.
    A buffer of -inf is a mask, and one that is not finite from the start a sentinel (the
    smallest value seen so far, a cache not filled yet), unless it holds running statistics. The
    start is before the first step: what a step that was skipped has made of a buffer is no sentinel, if
    it is still there after a step that was taken. Nor is one that makes a loss non-finite with no op at fault.

    A finding is over once each tensor it is about was measured again, and is finite.

    Attributes:
        nonfinite: Parameters and buffers that are not finite, and not meant to be so.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.nonfinite = NonfiniteState()
        self._lost_eps = shared.known.lost_eps
        self._gradient_broke: int | None = None
        self._weights_held: int | None = None
        self._seen: set[str] = set()
        self._sentinels: set[str] = set()
        self._harmful: set[str] = set()
        self._sound: frozenset[str] = frozenset()
        self._unsound: frozenset[str] = frozenset()
        self._bad_option: BadOption | None = None
        self._suspects: set[str] = set()
        self._moved: tuple[int, Writer] | None = None
        self._written: Finding | None = None
        self._sent: tuple[int, str] | None = None
        self._cause = ""
        self._were_broken = 0
        self._is_contained = False

    @takes(SoundBuffers)
    def observe_sound(self, sound: SoundBuffers) -> None:
        """Take in which buffers were finite before the first step."""
        self._sound |= sound.names
        self._unsound |= sound.broken

    @takes(BadOption)
    def observe_option(self, bad: BadOption) -> None:
        """Take in an option of an optimizer that is not finite."""
        self._bad_option = bad

    @takes(BrokenWeights)
    def observe_broken(self, broken: BrokenWeights) -> None:
        """Take in parameters that were broken before any op had read them."""
        self._were_broken += broken.tensors
        self._is_contained = False
        where, count = f"param:{broken.first}", broken.tensors
        have, which = ("has", "it is") if count == 1 else ("have", "the first of them is")
        self._book.report(
            PARAM_NONFINITE,
            where,
            broken.step,
            summary=(
                f"{counted(count, 'parameter')} {have} {broken.what} elements from before step {broken.step} on:"
                f" {which} {in_words(where)}. No op that was watched has made them; what is computed with them is not finite"
            ),
            kind_advice=WERE_BROKEN,
            dtype=broken.dtype,
            evidence={"tensors": float(count)},
        )

    @takes(OpTrace)
    def observe_trace(self, trace: OpTrace) -> None:
        """Take in a traced iteration: was the model run with what was made of a gradient? Whose are its gradients?"""
        sent = "" if trace.is_scaled else trace.sent()
        if sent:
            self._sent = trace.step, sent
        elif trace.has_trained and not trace.bad_gradients:
            self._sent = None  # the program has left out that step
        self._say_written(trace)
        self._harmful.update(origin.name for origin in trace.harmful)
        if trace.writer is not None and trace.writer.op:
            self._moved = trace.step, trace.writer
            return
        for origin in trace.origins:
            is_by_hand = origin.phase is Phase.OPTIMIZER and not origin.is_stepping
            if is_by_hand and origin.gradient and origin.spread_to - {"loss"}:
                self._moved = trace.step, Writer(origin.op, origin.source)
                return

    def _say_written(self, trace: OpTrace) -> None:
        """Name the op that has made weights non-finite of finite numbers, in an optimizer's step or beside it."""
        for name, origins in trace.bad_parameters.items():
            by = trace.origins[min(origins)]
            is_own = by.kind is OriginKind.OP and by.phase is Phase.OPTIMIZER
            if not is_own or by.parents or by in trace.gradient_origins:
                continue
            is_zero = fault_of(by) is Fault.POINT
            if by.out.is_negative_only or (by.op.endswith("_") and not is_zero):
                continue  # a mask, or what it has overwritten may not have been finite
            kind = PARAM_NONFINITE
            if is_zero and name in self._lost_eps:
                kind = OPTIMIZER_EPS_UNDERFLOW
            where = f"param:{name}"
            place = self._book.place_of(kind, where)
            if self._book.get(kind.slug, place) is not None:
                return  # they were broken before
            in_step = (
                "in an optimizer's step" if by.is_stepping else "outside of any optimizer's step"
            )
            zero = ", one of them zero or close to it," if is_zero else ""
            self._written = self._book.report(
                kind,
                place,
                trace.step,
                summary=(
                    f"{by.op} {in_step} made {by.out.in_words()} in {by.out.dtype} of finite numbers{zero}"
                    f" at step {trace.step}, and {in_words(where)} was written with it"
                ),
                kind_advice=DIVIDED_BY_ZERO if is_zero and kind is PARAM_NONFINITE else kind.advice,
                op=by.op,
                source=by.source,
                phase="optimizer",
                dtype=by.out.dtype,
                evidence={"tensors": float(len(trace.bad_parameters))},
            )
            return

    def detect(self, iteration: Iteration, _verdict: StepVerdict) -> None:
        """Take in one judged iteration."""
        if self._gradient_broke is None and any(
            r.topic is Topic.GRADIENT and r.histogram.nonfinite for r in iteration.ranges
        ):
            self._gradient_broke = iteration.step
        is_skipped = any(iteration.found_inf.values())
        measured = [r for r in iteration.ranges if r.topic is Topic.BUFFER]
        self._unsound -= {r.name for r in measured if not r.histogram.nonfinite}
        buffers = [r for r in measured if self._is_poisoned(r, is_skipped=is_skipped)]
        weights = [r for r in iteration.ranges if r.topic is Topic.WEIGHT]
        bad = [r for r in weights if r.histogram.nonfinite]
        self.nonfinite.observe(weights + measured, bad + buffers)
        broken = self.nonfinite.of(Topic.WEIGHT)
        if Topic.WEIGHT in iteration.topics and len(broken) <= self._were_broken:
            self._is_contained = True
        # First, where it was there first: it explains weights that break in the first step.
        if buffers and buffers[0].name in self._unsound:
            self._say_buffers(iteration, buffers)
            buffers = []
        if bad:
            self._say_parameters(iteration, broken)
        # Only where weights were measured at all: no measurement is no proof that they held.
        elif Topic.WEIGHT in iteration.topics:
            self._weights_held = iteration.step
            if not broken:
                self._end(PARAM_NONFINITE, iteration.step)
        if buffers:
            self._say_buffers(iteration, buffers)
        elif measured and not self.nonfinite.of(Topic.BUFFER):
            self._end(BUFFER_NONFINITE, iteration.step)

    def _end(self, kind: Kind, step: int) -> None:
        for finding in self._book.of_kind(kind.slug):
            if not finding.is_gone:
                self._book.end(finding, step)

    def _is_poisoned(self, r: TensorRange, *, is_skipped: bool) -> bool:
        if r.name.rpartition(".")[2].startswith("running_"):
            return bool(r.histogram.nonfinite)
        # A mask, an observer's smallest value, a cache that is not filled yet.
        is_first = r.name not in self._seen
        self._seen.add(r.name)
        if is_first and r.histogram.nonfinite:
            # It may be set anew in the first forward; that shows once a step was taken.
            if is_skipped and r.name in self._sound:
                self._suspects.add(r.name)
            else:
                self._sentinels.add(r.name)
        if is_skipped and r.name in self._suspects:
            return False
        self._suspects.discard(r.name)
        # Not -inf: masks are made of it, and a softmax turns it into zeros.
        spreads = r.histogram.nans or r.histogram.positive_infs
        is_meant = r.name in self._sentinels and r.name not in self._harmful
        return bool(spreads) and not is_meant

    def _say_parameters(self, iteration: Iteration, bad: Sequence[TensorRange]) -> None:
        is_more = self._is_contained and len(bad) > self._were_broken
        if self._were_broken and not is_more:
            # The optimizer has spread them in its first step.
            self._book.again(self._book.of_kind(PARAM_NONFINITE.slug)[-1], iteration.step)
            return
        if not self._book.of_kind(FP8_SCALE_NONFINITE.slug):
            self._say_lost_eps(iteration, bad)
        worst = max(bad, key=lambda r: r.histogram.nonfinite)
        where = f"param:{worst.name}"
        evidence = _evidence(worst, bad)
        # Where others break much later than those that were from the start, that is another incident.
        place = where if self._were_broken else self._book.place_of(PARAM_NONFINITE, where)
        self._were_broken = 0
        if self._written is not None and self._written is self._book.get(
            PARAM_NONFINITE.slug, place
        ):
            # Of what came of them no more is reported.
            self._book.again(self._written, iteration.step)
            return

        def says(since: int) -> str:
            return (
                f"{counted(len(bad), 'parameter')} {_have(bad)} NaN or infinite elements {_by(iteration.step, since)},"
                f" most of them in {in_words(where)}: {_words(worst)}; nothing this training does from"
                f" here on is of use{self._cause}"
            )

        by = None if self._book.of_kind(PARAM_NONFINITE.slug) else self._mover()
        if by is not None:
            self._cause = f". {by.op} outside of any optimizer's step made them of gradients that were not finite"
        phase = "optimizer"
        advice = PARAM_NONFINITE.advice if by is None else MOVED_BY_HAND
        if by is None and self._sent is not None and not self._held_since(self._sent[0]):
            self._cause = f"; {self._sent[1]}"
            advice = BROUGHT_BY_RANK
        option = self._bad_option
        # Looked at in the same iteration: one that was mended since is none.
        is_current = option is not None and option.step == iteration.step
        if option is not None and is_current and by is None and not self._gradients_broke_first():
            self._cause = (
                f". {option.name} of optimizer {option.optimizer} is {option.value:g}, so that its step breaks"
                " weights whatever their gradients are"
            )
            advice, phase = OPTION_NOT_FINITE.format(name=option.name), "config"
        self._book.report(
            PARAM_NONFINITE,
            place,
            iteration.step,
            summary=says,
            kind_advice=advice,
            op="" if by is None else by.op,
            source="" if by is None else by.source,
            phase=phase,
            dtype=worst.dtype,
            evidence=evidence,
        )

    def _mover(self) -> Writer | None:
        """Return what has moved weights by hand, if none were seen to be finite since."""
        if self._moved is None:
            return None
        step, writer = self._moved
        return None if self._held_since(step) else writer

    def _held_since(self, step: int) -> bool:
        """Whether weights were seen to be finite at the end of an iteration, or later."""
        return self._weights_held is not None and self._weights_held >= step

    def _say_lost_eps(self, iteration: Iteration, bad: Sequence[TensorRange]) -> None:
        """Say that ``eps`` is zero in the dtype, if finite gradients have broken the weights."""
        if self._book.of_kind(OPTIMIZER_EPS_UNDERFLOW.slug):
            return
        suspects = [r for r in bad if r.name in self._lost_eps]
        if not suspects or self._gradients_broke_first():
            return
        worst = max(suspects, key=lambda r: r.histogram.nonfinite)
        where, eps = f"param:{worst.name}", self._lost_eps[worst.name]
        self._book.report(
            OPTIMIZER_EPS_UNDERFLOW,
            where,
            iteration.step,
            summary=(
                f"The optimizer's eps of {eps:g} is zero in {worst.dtype}, and so is the square of a"
                f" small gradient: its step divided by zero and left {_words(worst)} in {in_words(where)},"
                f" as of step {iteration.step}"
            ),
            phase="optimizer",
            dtype=worst.dtype,
            evidence={"eps": eps, **_evidence(worst, bad)},
        )

    def _gradients_broke_first(self) -> bool:
        """Whether gradients were seen to be non-finite while the weights still were finite."""
        broke, held = self._gradient_broke, self._weights_held
        return broke is not None and held is not None and broke <= held

    def _say_buffers(self, iteration: Iteration, bad: Sequence[TensorRange]) -> None:
        first = bad[0]
        where = f"buffer:{first.name}"
        evidence = _evidence(first, bad)
        was_there = first.name in self._unsound

        def says(since: int) -> str:
            if was_there:
                return (
                    f"{counted(len(bad), 'buffer')} {_have(bad)} NaN or infinite elements from before the first step"
                    f" on, the first of them {in_words(where)}: {_words(first)}. What is computed with it is not"
                    " finite either"
                )
            return (
                f"{counted(len(bad), 'buffer')} {_have(bad)} NaN or infinite elements {_by(iteration.step, since)},"
                f" the first of them {in_words(where)}: {_words(first)}. Skipping the"
                f" step of an optimizer does not undo what the iteration has written: what is computed"
                f" with it is not finite either"
            )

        self._book.report(
            BUFFER_NONFINITE,
            self._book.place_of(BUFFER_NONFINITE, where),
            iteration.step,
            summary=says,
            kind_advice=BUFFER_WAS_THERE if was_there else BUFFER_NONFINITE.advice,
            phase="config" if was_there else "forward",
            dtype=first.dtype,
            evidence=evidence,
        )


def _evidence(worst: TensorRange, bad: Sequence[TensorRange]) -> dict[str, float]:
    return {
        "tensors": float(len(bad)),
        "elements": float(worst.histogram.numel),
        "nans": float(worst.histogram.nans),
        "infs": float(worst.histogram.infs),
    }


def _by(step: int, since: int) -> str:
    # They are measured in some steps only, and may have broken before.
    return f"by step {step}{'' if step == since else f' (the first by step {since})'}"


def _have(tensors: Sequence[TensorRange]) -> str:
    return "has" if len(tensors) == 1 else "have"


def _words(r: TensorRange) -> str:
    histogram = r.histogram
    of = counted(histogram.numel, "element")
    return f"{histogram.nans} NaN and {histogram.infs} infinite of {of}"
