"""Rows of one step of two runs, paired, and how far each pair is apart."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import NamedTuple

from ampwatch.lab.tape.rows import RowKind, TapeRow, TapeStep

_Key = tuple[str, tuple[int, ...]]

CASTS = frozenset({"_to_copy", "to", "copy", "_foreach_copy_"})
"""Ops that only change the dtype: runs of other formats have others, which is no difference."""

NOTHING = 1e-13
"""Relative distance below which sums of float64 are alike: they may be added up in another order."""

MAX_ALIGNED = 4000
"""Ops of one module that are aligned by their names; more are paired in their order."""

WRONG = 0.1
"""Distance from which an op may have been paired with another one of its name."""

NAMED = frozenset(
    {RowKind.WEIGHT, RowKind.BUFFER, RowKind.OUTPUT, RowKind.OUTPUT_GRADIENT}
    | {RowKind.GRADIENT, RowKind.NEW_WEIGHT}
)
"""Kinds of rows that have the same name in both runs."""

STATE = frozenset({RowKind.WEIGHT, RowKind.GRADIENT, RowKind.NEW_WEIGHT})
"""Kinds of rows of parameters."""

MAX_EXCHANGED = 64
"""Ops of one name and shape of one module that are paired by their nearness."""


class Pair(NamedTuple):
    """Two rows of the same thing."""

    a: int  # number of the row in the one run
    b: int  # number in the other
    # norm of the difference, as a share of the larger norm; infinite where one is not finite and
    # the other is
    distance: float


@dataclass(frozen=True)
class PairedStep:
    """One step of both runs."""

    step: int  # its index
    a: Sequence[TapeRow]  # rows of the one
    b: Sequence[TapeRow]  # rows of the other
    pairs: Sequence[Pair]  # the pairs, in the order of the one

    def of_kind(self, *kinds: RowKind) -> list[Pair]:
        """Return the pairs of some kinds."""
        return [pair for pair in self.pairs if self.a[pair.a].kind in kinds]

    def named(self, kind: RowKind) -> dict[str, Pair]:
        """Return the pairs of one kind by name; of several the first."""
        found: dict[str, Pair] = {}
        for pair in self.of_kind(kind):
            found.setdefault(self.a[pair.a].name, pair)
        return found


def distance(a: TapeRow, b: TapeRow, ratio: float = 1.0) -> float:
    """Return how far ``a`` and ``b``, multiplied by ``ratio``, are apart, as a share of the larger norm."""
    if a.nonfinite != b.nonfinite and (not a.nonfinite or not b.nonfinite):
        return math.inf
    if not a.sketch or not b.sketch:
        return 0.0
    apart = math.hypot(*(x - y * ratio for x, y in zip(a.sums(), b.sums(), strict=True)))
    larger = max(a.norm, b.norm * abs(ratio))
    if not larger or not apart:
        return 0.0
    if not math.isfinite(apart) or not math.isfinite(larger):
        return math.inf
    relative = apart / larger
    return 0.0 if relative < NOTHING else relative


def pair_up(a: TapeStep, b: TapeStep, ratio: float, *, left_out: Container[str] = ()) -> PairedStep:
    """Return one step of both runs, paired.

    Args:
        a: The one.
        b: The other.
        ratio: Loss scale of the one by that of the other: what is computed in backward may be
            multiplied by it, and the loss.
        left_out: Parameters that are not the same part of the model in both.

    Cost: some 20 us a row.
    """
    named = _named(a.rows, b.rows, left_out)
    pairs = [*named, *_inputs(a.rows, b.rows, ratio), *_ops(a.rows, b.rows, ratio)]
    return PairedStep(a.step, a.rows, b.rows, sorted(pairs))


def pair_state(a: TapeStep, b: TapeStep, *, left_out: Container[str] = ()) -> PairedStep:
    """Return what has the same values in each rank of one step, paired: weights, gradients, updates."""
    pairs = [p for p in _named(a.rows, b.rows, left_out) if a.rows[p.a].kind in STATE]
    return PairedStep(a.step, a.rows, b.rows, pairs)


def _named(a: Sequence[TapeRow], b: Sequence[TapeRow], left_out: Container[str]) -> Iterable[Pair]:
    known = {(row.kind, row.name, row.index): n for n, row in enumerate(b) if row.kind in NAMED}
    for number, row in enumerate(a):
        other = known.get((row.kind, row.name, row.index)) if row.kind in NAMED else None
        is_left_out = row.kind in STATE and row.name in left_out
        if other is not None and b[other].shape == row.shape and not is_left_out:
            yield Pair(number, other, distance(row, b[other]))


def _inputs(a: Sequence[TapeRow], b: Sequence[TapeRow], ratio: float) -> Iterable[Pair]:
    """Yield pairs of inputs of a module: of equal shape, in their order, but nearest first.

    An op that reads what nobody has made has another name where a cast has read it before.
    """

    def apart(n: int, m: int) -> float:
        return min(distance(a[n], b[m], x) for x in (_ratios(ratio) if a[n].name else (1.0,)))

    there: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
    for number, row in enumerate(b):
        if row.kind == RowKind.INPUT:
            there[row.module, tuple(row.shape)].append(number)
    for number, row in enumerate(a):
        if row.kind != RowKind.INPUT:
            continue
        left = there[row.module, tuple(row.shape)]
        same = [n for n in left if b[n].name == row.name] or left
        if same:
            best = min(same, key=lambda m: apart(number, m))
            left.remove(best)
            yield Pair(number, best, apart(number, best))


def _ops(a: Sequence[TapeRow], b: Sequence[TapeRow], ratio: float) -> Iterable[Pair]:
    groups_a, groups_b = _by_place(a), _by_place(b)
    for place, mine in groups_a.items():
        theirs = groups_b.get(place, [])
        yield from _aligned(a, b, mine, theirs, _ratios(ratio))


def _ratios(ratio: float) -> tuple[float, ...]:
    """Return what a row may be multiplied by: nothing, or the loss scale."""
    return (1.0,) if ratio == 1.0 else (1.0, ratio)


def _by_place(rows: Sequence[TapeRow]) -> dict[tuple[int, str], list[int]]:
    groups: dict[tuple[int, str], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        if row.kind == RowKind.OP and row.name not in CASTS:
            groups[row.phase, row.module].append(number)
    return groups


def _aligned(
    a: Sequence[TapeRow],
    b: Sequence[TapeRow],
    mine: list[int],
    theirs: list[int],
    ratios: tuple[float, ...],
) -> Iterable[Pair]:
    def apart(n: int, m: int) -> float:
        return min(distance(a[n], b[m], ratio) for ratio in ratios)

    matches = _matches([_key(a[n]) for n in mine], [_key(b[n]) for n in theirs])
    matched = {mine[i]: Pair(mine[i], theirs[j], apart(mine[i], theirs[j])) for i, j in matches}
    yield from (pair for pair in matched.values() if pair.distance <= WRONG)
    # What is left may have come in another order, as gradients do that DDP gathers in its buckets.
    far = {n: pair for n, pair in matched.items() if pair.distance > WRONG}
    near = {pair.b for pair in matched.values() if pair.distance <= WRONG}
    left: dict[_Key, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for n in mine:
        if n in far or n not in matched:
            left[_key(a[n])][0].append(n)
    for m in theirs:
        if m not in near:
            left[_key(b[m])][1].append(m)
    for ours, others in left.values():
        if max(len(ours), len(others)) > MAX_EXCHANGED:
            yield from (far[n] for n in ours if n in far)
        else:
            candidates = (Pair(n, m, apart(n, m)) for n in ours for m in others)
            yield from _nearest(candidates, far)


def _nearest(candidates: Iterable[Pair], far: dict[int, Pair]) -> Iterable[Pair]:
    """Yield the nearest of some pairs, each row once: in another order only where that is much nearer."""
    taken: tuple[set[int], set[int]] = set(), set()
    for pair in sorted(candidates, key=lambda pair: pair.distance):
        known = far.get(pair.a)
        is_near = pair.distance < (WRONG if known is None else known.distance / 2)
        if pair.a not in taken[0] and pair.b not in taken[1] and (pair == known or is_near):
            taken[0].add(pair.a)
            taken[1].add(pair.b)
            yield pair


def _key(row: TapeRow) -> tuple[str, tuple[int, ...]]:
    return row.name, tuple(row.shape)


def _matches(a: list[_Key], b: list[_Key]) -> Iterable[tuple[int, int]]:
    """Yield the places of two lists that belong together, as `diff` finds them."""
    if a == b:
        yield from ((i, i) for i in range(len(a)))
        return
    if max(len(a), len(b)) > MAX_ALIGNED:
        yield from ((i, i) for i in range(min(len(a), len(b))) if a[i] == b[i])
        return
    for block in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks():
        yield from ((block.a + i, block.b + i) for i in range(block.size))
