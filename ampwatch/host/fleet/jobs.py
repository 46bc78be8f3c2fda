"""Finds the ranks that train together, and names their jobs.

A ring says the name of its run, not which job wrote it: two jobs of one name differ in their
user, in their size, in the time at which they started, and in ranks that both have.
Nothing is remembered but whose a name is, so a daemon that was restarted comes to the same
labels, in whatever order it finds the rings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ampwatch.host.fleet.owners import NameOwners
    from ampwatch.host.fleet.rank import RankView

START_WINDOW_NS = 600 * 1_000_000_000
"""The ranks of a job start within this time of one another: they wait for each other in
``init_process_group``, which gives up after ten minutes with NCCL. Unit: ns."""


@dataclass(slots=True)
class Job:
    """Ranks that train together.

    Attributes:
        name: Name of the run.
        uid: User whose it is.
        world_size: Number of ranks, those on other machines included.
        started_ns: Unix time at which the first of them started. Unit: ns.
        ranks: Those on this machine, by their number.
    """

    name: str
    uid: int
    world_size: int
    started_ns: int
    ranks: dict[int, RankView] = field(default_factory=dict)

    def admits(self, view: RankView) -> bool:
        """Return whether ``view``, which started last, can be one of the ranks."""
        who = view.identity
        return (
            (view.name, view.uid, who.world_size) == (self.name, self.uid, self.world_size)
            and who.rank not in self.ranks
            and who.started_ns - self.started_ns <= START_WINDOW_NS
        )

    @property
    def ended(self) -> bool:
        """Every rank has ended."""
        return all(view.ended for view in self.ranks.values())

    @property
    def last_record_ns(self) -> int:
        """Unix time of the newest record of a rank. Unit: ns."""
        return max(view.last_record_ns for view in self.ranks.values())

    def outlived(self, older: Job) -> bool:
        """Return whether this job is of the same user and name, and went on when ``older`` had ended."""
        if (self.name, self.uid) != (older.name, older.uid):
            return False
        return older.ended and (not self.ended or self.last_record_ns >= older.last_record_ns)


def jobs_of(views: Mapping[str, RankView]) -> list[Job]:
    """Return the jobs of ``views``, the one that started first first.

    Limits: jobs of one name and size that start at the same time mix where they share no
    rank number here; a rank that starts later than ``START_WINDOW_NS``, or again while
    others of its job live, counts as a job of its own.

    Args:
        views: Ranks by the path of their ring, which decides where two started at once.
    """
    jobs: list[Job] = []
    # Those that lack ranks, by name: a sweep of a thousand runs asks each of them otherwise.
    incomplete: dict[tuple[str, int], list[Job]] = {}
    for _, view in sorted(views.items(), key=lambda item: (item[1].identity.started_ns, item[0])):
        namesakes = incomplete.setdefault((view.name, view.uid), [])
        job = next((job for job in namesakes if job.admits(view)), None)
        if job is None:
            who = view.identity
            job = Job(view.name, view.uid, who.world_size, who.started_ns)
            jobs.append(job)
            namesakes.append(job)
        job.ranks[view.identity.rank] = view
        if len(job.ranks) >= job.world_size:
            namesakes.remove(job)
    return jobs


def label(jobs: Iterable[Job], owners: NameOwners) -> list[RankView]:
    """Give every job its label, and return the ranks of those that have one.

    The first live job of a name is called by it, the next one ``<name>~2``. A job that
    has ended is left out once a newer one of its name has outlived it: that one takes
    over its label. When a job started is its own word, so this holds among the jobs of one user.

    Args:
        jobs: In the order in which they started.
        owners: Whose the names are.
    """
    jobs = list(jobs)
    labels: set[str] = set()
    untried: dict[str, Iterator[str]] = {}
    shown: list[RankView] = []
    for place, job in enumerate(jobs):
        # Only once it is over: of two that live under one name, neither may hide the other.
        if job.ended and any(newer.outlived(job) for newer in jobs[place + 1 :]):
            continue
        called = owners.label(job.name, job.uid)
        names = untried.setdefault(called, _labels(called))
        run = next(name for name in names if name not in labels)
        labels.add(run)
        for view in job.ranks.values():
            view.run = run
            shown.append(view)
    return shown


def _labels(name: str) -> Iterator[str]:
    """Yield what the jobs of one name may be called, in the order in which they take it."""
    yield name
    yield from (f"{name}~{n}" for n in count(2))
