"""Two runs of several ranks: each rank against that of the other run, and those of a run among themselves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ampwatch.errors import DiffError
from ampwatch.lab.difference.pairs import STATE, distance
from ampwatch.lab.difference.verdict import Departure, Difference, compare
from ampwatch.lab.tape.files import Tape, read_head, read_tape
from ampwatch.lab.tape.rows import RowKind, TapeRow

_Key = tuple[int, int, str]
"""Step, kind and name of what each rank has."""

MAX_LISTED = 8
"""Ranks that are listed in a sentence."""


class RankDifference(NamedTuple):
    """What one rank of a run and one of the other say."""

    a: int  # rank in the one run
    b: int  # rank in the other
    found: Difference  # where they part

    @property
    def first(self) -> Departure | None:
        """The first departure."""
        return self.found.departures[0] if self.found.departures else None


class Parting(NamedTuple):
    """What the ranks of one run should have alike, and have not."""

    run: str  # ``A`` or ``B``
    step: int  # the first step in which they have not
    kind: RowKind  # weight before the step, gradient, or weight after it
    name: str  # the parameter
    # those that are not as most are; all of them where no value has a majority
    ranks: tuple[int, ...]
    num_ranks: int  # ranks that were compared
    distance: float  # the largest distance to the first rank
    num_parameters: int  # parameters that part in this run sooner or later


@dataclass
class RunsDifference:
    """What two runs held against each other say, of all ranks."""

    a: Tape  # the tape of the leading rank in the one run: that of the first departure
    b: Tape  # its tape in the other
    # the ranks, as they were held against each other; the leading one first
    pairs: list[RankDifference]
    # what parts between the ranks of one run alone: at most one of each run
    partings: list[Parting] = field(default_factory=list)
    # in sentences, what could not be compared, in all ranks or in some
    notes: list[str] = field(default_factory=list)

    @property
    def lead(self) -> Difference:
        """What the leading rank says."""
        return self.pairs[0].found

    @property
    def is_explained(self) -> bool:
        """Whether formats explain all, and ranks have what they should have alike."""
        return not self.partings and all(pair.found.is_explained for pair in self.pairs)

    @property
    def is_same(self) -> bool:
        """Whether no difference was seen at all, in any rank."""
        return not self.partings and all(pair.found.is_same for pair in self.pairs)

    @property
    def contrasts(self) -> list[str]:
        """What the runs say of themselves that differs, in all ranks or in some."""
        return _together([(max(p.a, p.b), p.found.contrast.all()) for p in self.pairs])

    @property
    def has_ranks(self) -> bool:
        """Whether more than one rank was compared."""
        return len(self.pairs) > 1

    def at_the_place(self) -> list[RankDifference]:
        """Return the ranks whose first departure is at the same place as the leading one."""
        first = self.pairs[0].first
        if first is None:
            return []
        return [p for p in self.pairs if p.first is not None and _place(p.first) == _place(first)]

    def later(self) -> list[RankDifference]:
        """Return the ranks that depart elsewhere, the first of them first."""
        here = {(pair.a, pair.b) for pair in self.at_the_place()}
        found = [p for p in self.pairs if p.first is not None and (p.a, p.b) not in here]
        return sorted(found, key=_order)


def compare_runs(a: Mapping[int, Path], b: Mapping[int, Path]) -> RunsDifference:
    """Hold two runs against each other, each given by the tapes of its ranks.

    Runs of as many ranks are compared rank by rank; of other numbers, the first rank of the one that has
    fewer with each rank of the other. Tapes are read one pair at a time.

    Raises:
        DiffError: If no rank can be compared, or one has trained on batches of another shape.
    """
    runs = _Run("A", a), _Run("B", b)
    found: RunsDifference | None = None
    failed: list[tuple[int, DiffError]] = []
    is_only = len(a) == len(b) == 1
    for rank_a, rank_b in _pairs(*runs):
        tapes: tuple[Tape, Tape] | None = None
        try:
            tapes = runs[0].read(rank_a), runs[1].read(rank_b)
            pair = RankDifference(rank_a, rank_b, compare(*tapes))
        except DiffError as error:
            if is_only:
                raise
            rank = max(rank_a, rank_b)
            if tapes is not None and not tapes[0].steps.keys().isdisjoint(tapes[1].steps):
                msg = f"rank {rank}: {error}"
                raise DiffError(msg) from None
            failed.append((rank, error))
            continue
        if found is None:
            found = RunsDifference(*tapes, [pair])
        elif _order(pair) < _order(found.pairs[0]):
            found.a, found.b = tapes
            found.pairs.insert(0, pair)
        else:
            found.pairs.append(pair)
    if found is None:
        raise failed[0][1] if failed else _nothing_in_common(*runs)
    found.partings = _partings(runs)
    noted = [(max(pair.a, pair.b), pair.found.notes) for pair in found.pairs]
    unread = [f"rank {rank} could not be compared: {error}" for rank, error in failed]
    found.notes = [*_together(noted), *unread, *runs[0].notes(), *runs[1].notes()]
    return found


class _Run:
    """The ranks of one run: reads them once, and remembers what they should have alike."""

    def __init__(self, letter: str, paths: Mapping[int, Path]) -> None:
        self.letter = letter
        self.paths = paths
        self._last: tuple[int, Tape] | None = None
        self._reference: dict[_Key, TapeRow] = {}
        self._others: dict[_Key, dict[int, TapeRow]] = {}
        self._seen: dict[int, frozenset[int]] = {}  # and the steps that each rank has recorded
        self.num_ranks = len(paths)

    def read(self, rank: int) -> Tape:
        if self._last is None or self._last[0] != rank:
            self._last = rank, read_tape(self.paths[rank])
        tape = self._last[1]
        if rank not in self._seen:
            self._remember(rank, tape)
        return tape

    def _remember(self, rank: int, tape: Tape) -> None:
        self._seen[rank] = frozenset(tape.steps)
        self.num_ranks = tape.head.world_size
        if len(self.paths) < 2:
            return
        divided = frozenset(tape.head.divided)
        is_first = not self._reference
        for step in tape.steps.values():
            for row in step.rows:
                if row.kind not in STATE or row.name in divided:
                    continue
                key = step.step, row.kind, row.name
                if is_first:
                    self._reference[key] = row
                elif key in self._reference and _apart(self._reference[key], row) > 0.0:
                    self._others.setdefault(key, {})[rank] = row

    def rest(self) -> None:
        """Read the ranks that were held against nothing."""
        for rank in self.paths:
            if rank not in self._seen:
                with suppress(DiffError):  # which is reported where it is compared with another
                    self.read(rank)

    def names(self) -> set[str]:
        return {name for _, _, name in self._others}

    def parting(self, names: set[str]) -> Parting | None:
        """Return the first of some parameters that parts."""
        keys = [key for key in self._others if key[2] in names]
        if not keys:
            return None
        order = {key: number for number, key in enumerate(self._reference)}
        first = min(keys, key=lambda key: (key[0], order[key]))
        there = self._others[first]
        apart = max(_apart(self._reference[first], row) for row in there.values())
        values = {rank: row.sketch for rank, row in there.items()}
        alike = (r for r, steps in self._seen.items() if first[0] in steps and r not in values)
        values |= dict.fromkeys(alike, self._reference[first].sketch)
        (most, count), *_ = Counter(values.values()).most_common(1)
        has_majority = 2 * count > len(values)
        odd = sorted(rank for rank, value in values.items() if not has_majority or value != most)
        kind = RowKind(first[1])
        return Parting(
            self.letter, first[0], kind, first[2], tuple(odd), len(values), apart, len(names)
        )

    def notes(self) -> Iterator[str]:
        missing = sorted(set(range(self.num_ranks)) - set(self.paths))
        if missing and len(self.paths) > 1:
            yield (
                f"{self.letter} has no tape of {ranks_in_words(missing)} of {self.num_ranks}: not recorded, ended"
                " before its first step was, or left on another machine; put the tapes of all ranks into"
                " one directory"
            )


def _apart(row: TapeRow, other: TapeRow) -> float:
    return math.inf if row.shape != other.shape else distance(row, other)


def _pairs(a: _Run, b: _Run) -> Iterator[tuple[int, int]]:
    if len(a.paths) == len(b.paths) == 1:  # whoever names two tapes means these
        yield min(a.paths), min(b.paths)
        return
    sizes = [read_head(run.paths[min(run.paths)]).world_size for run in (a, b)]
    if sizes[0] == sizes[1]:
        yield from ((rank, rank) for rank in sorted(a.paths.keys() & b.paths.keys()))
    elif sizes[0] < sizes[1]:
        yield from ((min(a.paths), rank) for rank in sorted(b.paths))
    else:
        yield from ((rank, min(b.paths)) for rank in sorted(a.paths))


def _nothing_in_common(a: _Run, b: _Run) -> DiffError:
    words = [f"{ranks_in_words(sorted(run.paths))} in {run.letter}" for run in (a, b)]
    return DiffError(
        f"expected tapes of the same ranks, got {words[0]} and {words[1]}; put the tapes of all ranks of a run"
        " into one directory"
    )


def _order(pair: RankDifference) -> tuple[float, ...]:
    """Return when a rank departs; a rank that does not comes last."""
    first = pair.first
    return (math.inf,) if first is None else first.order


def _place(departure: Departure) -> tuple[object, ...]:
    return departure.step, departure.kind, departure.module, departure.name, departure.phase


def _partings(runs: Sequence[_Run]) -> list[Parting]:
    """Return what parts in one of the runs alone.

    What parts in both is meant to: experts of which each rank has its own, weights that are averaged
    now and then.
    """
    for run in runs:
        if len(run.paths) > 1:
            run.rest()
    names = [run.names() for run in runs]
    found = [runs[0].parting(names[0] - names[1]), runs[1].parting(names[1] - names[0])]
    return [parting for parting in found if parting is not None]


def _together(noted: Sequence[tuple[int, list[str]]]) -> list[str]:
    """Return the sentences of several ranks: once what all say, and with its ranks what some do."""
    ranks: dict[str, list[int]] = {}
    for rank, sentences in noted:
        for sentence in dict.fromkeys(sentences):
            ranks.setdefault(sentence, []).append(rank)
    return [
        sentence if len(who) == len(noted) else f"{ranks_in_words(sorted(who))}: {sentence}"
        for sentence, who in ranks.items()
    ]


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return ranks in words: ``rank 2``, ``ranks 0, 1 and 5``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > MAX_LISTED:
        return f"ranks {', '.join(map(str, ranks[:MAX_LISTED]))} and {len(ranks) - MAX_LISTED} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
