"""Rows of one step of two runs, paired, and how far each pair is apart."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.wire.tape.rows import RowKind, TapeRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ampwatch.wire.tape.rows import TapeStep

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


class Pair(NamedTuple):
    """Two rows of the same thing.

    Attributes:
        a: Number of the row in the one run.
        b: Number in the other.
        distance: Norm of the difference, as a share of the larger norm; infinite where one is not
            finite and the other is.
    """

    a: int
    b: int
    distance: float


@dataclass(frozen=True)
class PairedStep:
    """One step of both runs.

    Attributes:
        step: Its index.
        a: Rows of the one.
        b: Rows of the other.
        pairs: The pairs, in the order of the one.
    """

    step: int
    a: Sequence[TapeRow]
    b: Sequence[TapeRow]
    pairs: Sequence[Pair]

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
    """Return how far two rows are apart, as a share of the larger norm.

    Args:
        a: The one.
        b: The other.
        ratio: What ``b`` is multiplied by first.
    """
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


def pair_up(a: TapeStep, b: TapeStep, ratio: float) -> PairedStep:
    """Return one step of both runs, paired.

    Args:
        a: The step of the one.
        b: The step of the other.
        ratio: Loss scale of the one by that of the other: what is computed in backward may be
            multiplied by it, and the loss.

    Cost: some 20 us a row.
    """
    pairs = [*_named(a.rows, b.rows), *_inputs(a.rows, b.rows, ratio), *_ops(a.rows, b.rows, ratio)]
    return PairedStep(a.step, a.rows, b.rows, sorted(pairs))


def _named(a: Sequence[TapeRow], b: Sequence[TapeRow]) -> Iterable[Pair]:
    known = {(row.kind, row.name, row.index): n for n, row in enumerate(b) if row.kind in NAMED}
    for number, row in enumerate(a):
        other = known.get((row.kind, row.name, row.index)) if row.kind in NAMED else None
        if other is not None and b[other].shape == row.shape:
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
    matched = [(mine[i], theirs[j]) for i, j in matches]
    free = sorted(set(theirs) - {m for _, m in matched})
    for n, m in matched:
        found, best = apart(n, m), m
        if found > WRONG:
            like = [k for k in free if b[k].name == a[n].name and b[k].shape == a[n].shape]
            nearest = min(like, key=lambda k: apart(n, k), default=m)
            if apart(n, nearest) < found / 2:
                free.remove(nearest)
                free.append(m)
                best, found = nearest, apart(n, nearest)
        yield Pair(n, best, found)


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
