"""Iterations in; the last step, records and findings out. Iterations without news are only counted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.calls.api_misuse import ApiMisuse
from ampwatch.diagnosis.detector import Detector, Shared
from ampwatch.diagnosis.detectors import DETECTORS
from ampwatch.diagnosis.escalation import Escalation
from ampwatch.diagnosis.evidence.iteration import Attention
from ampwatch.diagnosis.forward.forward_range import ForwardRange
from ampwatch.diagnosis.forward.logits import LogitGrowth
from ampwatch.diagnosis.performance.performance import Performance
from ampwatch.diagnosis.records.memory_records import MemoryRecorder
from ampwatch.diagnosis.records.op_records import OpRecorder
from ampwatch.diagnosis.records.range_records import RangeRecorder
from ampwatch.diagnosis.state.divergence import LOST, MIN_LEVEL
from ampwatch.diagnosis.steps.steps import StepJudge, StepVerdict, Totals
from ampwatch.wire.records import OptimizerRecord, StepRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ampwatch.diagnosis.book import Notify
    from ampwatch.diagnosis.detector import Known
    from ampwatch.diagnosis.evidence.iteration import Iteration, SamplingCost
    from ampwatch.diagnosis.evidence.ops import OpCensus
    from ampwatch.settings import Settings
    from ampwatch.wire.records import Record


CALM_LOSS = LOST * MIN_LEVEL
"""Magnitude of a loss below which it says nothing by itself: the least that ``Divergence`` takes for
one from which there is no way back."""


class QuietForm:
    """The form of the iterations that a judged one stands for, if no detector waits for anything.

    Each is like it: the same optimizers took their step and the same schedulers moved, the scale is
    what it was, every loss is finite, and nothing was measured.
    All that the detectors make of such an iteration is to count it.

    Args:
        like: An iteration.
        autocast_dtypes: Names of the autocast dtypes seen so far; read, never copied.
        until_ns: Unix time from which on something is due that waits for an iteration. Unit: ns.
    """

    def __init__(self, like: Iteration, autocast_dtypes: Sequence[str], until_ns: float) -> None:
        self._like = like
        self._dtypes = autocast_dtypes
        self._num_dtypes = len(autocast_dtypes)
        self._until_ns = until_ns

    def takes_all(self, iterations: Sequence[Iteration]) -> bool:
        """Whether iterations that differ in times, losses and tracker alone are of this form, all of them."""
        losses = [iteration.loss for iteration in iterations]
        # Neither min nor max shows a NaN.
        is_calm = math.isfinite(sum(losses)) and max(map(abs, losses)) < CALM_LOSS
        return is_calm and self.takes(iterations[0]) and self.takes(iterations[-1])

    def takes(self, iteration: Iteration) -> bool:
        """Whether an iteration is of this form. Cost: 0.5 us."""
        like = self._like
        return (
            iteration.found_inf == like.found_inf
            # A scale below one is counted as long as it lasts.
            and (
                like.scaler is None
                or like.loss_scale == iteration.loss_scale == iteration.scale_before >= 1.0
            )
            and iteration.num_losses == like.num_losses
            and (not iteration.num_losses or -CALM_LOSS < iteration.loss < CALM_LOSS)
            and not iteration.topics
            and iteration.census is None
            and iteration.window is None
            and iteration.scaler == like.scaler
            and iteration.applied_directly == like.applied_directly
            and iteration.scheduler_stepped == like.scheduler_stepped
            and iteration.is_outcome_known
            and not (iteration.scale_given or iteration.other_found_inf or iteration.ranges)
            and True not in iteration.found_inf.values()
            and len(self._dtypes) == self._num_dtypes
            and iteration.time_ns < self._until_ns
        )


@dataclass(frozen=True, slots=True)
class LastStep:
    """The iteration that has ended last.

    ``if not watch.last_step.skipped: scheduler.step()`` right after ``scaler.update()`` is exact, except
    with fused optimizers on a GPU: only the device knows their outcome, and ``skipped`` is ``None``.

    Attributes:
        step: Index of the iteration since ``monitor()``, from 0; -1 before the first.
        skipped: Whether the step of any optimizer was skipped; ``None`` if the host does not know.
        loss_scale: The newest loss scale that has reached the host; NaN without one.
        skipped_optimizers: Numbers of the optimizers whose step was skipped.
    """

    step: int = -1
    skipped: bool | None = False
    loss_scale: float = math.nan
    skipped_optimizers: tuple[int, ...] = ()


class SelfCost(Struct):
    """Cost and gaps of ampwatch itself, so far.

    Attributes:
        overhead_ns: Host time on the training thread. Unit: ns.
        sensor_errors: Exceptions kept from training.
        observations_dropped: Iterations whose values were given up.
    """

    overhead_ns: int
    sensor_errors: int
    observations_dropped: int


class Diagnosis:
    """Takes the iterations of one training, in order.

    An iteration in which something is new is judged by every detector. Those that follow it and are
    quiet (``QuietForm``) only those detectors get that count, several iterations in one call.

    Args:
        settings: Thresholds.
        initial_scale: The scale before the first iteration; NaN without a scaler.
        put: Where records go, in their order; several in a call.
        notify: Called with findings, as they are made and as they change.
        cost: Asked what ampwatch has cost so far, once for quiet iterations in a row.
        sampling_cost: Asked once per sample what sampling has cost so far.
        known: What the sensors know.
        run_guarded: Calls the detectors; a detector that fails must not end the records.
        more: Detectors that come after those of ``DETECTORS``.

    Attributes:
        last_step: The newest iteration that was judged.
        totals: Counts so far.
        book: The findings.
        iterations: How many iterations were taken in.
        ops: Adds up which op ran in which dtype.
        focus: Names of the modules whose outputs should be measured in every iteration.
        memory: Records the memory that the training takes.
    """

    def __init__(  # noqa: PLR0913 - all but two by keyword
        self,
        settings: Settings,
        initial_scale: float,
        *,
        put: Callable[..., None],
        notify: Notify,
        cost: Callable[[], SelfCost],
        sampling_cost: Callable[[], SamplingCost],
        known: Known,
        run_guarded: Callable[..., None],
        more: Sequence[type[Detector]] = (),
    ) -> None:
        self.last_step = LastStep(loss_scale=initial_scale)
        self.totals = Totals()
        self.book = FindingBook(notify)
        self.iterations = 0
        self._put = put
        self._cost = cost
        self._autocast_dtypes = known.autocast_dtypes
        self._run_guarded = run_guarded
        self._quiet: QuietForm | None = None
        shared = Shared(
            self.book,
            settings,
            known,
            put,
            sampling_cost,
            loss_scale=lambda: self.last_step.loss_scale,
        )
        self._skips = shared.skips
        self._judge = StepJudge(shared.skips)
        for kind in (*DETECTORS, *more):
            shared.build(kind)
        self._of = shared.of
        self._detectors = _having(shared, "detect")
        self._counting = _having(shared, "count")
        self._waiting = _having(shared, "is_at_rest")
        self._observers: dict[type, list[Callable[[Any], None]]] = {}
        aside: set[type] = set()
        for detector in shared.built.values():
            aside |= detector.aside
            for evidence, name in detector.observers.items():
                self._observers.setdefault(evidence, []).append(getattr(detector, name))
        self._aside = frozenset(aside)
        self.ops = shared.of(OpRecorder)
        self.memory = shared.of(MemoryRecorder)
        self.focus = shared.of(ForwardRange).focus

    def deliver(self, *iterations: Iteration) -> None:
        """Take in iterations: judge them, record them, detect failures.

        Cost: some 8 us a quiet iteration, 40 us any other one.
        """
        quiet: list[Iteration] = []
        for iteration in iterations:
            if self._quiet is not None and self._quiet.takes(iteration):
                quiet.append(iteration)
                continue
            self._count(quiet)
            quiet.clear()
            # Until all detectors have had their say nothing is known of what comes next.
            self._quiet = None
            verdict = self._judge.judge(iteration)
            self._take_in([iteration], verdict)
            self._run_guarded(self._detect, iteration, verdict)
        self._count(quiet)

    def deliver_alike(self, iterations: Sequence[Iteration]) -> None:
        """Take in iterations that differ in their times, in their losses, which are finite, and in the tracker.

        Cost: some 6 us each, if they are quiet.
        """
        if self._quiet is not None and self._quiet.takes_all(iterations):
            self._count(iterations)
        else:
            self.deliver(*iterations)

    def _count(self, quiet: Sequence[Iteration]) -> None:
        """Take in quiet iterations in a row."""
        if quiet:
            self._take_in(quiet, self._judge.judge_quiet(quiet))
            self._run_guarded(self._detect_nothing, quiet)

    def _take_in(self, alike: Sequence[Iteration], verdict: StepVerdict) -> None:
        """Record iterations of one verdict, and remember the last of them."""
        last = alike[-1]
        self.iterations += len(alike)
        skipped = tuple(sorted([i for i, found in last.found_inf.items() if found]))
        outcome = bool(skipped) if last.is_outcome_known or last.found_inf else None
        self.last_step = LastStep(last.step, outcome, last.loss_scale, skipped)
        self._record(alike, verdict)

    @property
    def norms(self) -> Mapping[str, float]:
        """L2 norms of the newest measured gradients by parameter, without the loss scale."""
        return self._of(RangeRecorder).norms

    def observe(self, observation: object) -> None:
        """Take in what a sensor has learnt in the open iteration, as soon as it has.

        Args:
            observation: An object of a type that a family of findings takes; others are ignored.
        """
        observers = self._observers.get(type(observation), ())
        if observers and type(observation) not in self._aside:
            self._quiet = None
        for observe in observers:
            self._run_guarded(observe, observation)

    def attention(self) -> Attention:
        """Return what should be observed more closely in the next iteration."""
        escalation = self._of(Escalation)
        return Attention(
            escalation.wants_trace,
            escalation.wants_inputs,
            escalation.wants_ops,
            self.focus,
            *escalation.failed,
            escalation.is_known,
            probe_every=self._of(LogitGrowth).probe_every,
        )

    def end(self) -> None:
        """Say what was held back: nothing more will come."""
        self._run_guarded(self._of(ApiMisuse).flush)

    def check_layers(self) -> None:
        """Check the model before anything has run."""
        self._run_guarded(self._of(Performance).check_layers)

    def observe_census(self, census: OpCensus, time_ns: int) -> None:
        """Take in the ops of an iteration that did not end."""
        self._quiet = None
        self._run_guarded(self._of(Performance).check_census, census)
        self._run_guarded(self.ops.record, census, time_ns)

    def _detect(self, iteration: Iteration, verdict: StepVerdict) -> None:
        self.book.now_ns = iteration.time_ns
        for detector in self._detectors:
            detector.detect(iteration, verdict)
        self.book.attach_symptoms()
        self.book.report_escalations()
        if not verdict.set_by_hand and all(detector.is_at_rest for detector in self._waiting):
            quiet = QuietForm(iteration, self._autocast_dtypes, self.ops.due_ns)
            self._quiet = quiet if quiet.takes(iteration) else None

    def _detect_nothing(self, quiet: Sequence[Iteration]) -> None:
        """Have counted what ``_detect`` would only count."""
        self.book.now_ns = quiet[-1].time_ns
        for detector in self._counting:
            detector.count(quiet)

    def _record(self, alike: Sequence[Iteration], verdict: StepVerdict) -> None:
        """Record iterations of one verdict."""
        totals, cost = self.totals, self._cost()
        totals.add(alike[-1], verdict, len(alike))
        # Once and not for each, of which there may be some hundred.
        skip_class, streak = verdict.skip_class, self._skips.streak
        growths, backoffs, by_hand = totals.growths, totals.backoffs, totals.set_by_hand
        nonfinite, dropped = totals.nonfinite_losses, cost.observations_dropped
        errors, overhead_ns = cost.sensor_errors, cost.overhead_ns
        records: list[Record] = [
            StepRecord(
                step=iteration.step,
                time_ns=iteration.time_ns,
                duration_s=iteration.duration_s,
                loss=iteration.loss,
                num_losses=iteration.num_losses,
                loss_scale=iteration.loss_scale,
                growth_tracker=iteration.growth_tracker,
                skip_class=skip_class,
                consecutive_skips=streak,
                total_growths=growths,
                total_backoffs=backoffs,
                total_set_by_hand=by_hand,
                total_nonfinite_losses=nonfinite,
                total_observations_dropped=dropped,
                total_sensor_errors=errors,
                overhead_ns=overhead_ns,
                phases=(time := iteration.time).phases,
                total_samples=time.samples,
                total_tokens=time.tokens,
                cpu_ns=time.cpu_ns,
                run_delay_ns=time.run_delay_ns,
            )
            for iteration in alike
        ]
        iteration = alike[-1]
        # Totals: of iterations alike those after the last one say all.
        for index in {*iteration.found_inf, *iteration.applied_directly}:
            calibrating, probe, unprovoked, storm = totals.skipped[index]
            records.append(
                OptimizerRecord(
                    step=iteration.step,
                    index=index,
                    skipped=iteration.found_inf.get(index, False),
                    total_steps=totals.steps[index],
                    total_skipped=(calibrating, probe, unprovoked, storm),
                )
            )
        self._put(*records)


def _having(shared: Shared, name: str) -> list[Detector]:
    """Return the detectors that have a method or property of their own, in their order."""
    default = getattr(Detector, name)
    return [d for kind, d in shared.built.items() if getattr(kind, name) is not default]
