"""Findings about the op in which finite became non-finite."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.diagnosis.causes import INCIDENT_STEPS, LASTING, is_left_behind
from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.origins import BadInput, OpTrace, OriginKind
from ampwatch.diagnosis.forward.culprit_words import advice_of, summary_of
from ampwatch.diagnosis.forward.faults import limit_of
from ampwatch.diagnosis.forward.kinds import (
    BACKWARD_NONFINITE_ANY_SCALE,
    NONFINITE_INPUT,
    REDUCE_OVERFLOW,
)
from ampwatch.diagnosis.forward.origins import diagnose
from ampwatch.diagnosis.forward.persistence import ScaleWitness
from ampwatch.diagnosis.state.kinds import BUFFER_NONFINITE
from ampwatch.wire.records import Finding, Severity

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.forward.origins import Diagnosed
    from ampwatch.diagnosis.steps.steps import StepVerdict

RECURS = 3
"""Iterations in which a kind of one bad batch is seen, from which on it is no longer a bad batch
or two, which is what a scaler is for."""


DOUBT_STEPS = 8
"""Iterations in which a trace is waited for, and made: what is seen on a device arrives some iterations later."""


class CulpritOps(Detector):
    """Names the op that an incident began with.

    Iterations that fail after it are counted for it as well, without a trace. Where a buffer has become NaN or
    infinite, and no iteration has gone well since, they may fail because of the buffer alone. Then one that
    fails is traced once more: if no op is at fault in it, the op is over. So it is once a trace shows that parameters or
    buffers alone make the loss non-finite.

    Attributes:
        explained_at: The newest iteration in which an op was named; -1 before the first.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.explained_at = -1
        self._newest: Finding | None = None
        self._doubted_since: int | None = None
        self._is_settled = False
        self._inputs: dict[int, BadInput] = {}
        self._received: set[int] = set()
        self._witness = ScaleWitness()

    @takes(BadInput)
    def observe_input(self, bad: BadInput) -> None:
        """Take in what a model was given; what becomes of it is known when the iteration is judged."""
        self._inputs[bad.step] = bad

    def detect(self, iteration: Iteration, verdict: StepVerdict) -> None:
        """Take in a judged iteration: has a bad input made it fail? Has it stepped?"""
        if verdict.applied and not verdict.skipped:
            self._witness.step_taken(iteration.step)
        if not self._inputs:
            return
        bad = self._inputs.get(iteration.step)
        # Also those that came too late to be judged.
        self._inputs = {step: b for step, b in self._inputs.items() if step > iteration.step}
        if bad is None or not (verdict.skipped or verdict.nonfinite_loss):
            return
        if self.explained_at == iteration.step:
            return  # it was traced, and more is known
        self.explained_at = iteration.step
        made = next(iter(self._book.of_kind(NONFINITE_INPUT.slug)), None)
        if made is not None:
            self._book.again(made, iteration.step)
            self._newest = made
            self._book.led_to_by(made)
            return
        finding = self._book.report(
            NONFINITE_INPUT,
            "",
            bad.step,
            summary=(
                f"The data was not finite before the model read it: {'NaN' if bad.nans else 'inf'} among"
                f" the inputs of the model at step {bad.step}; another precision or loss scale does not help"
            ),
            phase="forward",
            source=bad.source,
            evidence={"numel": float(bad.numel)},
        )
        self._attach(finding)

    @property
    def num_findings(self) -> int:
        """Number of all findings so far, of whatever kind."""
        return len(self._book.findings)

    @property
    def is_at_rest(self) -> bool:
        """Whether a quiet iteration would be nothing to it."""
        return not self._inputs and self._witness.is_at_rest

    def is_doubted(self, step: int) -> bool:
        """Whether a trace of the iteration after ``step`` should show if the op that was named last goes on."""
        return self._doubted_since is not None and step - self._doubted_since < DOUBT_STEPS

    def goes_on(self, step: int, since: int) -> None:
        """Count iteration ``step``, which was not traced, for the op that was named last.

        Args:
            step: An iteration that has failed.
            since: The first of all that have failed in a row with it.
        """
        made = self._newest
        if made is None or self._may_be_of_buffer(made, step, since):
            return
        self._book.again(made, step)
        self._seen_again(made)

    def _may_be_of_buffer(self, made: Finding, step: int, since: int) -> bool:
        """Whether an iteration may have failed because of a buffer alone, which a trace has yet to show."""
        if self._is_settled:
            return False
        # An iteration that has gone well with the buffer as it is shows that it does no harm.
        left = self._book.of_kind(BUFFER_NONFINITE.slug)
        if all(f.first_step < max(since, made.first_step) for f in left):
            return False
        if self._doubted_since is None:
            self._doubted_since = step
        # Where no trace can be made, it stays with what was known before.
        self._is_settled = not self.is_doubted(step)
        return not self._is_settled

    def _settle(self, trace: OpTrace, *, is_named: bool) -> None:
        """End the doubt if this trace shows whether an op is at fault again."""
        if self._doubted_since is None or trace.step < self._doubted_since:
            return
        has_failed = trace.loss_nonfinite or bool(trace.bad_gradients)
        if is_named or (has_failed and not trace.is_replay):
            self._doubted_since = None
            self._is_settled = True
            if not is_named:
                self._newest = None

    @takes(OpTrace)
    def observe_trace(self, trace: OpTrace) -> None:
        """Take in an iteration that was traced op by op; on a device some iterations later."""
        found = diagnose(trace, self._witness.observe(trace))
        kinds = {origin.kind for origin in trace.origins}
        if OriginKind.SENT in kinds and OriginKind.INPUT not in kinds:
            # Another rank has sent what the model read: the data is not at fault, whatever a replay shows.
            self._inputs.pop(trace.step, None)
            self._received.add(trace.step)
        self._received = {step for step in self._received if step > trace.step - DOUBT_STEPS}
        if found is not None and found.kind is NONFINITE_INPUT and trace.step in self._received:
            found = None
        self._settle(trace, is_named=found is not None)
        if found is not None and found.origin.is_unseen and self._is_known(trace.step):
            return
        if found is None:
            if trace.harmful and trace.step > self.explained_at:
                self._newest = None  # what the model holds fails by itself from there on
            return
        self.explained_at = max(self.explained_at, trace.step)
        made = self._book.get(found.kind.slug, found.where) or self._same_incident(found)
        if made is not None:
            if trace.tried and not made.tried:
                made.tried = tuple(trace.tried)
                made.kind_advice = advice_of(found, trace.tried)
                made.evidence["tried_step"] = float(trace.step)
                self._book.report_change(made)
            if trace.step > made.last_step:  # what arrives late may have been counted already
                # The numbers stay those of the step that the summary is about.
                self._book.again(made, trace.step)
            self._newest = made
            self._seen_again(made)
            self._book.led_to_by(made)
            return
        finding = _finding(found, trace)
        self._book.make(finding)
        self._attach(finding)

    def _is_known(self, step: int) -> bool:
        """Count an iteration that only shows that fused code made something, for the op that is known of it.

        Made again eagerly, such an iteration shows more, and so do those before it of the same incident.
        """
        made = self._newest
        if made is None or not 0 <= step - self.explained_at <= INCIDENT_STEPS:
            return False
        if step > made.last_step:
            self._book.again(made, step)
        return True

    def _seen_again(self, made: Finding) -> None:
        if made.count >= RECURS and made.severity is Severity.INFO:
            made.severity = Severity.CRITICAL
            self._book.report_change(made)
        left = self._book.root_of(made)
        # What it has left behind was taken for the root because it seemed to be over.
        is_one_incident = made.last_step - left.first_step <= INCIDENT_STEPS
        if made.count >= LASTING and is_one_incident and is_left_behind(left):
            self._book.promote(made)

    def _same_incident(self, found: Diagnosed) -> Finding | None:
        """Return the finding of the same op in another module, or at another of its places.

        A batch that breaks one block of a stack may break another one the next time.
        """
        return next(
            (
                f
                for f in self._book.of_kind(found.kind.slug)
                if found.kind in (NONFINITE_INPUT, BACKWARD_NONFINITE_ANY_SCALE, REDUCE_OVERFLOW)
                or (f.op == found.origin.op and f.source == found.origin.source != "")
            ),
            None,
        )

    def _attach(self, finding: Finding) -> None:
        self._newest = finding
        self._doubted_since = None
        self._is_settled = False
        self._book.led_to_by(finding)


def _finding(found: Diagnosed, trace: OpTrace) -> Finding:
    origin = found.origin
    is_op = origin.kind is OriginKind.OP or found.kind is not NONFINITE_INPUT
    severity = Severity.WARNING if found.phase == "eval" else Severity.CRITICAL
    if (
        trace.is_scaled
        and found.kind.is_transient
        and found.phase == "forward"
        and trace.has_trained
    ):
        severity = Severity.INFO
    return found.kind.finding(
        found.where,
        trace.step,
        summary=summary_of(found, trace) + (_OF_COMPILED if trace.of_compiled else ""),
        severity=severity,
        kind_advice=advice_of(found, trace.tried),
        op=origin.op if is_op else "",
        phase=found.phase,
        dtype=origin.out.dtype or "float32",
        source=origin.source,
        evidence=_evidence(found) | ({"tried_step": float(trace.step)} if trace.tried else {}),
        tried=tuple(trace.tried),
    )


_OF_COMPILED = (
    ". That was seen when the step was made again eagerly, and so are its numbers: compiled code keeps more"
    " of what it computes in float32"
)


def _evidence(found: Diagnosed) -> dict[str, float]:
    origin = found.origin
    evidence = {
        "numel": float(origin.out.numel),
        "in_amax": origin.in_amax,
        "out_amax": origin.out.amax,
        "dtype_max": limit_of(origin.out.dtype),
        "in_amin": min((v.amin for v in origin.inputs if not math.isnan(v.amin)), default=math.nan),
        "number": origin.number,
        "other_births": float(found.others),
    }
    return {name: value for name, value in evidence.items() if not math.isnan(value)}
