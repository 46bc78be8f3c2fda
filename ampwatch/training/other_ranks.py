"""The other ranks of a machine, as far as their rings say.

Ranks do not talk to one another. Each writes its ring, and one that wants to know what others have
found reads theirs, as the daemon does: without trust, without a lock, and without waiting.
"""

from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ampwatch.diagnosis.evidence.scaler import KEPT_CHECKS
from ampwatch.diagnosis.news import Reason, is_worse
from ampwatch.errors import LIMITS, RingError
from ampwatch.guard import Suppress
from ampwatch.runtime import RING_SUFFIX
from ampwatch.training.kernels.admission import is_dtensor
from ampwatch.training.model.tensors import is_in_flat
from ampwatch.wire.records import ChecksumRecord, CulpritRecord, EndRecord, FindingRecord
from ampwatch.wire.records.fields import MAX_NAME
from ampwatch.wire.ring import RingReader
from ampwatch.wire.ring.layout import RecordKind
from ampwatch.wire.ring.text import cut_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.diagnosis.news import News
    from ampwatch.training.model.names import Names
    from ampwatch.wire.records import Finding, RunIdentity

JUST_NS = 2 * 10**9
"""Time after its end for which a rank counts: ranks that fail together are done within it. Unit: ns."""

MAX_SLOTS = 8192
"""Slots that are read in one go: a ring of the usual size."""


class _Ring(Struct):
    """The ring of another rank, and the newest that it says."""

    reader: RingReader
    is_alive: bool = False
    ended_ns: int = 0
    findings: dict[str, Finding] = field(default_factory=dict)
    checks: deque[ChecksumRecord] = field(default_factory=lambda: deque(maxlen=KEPT_CHECKS))
    culprit: CulpritRecord | None = None

    def read(self, most: int) -> bool:
        """Take in what is new; return whether its rank lives, or has just ended in order.

        Args:
            most: Slots that are read at most, the newest ones.
        """
        self.is_alive = self.reader.writer_alive()
        for record in self.reader.poll(most):
            if isinstance(record, FindingRecord):
                self.findings[record.finding.key] = record.finding
            elif isinstance(record, ChecksumRecord):
                self.checks.append(record)
            elif isinstance(record, CulpritRecord):
                self.culprit = record
            elif isinstance(record, EndRecord):
                self.ended_ns = record.time_ns
        return self.is_alive or self.ended_ns > time.time_ns() - JUST_NS


class OtherRanks:
    """Reads the rings of the other ranks of a run on this machine. Never raises.

    Those of other jobs of the same name are left out: another launcher has started them. Of a process that
    has ended the launcher is not to be seen, so a rank that has ended in order counts for ``JUST_NS`` more,
    and one that was killed not at all. Left out are rings of other users, and ranks in containers of their
    own, whose processes are not to be seen. Not for several threads at once.

    Args:
        identity: Who reads.
        kinds: Kinds of records that are wanted.
        directories: Where rings are.
        most: Slots of a ring that are read in one go, the newest ones.

    Attributes:
        directories: Where rings are; empty for a rank that has none, and reads none.
        rank: This rank.
        world_size: Number of ranks of the run, on all machines.

    Cost:
        1 ms for a ring of the usual size that is read for the first time, and some 20 us for each record of a
        wanted kind. Later a listing of the directories, 10 us a ring, and 0.1 us a slot that is new.
    """

    def __init__(
        self,
        identity: RunIdentity,
        *kinds: RecordKind,
        directories: Sequence[Path] = (),
        most: int = MAX_SLOTS,
    ) -> None:
        self.directories = directories
        self.rank = identity.rank
        self.world_size = identity.world_size
        self._identity = identity
        self._kinds = (RecordKind.END, *kinds)
        self._most = most
        self._rings: dict[Path, _Ring | None] = {}

    def holders(self, news: News) -> list[int]:
        """Return the ranks that hold a finding, as bad as the news is or worse, in order."""
        mine, found = news.finding, set()
        for ring in self.read():
            finding = ring.findings.get(mine.key)
            if finding is None or finding.is_gone or is_worse(mine.severity, finding.severity):
                continue
            if news.reason is not Reason.EXPLAINED or finding.caused_by == mine.caused_by:
                found.add(ring.reader.identity.rank)
        return sorted(found)

    def checks(self) -> dict[int, list[ChecksumRecord]]:
        """Return the newest checks of the weights of each rank that lives and has made some, the oldest first."""
        alive = [ring for ring in self.read() if ring.is_alive and ring.checks]
        return {ring.reader.identity.rank: list(ring.checks) for ring in alive}

    def culprit(self, since: int) -> tuple[str, list[int]]:
        """Return a parameter whose gradient made ranks skip steps since ``since``, and these ranks.

        Returns:
            An empty name where no rank of this machine has one yet.
        """
        ranks: dict[str, list[int]] = {}
        for ring in self.read():
            if ring.culprit is not None and ring.culprit.since == since:
                ranks.setdefault(ring.culprit.parameter, []).append(ring.reader.identity.rank)
        return next(((name, sorted(found)) for name, found in ranks.items()), ("", []))

    def read(self) -> list[_Ring]:
        """Read what is new; return the rings of the ranks that live, or have just ended in order."""
        for path, ring in self._rings.items():
            if ring is not None and not ring.read(self._most):
                ring.reader.close()
                self._rings[path] = None
        for directory in self.directories:
            with Suppress(OSError):
                for path in directory.iterdir():
                    if path.suffix == RING_SUFFIX and path not in self._rings:
                        self._open(path)
        return [ring for ring in self._rings.values() if ring is not None]

    def close(self) -> None:
        """Let go of the rings."""
        for ring in self._rings.values():
            if ring is not None:
                ring.reader.close()
        self.directories, self._rings = (), {}

    def _open(self, path: Path) -> None:
        """Take in a ring and what it says, if it is of another rank of this job."""
        # Of a ring of this process the lock would be lost: see ``wire/ring/lock.py``.
        if path.stem.rsplit("-", 2)[-2:-1] == [str(os.getpid())]:
            self._rings[path] = None
            return
        try:
            ring = _Ring(RingReader(path, *self._kinds))
        except RingError as error:
            # What the machine refuses now it may grant later.
            if getattr(error.__cause__, "errno", None) not in LIMITS:
                self._rings[path] = None
            return
        who, me = ring.reader.identity, self._identity
        is_of_run = (who.run, who.world_size, who.host) == (me.run, me.world_size, me.host)
        is_ours = ring.reader.uid == os.geteuid() and who.rank != me.rank
        if is_of_run and is_ours and self._is_of_job(ring):
            self._rings[path] = ring
        else:
            ring.reader.close()
            self._rings[path] = None

    def _is_of_job(self, ring: _Ring) -> bool:
        if not ring.read(self._most):
            return False
        if ring.is_alive:
            return _launcher_of(ring.reader.writer_pid) == os.getppid()
        return ring.ended_ns >= self._identity.started_ns


class Shards:
    """Gradients that are spread over ranks, of which another one may have what made a step fail.

    Args:
        others: The other ranks.
        names: Names of the parameters, which are the same in each rank.
        put: Writes a record for the other ranks.
    """

    def __init__(
        self, others: OtherRanks, names: Names, put: Callable[[CulpritRecord], None]
    ) -> None:
        self.are_there = others.world_size > 1
        self.ask = others.culprit
        self._names = names
        self._put = put

    def is_sharded(self) -> bool:
        """Whether parameters are spread over ranks: else all have the gradient, and nobody asks."""
        return any(is_dtensor(p) or is_in_flat(p) for _, p in self._names.parameters())

    def note(self, parameter: str, since: int) -> None:
        """Leave word that a gradient of this rank is not finite, if another rank may not have it.

        Args:
            parameter: Name of the parameter.
            since: The first of the steps that were skipped in a row; the same in each rank.
        """
        if self.is_sharded():
            self._put(CulpritRecord(since, cut_name(parameter, MAX_NAME)))


def _launcher_of(pid: int) -> int:
    """Return the parent of a process; -1 where it is not to be seen."""
    with Suppress(OSError, IndexError):
        # After the name, which may hold anything: the state, and the parent.
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return -1
