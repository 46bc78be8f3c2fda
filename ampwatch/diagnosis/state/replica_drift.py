"""Findings about weights that were the same on several ranks, and are not any more.

Nothing declares ranks as replicas: a rank may hold a shard, a stage of a pipeline, or another
training of the same name. What proves it is *lockstep*: weights that are equal at the end of two
iterations that follow one another, and have moved in between. Ranks that average their weights
every few iterations (local SGD, DiLoCo) are never in lockstep while they do.

A rank may come to count one iteration more than the others. What it has at the end of the second
iteration of a check is then what they have at the end of the first, or the other way round: such
ranks are *shifted*, and still train together.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.scaler import CheckedWeights
from ampwatch.diagnosis.state.kinds import REPLICA_DRIFT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ampwatch.wire.records import ChecksumRecord

    Ranks = frozenset[int]

PATIENCE = 32
"""Checks after which ranks are taken for drifted of which nothing is in lockstep any more, and which
were never found with the same weights in between. After a warm-up with averaged gradients local
SGD looks like that, but for the iterations in which it averages; as checks move against any period
by one iteration at least, those are met if it averages every 32 iterations or more often."""

MAX_KNOWN = 4096
"""Groups of weights of which lockstep is remembered."""

MAX_NAMED = 8


class _Group(NamedTuple):
    """Weights that are summed together."""

    layout: int
    part: int
    number: int


class _Drift(NamedTuple):
    """Ranks whose weights have come apart.

    Attributes:
        group: Number of the group of weights within the check.
        ranks: The ranks that had them in common.
        most: Those of them that still do, if they are more than half; else none.
        since: First iteration of the last check in which all did.
    """

    group: int
    ranks: Ranks
    most: Ranks
    since: int


class ReplicaDrift(Detector):
    """Reports ranks that were in lockstep in some weights and have come apart in them.

    It is certain at once if the same ranks are in lockstep in other weights of the check, or more
    than half of them still are in these. Where nothing is in lockstep any more, it takes
    ``PATIENCE`` checks, and ranks that came together meanwhile average now and then. Ranks that are
    shifted are not compared until they are in lockstep again. It is over once all weights in which
    ranks had come apart were found to be the same.

    Args:
        shared: What the detectors have in common.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._judged = -1
        self._known: dict[_Group, dict[Ranks, int]] = {}
        self._apart: dict[Ranks, int] = {}
        self._averaging: set[Ranks] = set()
        self._shifted: set[Ranks] = set()
        self._drifted: set[_Group] = set()

    @takes(CheckedWeights)
    def observe(self, seen: CheckedWeights) -> None:
        """Take in the newest checks of all ranks; each check is judged once."""
        steps = {check.step for checks in seen.checks.values() for check in checks}
        newest = max(steps, default=-1)
        for step in sorted(step for step in steps if step > self._judged):
            made = {
                rank: check
                for rank, checks in seen.checks.items()
                for check in checks
                if check.step == step
            }
            # One that is late is waited for until the next check.
            if len(made) == len(seen.checks) or step < newest:
                self._judged = step
                for cohort in _cohorts(made):
                    self._judge(step, cohort)

    def _judge(self, step: int, cohort: Mapping[int, ChecksumRecord]) -> None:
        some = next(iter(cohort.values()))
        groups = range(min(len(check.first) for check in cohort.values()))
        keys = [_Group(some.layout, some.part, number) for number in groups]
        lockstep = [_lockstep(cohort, number) for number in groups]
        sure: list[tuple[Ranks, _Drift]] = []
        doubtful: dict[Ranks, list[_Drift]] = defaultdict(list)
        met: set[Ranks] = set()
        equal, apart = set[_Group](), set[_Group]()
        for number, key in enumerate(keys):
            for ranks, since in self._known.get(key, {}).items():
                here = ranks.intersection(cohort)
                if len(here) < 2:
                    continue
                if not _are_apart(cohort, number, here):
                    met.add(ranks)
                    equal.add(key)
                    continue
                apart.add(key)
                most = _most(cohort, number, here)
                if most == here:
                    self._shifted.add(ranks)
                drift = _Drift(number, here, most, since)
                if most or any(here <= s for others in lockstep for s in others):
                    sure.append((ranks, drift))
                else:
                    doubtful[ranks].append(drift)
        together = [ranks for others in lockstep for ranks in others]
        self._shifted = {r for r in self._shifted if not any(r <= ranks for ranks in together)}
        drifts = [drift for ranks, drift in sure if ranks not in self._shifted]
        drifts += self._lasting(doubtful, met)
        for key, others in zip(keys, lockstep, strict=True):
            self._learn(key, step, others)
        if drifts:
            self._report(step, cohort, drifts)
            self._drifted.update(keys[drift.group] for drift in drifts)
        else:
            self._mend(step, equal - apart)

    def _mend(self, step: int, equal: Iterable[_Group]) -> None:
        """Take in weights in which no ranks that belong together differ."""
        was_drifted = bool(self._drifted)
        self._drifted.difference_update(equal)
        if was_drifted and not self._drifted:
            self._book.end(self._book.of_kind(REPLICA_DRIFT.slug)[-1], step)

    def _lasting(self, doubtful: Mapping[Ranks, list[_Drift]], met: set[Ranks]) -> Iterable[_Drift]:
        """Return those that were never found together again; remember who was."""
        for ranks in met:
            if self._apart.pop(ranks, 0):
                self._averaging.add(ranks)
        for ranks, drifts in doubtful.items():
            if ranks in met or ranks in self._averaging or ranks in self._shifted:
                continue
            self._apart[ranks] = self._apart.get(ranks, 0) + 1
            if self._apart[ranks] >= PATIENCE:
                yield from drifts

    def _learn(self, key: _Group, step: int, lockstep: Iterable[Ranks]) -> None:
        if key not in self._known and len(self._known) >= MAX_KNOWN:
            return
        known = self._known.setdefault(key, {})
        for ranks in lockstep:
            # More than were known to belong together; fewer do not unlearn the rest.
            for smaller in [one for one in known if one < ranks]:
                del known[smaller]
            if ranks in known or not any(ranks < larger for larger in known):
                known[ranks] = step

    def _report(
        self, step: int, cohort: Mapping[int, ChecksumRecord], drifts: list[_Drift]
    ) -> None:
        made = self._book.of_kind(REPLICA_DRIFT.slug)
        if made:
            self._book.again(made[-1], step)
            return
        first = max(drifts, key=lambda drift: len(drift.ranks))
        # All that came apart alike: one parameter alone would be accused of what befell the model.
        alike = [drift.group for drift in drifts if drift[1:] == first[1:]]
        places = next(iter(cohort.values())).places
        begin, end = places[min(alike)][0], places[max(alike)][1]
        weights = f"parameter {begin}" if begin == end else f"parameters {begin} to {end}"
        were = "was" if begin == end else "were"
        others = first.ranks - first.most
        if first.most:
            who = f"{_named(others)} no longer {_has(others)} the weights of {_named(first.most)}"
        else:
            who = f"{_named(first.ranks)} no longer have the same weights"
        self._book.report(
            REPLICA_DRIFT,
            f"param:{begin}" if begin == end else "",
            step,
            summary=(
                f"{who[0].upper()}{who[1:]}: {weights} {were} bit-identical at step {first.since + 1} and"
                f" {'is' if begin == end else 'are'} not at step {step}"
            ),
            phase="optimizer",
            evidence={
                "ranks_compared": float(len(first.ranks)),
                "ranks_apart": float(len(others)),
                "rank": float(min(others)),
                "last_equal_step": float(first.since + 1),
            },
        )


def _cohorts(made: Mapping[int, ChecksumRecord]) -> Iterable[Mapping[int, ChecksumRecord]]:
    """Return the ranks that can be compared: those whose weights are divided alike."""
    cohorts: dict[tuple[int, int, int], dict[int, ChecksumRecord]] = defaultdict(dict)
    for rank, check in made.items():
        cohorts[check.layout, check.part, check.parts][rank] = check
    return [cohort for cohort in cohorts.values() if len(cohort) > 1]


def _lockstep(cohort: Mapping[int, ChecksumRecord], number: int) -> list[Ranks]:
    """Return the ranks that are in lockstep in a group of weights, at least two each."""
    by_sums: dict[tuple[int, int], set[int]] = defaultdict(set)
    for rank, check in cohort.items():
        # Weights that stand still, as those of zeros do, prove nothing.
        if check.first[number] != check.then[number]:
            by_sums[check.first[number], check.then[number]].add(rank)
    return [frozenset(ranks) for ranks in by_sums.values() if len(ranks) > 1]


def _most(cohort: Mapping[int, ChecksumRecord], number: int, ranks: Ranks) -> Ranks:
    """Return the more than half of some ranks that train together, though some of them be shifted."""
    sums = {rank: (cohort[rank].first[number], cohort[rank].then[number]) for rank in ranks}
    groups: list[Ranks] = []
    for rank, (first, then) in sums.items():
        # Weights that stand still prove nothing.
        if first == then:
            continue
        met = [
            group
            for group in groups
            if any(
                sums[r] == (first, then) or sums[r][1] == first or sums[r][0] == then for r in group
            )
        ]
        groups = [group for group in groups if group not in met]
        groups.append(frozenset({rank}).union(*met))
    most = max(groups, key=len, default=frozenset())
    return most if 2 * len(most) > len(ranks) else frozenset()


def _are_apart(cohort: Mapping[int, ChecksumRecord], number: int, ranks: Ranks) -> bool:
    """Return whether ranks differ in both iterations of a check."""
    first = {cohort[rank].first[number] for rank in ranks}
    then = {cohort[rank].then[number] for rank in ranks}
    return len(first) > 1 and len(then) > 1


def _named(ranks: Iterable[int]) -> str:
    numbers = sorted(ranks)
    some = ", ".join(map(str, numbers[:MAX_NAMED]))
    more = f" and {len(numbers) - MAX_NAMED} more" if len(numbers) > MAX_NAMED else ""
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {some}{more}"


def _has(ranks: Ranks) -> str:
    return "has" if len(ranks) == 1 else "have"
