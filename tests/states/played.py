"""What a played script has left, and the daemon's half of it: a fleet fed at the time of the script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ampwatch.host.fleet import Fleet
from ampwatch.host.fleet.fleet import CollectorPass
from ampwatch.host.metrics.prometheus import PrometheusExporter
from ampwatch.host.page.page import Feed
from ampwatch.settings import Settings
from ampwatch.wire.records import EndRecord, Record, RunIdentity, StepRecord
from ampwatch.wire.ring import RingReader
from tests.states.acts import Act
from tests.states.clock import SECOND, START
from tests.workshop.clocks import Clock

SCRAPE_SECONDS = 15
AWAY_SECONDS = 30.0
"""Time for which a daemon that is restarted is away."""


@dataclass
class Ring:
    """The records of one rank with the time of each.

    Attributes:
        path: The file.
        identity: Who wrote it.
        records: Time, as Unix time in seconds, and record.
        ended_s: Unix time from which on its process is gone; infinite while it lives.
    """

    path: Path
    identity: RunIdentity
    records: list[tuple[float, Record]]
    ended_s: float

    @classmethod
    def read(cls, path: Path, lives: dict[float, bool]) -> Ring:
        """Read the ring at ``path``, by when its writer began and whether it lives when somebody looks."""
        reader = RingReader(path)
        began = now = reader.identity.started_ns / SECOND
        records: list[tuple[float, Record]] = []
        for record in reader.poll():
            # Findings and ranges have no time of their own: they were written after the step before them.
            if isinstance(record, (StepRecord, EndRecord)):
                now = record.time_ns / SECOND
            records.append((now, record))
        assert not reader.joined_late
        reader.close()
        is_alive = lives[min(lives, key=lambda start: abs(start - began))]
        return cls(path, reader.identity, records, float("inf") if is_alive else now)


class Daemon:
    """A fleet whose clock the test sets, and all that shows it.

    Attributes:
        now: The time. Unit: s.
    """

    def __init__(self, rings: list[Ring], now: float) -> None:
        self.clock = Clock(now)
        self.fleet = Fleet(Settings(), self.clock)
        self.fleet.passes["rings"] = CollectorPass(success=True, duration_seconds=0.001)
        self.exporter = PrometheusExporter(self.fleet)
        self._feed = Feed(self.fleet, self.clock)
        self._rings = rings
        self._read: dict[Path, int] = {}

    def poll(self, now: float) -> None:
        """Take in what the rings had at ``now``."""
        self.clock.now = now
        # Those that have ended first: a run that is started again must find its predecessor dead.
        for ring in sorted(self._rings, key=lambda ring: ring.ended_s):
            if ring.identity.started_ns / SECOND > now:
                continue
            first = self._read.get(ring.path, 0)
            last = first
            while last < len(ring.records) and ring.records[last][0] <= now:
                last += 1
            self._read[ring.path] = last
            fresh = [record for _, record in ring.records[first:last]]
            alive = now < ring.ended_s
            self.fleet.apply(str(ring.path), ring.identity, fresh, alive=alive, lost=0, dropped=0)
        self.fleet.compare_views()

    def scrape(self) -> str:
        """Return what a Prometheus is answered now."""
        return self.exporter.render("text/plain")[0].decode()

    def state(self) -> dict[str, Any]:
        """Return what a page is sent now, as JSON."""
        state: dict[str, Any] = json.loads(json.dumps(self._feed.full()))
        return state


@dataclass
class Played:
    """A script that was played.

    Attributes:
        act: The script.
        place: Where it has left what.
        posted: Bodies that came in at the webhook, by the name of the training and the rank.
    """

    act: Act
    place: Path
    posted: dict[tuple[str, int], list[dict[str, Any]]] = field(default_factory=dict)

    @cached_property
    def looked_at(self) -> float:
        """The moment at which all ways out are compared: the first scrape after the last word. Unit: s."""
        said = float((self.place / "looked_at").read_text())
        return START + -(-(said - START) // SCRAPE_SECONDS) * SCRAPE_SECONDS

    @cached_property
    def rings(self) -> list[Ring]:
        lives = {
            t.time_of(t.first - 1): self.act.look != "ended" and not t.killed
            for t in self.act.trainings
        }
        return [Ring.read(p, lives) for p in sorted((self.place / "rings").glob("*.ring"))]

    @cached_property
    def scrapes(self) -> list[tuple[float, str]]:
        """Time and text of each scrape until somebody looks; empty text for a daemon that is away."""
        return [(now, daemon.scrape() if daemon else "") for now, daemon in self._visits()]

    @cached_property
    def daemon(self) -> Daemon:
        """The daemon as it is when somebody looks. It is fed anew, without rendering: what it shows is the same."""
        return [daemon for _, daemon in self._visits() if daemon][-1]

    def _visits(self) -> Iterator[tuple[float, Daemon | None]]:
        """Yield the daemon as it is at each time at which a Prometheus asks; ``None`` while it is away."""
        daemon = Daemon(self.rings, START)
        away_s = START + (self.act.daemon_restarts or float("inf"))
        restarted = False
        now = float(START)
        while now <= self.looked_at:
            if away_s <= now < away_s + AWAY_SECONDS:
                yield now, None
            else:
                if now >= away_s and not restarted:
                    daemon, restarted = Daemon(self.rings, now), True
                daemon.poll(now)
                yield now, daemon
            now += SCRAPE_SECONDS

    def __getstate__(self) -> dict[str, Any]:
        # A fleet has locks. It is made again of the rings.
        return {name: value for name, value in vars(self).items() if name != "daemon"}

    @cached_property
    def page(self) -> dict[str, Any]:
        """The state that the page is sent."""
        return self.daemon.state()

    def notes(self, file: str, rank: int = 0, training: str = "") -> list[dict[str, Any]]:
        """Return what a rank has noted in ``file``, in order."""
        path = self.place / f"{training or self.act.name}-{rank}" / file
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def report(self, name: str) -> str:
        """Return what ``ampwatch report`` has said: text, json, html or all."""
        if name == "html":
            return (self.place / "report.html").read_text(encoding="utf-8")
        return (self.place / f"report.{name}.out").read_text(encoding="utf-8")
