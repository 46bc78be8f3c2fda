"""All the ranks of this machine that can be seen right now."""

from __future__ import annotations

import threading
import time
from itertools import count
from typing import TYPE_CHECKING

from ampwatch.aggregate.rank import RankView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ampwatch.records import Record, RunIdentity
    from ampwatch.settings import Settings


class Fleet:
    """One ``RankView`` per ring, under labels that tell them apart.

    Two rings can claim the same run and rank. If one has ended, the one that was
    started later is shown alone. If both live, the one that came second is shown as
    ``<run>~2``; a run cannot be given such a name by its user.

    Every method is thread-safe. Hold ``lock`` to read several things that must fit together.

    Attributes:
        lock: Guards the fleet and every view in it; re-entrant.
        problems: Why a ring cannot be read, by its path.

    Args:
        settings: ``stale_seconds`` and ``grace_seconds`` are used.
        clock: Returns the Unix time in seconds.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self.lock = threading.RLock()
        self.problems: dict[str, str] = {}
        self._settings = settings
        self._clock = clock
        self._views: dict[str, RankView] = {}
        self._superseded: set[str] = set()

    def apply(
        self,
        key: str,
        identity: RunIdentity,
        records: Iterable[Record],
        *,
        alive: bool,
        lost: int,
        dropped: int,
    ) -> None:
        """Fold in what was read from one ring; call it also when there was nothing new.

        Rings already known should be read before new ones: then a run that was restarted
        finds its dead predecessor noticed as such, and takes over its label.

        Args:
            key: Path of the ring.
            identity: Who writes it. Another one than before means another ring.
            records: New records in the order in which they were written.
            alive: The writer still holds its lock.
            lost: Records overwritten before they were read, so far.
            dropped: Records the writer could not write, so far.
        """
        with self.lock:
            self.problems.pop(key, None)
            view = self._views.get(key)
            is_new = view is None or view.identity != identity
            if view is None or is_new:
                self.forget(key)
                view = self._new_view(identity)
            for record in records:
                view.apply(record)
            view.observe(alive=alive, lost=lost, dropped=dropped)
            if is_new:
                self._admit(key, view)

    def note_problem(self, key: str, text: str) -> None:
        """Say why the ring at path ``key`` cannot be read."""
        with self.lock:
            self.problems[key] = text

    def forget(self, key: str) -> None:
        """Let go of all that is known about the ring at path ``key``."""
        with self.lock:
            self._views.pop(key, None)
            self._superseded.discard(key)
            self.problems.pop(key, None)

    def ranks(self) -> list[RankView]:
        """Return the ranks to show, by run and rank: those that live or ended a short while ago."""
        with self.lock:
            shown = [view for key, view in self._views.items() if self._is_shown(key, view)]
            return sorted(shown, key=lambda view: (view.run, view.identity.rank))

    def expired(self) -> list[str]:
        """Return the paths of rings that are not shown any more and can be forgotten."""
        with self.lock:
            return [key for key, view in self._views.items() if not self._is_shown(key, view)]

    def _new_view(self, identity: RunIdentity) -> RankView:
        stale_seconds = self._settings.stale_seconds
        return RankView(identity, clock=self._clock, stale_seconds=stale_seconds)

    def _is_shown(self, key: str, view: RankView) -> bool:
        if key in self._superseded:
            return False
        return view.ended_at is None or (
            self._clock() - view.ended_at <= self._settings.grace_seconds
        )

    def _admit(self, key: str, view: RankView) -> None:
        """Put the new ``view`` beside the others of its run and rank, under a label of its own."""
        self._views[key] = view
        for other_key, other in self._others_of_rank(view):
            if other.name != view.name:
                continue
            older = min(view, other, key=lambda v: v.identity.started_ns)
            if older.ended:
                self._superseded.add(key if older is view else other_key)
        if key not in self._superseded:
            taken = {other.run for _, other in self._others_of_rank(view)}
            labels = (view.run if n == 1 else f"{view.run}~{n}" for n in count(1))
            view.run = next(label for label in labels if label not in taken)

    def _others_of_rank(self, view: RankView) -> list[tuple[str, RankView]]:
        """Return the other views of the same rank that are shown, with their paths."""
        return [
            (key, other)
            for key, other in self._views.items()
            if other is not view
            and other.identity.rank == view.identity.rank
            and self._is_shown(key, other)
        ]
