"""The governor: decides what is measured when, and keeps sampling within its budget.

Nobody can afford to measure every tensor in every step. A sampled iteration measures one
topic, the topics take turns, and the next one waits until what was spent is paid back:
each step earns ``overhead_budget`` times its duration, each nanosecond spent by ampwatch, by
the always-on sensors as well, costs one.

Periods are powers of two, and samples fall on multiples of them: the ranks of a job, which
wait for one another in every step, sample in the same steps even where they do not agree on
the period. Else each would pay for itself and delay all the others.

The first ``OPENING`` iterations are sampled whatever it costs: then a scale calibrates and
most mistakes show, and it is over before anyone notices. In later fits of a program in a process
of one rank (`programs.py`) only so many as earlier ones have left. A few iterations after an alarm are
sampled at any cost as well.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from ampwatch.settings import Settings

OPENING = 32
"""Iterations at the start that are all sampled, one topic each."""

ALARMED = 4
"""Iterations after an alarm that are all sampled."""

QUIET_AFTER_ALARM = 64
"""Iterations after an alarm in which another one changes nothing: a storm of skips must not
become a storm of samples."""

SKIPS_MEASURED = 16
"""Skipped iterations of a streak that are measured on the spot, whatever it costs: as many as
bring a scale of 65536 down to 1."""

FIRST_CHECKS_APART = 16
"""Iterations without anything non-finite after which the next one is measured on the spot."""

MAX_PERIOD = 1024
"""Largest period. At its end a sample is taken even if it is not paid for: a training whose
steps are shorter than our own work must not go unseen for good."""

WORST_SHARE = 0.12
"""Share of a step that one sample may take; one that takes more is spread over several."""

UNNOTICED_NS = 2e6
"""A sample that takes less is taken whole, however short the step. Unit: ns."""

MAX_PARTS = 64


class Observation(Enum):
    """Observations besides the values of tensors. ``OPS``: which op ran in which dtype."""

    OPS = "ops"


Wanted: TypeAlias = "frozenset[Topic | Observation]"

OPS = frozenset({Observation.OPS})
GRADIENTS = frozenset({Topic.GRADIENT})
STATE = frozenset({Topic.WEIGHT, Topic.BUFFER})
UPDATES = frozenset({Topic.UPDATE})
FORWARD = frozenset({Topic.ACTIVATION})
BACKWARD = frozenset({Topic.ACTIVATION_GRADIENT})

TURNS: tuple[Wanted, ...] = (GRADIENTS, FORWARD, STATE, GRADIENTS, BACKWARD, UPDATES)
"""The turns of sampled iterations. Gradients come twice: they decide the scale. Ops come last,
where they are counted one by one at all."""

FIRST: Wanted = GRADIENTS | STATE | UPDATES
"""The sample of the very first iteration: a training that is broken from the start may not live
for many more. Outputs of modules are left out: whatever is compiled is compiled now."""

EVERYTHING: Wanted = frozenset(Topic) | OPS

UPDATES_EVERY = 4
"""Iterations from one measurement of updates to the next at ``deep``: updates are compared over
several anyway, and two copies of the weights in each step would be the dearest part of all."""


class Purse(Protocol):
    """The account of what ampwatch has cost.

    Attributes:
        spent_ns: Time spent so far. Unit: ns.
    """

    @property
    def spent_ns(self) -> int:
        """Return the time spent so far. Unit: ns."""


class Governor:
    """Decides for each iteration, when it begins, what is measured in it.

    Args:
        settings: ``level``, ``sample_every``, ``op_census`` and ``overhead_budget``.
        purse: Says at the end of each iteration what ampwatch has cost so far.

    Attributes:
        wanted: Topics to measure in the open iteration, and ``OPS`` if ops are to be observed.
        part: Which part of the modules or parameters to measure, and of how many parts.
        interval: Iterations between the two newest samples.
        step: Index of the open iteration.
        is_held: Whether nothing is to be measured, because a profiler is at work.
        is_opening: Whether iterations are sampled whatever it costs.
        counts_one_by_one: Whether ops are to be counted one by one, where that can be done.
        observes_skips: Whether gradients that made a step be skipped are measured on the spot.
        uncountable: Name of the op or function because of which ops are not counted one by one
            any more; empty without.
    """

    def __init__(self, settings: Settings, purse: Purse) -> None:
        self._level = settings.level
        self.observes_skips = settings.level in ("standard", "deep")
        self._every = settings.sample_every
        counts_ops = settings.op_census != "window"
        self.counts_one_by_one = settings.level == "deep" or counts_ops
        self._turns = (*TURNS, OPS) if counts_ops else TURNS
        self._first = FIRST | OPS if counts_ops else FIRST
        self._budget = settings.overhead_budget
        self._purse = purse
        self._opening = OPENING
        self.step = 0
        self._turn = 0
        self._owed_ns = 0.0
        self._spent_before = purse.spent_ns
        self._usual_ns = 0.0
        self._quiet_cost_ns = 0.0
        self._alarmed_until = -1
        self._deaf_until = -1
        self._calm_until = -1
        self._skip_at = -QUIET_AFTER_ALARM
        self._skips = 0
        self._checked_until = -1
        self.is_held = False
        self.uncountable = ""
        self._parts: dict[Wanted, int] = {}
        self._rounds: dict[Wanted, int] = {}
        self._device_ns: dict[Wanted, float] = {}
        self._sampled_at = 0
        self._period = 1
        self._paid_at: int | None = None
        self.interval = 1
        self.part = (0, 1)
        self.wanted = self._plan()

    def stop(self) -> None:
        """Measure nothing any more: what the sensors share has failed."""
        self._level = "off"
        self.wanted = frozenset()
        self.observes_skips = False
        self.is_opening = False

    def shorten_opening(self, by: int) -> None:
        """Have an opening that is shorter by the iterations that earlier fits of the program have shown.

        Without any opening left, no ops are observed in the first iteration either.
        """
        self._opening = max(OPENING - by, 0)
        if self.step == 0:
            self.wanted = self._plan()

    def owe(self, cost_ns: float) -> None:
        """Account for what was spent outside of guarded calls. Unit: ns."""
        self._owed_ns += cost_ns

    def alarm(self) -> None:
        """Sample the next iterations, state first, because something went wrong."""
        if self.step <= self._deaf_until or self._level != "standard":
            return
        self._alarmed_until = self.step + ALARMED
        self._deaf_until = self.step + QUIET_AFTER_ALARM
        self._turn = self._turns.index(STATE)

    def calm(self) -> bool:
        """Sample what the scale that is left does, after a streak of skipped steps or a far fall.

        Nothing happens within ``QUIET_AFTER_ALARM`` iterations of the time before: a growth probe
        is a streak of one, and would have every one of them sampled.

        Returns:
            Whether the next iterations are sampled.
        """
        if self.step <= self._calm_until or self._level != "standard":
            return False
        self._alarmed_until = max(self._alarmed_until, self.step + len(self._turns))
        self._calm_until = self.step + QUIET_AFTER_ALARM
        self._turn = self._turns.index(GRADIENTS)
        return True

    @property
    def is_alert(self) -> bool:
        """Whether skips have been seen lately, or nothing is known yet."""
        return self.is_opening or self.step <= self._deaf_until

    def takes_skip(self) -> bool:
        """Whether the gradients of the open iteration, which will be skipped, are measured.

        The first ``SKIPS_MEASURED`` of a streak are; what goes on after that has to be paid.
        """
        if self.step - self._skip_at > QUIET_AFTER_ALARM:
            self._skips = 0
        self._skip_at = self.step
        self._skips += 1
        return self.is_opening or self._skips <= SKIPS_MEASURED or self._owed_ns <= 0.0

    def takes_first_check(self) -> bool:
        """Whether the open iteration, which has something non-finite, is the first for a while.

        State is checked once then; what keeps failing is measured in its turn.
        """
        first = self.step > self._checked_until
        self._checked_until = max(self._checked_until, self.step + FIRST_CHECKS_APART)
        return first

    def next(self, duration_s: float) -> None:
        """Account for the iteration that has ended, and plan the next one.

        Args:
            duration_s: Wall time of the one that has ended; NaN for the first. Unit: s.
        """
        spent = self._purse.spent_ns
        cost_ns = float(spent - self._spent_before)
        self._spent_before = spent
        if not math.isnan(duration_s):
            duration_ns = duration_s * 1e9
            if Observation.OPS in self.wanted and self._usual_ns:
                # Most of what it costs to see each op is PyTorch's own, outside our account.
                cost_ns = max(cost_ns, duration_ns - self._usual_ns)
            self._settle(cost_ns, duration_ns)
        self.step += 1
        self.wanted = self._plan()

    def _settle(self, cost_ns: float, duration_ns: float) -> None:
        left_ns = self._owed_ns + cost_ns - self._budget * duration_ns
        # No credit is kept: what quiet hours saved must not be spent in one burst.
        self._owed_ns = 0.0 if self.step < self._opening else max(left_ns, 0.0)
        if not self._owed_ns and self._paid_at is None:
            self._paid_at = self.step
        if self.wanted:
            # A sample is charged with what it adds to the cost of the sensors that are always on.
            self._judge(self.wanted, cost_ns - self._quiet_cost_ns)
        else:
            self._quiet_cost_ns = _follow(self._quiet_cost_ns, cost_ns)
        self._usual_ns = _follow(self._usual_ns, max(duration_ns - cost_ns, 0.0))

    def charge(self, measured: Wanted, parts: int, device_ns: int) -> None:
        """Account for the device time of a sample; it is known some iterations later.

        Args:
            measured: What was measured.
            parts: Of how many parts it was one.
            device_ns: What it took. Unit: ns.
        """
        self._owed_ns += device_ns
        self._device_ns[measured] = float(device_ns * parts)

    def _judge(self, measured: Wanted, cost_ns: float) -> None:
        """Spread a sample that weighs too much on its step over more of them.

        Gradients are taken whole: a loss scale has to fit the range of all of them. Ops are taken
        whole as well: a part of them has no shares.
        """
        if measured in (GRADIENTS, OPS):
            return
        parts = 1 if self.step < self._opening else self._parts.get(measured, 1)
        cost_ns += self._device_ns.get(measured, 0.0) / parts
        share = cost_ns / self._usual_ns if self._usual_ns else 0.0
        if share > WORST_SHARE and cost_ns > UNNOTICED_NS:
            needed = 2 * parts
            while self.step < self._opening and share / needed > WORST_SHARE and needed < MAX_PARTS:
                needed *= 2
            self._parts[measured] = min(needed, MAX_PARTS)
        elif share < WORST_SHARE / 4 and parts > 1:
            self._parts[measured] = parts // 2

    def _plan(self) -> Wanted:
        self.part = (0, 1)
        self.is_opening = self.step < self._opening or self._level == "deep"
        if self._level in ("off", "light") or self.is_held:
            return frozenset()
        if self._level == "deep":
            return EVERYTHING if self.step % UPDATES_EVERY == 0 else EVERYTHING - UPDATES
        if self.step == 0:
            return self._first if self._opening else self._first - OPS
        if not self._is_due():
            return frozenset()
        self.interval = self.step - self._sampled_at
        self._sampled_at = self.step
        self._paid_at = None
        turn = self._turns[self._turn % len(self._turns)]
        self._turn += 1
        # The opening is sampled whatever it costs.
        parts = 1 if self.step < self._opening else self._parts.get(turn, 1)
        number = self._rounds[turn] = self._rounds.get(turn, -1) + 1
        self.part = (number % parts, parts)
        return turn

    def _is_due(self) -> bool:
        if self.step <= self._alarmed_until:
            return True
        since = self.step - self._sampled_at
        if self._every:
            return since >= self._every
        if self.step < self._opening:
            return True
        # A multiple of the period, not a distance from the last sample: so ranks with different
        # periods still sample in the same steps.
        return self.step % self._period == 0 and self._can_pay()

    def _can_pay(self) -> bool:
        """Whether the sample that the period has due now is paid for; adapt the period."""
        if self._owed_ns > 0.0 and self._period < MAX_PERIOD:
            self._period *= 2
            return False
        # Paid in a quarter of the period: half of it will do with room to spare, so it does not swing.
        early = self._paid_at is not None and self._paid_at - self._sampled_at < self._period / 4
        if early and self._period > 1:
            self._period //= 2
        return True


def _follow(average: float, value: float) -> float:
    """Return the running average, the first value taken as it is."""
    return value if not average else average + (value - average) / 8
