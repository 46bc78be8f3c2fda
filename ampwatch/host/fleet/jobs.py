"""Finds the ranks that train together, and names their jobs.

A ring says the name of its run, not which job wrote it: two jobs of one name differ in their
user, in their size, in the time at which they started, and in ranks that both have.
Nothing is remembered but whose a name is, so a daemon that was restarted comes to the same
labels, in whatever order it finds the rings.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from ampwatch.host.fleet.owners import NameOwners
    from ampwatch.host.fleet.rank import RankView
    from ampwatch.wire.blackbox import Box
    from ampwatch.wire.records import RunIdentity

START_WINDOW_NS = 600 * 1_000_000_000
"""The ranks of a job start within this time of one another: they wait for each other in
``init_process_group``, which gives up after ten minutes with NCCL. Unit: ns."""


P = TypeVar("P", "RankView", "Box")
"""A process of a job, or what it has left."""


def together(processes: Iterable[P], whose: Callable[[P], Hashable]) -> list[dict[int, P]]:
    """Return the processes of each job, by rank; the job that started first first.

    The ranks of a job have one name, owner and size, start within ``START_WINDOW_NS``, and are not the same.

    Limits: jobs of one name and size that start at the same time mix where they share no
    rank number here; a rank that starts later than ``START_WINDOW_NS``, or again while
    others of its job live, counts as a job of its own.

    Args:
        processes: In the order in which they started.
        whose: Returns the name and the owner of the job of one.
    """
    jobs: list[dict[int, P]] = []
    # Those that lack ranks, by name and size: a sweep of a thousand runs asks each of them otherwise.
    incomplete: dict[Hashable, list[dict[int, P]]] = {}
    for process in processes:
        who = process.identity
        namesakes = incomplete.setdefault((whose(process), who.world_size), [])
        place = next((i for i, job in enumerate(namesakes) if _admits(job, who)), len(namesakes))
        if place == len(namesakes):
            jobs.append({})
            namesakes.append(jobs[-1])
        job = namesakes[place]
        job[who.rank] = process
        if len(job) >= who.world_size:
            del namesakes[place]
    return jobs


def _admits(job: Mapping[int, P], who: RunIdentity) -> bool:
    """Return whether ``who``, which started last, can be one of the ranks of ``job``."""
    first = next(iter(job.values()))
    return who.rank not in job and who.started_ns - first.identity.started_ns <= START_WINDOW_NS


@dataclass(frozen=True, slots=True)
class Job:
    """Ranks that train together.

    Attributes:
        ranks: Those on this machine, by their number.
    """

    name: str
    uid: int
    ranks: dict[int, RankView]

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
    """Return the jobs of ``views``, the one that started first first; of two at once the path decides."""
    order = sorted(views.items(), key=lambda item: (item[1].identity.started_ns, item[0]))
    found = together((view for _, view in order), lambda view: (view.name, view.uid))
    firsts = (next(iter(ranks.values())) for ranks in found)
    return [Job(first.name, first.uid, ranks) for first, ranks in zip(firsts, found, strict=True)]


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
