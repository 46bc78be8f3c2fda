"""Decision to follow every op of an iteration: after something that nothing explains."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.rounding import Stuck, SumSeen
from ampwatch.diagnosis.forward.culprit_ops import CulpritOps
from ampwatch.diagnosis.rounding.kinds import EMA_ROUNDING, METRIC_ACCUM_ROUNDING
from ampwatch.wire.records import SkipClass, Topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.kinds.kind import Kind
    from ampwatch.diagnosis.steps.steps import StepVerdict

UNEXPLAINED_SKIPS = 2
"""Skips in a row, neither calibration nor a probe, after which the next iteration is traced."""

WATCHED_STEPS = 40
"""Iterations in a row whose ops are observed where something may be rounding away: that
takes several updates in a row to distinguish from one that is small."""

MAX_WATCHES = 2
"""Times that ops are watched for rounding. After the second one stop: watching will not find it."""

RECURRING_STEPS = 64
"""Iterations within which a step is skipped again, alone, at a scale that had been good enough,
for the next iterations to be traced as well."""

FIRST_TRACES = 4
"""Iterations that are traced after the first event. One bad batch does not come again at once:
each event that the traces after it did not explain doubles the number."""

MAX_TRACES = 16
"""Iterations that are traced after one event at most."""

REST = 64
"""Iterations after an op was named in which nothing is traced: what goes on is the same incident,
and is counted. After that one more probe is taken, should it still go on, and after twice as many again."""

MAX_REST = 1024
"""Iterations to the next probe at a failure that goes on, at most, where the last one has named an op."""

BLIND = 4
"""Factor of the rest after a probe in which no op was named: in weights that are NaN none can be."""

BEGINNING = 16
"""Iterations in a row in which a failure is new: it is traced in them, and remedies are tried. One that
goes on is looked at ever more seldom, whether its op was named or not."""

ALERT_STEPS = 512
"""Iterations after an event in which the inputs of the model are observed: a bad batch does not
come at once again, and is gone before anything else can be observed."""

MAX_BURSTS = 8
"""Events after which iterations are traced. After this many stop: tracing will not find it. Events
that are more than a skipped step have as many of their own: a scale that is too large for some
batches must not use up what a loss that is not finite is traced by."""

CALM_STEPS = 2000
"""Iterations without a burst after which an event belongs to something new, and bursts are counted
from the beginning: a run of weeks has more than one incident. A GradScaler grows after as many."""

NONE_FAILED = (-1, math.nan, False)
"""What ``Escalation.failed`` is before anything has failed."""

STATE = frozenset({Topic.ACTIVATION, Topic.WEIGHT})
"""Topics that call for a trace as soon as they are not finite, even where a scaler skips the step."""


class Escalation(Detector):
    """Decides, iteration by iteration, whether the next one is traced.

    Attributes:
        failed: The newest iteration that has failed, its loss scale, and whether nothing explains that. Any
            skipped step counts: most of those that a scaler takes to calibrate fail in backward, and a
            replay finds nothing; but an op that overflows from the first step on looks no other.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._skips = shared.skips
        self._culprits = shared.of(CulpritOps)
        self._until = -1
        self._step = -1
        self._forget_bursts()
        self._event_at = -ALERT_STEPS
        self._watched_until = -1
        self._watches = 0
        self.failed = NONE_FAILED
        self._failing_since = self._failing_at = -1
        self._probed_at = -1
        self._rest = REST
        self._seen: set[tuple[int, bool, bool]] = set()
        self._skipped_at = -RECURRING_STEPS
        self._largest_applied = 0.0

    @property
    def wants_trace(self) -> bool:
        """Whether the next iteration should be traced."""
        if self._lasts:
            # One iteration after the replay, which takes less, and has named the op by then.
            is_due = 0 <= self._probed_at == self._step - 1 and not self._is_explained()
        else:
            is_due = self._step < self._until and not self._is_explained()
        return is_due or self._culprits.is_doubted(self._step)

    @property
    def wants_inputs(self) -> bool:
        """Whether the inputs of the next iteration should be observed."""
        return self._step - self._event_at < ALERT_STEPS and not self.is_known

    @property
    def is_known(self) -> bool:
        """Whether what fails goes on as it did when it was looked at, so no step is to be replayed."""
        return self._lasts and self._probed_at != self._step

    @property
    def _lasts(self) -> bool:
        """Whether so many iterations have failed in a row that the failure is not new any more."""
        return self._failing_at == self._step and self._step - self._failing_since >= BEGINNING

    @property
    def wants_ops(self) -> bool:
        """Whether the ops of the next iteration should be observed: something may round away."""
        return self._step < self._watched_until

    @takes(SumSeen)
    def observe_sum(self, seen: SumSeen) -> None:
        """Take in that a running sum is kept in half precision."""
        self._suspect(METRIC_ACCUM_ROUNDING, seen.step)

    @takes(Stuck)
    def observe_average(self, stuck: Stuck) -> None:
        """Take in an update of an average that had no effect."""
        if stuck.what.is_average:
            self._suspect(EMA_ROUNDING, stuck.site.step)

    def _suspect(self, kind: Kind, step: int) -> None:
        """Have ops observed for a while: something may be rounding away that was not stated yet."""
        if self._book.of_kind(kind.slug):
            return
        if step >= self._watched_until and self._watches < MAX_WATCHES:
            self._watches += 1
            self._watched_until = step + WATCHED_STEPS

    def _is_explained(self) -> bool:
        explained = self._culprits.explained_at
        return explained >= max(self._probed_at, 0) and self._step - explained < self._rest

    def detect(self, iteration: Iteration, verdict: StepVerdict) -> None:
        """Take in one judged iteration."""
        self._step = iteration.step
        if verdict.skipped or verdict.nonfinite_loss:
            searches = verdict.skip_class in (SkipClass.CALIBRATING, SkipClass.PROBE)
            self.failed = iteration.step, iteration.scale_before, not searches
        if verdict.skipped and self._skips.calibrated:
            self._event_at = iteration.step
        is_skipping = self._is_skipping(iteration, verdict)
        is_broken = verdict.nonfinite_loss or self._is_broken(iteration, verdict)
        if verdict.skipped or is_broken:
            self._count_failure(iteration.step, verdict)
        if not (is_broken or is_skipping):
            return
        self._event_at = iteration.step
        if self._is_explained():
            if self._culprits.explained_at < iteration.step:
                self._culprits.goes_on(iteration.step, self._failing_since)
            return
        if self._lasts:
            self._probe()
            return
        if iteration.step - self._until >= CALM_STEPS:
            self._forget_bursts()
        if iteration.step >= self._until and self._bursts[is_broken] < MAX_BURSTS:
            self._bursts[is_broken] += 1
            self._until = iteration.step + self._traces[is_broken]
            self._traces[is_broken] = min(2 * self._traces[is_broken], MAX_TRACES)

    def _count_failure(self, step: int, verdict: StepVerdict) -> None:
        """Take in an iteration that has failed; end the rest if that is new, or anything beside it."""
        if step != self._failing_at + 1:
            self._failing_since = step
            self._seen.clear()
        self._failing_at = step
        news = self._culprits.num_findings, verdict.skipped, verdict.nonfinite_loss
        if news not in self._seen:
            self._seen.add(news)
            self._probed_at, self._rest = -1, REST

    def _probe(self) -> None:
        """Have the failure that goes on looked at once more, unless a probe has shown nothing lately."""
        has_shown = self._culprits.explained_at >= self._probed_at
        if has_shown or self._step - self._probed_at >= BLIND * self._rest:
            self._probed_at = self._step
            self._rest = min(2 * self._rest, MAX_REST)

    def count(self, quiet: Sequence[Iteration]) -> None:
        """Take in quiet iterations in a row."""
        self._step = quiet[-1].step

    def _forget_bursts(self) -> None:
        """Begin to count bursts, by whether more is broken than a step that was skipped."""
        self._bursts = {True: 0, False: 0}
        self._traces = {True: FIRST_TRACES, False: FIRST_TRACES}

    def _is_skipping(self, iteration: Iteration, verdict: StepVerdict) -> bool:
        """Whether steps are skipped in a row, or again and again."""
        in_a_row = verdict.skipped and self._skips.unexplained >= UNEXPLAINED_SKIPS
        return self._recurs(iteration, verdict) or in_a_row

    def _is_broken(self, iteration: Iteration, verdict: StepVerdict) -> bool:
        """Whether something is not finite that no scale makes so."""
        topics = (
            STATE if verdict.skipped or iteration.scaler is not None else STATE | {Topic.GRADIENT}
        )
        return any(r.histogram.nonfinite for r in iteration.ranges if r.topic in topics)

    def _recurs(self, iteration: Iteration, verdict: StepVerdict) -> bool:
        """Whether a step is skipped again although its scale had been good enough."""
        if verdict.set_by_hand:
            self._largest_applied = 0.0
        if not verdict.skipped:
            if verdict.applied and iteration.scaler is not None:
                self._largest_applied = max(self._largest_applied, verdict.scale_before)
            return False
        if verdict.scale_before > self._largest_applied:
            return False
        recurs = iteration.step - self._skipped_at < RECURRING_STEPS
        self._skipped_at = iteration.step
        return recurs
