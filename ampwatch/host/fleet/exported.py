"""The part of many ranks that is exported: how many of them, and which one speaks for a module.

Ranks that train on copies of one model measure nearly the same of each module: gradients
are equal once they are reduced, activations alike. What differs from rank to rank are its
steps, its time and its trouble, which are never left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ampwatch.host.fleet.modules import Modules
    from ampwatch.host.fleet.rank import RankView


def within(ranks: Sequence[RankView], limit: int) -> list[RankView]:
    """Return at most ``limit`` of ``ranks``, in their order.

    The users take turns, so that none has fewer than an equal share while another one has more. Of
    the ranks of a user, those that have ended go first, then those that started last: a rank that is
    exported stays so while it lives, whatever that user starts beside it.
    """
    if len(ranks) <= limit:
        return list(ranks)
    # By the start, not by the newest step: the choice must not change from scrape to scrape, for a
    # counter that comes back looks like a reset to Prometheus. Among the ranks of one user alone:
    # when a rank started is its own word.
    turns: Counter[int] = Counter()
    places: dict[RankView, tuple[int, bool, int]] = {}
    for rank in sorted(ranks, key=lambda rank: (rank.ended, rank.identity.started_ns)):
        places[rank] = (turns[rank.uid], rank.ended, rank.uid)
        turns[rank.uid] += 1
    kept = set(sorted(ranks, key=places.__getitem__)[:limit])
    return [rank for rank in ranks if rank in kept]


def share_modules(ranks: Iterable[RankView], which: str) -> None:
    """Note in the modules of each rank which of them another rank speaks for.

    Args:
        ranks: Those of one machine, by run and rank.
        which: The setting ``module_series_ranks``.
    """
    # ``groupby`` needs equal runs side by side, which the order of the ranks gives it.
    for _, job in groupby(ranks, key=lambda rank: rank.run):
        speakers: dict[str, Modules] = {}
        own: defaultdict[Modules, set[str]] = defaultdict(set)
        so_far: list[Modules] = []
        for rank in job:
            modules = rank.ranges.modules
            so_far.append(modules)
            if which == "all" or (which == "run" and rank.identity.rank == 0):
                modules.spoken_for = frozenset()
            elif which == "run":
                modules.spoken_for = frozenset(modules.tracked)
            else:
                tracked = frozenset(modules.tracked)
                for name in tracked.difference(speakers):
                    speakers[name] = _first_of(so_far, name)
                    own[speakers[name]].add(name)
                # Where a module has had a trouble that its speaker has not.
                alone = [
                    name
                    for name, troubles in modules.troubles.items()
                    if troubles - speakers[name].troubles.get(name, set())
                ]
                modules.spoken_for = tracked.difference(own[modules], alone)


def _first_of(ranks: Sequence[Modules], name: str) -> Modules:
    """Return the first rank that has measured module ``name``, however long ago.

    What it has let go of since counts as well: a series must not move to another rank and back
    with every sample. The last one if none knows of it any more.
    """
    return next((modules for modules in ranks if name in modules.measured), ranks[-1])
