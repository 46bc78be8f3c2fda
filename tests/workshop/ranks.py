"""Ranks of one machine, as far as others know of them: their rings, which this process writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ampwatch.wire.records import Record
from ampwatch.wire.ring import RingWriter
from tests.workshop.records import end, identity


class Rank:
    """A rank with a ring, under the name of another process.

    Args:
        directory: Where rings are.
        rank: Its number.
        slots: Size of the ring.
        who: What else is particular of it.
    """

    def __init__(self, directory: Path, rank: int, slots: int = 64, **who: Any) -> None:
        who = {"run": "gpt", "rank": rank, "local_rank": rank, "world_size": 8, **who}
        self.identity = identity(**who)
        self._writer = RingWriter.create([directory], self.identity, slots=slots)
        # A rank never opens a ring of its own process.
        self.path = directory / self._writer.path.name.replace(f"-{os.getpid()}-", "-1-")
        self._writer.path.rename(self.path)

    def put(self, *records: Record) -> None:
        self._writer.put(*records)

    def end(self, time_ns: int = 2**62) -> None:
        """End in order; the ring stays."""
        self._writer.close(end(time_ns=time_ns), keep=True)

    def die(self) -> None:
        """End as by SIGKILL: the lock goes, and no record comes."""
        os.close(self._writer._descriptor)
        self._writer._open = False
