"""Pages of simulated nights: fleets as their daemons would describe them, through the shipped rules and routes.

Usage: ``python -m benchmarks.nights [--nights 200] [--large 4] [--jobs 2]``. A night has four runs on hosts of their
own. Some are healthy in ways that look bad (search for the first scale, saw-tooth, evaluation, restart under the same
name, daemon away, few skips), others break. promtool evaluates the rules; ``pager`` computes who is told. What is
wanted: one page per trouble that wakes somebody, none without, and no message about what is healthy.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.pager import Labels, Told, messages

if TYPE_CHECKING:
    from collections.abc import Iterable

RULES = Path(__file__).parents[1] / "dashboards" / "alerts" / "ampwatch.rules.yml"
TICK = 60
"""Seconds from one scrape to the next, and from one evaluation to the next."""

TICKS = 120
BATCH = 10
"""Nights that are evaluated together, which costs less."""

GONE = "_"
AFTERMATH = 16 * 60
"""Seconds after the end of a trouble in which it may still be told of: windows, and the ten minutes after a run."""

MAX_SHOWN = 8

PAGE = "ampwatch-critical"
NOTE = "ampwatch-warning"


@dataclass
class Rank:
    """One rank as its daemon describes it: values by series, one for each scrape."""

    run: str
    rank: int
    host: str
    series: dict[str, list[Any]] = field(default_factory=dict)


@dataclass
class Run:
    """A run, whose ranks do the same but for what is changed afterwards.

    Attributes:
        name: Its name.
        kind: Which of ``STORIES`` it lives.
        trouble: Seconds at which a trouble begins and ends; ``None`` where nothing is wrong.
        pages: Whether the trouble wakes somebody.
        ranks: Its ranks.
    """

    name: str
    kind: str
    ranks: list[Rank]
    trouble: tuple[float, float] | None = None
    pages: bool = False
    extra: dict[str, list[Any]] = field(default_factory=dict)


USUAL = {"data": 0.04, "forward": 0.3, "backward_with_reduction": 0.5, "rest": 0.16}
STARVED = {"data": 0.6, "forward": 0.13, "backward_with_reduction": 0.2, "rest": 0.07}
"""Shares of the time that go to the phases of steps: as they are, and where steps wait for data."""


class Training:
    """A GradScaler and what ampwatch counts of it, tick by tick."""

    def __init__(self, chance: random.Random, *, slow: bool = False) -> None:
        self.chance = chance
        self.interval = chance.choice([20, 200, 2000])
        self.rate = chance.choice([1, 2]) / 60 if slow else chance.choice([0.5, 3, 20, 100])
        self.begun = -60.0
        self.ceiling = chance.randint(4, 15)
        self.log2 = 16
        self.steps = 0.0
        self.tracker = 0.0
        self.counts: Counter[str] = Counter()
        self.calibrated = False
        self.state = "running"
        self.failing = 0
        self.broken = False
        self.root: tuple[str, str] | None = None
        self.zeros = 0.02
        self.nan_weights = 0
        self.held: list[int] = []
        self.skipping = False
        self.shares = USUAL
        self.phases = dict.fromkeys(USUAL, 0.0)

    def restart(self, now: float) -> None:
        """Start again under the same name."""
        interval, rate, ceiling, chance = self.interval, self.rate, self.ceiling, self.chance
        self.__init__(chance)  # type: ignore[misc]
        self.interval, self.rate, self.ceiling = interval, rate, ceiling
        self.begun = now

    def skip(self, times: int, kind: str = "storm") -> None:
        """Skip steps in a row that neither search nor growth explains."""
        for number in range(times):
            self.counts[kind if number or kind != "storm" else "unprovoked"] += 1
            self.counts["backoffs"] += 1
            self.log2 = max(self.log2 - 1, -149)
        self.steps += times
        self.tracker = 0
        self.skipping = times > 3 or self.rate * TICK < self.interval
        self.held += [self.log2]

    def tick(self) -> dict[str, Any]:
        """Train for a tick; return what a scrape would read."""
        self.held = [*self.held[-2:], self.log2]
        if self.state == "running" and not self.skipping:
            self._train()
        self.skipping = False
        self.failing = max(self.failing - 1, 0)
        if self.state == "running":
            for phase, share in self.shares.items():
                self.phases[phase] += share * TICK
        return self.scraped()

    def _train(self) -> None:
        steps = self.rate * TICK
        self.steps += steps
        if not self.calibrated:
            while self.log2 > self.ceiling:
                self.counts["calibrating"] += 1
                self.counts["backoffs"] += 1
                self.log2 -= 1
                if self.chance.random() < 0.1:
                    return
            self.calibrated = True
        self.tracker += steps
        while self.tracker >= self.interval:
            self.tracker -= self.interval
            self.counts["growths"] += 1
            self.log2 += 1
            if self.log2 > self.ceiling:
                self.counts["probe"] += 1
                self.counts["backoffs"] += 1
                self.log2 -= 1
        self.held += [self.log2]

    def scraped(self) -> dict[str, Any]:
        """Return what a scrape would read, by series."""
        failing = self.state == "running" and self.failing > 0
        broken = self.state == "finished" and self.broken
        flushed = 1.0 if self.log2 < -20 else self.zeros
        elements = round(self.steps * 100)
        self.counts["zeros"] += round(flushed * max(elements - self.counts["elements"], 0))
        self.counts["elements"] = max(elements, self.counts["elements"])
        row: dict[str, Any] = {
            f'ampwatch_run_state{{state="{state}"}}': int(self.state == state)
            for state in ("running", "stale", "failed", "finished")
        }
        skipped = 'ampwatch_optimizer_steps_skipped_total{optimizer="0",class='
        row |= {
            f'{skipped}"{c}"}}': self.counts[c]
            for c in ("calibrating", "probe", "unprovoked", "storm")
        }
        row |= {
            'ampwatch_run_health{health="failing"}': int(failing),
            'ampwatch_run_health{health="broken"}': int(broken),
            'ampwatch_run_health{health="failed"}': int(self.state == "failed"),
            "ampwatch_run_start_timestamp_seconds": self.begun,
            "ampwatch_steps_total": round(self.steps),
            "ampwatch_loss_scale": 2.0**self.log2,
            "ampwatch_loss_scale_min": 2.0 ** min(self.held),
            "ampwatch_loss_scale_growth_interval_steps": self.interval,
            "ampwatch_loss_scale_backoffs_total": self.counts["backoffs"],
            "ampwatch_loss_scale_growths_total": self.counts["growths"],
            "ampwatch_gradient_elements_total": self.counts["elements"],
            "ampwatch_gradient_zero_elements_total": self.counts["zeros"],
            "ampwatch_gradient_underflow_elements_total": round(self.counts["zeros"] * 0.9),
            "ampwatch_parameter_nonfinite_elements": self.nan_weights,
            "ampwatch_loss_nonfinite_total": self.counts["losses"],
        }
        row |= {
            f'ampwatch_step_phase_seconds_sum{{phase="{phase}",clock="host"}}': round(seconds, 3)
            for phase, seconds in self.phases.items()
        }
        if self.root and (failing or broken or (self.state == "failed" and self.broken)):
            kind, place = self.root
            row[
                f'ampwatch_root_info{{kind="{kind}",severity="critical",place="{place}",op="addmm",first_step="812",remedy="x"}}'
            ] = 1
        return row


Change = Callable[[Training, float], None]
"""Something that happens to a training at a moment."""


def _fail(kind: str, ticks: int = 5) -> Change:
    def change(training: Training, _: float) -> None:
        training.root, training.failing = (kind, "module encoder.0"), ticks + 1

    return change


def _storm(times: int) -> Change:
    def change(training: Training, now: float) -> None:
        training.skip(times)
        training.skipping = True  # It falls because what overflows comes more often than a growth.
        if times >= 2:
            _fail("forward_overflow")(training, now)

    return change


def _skips(times: int) -> Change:
    def change(training: Training, _: float) -> None:
        training.skip(times)

    return change


def _set(**changes: Any) -> Change:
    def change(training: Training, _: float) -> None:
        for name, value in changes.items():
            setattr(training, name, value)

    return change


def _lower(training: Training, _: float) -> None:
    training.log2 = -30


def _restart(training: Training, now: float) -> None:
    training.restart(now)


def _losses(training: Training, _: float) -> None:
    training.counts["losses"] += 20


def _all(*changes: Change) -> Change:
    def change(training: Training, now: float) -> None:
        for one in changes:
            one(training, now)

    return change


class Plan(NamedTuple):
    """What happens in a night.

    Attributes:
        events: Changes, by their tick.
        span: Ticks at which a trouble begins and ends; ``None`` without one.
        pages: Whether it wakes somebody.
    """

    events: dict[int, Change]
    span: tuple[int, int] | None = None
    pages: bool = False


END = _set(state="finished")


def _evaluation(at: int, chance: random.Random) -> Plan:
    pause = chance.randint(1, 480 // TICK)
    return Plan({at: _set(state="stale"), at + pause: _set(state="running")})


def _restarted(at: int, chance: random.Random) -> Plan:
    return Plan({at: END, at + chance.randint(1, 6): _restart})


def _collapse(at: int, chance: random.Random) -> Plan:
    speed = chance.randint(1, 6)
    ticks = max(chance.randint(4, 40), 12 // speed + 1)
    return Plan({at + t: _storm(speed) for t in range(ticks)}, (at, at + ticks), pages=True)


def _stopped(at: int, chance: random.Random) -> Plan:
    ticks = chance.randint(6, 20)
    events = {at + t: _storm(4) for t in range(ticks)}
    events[at + ticks] = _all(_set(broken=True), END)
    events[at + ticks + 4] = _restart
    return Plan(events, (at, at + ticks), pages=True)


def _set_low(at: int, _: random.Random) -> Plan:
    slowly = _set(interval=2000, rate=3)
    return Plan({at: _all(slowly, _lower), at + 30: _set(log2=12)}, (at, at + 30), pages=True)


def _weights(at: int, _: random.Random) -> Plan:
    events = {at: _all(_set(nan_weights=2632), _fail("param_nonfinite", 400))}
    events |= {at + t: _losses for t in range(1, 20)}
    events[at + 20] = _all(_set(broken=True), END)
    return Plan(events, (at, at + 20), pages=True)


def _finding(at: int, chance: random.Random) -> Plan:
    seen = range(0, chance.randint(1, 40), 3)
    return Plan({at + t: _fail("forward_overflow") for t in seen}, (at, at + 45), pages=True)


def _ends_broken(at: int, _: random.Random) -> Plan:
    end = _all(_fail("divergence", 400), _set(broken=True), END)
    return Plan({at: end}, (at, at + 20), pages=True)


def _ends_killed(at: int, _: random.Random) -> Plan:
    end = _all(_fail("divergence", 400), _set(broken=True, state="failed"))
    return Plan({at: _fail("divergence", 400), at + 5: end}, (at, at + 20), pages=True)


PLANS: dict[str, Callable[[int, random.Random], Plan]] = {
    "few skips": lambda at, _: Plan({at: _skips(3)}),
    "evaluation": _evaluation,
    "restart": _restarted,
    "finish": lambda at, _: Plan({at: END}),
    "collapse": _collapse,
    "collapse at once": lambda at, chance: Plan(
        {at: _storm(chance.randint(14, 60))}, (at, at + 1), pages=True
    ),
    "collapse, and stopped": _stopped,
    "set low": _set_low,
    "weights": _weights,
    "finding": _finding,
    "ends broken": _ends_broken,
    "ends killed": _ends_killed,
    "storm": lambda at, _: Plan({at: _skips(7)}, (at, at + 20)),
    "hang": lambda at, _: Plan(
        {at: _set(state="stale"), at + 40: _set(state="failed")}, (at, at + 40)
    ),
    "death": lambda at, _: Plan({at: _set(state="failed")}, (at, at + 20)),
    "straggler": lambda at, _: Plan({}, (at, at + 30)),
    "first batches": lambda at, _: Plan(
        {at: _set(shares=STARVED), at + 5: _set(shares=USUAL), at + 40: _set(shares=STARVED)}
        | {at + 45: _set(shares=USUAL)}
    ),
    "waits for data": lambda at, _: Plan(
        {at: _set(shares=STARVED), at + 40: _set(shares=USUAL)}, (at, at + 40)
    ),
    "slow rank": lambda at, _: Plan({}, (at, at + 40)),
    "slower": lambda at, _: Plan({}, (at, at + 20)),
}
"""What happens, by the name of a story; nothing in the others."""

HEALTHY = (
    "steady",
    "few skips",
    "evaluation",
    "restart",
    "finish",
    "daemon away",
    "slow",
    "checkpoints",
    "first batches",
)
BROKEN = (
    "collapse",
    "collapse at once",
    "collapse, and stopped",
    "collapse, daemon away",
    "set low",
    "weights",
    "finding",
    "ends broken",
    "ends killed",
    "storm",
    "hang",
    "death",
    "straggler",
    "waits for data",
    "slow rank",
    "slower",
)


def night(seed: int, ranks: int = 0) -> list[Run]:
    """Return the runs of a night; with ``ranks``, one of so many and nothing else."""
    chance = random.Random(seed)
    kinds = [chance.choice(HEALTHY) for _ in range(2)] + [chance.choice(BROKEN) for _ in range(2)]
    if ranks:
        kinds = [BROKEN[seed % len(BROKEN)]]
    return [
        lived(f"run-{seed}-{number}", kind, random.Random(seed * 100 + number), ranks)
        for number, kind in enumerate(kinds)
    ]


def lived(name: str, kind: str, chance: random.Random, ranks: int = 0) -> Run:
    """Return a run that lives a story; with ``ranks``, of so many, else of a few."""
    story = "collapse" if kind == "collapse, daemon away" else kind
    at = chance.randint(20, 60)
    plan, span, pages = PLANS[story](at, chance) if story in PLANS else Plan({})
    training = Training(chance, slow=kind == "slow")
    rows = []
    for tick in range(TICKS):
        if tick in plan:
            plan[tick](training, tick * TICK)
        rows.append(training.tick())
    names = sorted(set().union(*rows))
    count = ranks or chance.choice([1, 2, 4])
    per_host = 8 if ranks else chance.choice([count, max(count // 2, 1)])
    run = Run(name, kind, [])
    for rank in range(count):
        host = rank // per_host
        late = host % 2  # Hosts are not scraped in the same moment.
        values = {n: [rows[max(t - late, 0)].get(n, GONE) for t in range(TICKS)] for n in names}
        run.ranks.append(Rank(name, rank, f"{name}-{host}:10917", values))
    if span:
        # A scale that has fallen is a trouble until it has grown back.
        low = [t for t in range(span[0], TICKS) if rows[t]["ampwatch_loss_scale"] < 1]
        run.trouble, run.pages = (span[0] * TICK, max([span[1], *low]) * TICK), pages
    _differ(run, span, chance)
    if kind in {"death", "hang", "ends killed"}:
        _dies(run, plan)
    goes_on = [t for t in range(TICKS) if not rows[t].get('ampwatch_run_state{state="finished"}')]
    if goes_on[-1] < TICKS - 1:
        _leaves(run, goes_on[-1] + 1)
    if "daemon away" in kind:
        begin = (span[0] + 3) if span else chance.randint(20, 60)
        _away(run, begin, chance.randint(1, 3))
    return run


def _differ(run: Run, span: Any, chance: random.Random) -> None:
    """Change what only some ranks do."""
    kind = run.kind
    if kind == "straggler":
        _straggles(run, span, chance)
    if kind == "slow rank":
        _is_waited_for(run, span, chance)
    if kind == "slower":
        for rank in run.ranks:
            rank.series[FOUND.format("step_slower")] = _found(span)
    if kind == "checkpoints":
        _takes_longer(run.ranks[0], 0.1, (0, TICKS))


def _straggles(run: Run, span: Any, chance: random.Random) -> None:
    if len(run.ranks) == 1:
        run.trouble, run.kind = None, "steady"
        return
    values = chance.choice(run.ranks).series
    for tick in range(*span):
        values['ampwatch_run_state{state="running"}'][tick] = 0
        values['ampwatch_run_state{state="stale"}'][tick] = 1


FOUND = 'ampwatch_finding_last_seen_timestamp_seconds{{kind="{}",severity="warning",root="true"}}'


def _found(span: Any) -> list[Any]:
    """Return when a finding was last seen that is made in a span of ticks."""
    begin, end = span
    return [GONE if t < begin else min(t, end) * TICK for t in range(TICKS)]


def _is_waited_for(run: Run, span: Any, chance: random.Random) -> None:
    """Let one rank take longer; the daemon finds it where all ranks are on its host."""
    if len(run.ranks) == 1:
        run.trouble, run.kind = None, "steady"
        return
    slow = chance.choice(run.ranks)
    _takes_longer(slow, 0.4, span)
    if len({rank.host for rank in run.ranks}) == 1:
        slow.series[FOUND.format("straggler")] = _found(span)


def _takes_longer(rank: Rank, share: float, span: Any) -> None:
    """Let a rank take a share of the time longer for its own part, and wait as much less for others."""
    begin, end = span
    for phase, sign in (("rest", 1), ("backward_with_reduction", -1)):
        values = rank.series[f'ampwatch_step_phase_seconds_sum{{phase="{phase}",clock="host"}}']
        for tick in range(begin, TICKS):
            more = sign * share * TICK * (min(tick, end) - begin)
            values[tick] = round(values[tick] + more, 3)


def _dies(run: Run, plan: Any) -> None:
    at = max(plan)
    for rank in run.ranks:
        cause = "true" if rank is run.ranks[-1] else "false"
        error = "OutOfMemoryError" if cause == "true" else "DistBackendError"
        info = f'ampwatch_rank_failure_info{{cause="{cause}",error="{error}"}}'
        rank.series[info] = [1 if t >= at else GONE for t in range(TICKS)]
    _leaves(run, at)


def _leaves(run: Run, at: int) -> None:
    """Ten minutes after its end nothing is said of a run."""
    for rank in run.ranks:
        for values in rank.series.values():
            values[at + 600 // TICK :] = [GONE] * len(values[at + 600 // TICK :])


def _away(run: Run, begin: int, ticks: int) -> None:
    host = run.ranks[-1].host
    for rank in run.ranks:
        if rank.host == host:
            for values in rank.series.values():
                values[begin : begin + ticks] = [GONE] * ticks


def fired(runs: Iterable[Run]) -> list[tuple[float, frozenset[Labels]]]:
    """Return the alerts that fire at each evaluation."""
    runs = list(runs)
    series = [
        f"      - series: {_named(name, rank)}\n        values: {_short(values)}\n"
        for run in runs
        for rank in run.ranks
        for name, values in rank.series.items()
    ]
    for host in sorted({rank.host for run in runs for rank in run.ranks}):
        row = f'      - series: up{{job="ampwatch",instance="{host}"}}'
        series += [f"{row}\n        values: 1x{TICKS}\n"]
    asked = "".join(
        f"      - {{expr: 'ALERTS{{alertstate=\"firing\"}}', eval_time: {tick * TICK}s}}\n"
        for tick in range(TICKS)
    )
    text = (
        f"rule_files: [{RULES}]\nevaluation_interval: {TICK}s\ntests:\n  - interval: {TICK}s\n"
        f"    input_series:\n{''.join(series)}    promql_expr_test:\n{asked}"
    )
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as place:
        file = Path(place) / "night.yml"
        file.write_text(text, encoding="utf-8")
        done = subprocess.run(
            ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False
        )
    said = done.stdout + done.stderr
    assert done.returncode == 0 or "FAILED" in said, said[:2000]
    found: dict[float, frozenset[Labels]] = {}
    for time, got in re.findall(r"time: (\w+),\s+exp: .*\n\s+got: (.*)\n", said):
        alerts = re.findall(r"\{([^}]*)\}", got)
        found[_seconds(time)] = frozenset(map(_labels, alerts))
    assert found or done.returncode == 0, said[:2000]
    return [(float(t * TICK), found.get(float(t * TICK), frozenset())) for t in range(TICKS)]


def _labels(text: str) -> Labels:
    pairs = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', text)
    return frozenset((k, v) for k, v in pairs if k not in {"__name__", "alertstate"})


def _seconds(text: str) -> float:
    units = {"h": 3600, "m": 60, "s": 1}
    return float(sum(int(n) * units[u] for n, u in re.findall(r"(\d+)([hms])", text)))


def _named(name: str, rank: Rank) -> str:
    metric, _, more = name.partition("{")
    more = f",{more[:-1]}" if more else ""
    return f'{metric}{{job="ampwatch",instance="{rank.host}",run="{rank.run}",rank="{rank.rank}"{more}}}'


def _short(values: list[Any]) -> str:
    """Return values as promtool writes them; what was there and is gone is stale."""
    parts: list[str] = []
    last: Any = None
    count = 0
    for value in [*values, None]:
        if value == last:
            count += 1
            continue
        if count:
            if last == GONE:
                parts.append(("stale" if parts else "_") + (f" _x{count - 1}" if count > 1 else ""))
            else:
                parts.append(f"{last!r}x{count - 1}")
        last, count = value, 1
    return " ".join(parts)


@dataclass
class Score:
    """What was told of nights.

    Attributes:
        counts: How often what happened.
        wrong: The worst of it, for a person to look at.
    """

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __add__(self, other: Score) -> Score:
        return Score(self.counts + other.counts, self.wrong + other.wrong)


def score(runs: Iterable[Run], told: list[Told]) -> Score:
    """Return how many pages and notes each trouble got, and how many there were without one."""
    result = Score()
    for run in runs:
        mine = [one for one in told if ("run", run.name) in one.group]
        woken = [one for one in mine if one.receiver == PAGE and one.new]
        noted = [one for one in mine if one.receiver == NOTE and one.new]
        result.counts["runs"] += 1
        result.counts["further pages"] += sum(
            one.receiver == PAGE and one.news and not one.new for one in mine
        )
        if run.trouble is None:
            result.counts["healthy runs"] += 1
            wrong = {"pages without a trouble": len(woken), "notes without a trouble": len(noted)}
        else:
            begin, end = run.trouble
            pages = [one for one in woken if begin <= one.at <= end + AFTERMATH]
            notes = [one for one in noted if begin <= one.at <= end + AFTERMATH]
            sort = "troubles that page" if run.pages else "troubles of a day"
            result.counts[sort] += 1
            result.counts[f"{sort}: pages"] += len(pages)
            result.counts[f"{sort}: notes"] += len(notes)
            outside = len(woken) - len(pages)
            wrong = {
                "pages without a trouble": outside,
                "notes without a trouble": len(noted) - len(notes),
            }
            if run.pages:
                wrong |= {"no page": not pages, "pages too many": max(len(pages) - 1, 0)}
            else:
                wrong |= {
                    "no note": not notes,
                    "pages of what can wait": len(pages),
                    "notes too many": max(len(notes) - 1, 0),
                }
        for name, times in wrong.items():
            result.counts[name] += int(times)
            if times:
                said = [
                    f"{one.at:.0f}s {one.receiver}: {sorted({dict(a)['alertname'] for a in one.firing})}"
                    for one in mine
                    if one.new or one.news
                ]
                result.wrong.append(
                    f"{run.name} ({run.kind}, {run.trouble}, {len(run.ranks)} ranks): {name}: {said}"
                )
    return result


def judged(seeds: list[int], ranks: int = 0) -> Score:
    """Return the score of some nights, which promtool evaluates as one: they have no host in common."""
    runs = [run for seed in seeds for run in night(seed, ranks)]
    result = score(runs, messages(fired(runs)))
    print(*result.wrong, sep="\n", end="\n" * bool(result.wrong), file=sys.stderr, flush=True)
    return result


def main() -> None:
    """Print the score as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nights", type=int, default=200)
    parser.add_argument("--large", type=int, default=4, help="nights of 1000 ranks among them")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    small = asked.nights - asked.large
    # Whatever is slow first, so that all jobs are done together.
    work = [([seed], 1000) for seed in range(asked.large)]
    work += [(list(range(n, min(n + BATCH, small))), 0) for n in range(0, small, BATCH)]
    with ThreadPoolExecutor(asked.jobs) as pool:
        scores = pool.map(lambda one: judged(*one), work)
        total = sum(scores, Score())
    version = subprocess.run(["promtool", "--version"], capture_output=True, text=True, check=True)
    said = {
        "nights": asked.nights,
        "ranks_of_large_nights": 1000,
        "promtool": (version.stdout + version.stderr).split()[2],
        "counts": dict(sorted(total.counts.items())),
        "wrong": total.wrong,
    }
    json.dump(said, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
