"""Findings about skips that come back with a period."""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.diagnosis.detector import Detector, Shared
from ampwatch.diagnosis.forward.kinds import NONFINITE_INPUT
from ampwatch.diagnosis.steps.kinds import PERIODIC_SKIP
from ampwatch.numerics.written import ordinal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.steps.steps import StepVerdict


RECURRENCES = 3
"""Equal distances between skips that nothing else explains: chance makes three of them once in
the square of the distance."""

SHORTEST = 9
"""Shorter distances come out equal by chance more often: a scaler that probes often, and gradients
that vary, make many skips. Unit: steps."""

RECURRENCES_OF_SHORT = 6
"""Equal distances where they are shorter than that."""

HALVINGS = 8
"""Equal distances where the scale has not grown in between: a loss of its own that comes rarely,
and is larger than the others, is skipped until the scale fits it as well."""

MIN_GROWTHS = 3
"""Growths between two skips, of which a skip takes back one, from which the scale cannot be why."""

RISES = 2.0
"""Losses that rise by so much from the first to the last distance are a training that gets worse
step by step: its skips come at even distances because its gradients grow evenly."""

NEWEST = 12
"""Newest distances that are compared."""

ODD = 0.2
"""Share of them that may be others."""

STANDS_OUT = 1.5
"""A loss this much above all those between the skips has a term in it that they have not."""

REMEMBERED = 4096
"""Iterations whose losses are remembered, so the longest period that is found. Unit: steps."""


class _Skip(NamedTuple):
    """One skipped step."""

    step: int  # the iteration
    growths: int  # growths since the skip before
    stands_out: bool  # its loss is unlike all those since the skip before
    level: float  # largest loss since the skip before
    scale: float  # the scale of the skipped step


class PeriodicSkips(Detector):
    """Compares the distances between the skipped steps of each optimizer.

    A skip right after a growth is the scaler's own search, and comes back every
    ``growth_interval + 1`` steps. Where a small set of batches is gone through in the same order
    the search locks to it, so where the scale grows once between two skips, the losses of the
    skipped steps must stand out as well. Where it never grows in between it falls until it fits:
    then a period is only reported where that takes too long.

    Args:
        shared: What the detectors have in common.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._skips: dict[tuple[int, bool], deque[_Skip]] = {}
        self._taken: dict[int, int] = {}
        self._losses: deque[tuple[float, int]] = deque(maxlen=REMEMBERED)
        self._growths = 0
        self._since_growth = math.inf

    def detect(self, iteration: Iteration, verdict: StepVerdict) -> None:
        """Take in one judged iteration."""
        # Where it is not known when the scale grows, periods may be those of its probes.
        if iteration.scaler is None or not iteration.scaler.knows_growth:
            return
        if verdict.set_by_hand:
            self._skips.clear()
        self._note_taken(iteration)
        if verdict.skipped:
            stands_out = self._stands_out(iteration)
            for index, found_inf in iteration.found_inf.items():
                if found_inf:
                    level = max([value for value, _ in self._losses], default=math.nan)
                    skip = _Skip(
                        iteration.step, self._growths, stands_out, level, verdict.scale_before
                    )
                    # Some skips are those of the search, or all are not.
                    is_reported = self._compare(index, iteration, skip, every=True)
                    if self._since_growth and not is_reported:
                        self._compare(index, iteration, skip, every=False)
            self._losses.clear()
            self._growths, self._since_growth = 0, math.inf
        else:
            self._losses.append((abs(iteration.loss), iteration.num_losses))
            self._since_growth += 1
            if verdict.grew:
                self._growths, self._since_growth = self._growths + 1, 0

    def count(self, quiet: Sequence[Iteration]) -> None:
        """Take in quiet iterations in a row."""
        scaler = quiet[-1].scaler
        if scaler is not None and scaler.knows_growth:
            self._losses.extend([(abs(i.loss), i.num_losses) for i in quiet])
            self._since_growth += len(quiet)
            self._note_taken(quiet[-1])

    def _note_taken(self, iteration: Iteration) -> None:
        """Note whose steps were taken: of a GAN each optimizer steps in some iterations only."""
        for index, found_inf in iteration.found_inf.items():
            if not found_inf:
                self._taken[index] = iteration.step

    def _stands_out(self, iteration: Iteration) -> bool:
        """Whether the loss is unlike those since the last skip."""
        if not iteration.num_losses or not self._losses:
            return False
        loss = abs(iteration.loss)
        # ``not <=``: a loss that is NaN stands out.
        return iteration.num_losses > max(n for _, n in self._losses) or not (
            loss <= STANDS_OUT * max(value for value, _ in self._losses)
        )

    def _compare(self, index: int, iteration: Iteration, skip: _Skip, *, every: bool) -> bool:
        """Take in a skip; return whether it is one of a periodic kind.

        Args:
            index: The optimizer.
            iteration: The iteration.
            skip: The skip.
            every: It is compared with every skip; else against those that do not come in the
                first step after a growth.
        """
        skips = self._skips.setdefault((index, every), deque(maxlen=NEWEST + 1))
        # Skips in a row are one search that needs several halvings; its last one stands for all.
        if skips and (
            skip.step - skips[-1].step == 1 or self._taken.get(index, -1) < skips[-1].step
        ):
            skips.pop()
        skips.append(skip)
        period = _period(list(skips))
        if period is None or iteration.scaler is None:
            return False
        # That is how a scaler probes: it grows after the interval, and the next step is too large.
        if period == iteration.scaler.growth_interval + 1 or self._is_data_fault(skips):
            return False
        newest = list(skips)[-RECURRENCES:]
        if any(s.growths for s in newest):
            is_not_scale = min(s.growths for s in newest) >= MIN_GROWTHS
            is_not_scale |= all(s.stands_out for s in newest)
        else:
            is_not_scale = _is_never_found(list(skips), period)
        if not is_not_scale:
            return False
        self._say(index, iteration, period, every=every and _is_regular(list(skips)))
        return True

    def _is_data_fault(self, skips: Sequence[_Skip]) -> bool:
        return any(
            f.first_step <= skips[-1].step and f.last_step >= skips[-2].step
            for f in self._book.of_kind(NONFINITE_INPUT.slug)
        )

    def _say(self, index: int, iteration: Iteration, period: int, *, every: bool) -> None:
        where, step = f"optimizer:{index}", iteration.step
        evidence = {
            "period": float(period),
            "residue": float(step % period),
            "loss_scale": iteration.loss_scale,
        }
        others = "and none in between" if every else "and others that the scaler's search explains"
        newest = step

        def says(since: int) -> str:
            return (
                f"Every {ordinal(period)} step of optimizer {index} was skipped from step {since} to"
                f" step {newest}, {others}: what the loss contains in those steps only is never learnt"
                f" from"
            )

        self._book.report(
            PERIODIC_SKIP,
            where,
            step,
            summary=says,
            first_step=step - RECURRENCES * period,
            phase="backward",
            count=RECURRENCES + 1,
            evidence=evidence,
        )


def _period(skips: Sequence[_Skip]) -> int | None:
    """Return the distance of the newest skips if it is that of most, and there are enough."""
    distances = [later.step - earlier.step for earlier, later in pairwise(skips)]
    if not distances or distances[-1] < 2:
        return None
    needed = RECURRENCES if distances[-1] >= SHORTEST else RECURRENCES_OF_SHORT
    newest = distances[-needed:]
    if len(newest) < needed or len(set(newest)) != 1:
        return None
    # Chance skips are geometric: all distances alike is unlikely, some odd ones are what else
    # happens in a training.
    odd = sum(d != newest[0] for d in distances)
    return newest[0] if odd <= ODD * len(distances) else None


def _is_regular(skips: Sequence[_Skip]) -> bool:
    return len({later.step - earlier.step for earlier, later in pairwise(skips)}) == 1


def _is_never_found(skips: Sequence[_Skip], period: int) -> bool:
    """Whether no scale will do for what makes these skips, between which it has never grown."""
    newest = skips[-RECURRENCES:]
    if newest[-1].level > RISES * newest[0].level:
        return False
    distances = [later.step - earlier.step for earlier, later in pairwise(skips)]
    return newest[-1].scale < 1.0 or distances[-HALVINGS:] == [period] * HALVINGS
