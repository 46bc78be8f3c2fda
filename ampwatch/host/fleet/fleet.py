"""All the ranks of this machine that can be seen right now."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.host.fleet.compared_outcomes import RankComparison
from ampwatch.host.fleet.compared_views import ViewComparison
from ampwatch.host.fleet.gpus import Gpus
from ampwatch.host.fleet.jobs import jobs_of, label
from ampwatch.host.fleet.owners import NameOwners, user_name
from ampwatch.host.fleet.rank import RankView
from ampwatch.host.fleet.stragglers import Stragglers
from ampwatch.report.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ampwatch.host.fleet.modules import Modules
    from ampwatch.report.verdict import RunVerdict
    from ampwatch.settings import Settings
    from ampwatch.wire.records import Record, RunIdentity, RunState

MAX_RANKS = 256
"""Ranks that are exported: of each user as many as of another, those that started first before others."""

MAX_ASIDE_SECONDS = 2.0
"""Time that work waits at most, all its pieces together: scrapes without end must not stop pages. It has as
much again once it has worked for as long. Unit: s."""


class Writer(NamedTuple):
    """The writer of a ring as the kernel knows it, whatever the ring says.

    Attributes:
        pid: Its process as the daemon sees it, 0 if it cannot be named.
        uid: User who owns the ring.
    """

    pid: int
    uid: int


@dataclass(frozen=True, slots=True)
class CollectorPass:
    """The newest pass of one of the daemon's collectors.

    Attributes:
        success: It did all it had to do.
        duration_seconds: Wall time it took. Unit: s.
    """

    success: bool
    duration_seconds: float


class Priority:
    """Lets long work step aside while something short and urgent is done.

    Two threads of Python that both have work take turns, and the short one takes twice as long.
    """

    def __init__(self) -> None:
        self._is_free = threading.Event()
        self._is_free.set()
        self._patience = MAX_ASIDE_SECONDS
        self._at = 0.0

    @contextmanager
    def first(self) -> Iterator[None]:
        """Go first; one at a time."""
        self._is_free.clear()
        try:
            yield
        finally:
            self._is_free.set()

    def step_aside(self) -> None:
        """Wait until nothing urgent is under way, between two pieces of work; hold no lock meanwhile."""
        if self._is_free.is_set():
            return
        begin = time.monotonic()
        self._patience = min(MAX_ASIDE_SECONDS, self._patience + begin - self._at)
        self._is_free.wait(max(0.0, self._patience))
        self._at = time.monotonic()
        self._patience -= self._at - begin


class Fleet:
    """One ``RankView`` per ring, under labels that keep the jobs of one name apart (``jobs.py``).

    The job that started first is shown under the name of its run, the next one as
    ``<run>~2``; a run cannot be given a name like this by its user. When a job ends, the next
    one of its name takes over the label at once. A name is the user's whose run was seen first:
    another user's runs are ``<run>~uid1001``, and never take over (``owners.py``).

    Every method is thread-safe. Hold ``lock`` to read several things that must fit together.

    Attributes:
        lock: Guards the fleet and every view in it; re-entrant.
        problems: Why a ring cannot be read, by its path.
        passes: The newest pass of each of the daemon's collectors, by name.
        owners: Whose the names of runs are.
        priority: Lets scrapes go before work that takes long.

    Args:
        settings: ``grace_seconds``, ``module_series_ranks`` and those of ``RankView``
            are used.
        clock: Returns the Unix time in seconds.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self.lock = threading.RLock()
        self.problems: dict[str, str] = {}
        self.passes: dict[str, CollectorPass] = {}
        self.gpus = Gpus()
        self.owners = NameOwners()
        self.priority = Priority()
        self._tensor_views = ViewComparison()
        self._rank_comparison = RankComparison()
        self._stragglers = Stragglers()
        self.settings = settings
        self._clock = clock
        self._views: dict[str, RankView] = {}

    def apply(
        self,
        key: str,
        identity: RunIdentity,
        records: Iterable[Record],
        *,
        alive: bool,
        lost: int,
        dropped: int,
        writer: Writer | None = None,
        ended_at: float | None = None,
    ) -> None:
        """Fold in what was read from one ring; call it also when there was nothing new.

        Rings already known should be read before new ones: then a run that was restarted
        finds its predecessor noticed as dead, and takes over its label at once.

        Args:
            key: Path of the ring.
            identity: Who writes it. Another one than before means another ring.
            records: New records in the order in which they were written.
            alive: The writer still holds its lock.
            lost: Slots of the ring overwritten or unreadable before they were read, so far.
            dropped: Records the writer could not write, so far.
            writer: What the kernel says of the writer; ``None`` for a process of this user.
            ended_at: When it ended, if it has, as Unix time; ``None`` for now. Unit: s.
        """
        pid, uid = writer or Writer(0, os.geteuid())
        # Before the lock: a name service may take its time.
        user = user_name(uid)
        with self.lock:
            self.problems.pop(key, None)
            view = self._views.get(key)
            # The path alone says nothing: a run that is started again writes its ring over the old
            # one, and its totals begin at 0.
            if view is None or (view.identity, view.uid) != (identity, uid):
                view = RankView(identity, clock=self._clock, settings=self.settings)
                self._views[key] = view
                view.uid, view.user = uid, user
            if not view.ended:
                self.owners.claim(view.name, uid, self._clock())
            # All under one lock: a scrape never sees half of what a step has written.
            for record in records:
                view.apply(record)
            view.observe(alive=alive, lost=lost, dropped=dropped, ended_at=ended_at)
            view.pid = pid

    def state_of(self, key: str) -> RunState | None:
        """Return what the writer of the ring at path ``key`` is doing; ``None`` if it is not known."""
        with self.lock:
            view = self._views.get(key)
            return None if view is None else view.state

    def compare_views(self) -> None:
        """Hold the views of the tensor cores, and the steps of ranks and their time, against one another."""
        with self.lock:
            ranks = self.ranks()
            self._tensor_views.update(self.gpus.all(), ranks)
            self._rank_comparison.compare(ranks)
            self._stragglers.compare(ranks, self.gpus.all())

    def note_problem(self, key: str, text: str) -> None:
        """Say why the ring at path ``key`` cannot be read."""
        with self.lock:
            self.problems[key] = text

    def forget(self, key: str) -> None:
        """Let go of all that is known about the ring at path ``key``."""
        with self.lock:
            self._views.pop(key, None)
            self.problems.pop(key, None)

    def ranks(self) -> list[RankView]:
        """Return the ranks to show, by run and rank: those that live or ended a short while ago."""
        with self.lock:
            return sorted(self._shown(), key=lambda view: (view.run, view.identity.rank))

    def rank(self, run: str, rank: str) -> RankView | None:
        """Return a rank to show, by its run and its number in text; ``None`` if there is none."""
        shown = (view for view in self.ranks() if view.run == run)
        return next((view for view in shown if str(view.identity.rank) == rank), None)

    def judge(self) -> dict[str, tuple[list[RankView], RunVerdict]]:
        """Pass the verdict on every run, by its label, and on each of its ranks.

        Returns:
            The ranks of each run, by their number, and the verdict on it.

        Cost: Some 20 us a rank.
        """
        with self.lock:
            now = self._clock()
            verdicts = {}
            for run, members in groupby(self.ranks(), key=lambda rank: rank.run):
                ranks = list(members)
                world_size = max(rank.identity.world_size for rank in ranks)
                verdict = judge([rank.judged_rank for rank in ranks], world_size, now)
                for rank in ranks:
                    rank.verdict = verdict.by_rank[rank.identity.rank]
                verdicts[run] = ranks, verdict
            return verdicts

    def exported(self) -> list[RankView]:
        """Return the ranks that are exported, by run and rank, judged, with a rank that exports each module.

        Cost: Some 30 us a rank of 100 modules.
        """
        # The lock is re-entrant: ``ranks`` takes it again.
        with self.lock:
            judged = [rank for ranks, _ in self.judge().values() for rank in ranks]
            ranks = within(judged, MAX_RANKS)
            share_modules(ranks, self.settings.module_series_ranks)
            return ranks

    @property
    def num_left_out(self) -> int:
        """Ranks to show that are not exported, because there are too many."""
        return max(0, len(self.ranks()) - MAX_RANKS)

    def expired(self) -> list[str]:
        """Return the paths of rings that are not shown any more and can be forgotten."""
        with self.lock:
            shown = set(self._shown())
            return [key for key, view in self._views.items() if view not in shown]

    def _shown(self) -> list[RankView]:
        """Label the ranks that live or ended a short while ago, and return those to show."""
        # Labels are made anew at each call from what is there now: nothing is remembered that a
        # daemon that was restarted would not know.
        now = self._clock()
        grace = self.settings.grace_seconds
        recent = {
            key: view
            for key, view in self._views.items()
            if view.ended_at is None or now - view.ended_at <= grace
        }
        return label(jobs_of(recent), self.owners)


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

    Ranks that train on copies of one model measure nearly the same of each module: gradients are equal once
    they are reduced, activations alike. Their steps, time and trouble differ, and are never left out.

    The ranks are those of one machine, by run and rank; ``which`` is the setting ``module_series_ranks``.
    """
    # ``groupby`` needs equal runs side by side, which the order of the ranks gives it.
    for _, job in groupby(ranks, key=lambda rank: rank.run):
        exporters: dict[str, Modules] = {}
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
                for name in tracked.difference(exporters):
                    exporters[name] = _first_of(so_far, name)
                    own[exporters[name]].add(name)
                # Where a module has had a trouble that the exporting rank has not.
                alone = [
                    name
                    for name, troubles in modules.troubles.items()
                    if troubles - exporters[name].troubles.get(name, set())
                ]
                modules.spoken_for = tracked.difference(own[modules], alone)


def _first_of(ranks: Sequence[Modules], name: str) -> Modules:
    """Return the first rank that has measured module ``name``, however long ago.

    What it has let go of since counts as well: a series must not move to another rank and back
    with every sample. The last one if none knows of it any more.
    """
    return next((modules for modules in ranks if name in modules.measured), ranks[-1])
