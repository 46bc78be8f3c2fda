"""The state behind the built-in page.

Somebody who looks at a page looks at one rank: of the others it is sent a line each, or a page of
many ranks would be megabytes.

Reads the aggregate and puts it into words; nothing is measured here. No torch, no network.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from ampwatch import __version__
from ampwatch.host.page.figures import figures
from ampwatch.host.page.gpu_state import gpu_state
from ampwatch.host.page.lines import Shown, in_lines, line_of, there, words_of
from ampwatch.host.page.map_codes import TROUBLES
from ampwatch.host.page.precision_state import KERNEL_COLUMNS, OP_COLUMNS, PrecisionState
from ampwatch.host.page.range_state import (
    EXPONENT_COLUMNS,
    MODULE_COLUMNS,
    RangeState,
    formats,
)
from ampwatch.host.page.rows import COLUMNS, Row, State, bucket_row, finding_row, order
from ampwatch.report.accounts import sentence
from ampwatch.report.glossary import TERMS
from ampwatch.report.headline import headline
from ampwatch.report.line_change import change_of
from ampwatch.report.links import Links
from ampwatch.report.words import percent, step_time
from ampwatch.wire.records import StepPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ampwatch.host.fleet import Fleet, RankView
    from ampwatch.host.fleet.span_history import HistoryPosition
    from ampwatch.report.verdict import RunVerdict
    from ampwatch.wire.records import Finding


PHASES = tuple((phase.label, phase.words) for phase in StepPhase)
"""Each phase by its label and in words, in the order of the rows of a history."""

MAX_AGE_SECONDS = 5.0
"""Age of a state up to which it is shown on a page, where making one takes long. Unit: s."""


@dataclass(eq=False)
class _Moment:
    """The verdicts of a moment, and what was made of them for pages.

    Attributes:
        at: Unix time. Unit: s.
        runs: The ranks of each run, and the verdict on it.
        lines: The state with a line for each rank.
        whole: Everything about those ranks that somebody looks at.
        states: What pages are shown, and everything.
        seconds: CPU time that it took. Unit: s.
    """

    at: float
    runs: Mapping[str, tuple[Sequence[RankView], RunVerdict]]
    lines: State
    whole: dict[tuple[str, str], State] = field(default_factory=dict)
    states: dict[Shown | None, State] = field(default_factory=dict)
    seconds: float = 0.0


class Feed:
    """The state of a fleet for the page.

    For one thread; one feed serves any number of clients.

    Args:
        fleet: What to show.
        clock: Returns the Unix time in seconds.
        lists_ended: Returns whether the daemon lists runs that have ended.

    Attributes:
        fleet: What is shown.

    Cost:
        A full state of one rank is at most about 100 kB of JSON, a change some hundred bytes;
        with ranges see ``RangeState``, with precision ``PrecisionState``. The line of a rank that
        nobody looks at is about 200 bytes.
    """

    def __init__(
        self,
        fleet: Fleet,
        clock: Callable[[], float] = time.time,
        lists_ended: Callable[[], bool] = lambda: False,
    ) -> None:
        self.fleet = fleet
        self._lists_ended = lists_ended
        self._clock = clock
        self._series: dict[RankView, tuple[HistoryPosition | None, bool, dict[str, Row]]] = {}
        self._ranges: dict[RankView, RangeState] = {}
        self._precision: dict[RankView, PrecisionState] = {}
        self._changes: dict[RankView, dict[tuple[object, ...], tuple[str, ...]]] = {}
        self._formats = formats()
        self._links = Links.of(fleet.settings)
        self._glossary = {term.name: sentence(term.meaning) for term in TERMS}
        self._moment = _Moment(-math.inf, {}, {})

    def full(self, max_age: float = 0.0) -> State:
        """Return everything there is to show. It is never written to once handed out.

        Args:
            max_age: Age of a state, made for another client, that will do as well. Then many
                open pages cost little more than one. Unit: s.
        """
        return self.shown(None, max_age)

    def shown(self, shown: Shown | None, max_age: float = 0.0) -> State:
        """Return everything about the ranks that somebody looks at, and a line for each other one.

        Args:
            shown: Those ranks; ``None`` for all.
            max_age: As for ``full``. What is about all ranks is made once for all who ask. Unit: s.
        """
        now = self._clock()
        before = time.thread_time()
        # Below 0 where the clock was set back: that moment could be kept for hours.
        if not 0.0 <= now - self._moment.at < max_age:
            self._moment = self._at(now)
        moment = self._moment
        is_shown = None if shown is None else there(moment.lines, shown)
        if (state := moment.states.get(is_shown)) is None:
            state = moment.states[is_shown] = self._whole_state(moment, is_shown)
        moment.seconds += time.thread_time() - before
        return state

    @property
    def usual_age(self) -> float:
        """The age that a state must reach so that making them takes a tenth of a core at most."""
        return min(MAX_AGE_SECONDS, 9.0 * self._moment.seconds)

    def _at(self, now: float) -> _Moment:
        runs = self._judged()
        with self.fleet.lock:
            run_states = {run: in_lines(*judged, now) for run, judged in runs.items()}
        self.fleet.priority.step_aside()
        return _Moment(now, runs, self._state(now, run_states))

    def _judged(self) -> dict[str, tuple[list[RankView], RunVerdict]]:
        with self.fleet.lock:
            runs = self.fleet.judge()
        ranks = {rank for members, _ in runs.values() for rank in members}
        for kept in (self._series, self._ranges, self._precision, self._changes):
            for gone in kept.keys() - ranks:
                del kept[gone]
        self.fleet.priority.step_aside()
        return runs

    def _whole_state(self, moment: _Moment, shown: Shown | None) -> State:
        """Return the state with everything about some ranks; of all if nobody says of which."""
        runs = dict(moment.lines["runs"])
        shown_ranks = [(run, index) for run, of in runs.items() for index in of["ranks"]]
        if shown is not None:
            shown_ranks = [(r, i) for r, i in shown_ranks if (r, i) in (shown[:2], shown.beside)]
        for run, index in shown_ranks:
            whole = self._whole(moment, run, index)
            runs[run] = {**runs[run], "ranks": {**runs[run]["ranks"], index: whole}}
        return {**moment.lines, "runs": runs}

    def _whole(self, moment: _Moment, run: str, index: str) -> State:
        if (state := moment.whole.get((run, index))) is None:
            members, verdict = moment.runs[run]
            (rank,) = (rank for rank in members if str(rank.identity.rank) == index)
            state = self._rank(rank, verdict, moment.at)
            moment.whole[run, index] = state
        return state

    def _state(self, now: float, run_states: State) -> State:
        with self.fleet.lock:
            gpus, problems = gpu_state(self.fleet), dict(self.fleet.problems)
        return {
            "now": round(now, 3),
            "version": __version__,
            "columns": COLUMNS,
            "phases": PHASES,
            "exponent_columns": EXPONENT_COLUMNS,
            "module_columns": MODULE_COLUMNS,
            "op_columns": OP_COLUMNS,
            "kernel_columns": KERNEL_COLUMNS,
            "formats": self._formats,
            "troubles": TROUBLES,
            "glossary": self._glossary,
            "runs": {
                run: {**of, "links": self._links.of_run(run)} for run, of in run_states.items()
            },
            "gpus": gpus,
            "problems": problems,
            "lists_ended": self._lists_ended(),
        }

    def _rank(self, rank: RankView, of_run: RunVerdict, now: float) -> State:
        incidents = of_run.by_rank[rank.identity.rank].incidents
        # Without the lock: files are read for them.
        changes = [
            self._change_of(rank, m.finding) for incident in incidents for m in incident.members
        ]
        # One rank at a time: of all together a scrape would have to wait for seconds.
        with self.fleet.lock:
            state = self._rank_now(rank, of_run, changes, now)
        self.fleet.priority.step_aside()
        return state

    def _change_of(self, rank: RankView, finding: Finding) -> tuple[str, ...]:
        """Return the remedy as a difference, as it was when the finding first had it."""
        # A ring names the file: that of another user must not make the daemon show a line of any file.
        if finding.cure is None or rank.uid != os.geteuid():
            return ()
        known = self._changes.setdefault(rank, {})
        key = (finding.key, finding.source, finding.cure)
        if key not in known:
            known[key] = change_of(finding)
        return known[key]

    def _rank_now(
        self, rank: RankView, of_run: RunVerdict, changes: Sequence[Sequence[str]], now: float
    ) -> State:
        verdict = of_run.by_rank[rank.identity.rank]
        members = [member for incident in verdict.incidents for member in incident.members]
        return {
            **line_of(rank, of_run),
            **words_of(verdict),
            "headline": asdict(headline(verdict, now)),
            "user": rank.user,
            "host": rank.identity.host,
            "pid": rank.identity.pid,
            "version": rank.identity.version,
            "figures": {title: list(figure) for title, figure in figures(rank).items()},
            "phases": phase_state(rank),
            "facts": dict(rank.facts),
            "findings": {
                m.finding.key: finding_row(m.finding, current=m.is_current, change=change)
                for m, change in zip(members, changes, strict=True)
            },
            "stories": [row for incident in verdict.incidents for row in order(incident)],
            "series": self._series_of(rank),
            "ranges": self._ranges.setdefault(rank, RangeState()).of(rank),
            "precision": self._precision.setdefault(rank, PrecisionState()).of(rank),
        }

    def _series_of(self, rank: RankView) -> dict[str, Row]:
        """Return the rows of ``rank``, built anew only where its history has changed."""
        on_device = rank.phase_times.on_device is not None
        place, was_on_device, rows = self._series.get(rank, (None, on_device, {}))
        # The first word of a device makes all rows other ones: they have its phases then.
        news = rank.history.since(place if on_device == was_on_device else None)
        fresh = {str(b.first_step): bucket_row(b, on_device=on_device) for b in news.spans}
        rows = fresh if news.everything else {**rows, **fresh}
        self._series[rank] = news.place, on_device, rows
        return rows


def phase_state(rank: RankView) -> State:
    """Return by whose clock, of which steps and what the phases of a rank are.

    ``line`` has the largest of them for a terminal. ``key`` has label, words, time and share of each
    phase that the newest steps had; it is empty where nothing is known.
    """
    breakdown = rank.phase_times.breakdown
    if breakdown is None:
        return {"sentence": "", "line": "", "key": [], "notes": []}
    return {
        "sentence": f"{step_time(breakdown.seconds)} a step, {breakdown.source}",
        "line": breakdown.line,
        "key": [
            [phase.label, phase.words, step_time(seconds), percent(share)]
            for phase, seconds, share in breakdown.shares
        ],
        "notes": breakdown.unseen,
    }
