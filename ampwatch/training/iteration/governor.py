"""The governor: decides what is measured when, and keeps sampling within its budget.

Nobody can afford to measure every tensor in every step. A sampled iteration measures one
topic, the topics take turns, and the next one waits until what was spent is paid back:
each step earns ``overhead_budget`` times its duration, each nanosecond spent by ampwatch, by
the always-on sensors as well, costs one; these take three quarters of the budget at most
(``LEFT_SHARE``).

Periods are powers of two, and samples fall on multiples of them: the ranks of a job, which
wait for one another in every step, sample in the same steps even where they do not agree on
the period. Else each would pay for itself and delay all the others.

A training begins with an advance: what its first iterations spend, later ones earn, and for as long
as it is ``SETTLING`` nothing is charged with what the always-on sensors take. So each topic is
seen early, and no stretch of iterations is much slower than another. Where iterations are short
nothing is charged for the first ``OPENING`` of them at all: they are over before anyone notices.
A program that was fitted in the process before (`programs.py`) has no such beginning. A few iterations
after an alarm are sampled at any cost.

A probe reads what some ops are given, and counts none. The diagnosis says how often it wants one. It is priced and
charged as a sample is, with no more than a share of what its stretch earns. Looks fall on the iteration after a
multiple of their interval: ranks with different intervals share them, and what they take is earned when the next
sample is due.

Not all that a sample costs is in the account of ampwatch: PyTorch takes longer for an op that is
observed, and finds its caches full of other things. A sample is charged with what its iterations
take longer than others, where that is more; the median of several, for one alone may be long
for reasons of its own.

At ``deep`` each op is followed in every iteration, which nobody pays for; samples are paid for out of
``DEEP_BUDGET``, and in an opening that each fit has, ops are counted beside the topic of a turn.
"""

from __future__ import annotations

import math
from collections import deque
from enum import Enum
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.guard import Account
    from ampwatch.settings import Settings

OPENING = 32
"""Iterations at the start in which a scale calibrates and most mistakes show: inputs are checked, and
each skip is measured."""

SETTLING = 500
"""Iterations at the start in which samples may be taken in advance of what iterations earn."""

ADVANCE = 150
"""Iterations whose budget samples may spend before it is earned, while a training settles."""

MAX_ADVANCE = 250
"""Iterations whose budget is owed at most, however dear the first iteration was: after another
hundred the next topic is sampled."""

SETTLING_PERIOD = 64
"""Largest period while a training settles: every topic has its turn by then."""

SHORT_NS = 8e6
"""Iterations that take less are free to be sampled during the opening: all of it is over in a quarter
of a second. Unit: ns."""

UNKNOWN = 3
"""Iterations in which PyTorch does for the first time what it does once: how long one takes is not
known before."""

UNNOTICED_START_NS = 0.1e9
"""Debt with which samples are taken while that is not known. Unit: ns."""

FOLLOWED_START_NS = 1e9
"""Debt with which ops are followed before one iteration was timed: so dear a first iteration has thousands of
parameters or ops, and the next ones would be as dear. Unit: ns."""

MANY = 2048
"""Parameters from which on the first iteration is not looked at whole: ops are neither counted nor followed before it
is known how long one takes, and of state one part is sampled, of at most so many parameters."""

OPS_NS = 200e3
"""Time to count the ops of one parameter, of its forward, backward and step, before it was measured. Unit: ns."""

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

LEFT_SHARE = 0.25
"""Share of the budget that is left to samples, whatever the always-on sensors take: where iterations are short
these may take all of it, and what is never sampled is not seen."""

WORST_SHARE = 0.12
"""Share of a step that one sample may take; one that takes more is spread over several."""

UNNOTICED_NS = 2e6
"""A sample that takes less is taken whole, however short the step. Unit: ns."""

MAX_PARTS = 64

MAX_HIDDEN = 5.0
"""Multiple of its own account that a sample is charged with at most. An iteration with an evaluation
in it is longer by far more."""

PROBE_SHARE = 0.5
"""Share of what a stretch of iterations earns that its probe is charged with at most. probes are taken at any cost,
as after an alarm: something grows. What is left is for the samples, which tell of everything else."""

REMEMBERED = 15
"""Iterations whose durations say what an iteration usually takes."""

COMPARED = 5
"""Samples of a kind whose iterations are compared with the usual ones."""


class Observation(Enum):
    """Observations besides the values of tensors.

    ``OPS``: which op ran in which dtype. ``OPERANDS``: what some ops are given, without a count.
    """

    OPS = "ops"
    OPERANDS = "operands"


Wanted: TypeAlias = "frozenset[Topic | Observation]"

OPS = frozenset({Observation.OPS})
PROBE = frozenset({Observation.OPERANDS})
OF_OPS = OPS | PROBE
GRADIENTS = frozenset({Topic.GRADIENT})
STATE = frozenset({Topic.WEIGHT, Topic.BUFFER})
UPDATES = frozenset({Topic.UPDATE})
FORWARD = frozenset({Topic.ACTIVATION})
BACKWARD = frozenset({Topic.ACTIVATION_GRADIENT})

TURNS: tuple[Wanted, ...] = (GRADIENTS, FORWARD, STATE, GRADIENTS, BACKWARD, UPDATES)
"""The turns of sampled iterations. Gradients come twice: they decide the scale. Ops come last,
where they are counted one by one at all; while a training settles, where they fit the advance."""

FIRST: Wanted = GRADIENTS | STATE | UPDATES
"""The sample of the very first iteration: a training that is broken from the start may not live
for many more. Outputs of modules are left out: whatever is compiled is compiled now."""

SAMPLED = ("standard", "deep")
"""Levels at which something is measured."""

DEEP_OPENING = 32
"""Iterations at the start that are all sampled at ``deep``, in each fit of a program."""

DEEP_BUDGET = 0.1
"""Share of a step that samples may take at ``deep``, where following each op takes more."""


class Governor:
    """Decides for each iteration, when it begins, what is measured in it.

    Args:
        settings: ``level``, ``sample_every``, ``op_census`` and ``overhead_budget``.
        account: Says at the end of each iteration what ampwatch has cost so far.

    Attributes:
        wanted: Topics to measure in the open iteration, ``OPS`` if ops are to be observed, ``OPERANDS`` if
            it is a probe.
        part: Which part of the modules or parameters to measure, and of how many parts.
        interval: Iterations between the two newest samples.
        step: Index of the open iteration.
        is_held: Whether nothing is to be measured, because a profiler is at work.
        is_opening: Whether nothing is known of the training yet.
        follows_ops: Whether each op of each iteration is followed.
        hidden_ns: Time that samples have taken so far besides what the account says. Unit: ns.
        counts_one_by_one: Whether ops are to be counted one by one, where that can be done.
        observes_skips: Whether gradients that made a step be skipped are measured on the spot.
        uncountable: Name of the op or function because of which ops are not counted one by one
            any more; empty without.
    """

    def __init__(self, settings: Settings, account: Account) -> None:
        self._is_recorded: Callable[[int], bool] | None = None
        self._level = settings.level
        self.observes_skips = settings.level in SAMPLED
        self._every = settings.sample_every
        self.follows_ops = settings.level == "deep"
        counts_ops = self.follows_ops or settings.op_census != "window"
        self.counts_one_by_one = counts_ops
        self._turns = (*TURNS, OPS) if counts_ops else TURNS
        self._first = FIRST | OPS if counts_ops else FIRST
        self._budget = settings.overhead_budget
        if self.follows_ops:
            self._budget = max(self._budget, DEEP_BUDGET)
        self._account = account
        self._opening, self._settling = OPENING, SETTLING
        if self.follows_ops:
            self._opening, self._settling = DEEP_OPENING, 0
        self.step = 0
        self._turn = 0
        self._owed_ns = 0.0
        self._spent_before = account.spent_ns
        self._quiet_ns: deque[float] = deque(maxlen=REMEMBERED)
        self._bare_ns: deque[float] = deque(maxlen=REMEMBERED)
        self._excesses: dict[Wanted, deque[float]] = {}
        self._ops_ns = 0.0
        self._parameters = 0
        self.hidden_ns = 0.0
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
        self._probe_every = 0
        self.interval = 1
        self.part = (0, 1)
        self.wanted = self._plan()

    def record(self, is_recorded: Callable[[int], bool]) -> None:
        """Have ops observed in these iterations, whatever it costs.

        Args:
            is_recorded: Returns whether an iteration is one of those.
        """
        self._is_recorded = is_recorded
        self.wanted = self._plan()

    def stop(self) -> None:
        """Measure nothing any more: what the sensors share has failed."""
        self._level = "off"
        self.follows_ops = False
        self.wanted = frozenset()
        self.observes_skips = False
        self.is_opening = False

    def shorten_opening(self, by: int) -> None:
        """Have an opening that is shorter by the iterations that earlier fits of the program have shown.

        Without any opening left there is no advance, and no ops are observed in the first iteration.
        Nothing is shortened at ``deep``, where somebody is looking for something.
        """
        if self.follows_ops:
            return
        self._opening = max(OPENING - by, 0)
        self._settling = SETTLING if self._opening else 0
        if self.step == 0:
            self.wanted = self._plan()

    def size(self, parameters: int) -> None:
        """Look at the first iteration of a model of more than ``MANY`` parameters in part."""
        self._parameters = parameters
        if parameters > MANY and not self.follows_ops:
            self._first -= OPS
            self._ops_ns = OPS_NS * parameters
            if self.step == 0:
                self.wanted = self._plan()

    def owe(self, cost_ns: float) -> None:
        """Account for what was spent outside of guarded calls. Unit: ns."""
        self._owed_ns += cost_ns

    def alarm(self) -> None:
        """Sample the next iterations, state first, because something went wrong."""
        if self.step <= self._deaf_until or self._level not in SAMPLED:
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
        if self.step <= self._calm_until or self._level not in SAMPLED:
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
        is_paid = self._owed_ns <= 0.0 and not self._is_settling
        return self.is_opening or self._skips <= SKIPS_MEASURED or is_paid

    def takes_first_check(self) -> bool:
        """Whether the open iteration, which has something non-finite, is the first for a while.

        State is checked once then; what keeps failing is measured in its turn.
        """
        first = self.step > self._checked_until
        self._checked_until = max(self._checked_until, self.step + FIRST_CHECKS_APART)
        return first

    def next(self, duration_s: float, probe_every: int = 0, num: int = 1) -> None:
        """Account for the iteration that has ended, and plan the next one.

        Args:
            duration_s: Wall time of the one that has ended; NaN for the first. Unit: s.
            probe_every: Iterations of which one is wanted as a probe; 0 for none.
            num: Iterations that have ended, in ``duration_s`` altogether: at most ``quiet`` of before.
        """
        self.pass_by(duration_s, num)
        self._probe_every = probe_every
        self.wanted = self._plan()

    def pass_by(self, duration_s: float, num: int) -> None:
        """Account for iterations that have ended, as ``next`` does, and plan nothing: no more than ``quiet`` are over."""
        spent = self._account.spent_ns
        cost_ns = float(spent - self._spent_before)
        self._spent_before = spent
        self._settle(cost_ns, duration_s * 1e9, num)
        self.step += num

    @property
    def quiet(self) -> int:
        """Iterations, the open one included, before one in which something may be wanted; 0 if each counts."""
        step, every = self.step, self._probe_every
        if self.wanted or self.is_opening or self.follows_ops or step < self._alarmed_until:
            return 0
        period = self._period
        due = self._sampled_at + self._every if self._every else step - step % period + period
        if every:
            due = min(due, step + every - (step - 1) % every)
        return 0 if self._is_recorded is not None else due - step

    def _settle(self, cost_ns: float, duration_ns: float, num: int) -> None:
        quiet_ns = 0.0
        if self._quiet_ns and (self.wanted or self._is_settling or self.follows_ops):
            quiet_ns = median(self._quiet_ns) * num
        if self.wanted:
            # A sample is charged with what it adds to the cost of the sensors that are always on.
            own_ns = max(cost_ns - quiet_ns, 0.0)
            price_ns = self._price(own_ns, duration_ns - quiet_ns)
            self.hidden_ns += price_ns - own_ns
            cost_ns += price_ns - own_ns
            self._judge(self.wanted, price_ns)
        else:
            self._quiet_ns.append(cost_ns / num)
        due_ns = max(cost_ns - quiet_ns, 0.0)
        if not self._is_settling:
            always_ns = quiet_ns if self.wanted else cost_ns
            most_ns = (1.0 - LEFT_SHARE) * self._budget * duration_ns
            due_ns = max(cost_ns - always_ns, 0.0) + min(always_ns, most_ns)
        if self.follows_ops:
            # Following is not what is paid for: what samples add to it is.
            due_ns = max(cost_ns - quiet_ns, 0.0) if self.wanted else 0.0
        if self.wanted == PROBE:
            earned_ns = self._probe_every * self._budget * self._usual_ns
            due_ns = min(due_ns, PROBE_SHARE * earned_ns)
        if math.isnan(duration_ns):
            self._owed_ns += due_ns
        else:
            self._bare_ns.append(max(duration_ns - cost_ns, 0.0) / num)
            self._pay(due_ns, duration_ns, num)

    def _price(self, own_ns: float, duration_ns: float) -> float:
        """Return what a sample costs: its own account, or what its iterations take longer."""
        excesses = self._excesses.setdefault(self.wanted, deque(maxlen=COMPARED))
        usual_ns = self._usual_ns
        if usual_ns and own_ns and not math.isnan(duration_ns):
            excesses.append((duration_ns - usual_ns) / own_ns)
        # Bounded after the median is taken: before, it would only see what noise adds.
        price_ns = own_ns * min(max(median(excesses), 1.0), MAX_HIDDEN) if excesses else own_ns
        if Observation.OPS in self.wanted:
            self._ops_ns = price_ns
        return price_ns

    def _pay(self, cost_ns: float, duration_ns: float, num: int) -> None:
        # No credit is kept: what quiet hours saved must not be spent in one burst.
        paid_ns, owed_ns = self._budget * duration_ns - cost_ns, self._owed_ns
        self._owed_ns = max(owed_ns - paid_ns, 0.0)
        if self._is_settling:
            most_ns = MAX_ADVANCE * self._budget * self._usual_ns
            self._owed_ns = 0.0 if self._is_unnoticed else min(self._owed_ns, most_ns)
        if self._is_free:
            self._owed_ns = 0.0
        if self._paid_at is None and self._may_spend(0.0):
            # Of several iterations each has paid as much.
            share = min(owed_ns / paid_ns, 1.0) if paid_ns > 0.0 else 0.0
            self._paid_at = self.step + int(share * (num - 1))

    @property
    def _usual_ns(self) -> float:
        """Time of an iteration without ampwatch; 0 if none is known. Unit: ns."""
        return median(self._bare_ns) if self._bare_ns else 0.0

    @property
    def _is_settling(self) -> bool:
        return self.step < self._settling

    @property
    def _is_unnoticed(self) -> bool:
        """Whether samples are free: iterations are short, and only the first ones."""
        return self.step < self._opening and min(self._bare_ns, default=math.inf) < SHORT_NS

    @property
    def is_short(self) -> bool:
        """Whether ops are followed for being in the opening: iterations are short, or none was timed yet."""
        if self.step >= self._opening:
            return False
        if self._bare_ns:
            return min(self._bare_ns) < SHORT_NS
        return self._owed_ns <= FOLLOWED_START_NS and self._parameters <= MANY

    @property
    def _is_free(self) -> bool:
        """Whether samples are free: somebody is looking for something, and it may be near."""
        return self.follows_ops and self.is_alert

    def _may_spend(self, cost_ns: float) -> bool:
        """Whether a sample may be taken: what was spent is paid, or the advance is not used up."""
        if not self._is_settling:
            return self._owed_ns <= 0.0
        is_known = len(self._bare_ns) >= UNKNOWN
        if self._is_unnoticed or not (is_known or self._owed_ns > UNNOTICED_START_NS):
            return True
        return self._owed_ns + cost_ns <= ADVANCE * self._budget * self._usual_ns

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

        Gradients are taken whole: a loss scale has to fit the range of all of them. Ops and probes are taken
        whole as well: a part of them has no shares.
        """
        if measured in (GRADIENTS, OPS, PROBE) or self._is_unnoticed or self._is_free:
            return
        parts = self._parts.get(measured, 1)
        cost_ns += self._device_ns.get(measured, 0.0) / parts
        usual_ns = self._usual_ns
        share = cost_ns / usual_ns if usual_ns else 0.0
        if share > WORST_SHARE and cost_ns > UNNOTICED_NS:
            needed = 2 * parts
            # Its first sample shows how dear it is; later ones may have been held up for once.
            while measured not in self._parts and share * parts / needed > WORST_SHARE:
                needed *= 2
            self._parts[measured] = min(needed, MAX_PARTS)
        elif share < WORST_SHARE / 4 and parts > 1:
            self._parts[measured] = parts // 2

    def _plan(self) -> Wanted:
        wanted = self._plan_samples()
        # What is recorded is asked for, whatever it costs, and the same in each run.
        may_count = self.counts_one_by_one and not self.is_held and self._level in SAMPLED
        if may_count and self._is_recorded is not None and self._is_recorded(self.step):
            return wanted | OPS
        if self._takes_probe() and not wanted & OPS:
            return wanted | PROBE
        return wanted

    def _takes_probe(self) -> bool:
        """Whether the open iteration is the one of its stretch that is looked at."""
        every = self._probe_every
        # Where each op is followed, its operands are read anyway.
        is_possible = self.counts_one_by_one and not self.follows_ops and not self.is_held
        if not every or not is_possible or self.step % every != 1:
            return False
        return self._level in SAMPLED

    def _plan_samples(self) -> Wanted:
        self.part = (0, 1)
        self.is_opening = self.step < self._opening
        if self._level in ("off", "light") or self.is_held:
            return frozenset()
        if self.step == 0:
            if not self.follows_ops:
                self.part = (0, max(math.ceil(self._parameters / MANY), 1))
            return self._first if self._opening else self._first - OPS
        if not self._is_due():
            return frozenset()
        self.interval = self.step - self._sampled_at
        self._sampled_at = self.step
        self._paid_at = None
        turn = self._take_turn() | (OPS if self._is_free else frozenset())
        parts = self._parts.get(turn, 1)
        number = self._rounds[turn] = self._rounds.get(turn, -1) + 1
        self.part = (number % parts, parts)
        return turn

    def _take_turn(self) -> Wanted:
        turn = self._turns[self._turn % len(self._turns)]
        self._turn += 1
        if turn == OPS and self._is_settling and not self._may_spend(self._ops_ns):
            return self._take_turn()
        return turn

    def _is_due(self) -> bool:
        if self.step <= self._alarmed_until or self._is_free:
            return True
        since = self.step - self._sampled_at
        if self._every:
            return since >= self._every
        # A multiple of the period, not a distance from the last sample: so ranks with different
        # periods still sample in the same steps.
        return self.step % self._period == 0 and self._can_pay()

    def _can_pay(self) -> bool:
        """Whether the sample that the period has due now is paid for; adapt the period."""
        if not self._may_spend(0.0):
            longest = SETTLING_PERIOD if self._is_settling else MAX_PERIOD
            if self._period < longest or self._is_settling:
                self._period = min(2 * self._period, longest)
                return False
        # Paid in a quarter of the period: half of it will do with room to spare, so it does not swing.
        early = self._paid_at is not None and self._paid_at - self._sampled_at < self._period / 4
        if early and self._period > 1:
            self._period //= 2
        return True
