"""Finds the rank of a job that makes the others wait. No torch, no network.

Ranks that reduce their gradients end each step together, so that their durations say nothing. What a
rank does by itself and what it waits differ: where one takes longer for its own part, the others wait
as much longer in the reduction. Both are compared, over the same steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.diagnosis.time.kinds import STRAGGLER
from ampwatch.host.fleet.gpus import Feature, gpu_of
from ampwatch.numerics.written import step_time
from ampwatch.wire.records import StepPhase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.host.fleet.gpus import Gpu
    from ampwatch.host.fleet.phase_times import StepPhases
    from ampwatch.host.fleet.rank import RankView

MIN_STEPS = 16
MIN_SECONDS = 2.0
"""Steps and time over which ranks are compared at once, at least. Unit: s."""

SPANS = 5
"""Spans in a row in which the same rank has to be the slowest: which process the scheduler of a busy
host lets wait changes from second to second."""

SHARE = 0.1
"""Share of a step that the slowest rank takes longer for its own part, in each span."""

SEEN_BY_OTHERS = 0.5
"""Share of that excess which the others have to wait longer: without it nobody waits for anybody."""

MAIN = 0.5
"""Share of the excess from which on something is its cause."""

USUAL_EVALUATIONS = 0.5
"""Share of steps with an evaluation from which on it is part of each step."""

LOW_CLOCK = 0.9
"""Ratio of the clock of a GPU to that of the others below which it is held down."""

WAITS = (StepPhase.REDUCTION, StepPhase.BACKWARD_WITH_REDUCTION)
"""Phases in which ranks wait for one another."""

OWN = tuple(phase for phase in StepPhase if phase not in WAITS)


@dataclass(slots=True)
class _Sums:
    """What one rank did in the steps of a span.

    Attributes:
        phases: Time of each phase. Unit: s.
        began: Where counters begin: at the step before the first that was added, or at that one; with its
            index. ``None`` until they move again after steps that were left out.
        newest: The newest step, likewise.
        left_out: CPU time at the newest step that was left out; -1 without one. Unit: ns.
    """

    phases: list[float] = field(default_factory=lambda: [0.0] * len(StepPhase))
    began: tuple[int, StepPhases] | None = None
    newest: tuple[int, StepPhases] | None = None
    left_out: int = -1

    def add(self, number: int, step: StepPhases) -> None:
        """Take in a step."""
        self.newest = number, step
        # Counters are read every few steps: the first that moves has left behind what was left out.
        if self.began is None and (step.cpu_ns != self.left_out or step.cpu_ns < 0):
            self.began = self.newest
        for phase, seconds in enumerate(step.phases):
            self.phases[phase] += seconds

    def leave_out(self, step: StepPhases) -> None:
        """Begin counters anew after a step that is left out."""
        self.began, self.left_out = None, step.cpu_ns

    def each(self, name: str) -> float | None:
        """Return by how many seconds a counter of ns grows in a step; ``None`` where that is not known."""
        if self.began is None or self.newest is None:
            return None
        (first, before), (last, now) = self.began, self.newest
        grown = getattr(now, name) - getattr(before, name)
        is_known = getattr(before, name) >= 0 and grown >= 0 and last > first
        return grown / 1e9 / (last - first) if is_known else None


class _Share(NamedTuple):
    """The time of one rank for a mean step of a span, against that of the others. Unit: s.

    Attributes:
        excess: Time that it takes longer for its own part than the median of the others.
        waited: Time that the others wait longer than it does, their median.
        phases: Time that it takes longer in each phase.
        cpu: CPU time that its thread takes longer; ``None`` where it is not known.
        delay: Time that its thread has no core longer, likewise.
        computing: Time that its computing takes longer on this host, where who computes waits for a core as
            well; ``None`` likewise.
        unexplained: Time that its thread has no core longer than that brings with it, likewise.
    """

    rank: RankView
    excess: float
    waited: float
    phases: tuple[float, ...]
    cpu: float | None
    delay: float | None
    computing: float | None
    unexplained: float | None


@dataclass(slots=True)
class _Job:
    """The ranks of one job in the span that is open.

    Attributes:
        members: Identities of the views of its ranks.
        next_step: The step to be added next; -1 before the first.
        slowest: Number of the rank that was slowest in the last spans; -1 without one.
        since: Step since which it was.
        spans: In how many spans in a row.
        seen: Steps seen, those that are left out as well.
        evaluations: Of those, with an evaluation.
    """

    members: tuple[int, ...]
    next_step: int = -1
    steps: int = 0
    first_step: int = -1
    sums: list[_Sums] = field(default_factory=list)
    slowest: int = -1
    since: int = -1
    spans: int = 0
    seen: int = 0
    evaluations: int = 0

    def leaves_out(self, *, has_evaluation: bool) -> bool:
        """Take in a step; return whether it is left out: one rank evaluates as a rule, and the others wait.

        Where most steps have an evaluation it is part of a step, as that of a teacher is.
        """
        self.seen += 1
        self.evaluations += has_evaluation
        return has_evaluation and self.evaluations < USUAL_EVALUATIONS * self.seen

    def begin(self) -> None:
        """Begin a span; counters go on from where the last one ended."""
        self.steps, self.first_step = 0, -1
        before = self.sums or [_Sums() for _ in self.members]
        # Where counters have not moved since a step that was left out they still have to.
        self.sums = [
            _Sums(began=None if sums.began is None else sums.newest, left_out=sums.left_out)
            for sums in before
        ]


class Stragglers:
    """Compares the phases of the ranks of each job, step by step."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}

    def compare(self, ranks: Sequence[RankView], gpus: Sequence[Gpu]) -> None:
        """Compare the newest steps; enter a straggler into the findings of that rank.

        Cost: some 2 us a rank and step.
        """
        jobs: dict[str, list[RankView]] = {}
        for rank in ranks:
            if rank.identity.world_size > 1 and not rank.ended:
                jobs.setdefault(rank.run, []).append(rank)
        self._jobs = {run: job for run, job in self._jobs.items() if run in jobs}
        for run, members in jobs.items():
            who = tuple(id(rank) for rank in members)
            job = self._jobs.get(run)
            if job is None or job.members != who:
                job = self._jobs[run] = _Job(who)
                job.begin()
            if len(members) > 1:
                self._follow(job, members, gpus)

    def _follow(self, job: _Job, members: list[RankView], gpus: Sequence[Gpu]) -> None:
        ready = min(rank.phase_times.ready for rank in members)
        # A daemon that comes late begins with the newest steps that all have.
        first = max(rank.phase_times.oldest for rank in members)
        for step in range(max(job.next_step, first), ready + 1):
            job.next_step = step + 1
            times = [rank.phase_times.of(step) for rank in members]
            known = [t for t in times if t is not None and any(t.phases)]
            if len(known) < len(members):
                continue
            evaluates = any(t.phases[StepPhase.EVALUATION] for t in known)
            if job.leaves_out(has_evaluation=evaluates):
                for sums, time in zip(job.sums, known, strict=True):
                    sums.leave_out(time)
                continue
            if job.first_step < 0:
                job.first_step = step
            job.steps += 1
            for sums, time in zip(job.sums, known, strict=True):
                sums.add(step, time)
            if job.steps >= MIN_STEPS and sum(job.sums[0].phases) >= MIN_SECONDS:
                self._judge(job, step, members, gpus)
                job.begin()

    def _judge(self, job: _Job, last: int, members: list[RankView], gpus: Sequence[Gpu]) -> None:
        share = slowest_of(members, job.sums, job.steps)
        mean_step = sum(job.sums[0].phases) / job.steps
        is_slow = (
            share.excess >= SHARE * mean_step and share.waited >= SEEN_BY_OTHERS * share.excess
        )
        number = share.rank.identity.rank
        if not is_slow:
            job.slowest, job.spans = -1, 0
            return
        if number != job.slowest:
            job.slowest, job.since, job.spans = number, job.first_step, 0
        job.spans += 1
        if job.spans >= SPANS:
            cause = _cause(share, members, gpus)
            _say(share, cause, mean_step, (job.since, last), members, job.steps)


def slowest_of(members: Sequence[RankView], sums: Sequence[_Sums], steps: int) -> _Share:
    """Return the rank that takes longest for its own part of a step, against the others.

    A thread that could run and has no core does not wait for others, be it in the midst of a reduction:
    woken late, it comes late to the next one. The system counts that delay in all and not by phase. What
    of it the rank's own phases do not show lies in its waits, unless the rank computes less instead.
    """
    own = _seconds(sums, OWN, steps)
    cpu, delay = _each(sums, "cpu_ns"), _each(sums, "run_delay_ns")
    places = range(len(members))
    hidden = [_hidden(place, own, cpu, delay) for place in places]
    excess = [_more(own, place) + hidden[place] for place in places]
    worst = max(places, key=lambda place: excess[place])
    cpu_more = _more(cpu, worst) if cpu else None
    delay_more = _more(delay, worst) if delay else None
    computing, unexplained = cpu_more, delay_more
    if cpu_more is not None and delay_more is not None:
        usual = max(0.0, cpu_more) * _delay_per_cpu(cpu, delay, worst)
        computing, unexplained = cpu_more + usual, delay_more - usual
    return _Share(
        rank=members[worst],
        excess=excess[worst],
        waited=hidden[worst] - _more(_seconds(sums, WAITS, steps), worst),
        phases=tuple(_more(_seconds(sums, (phase,), steps), worst) for phase in StepPhase),
        cpu=cpu_more,
        delay=delay_more,
        computing=computing,
        unexplained=unexplained,
    )


def _seconds(sums: Sequence[_Sums], phases: Sequence[StepPhase], steps: int) -> list[float]:
    """Return what phases take on each rank in a mean step. Unit: s."""
    return [sum(one.phases[phase] for phase in phases) / steps for one in sums]


def _each(sums: Sequence[_Sums], name: str) -> list[float]:
    """Return by how many seconds a counter grows in a step on each rank; empty if it is not known of all."""
    known = [value for one in sums if (value := one.each(name)) is not None]
    return known if len(known) == len(sums) else []


def _others(values: list[float], place: int) -> list[float]:
    return values[:place] + values[place + 1 :]


def _more(values: list[float], place: int) -> float:
    return values[place] - median(_others(values, place))


def _hidden(place: int, own: list[float], cpu: list[float], delay: list[float]) -> float:
    """Return how much longer a thread has no core than its own phases show. Unit: s."""
    if not cpu or not delay:
        return 0.0
    more = _more(delay, place)
    return max(0.0, min(more, more + _more(cpu, place)) - max(0.0, _more(own, place)))


def _delay_per_cpu(cpu: list[float], delay: list[float], place: int) -> float:
    """Return how long the other threads have no core for each second on one.

    Who computes more waits more for a core, too.
    """
    pairs = zip(_others(cpu, place), _others(delay, place), strict=True)
    ratios = [without / on_core for on_core, without in pairs if on_core]
    return median(ratios) if ratios else 0.0


def _cause(share: _Share, members: Sequence[RankView], gpus: Sequence[Gpu]) -> str:
    """Return what makes a rank slow, in words that follow its name."""
    phase = max(OWN, key=lambda p: share.phases[p])
    where = f"in {phase.words}" if phase is not StepPhase.REST else "outside of the phases known"
    if held := _held_down(share.rank, members, gpus):
        return held
    if share.unexplained is not None and share.unexplained >= MAIN * share.excess:
        return f"its thread has no core for {step_time(share.unexplained)} more: its host is busy"
    if phase is StepPhase.DATA:
        return "it waits for data"
    if share.computing is None:
        return f"it takes longer {where}"
    if share.computing >= MAIN * share.excess:
        return f"it computes longer {where}"
    return f"it waits {where}, and not for a core: for a lock, a disk, the network, or it sleeps"


def _held_down(rank: RankView, members: Sequence[RankView], gpus: Sequence[Gpu]) -> str:
    clocks = {id(r): _clock(r, gpus) for r in members}
    mine = clocks.pop(id(rank))
    others = [clock for clock in clocks.values() if clock]
    if not mine or not others or mine > LOW_CLOCK * median(others):
        return ""
    return f"its GPU runs at {mine / 1e6:.0f} MHz, those of others at {median(others) / 1e6:.0f}"


def _clock(rank: RankView, gpus: Sequence[Gpu]) -> float | None:
    gpu = gpu_of(rank, gpus)
    return None if gpu is None else gpu.number(Feature.CLOCK, "sm")


def _say(
    share: _Share,
    cause: str,
    mean_step: float,
    steps: tuple[int, int],
    members: Sequence[RankView],
    num_steps: int,
) -> None:
    rank, number = share.rank, share.rank.identity.rank
    known = rank.findings.get(f"{STRAGGLER.slug}@step")
    first = steps[0] if known is None else known.first_step
    evidence = {
        "rank": float(number),
        "ranks": float(len(members)),
        "step_seconds": mean_step,
        "excess_seconds": share.excess,
        "others_wait_seconds": share.waited,
    }
    evidence |= {
        f"{phase.label}_seconds_more": share.phases[phase]
        for phase in OWN
        if share.phases[phase] >= SHARE * share.excess
    }
    for name, seconds in (("cpu_seconds_more", share.cpu), ("no_core_seconds_more", share.delay)):
        if seconds is not None:
            evidence[name] = seconds
    rank.find(
        STRAGGLER.finding(
            "step",
            steps[1],
            summary=(
                f"Rank {number} makes the {len(members)} ranks of this host wait: of each step of"
                f" {step_time(mean_step)} it takes {step_time(share.excess)} longer than the others,"
                f" which wait {step_time(share.waited)} longer than it does; {cause}; since step {first}"
            ),
            first_step=first,
            count=SPANS * num_steps if known is None else known.count + num_steps,
            evidence=evidence,
        )
    )
