"""Findings about a training that diverges: a failure of the optimization, not of a format."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.calls import Raised
from ampwatch.diagnosis.state.kinds import DIVERGENCE
from ampwatch.numerics.written import counted
from ampwatch.wire.records import SkipClass, Topic, in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.steps.steps import StepVerdict


FIRST_LOSSES = 2
"""Losses that say where a training began. Unit: steps."""

CALM = 16
"""Losses in a row of which the largest says where a training was later. Losses of critics pass
through zero, but do not stay there. Unit: steps."""

MIN_LEVEL = 0.01
"""A level below this counts as this: many a loss begins at nothing, and a hundred is not much then."""

RISE = 1e3
"""Ratio of the loss to the lowest of the two levels that counts once something is not finite, or an
exception has ended the training: many a program raises one when its loss rises."""

LOST = 1e8
"""Ratio of the loss to that level from which there is no way back, though everything is finite."""

RECORDS = 3
"""Times that the loss was larger than ever since. An overflow out of the blue sets one record, a
bad batch two."""

FAST_RECORDS = 2
FAST_RISE = 1e6
"""Records that are enough where it rises by ``FAST_RISE``: rates that are far too high need two steps."""

RECORD = 1.5
"""Ratio to the record before from which a loss is a new one. After a jump, of the data or of a
weighting, the loss lies about a new level, and sets small records there without rising at all."""

RECORDS_FINITE = 8
"""Records that it takes where everything is finite yet."""

NEAR_TOP = 0.1
"""Share of its largest value below which a loss is on the way back, unless it is ``LOST`` all the same."""

BLOWN_UP = 10.0
"""Growth of the weights, before the loss rose, from which one record is enough: no format does that
to them. Where the loss jumps first, what becomes of the weights follows from it."""

GROWN = 1.2
"""Growth of the weights, at least, where they were measured."""

SMALL_WEIGHT = 0.1
"""Share of the model's largest weight that a parameter counts with at least at first: one that
begins at zero grows without end, and means nothing by it."""

STATE = (Topic.WEIGHT, Topic.ACTIVATION)
"""Topics that the loss scale does not touch."""


class Divergence(Detector):
    """Follows the magnitude of the loss from its first values on."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._losses: deque[float] = deque(maxlen=CALM)
        self._level = math.inf
        self._largest = self._record = 0.0
        self._records = 0
        self._record_since = 0
        self._newest = math.nan
        self._updated = True
        self._weights: dict[str, tuple[float, float]] = {}
        self._weighed: deque[int] = deque(maxlen=2)
        self._growth_before = math.nan

    def detect(self, iteration: Iteration, verdict: StepVerdict) -> None:
        """Take in one judged iteration, after the other families have."""
        # Weights are measured after the update, so those of before belong to this loss.
        if iteration.num_losses and math.isfinite(iteration.loss):
            self._follow(abs(iteration.loss), iteration.step)
        self._weigh(iteration)
        self._updated = self._updated or not verdict.skipped
        broke = _has_broken(iteration, verdict)
        made = self._book.of_kind(DIVERGENCE.slug)
        if made:
            if broke:
                self._book.again(made[-1], iteration.step)
        elif self._is_diverging(broke=broke):
            end = (
                "before anything stopped being finite" if broke else "and nothing holds it any more"
            )
            self._say(iteration.step, end)

    @takes(Raised)
    def raised(self, seen: Raised) -> None:
        """An exception has ended the training."""
        if not self._book.of_kind(DIVERGENCE.slug) and self._is_diverging(broke=True):
            self._say(seen.step, "before an exception ended the training")

    def count(self, quiet: Sequence[Iteration]) -> None:
        """Take in quiet iterations in a row: their losses, none of which says anything by itself."""
        if quiet[-1].num_losses:
            losses = [abs(iteration.loss) for iteration in quiet]
            if not self._follow_all(losses):
                for iteration, loss in zip(quiet, losses, strict=True):
                    self._follow(loss, iteration.step)
                    self._updated = True

    def _follow_all(self, losses: Sequence[float]) -> bool:
        """Follow losses at once, as ``_follow`` does each; return whether that was possible.

        It is while none sets a record, and there is none that a loss on its way back would end.
        """
        if self._records or len(self._losses) < CALM:
            return False
        recent = [*self._losses, *losses][1:]
        # The largest of each CALM losses in a row, the last of which are those given.
        windows = list(map(max, zip(*(recent[i:] for i in range(CALM)), strict=False)))
        level = min(windows)
        if max(losses) > max(RECORD * min(self._record, level), MIN_LEVEL):
            return False
        since = losses
        if level < self._level:
            self._level = self._largest = self._record = level
            since = losses[windows.index(level) :]
        self._largest = max(self._largest, *since)
        self._losses.extend(losses)
        self._newest, self._updated = losses[-1], True
        return True

    def _weigh(self, iteration: Iteration) -> None:
        weights = [r for r in iteration.ranges if r.topic is Topic.WEIGHT]
        finite = [r for r in weights if not r.histogram.nonfinite]
        for r in finite:
            first, _ = self._weights.get(r.name, (r.histogram.amax, 0.0))
            self._weights[r.name] = first, r.histogram.amax
        if finite:
            self._weighed.append(iteration.step)

    def _follow(self, loss: float, step: int) -> None:
        self._newest = loss
        self._losses.append(loss)
        # CALM is also the room of the deque: once it is full every further loss closes a window, and
        # the calmest window so far is the level.
        if len(self._losses) in (FIRST_LOSSES, CALM):
            level = max(self._losses)
            if len(self._losses) == FIRST_LOSSES and level > RISE * max(self._losses[0], MIN_LEVEL):
                level = self._losses[0]  # it was gone after one update
            if level < self._level:
                self._level = self._largest = self._record = level
                self._records = 0
        self._largest = max(self._largest, loss)
        if loss > max(RECORD * self._record, MIN_LEVEL):
            if not self._records:
                self._record_since = step
            # Twice: the first update comes before the first measurement.
            is_known = len(self._weighed) > 1 and self._weighed[-1] == step - 1
            self._growth_before = self._growth() if is_known else math.nan
            self._record = loss
            # Without an update since the last one it is the batch that is large, not the weights.
            self._records += self._updated
            self._updated = False
        elif loss < self._top():
            # It has come back: what it was at the top is where the next rise begins.
            self._records = 0

    def _is_diverging(self, *, broke: bool) -> bool:
        if not self._records:
            return (
                False  # before all weights are gone through, in each step of a training that fails
            )
        ways = ((RECORDS, RISE), (FAST_RECORDS, FAST_RISE)) if broke else ((RECORDS_FINITE, LOST),)
        # ``not <``: where the weights of before were not measured, those of now have to do.
        if broke and self._growth() >= BLOWN_UP and not self._growth_before < BLOWN_UP:
            ways = (*ways, (1, RISE))
        level = max(self._level, MIN_LEVEL)
        return (
            self._level < math.inf
            and any(self._records >= n and self._newest >= rise * level for n, rise in ways)
            and self._newest >= self._top()
            and self._weights_grow()
        )

    def _top(self) -> float:
        """Return the loss below which it is on the way back."""
        return min(NEAR_TOP * self._largest, LOST * max(self._level, MIN_LEVEL))

    def _weights_grow(self) -> bool:
        """Whether some weights have grown; also where they have not been measured twice, and since the loss rises."""
        growth = self._growth()
        is_known = len(self._weighed) > 1 and self._weighed[-1] >= self._record_since
        return not is_known or math.isnan(growth) or growth >= GROWN

    def _growth(self) -> float:
        """Return how much the weights that have grown most have; NaN if that is not known."""
        return max(self._grown().values(), default=math.nan)

    def _grown(self) -> dict[str, float]:
        """Return how much the largest element of each parameter has grown."""
        least = SMALL_WEIGHT * max((first for first, _ in self._weights.values()), default=0.0)
        return {
            name: last / max(first, least)
            for name, (first, last) in self._weights.items()
            if last and (first or least)
        }

    def _say(self, step: int, end: str) -> None:
        evidence = {
            "loss_before": self._level,
            "loss": self._newest,
            "records": float(self._records),
        }
        grown = self._grown()
        weights = ""
        if grown:
            worst = max(grown, key=lambda name: grown[name])
            first, last = self._weights[worst]
            evidence["weight_first"], evidence["weight"] = first, last
            weights = f"; the largest weight of {in_words(f'param:{worst}')} from {first:.3g} to {last:.3g}"
        since = self._record_since
        self._book.report(
            DIVERGENCE,
            "loss",
            step,
            summary=(
                f"The training diverges: since step {since} the loss has risen from"
                f" {self._level:.3g} to {self._newest:.3g}, larger than ever"
                f" {counted(self._records, 'time')}, {end}{weights}"
            ),
            first_step=since,
            phase="forward",
            evidence=evidence,
        )


def _has_broken(iteration: Iteration, verdict: StepVerdict) -> bool:
    """Whether something was not finite that no search for a loss scale explains."""
    if verdict.nonfinite_loss or verdict.skip_class in (SkipClass.UNPROVOKED, SkipClass.STORM):
        return True
    return any(
        r.histogram.nonfinite and (r.topic in STATE or iteration.scaler is None)
        for r in iteration.ranges
    )
