"""Makes the list of ranks that the terminal shows."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from ampwatch import __version__
from ampwatch.host.fleet.gpus import Feature, users
from ampwatch.host.page.figures import figures
from ampwatch.host.page.page import MAX_AGE_SECONDS
from ampwatch.report.headline import headline
from ampwatch.report.links import Links
from ampwatch.report.rank_list import RankList, RankRow, RunRow, packed
from ampwatch.state.text import encodable

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.host.fleet import Fleet, RankView
    from ampwatch.host.fleet.gpus import Gpu
    from ampwatch.report.verdict import RunVerdict

MAX_SPANS = 60
"""Newest spans of steps of a rank's history: as many as a line has room for."""

GIB = 1 << 30


class RankLists:
    """The list of the ranks of a fleet. For one thread; one serves any number of clients.

    Args:
        fleet: What to list.
        clock: Returns the Unix time in seconds.

    Cost:
        Some 0.2 ms a rank, at most a tenth of a core however many ask; 3 kB a rank.
    """

    def __init__(self, fleet: Fleet, clock: Callable[[], float] = time.time) -> None:
        self._fleet = fleet
        self._clock = clock
        self._links = Links.of(fleet.settings)
        self._made_at = -math.inf
        self._seconds = 0.0
        self._sent = b""

    def sent(self) -> bytes:
        """Return the list as it is sent, at most ``MAX_AGE_SECONDS`` old."""
        age = self._clock() - self._made_at
        if not 0.0 <= age < min(MAX_AGE_SECONDS, 9.0 * self._seconds):
            before = time.thread_time()
            self._made_at = self._clock()
            self._sent = packed(self.made())
            self._seconds = time.thread_time() - before
        return self._sent

    def made(self) -> RankList:
        """Return the list as of now."""
        now = self._clock()
        with self._fleet.lock:
            judged = self._fleet.judge()
            on_gpu = {
                use.rank: _gpu(use.gpu) for use in users(self._fleet.ranks(), self._fleet.gpus)
            }
        rows = []
        for label, (ranks, verdict) in judged.items():
            links = self._links.of_run(label)
            for rank in ranks:
                # One rank at a time: a scrape waits for no more than that.
                with self._fleet.lock:
                    rows.append(_row(label, rank, verdict, on_gpu.get(rank, ""), links, now))
                self._fleet.priority.step_aside()
        runs = [RunRow(run, of.level, headline(of, now).lines) for run, (_, of) in judged.items()]
        return RankList(__version__, now, runs, rows)


def _row(
    run: str, rank: RankView, of_run: RunVerdict, gpu: str, links: dict[str, str], now: float
) -> RankRow:
    verdict = of_run.by_rank[rank.identity.rank]
    spans = rank.history.spans[-MAX_SPANS:]
    phases = rank.phase_times.breakdown
    return RankRow(
        run=run,
        rank=rank.identity.rank,
        world_size=of_run.world_size,
        is_shown=of_run.shown_rank == rank.identity.rank,
        level=verdict.level,
        state=rank.state.value,
        host=encodable(rank.identity.host),
        user=rank.user,
        step=-1 if rank.newest is None else rank.newest.step,
        headline=headline(verdict, now).lines,
        figures={title: (f.value, f.note) for title, f in figures(rank).items() if f.is_known},
        phases="" if phases is None else phases.line,
        scale=[_known(span.scale_last) for span in spans],
        loss=[span.loss_mean if span.num_losses else span.loss_last for span in spans],
        seconds=[_known(span.duration_mean) for span in spans],
        gpu=gpu,
        incidents=list(verdict.incidents),
        links=links,
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _gpu(gpu: Gpu) -> str:
    """Return how busy a GPU and its tensor cores are, its memory and its heat, in a few words."""
    parts = (
        ("{:.0%}", gpu.number(Feature.UTILIZATION), 1),
        ("tc {:.0%}", gpu.number(Feature.TENSOR_ACTIVE, "any"), 1),
        ("{:.0f}G", gpu.number(Feature.MEMORY, "used"), GIB),
        ("{:.0f}C", gpu.number(Feature.TEMPERATURE, "gpu"), 1),
    )
    words = [text.format(value / unit) for text, value, unit in parts if value is not None]
    return " ".join([f"{gpu.index}:", *words, *([] if gpu.is_up else ["lost"])])
