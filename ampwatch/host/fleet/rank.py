"""The records of one training process, folded."""

from __future__ import annotations

import math
import os
import statistics
from collections import deque
from typing import TYPE_CHECKING

from ampwatch.host.fleet.histogram import STEP_DURATION_BOUNDS, Histogram, Peak
from ampwatch.host.fleet.history import History
from ampwatch.host.fleet.phase_times import PhaseTimes
from ampwatch.host.fleet.ranges import Ranges
from ampwatch.host.fleet.step_outcomes import StepOutcomes
from ampwatch.host.fleet.tensor_views import TensorViews
from ampwatch.host.fleet.watching import WatchingCost
from ampwatch.report.op_shares import Precision
from ampwatch.report.verdict import JudgedRank, Verdict
from ampwatch.state.rank import RankState
from ampwatch.state.text import encodable
from ampwatch.wire import records
from ampwatch.wire.blackbox.box import DIED

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.report.op_shares import Arithmetic
    from ampwatch.settings import Settings

USUAL_STEPS = 32
"""Newest steps whose median duration is the usual one: slow first steps are soon forgotten."""

STALE_STEPS = 10
"""Usual steps of a rank after which it may be stale if it is silent."""

FIRST_READ_SECONDS = 10.0
"""Steps that ended longer ago than this when the view was made are not in the histogram.
A daemon that was restarted finds thousands of steps in the ring that its predecessor has
counted, and to Prometheus all that it counts in its first pass happened just then. Long
enough for the steps in which the run's own daemon starts. Unit: s."""


MAX_BUDGETS = 8
"""Error budgets that are kept, each of other formats: columns of a map that are still distinguished."""

CHECKSUM_SECONDS = 240.0
"""Time for which a checksum is exported at least: several scrapes of every host. Unit: s."""


class RankView(RankState):
    """One rank of one run, as its ring shows it to the daemon.

    The history is limited to the records that were seen, and the histogram to the steps
    since then.

    Attributes:
        name: Name of the run as the user gave it; with ``-`` for ``~``, which labels alone have.
        user: Login name of that user, the uid without one.
        run: Label of the run: its name, unless the fleet has two runs of that name.
        checksum: A check of the weights that is not old, and the same one on each rank.
        durations: Durations of the steps since ``FIRST_READ_SECONDS`` before the view was made.
            Unit: s.
        conflict_reported_ns: Unix time at which a conflict of the views of the tensor cores was
            reported last, 0 before. Unit: ns.
        records_lost: Slots of the ring overwritten or unreadable before they were read.
        ring_dropped: Records the writer could not write.
        pid: Process in the daemon's pid namespace, 0 if it cannot be named or has ended.
        ended_at: When the end was noticed, by this daemon or by the one before it; ``None``
            before. Unit: s.
        verdict: The verdict on this rank, as of the last time its run was judged (``Fleet.judge``);
            ``None`` before.
        roots: The places and kinds of roots that were exported so far, see ``metrics.verdict``.

    Args:
        clock: Returns the Unix time in seconds.
        settings: ``stale_seconds`` and those of ``Ranges`` are used.
    """

    def __init__(
        self, identity: records.RunIdentity, *, clock: Callable[[], float], settings: Settings
    ) -> None:
        super().__init__(identity)
        self.name = self.run = encodable(identity.run).replace("~", "-")
        self.uid = os.geteuid()
        self.user = ""
        self.checksum: records.ChecksumRecord | None = None
        self.plan: dict[str, records.PlanRecord] = {}
        self.budgets: dict[tuple[str, ...], dict[str, records.BudgetRecord]] = {}
        self.durations = Histogram(STEP_DURATION_BOUNDS)
        self.history = History()
        self.records_lost = 0
        self.ring_dropped = 0
        self.pid = 0
        self.ended_at: float | None = None
        self.verdict: Verdict | None = None
        self.roots: set[tuple[str, ...]] = set()
        self._clock = clock
        self._counted_from_ns = int((clock() - FIRST_READ_SECONDS) * 1e9)
        self.ranges = Ranges(settings, self._counted_from_ns)
        self.precision = Precision()
        self.phase_times = PhaseTimes(self._counted_from_ns)
        self.tensor_views = TensorViews()
        self.outcomes = StepOutcomes()
        self.watching = WatchingCost(identity.started_ns)
        self.conflict_reported_ns = 0
        self._stale_seconds = settings.stale_seconds
        self._alive = True
        self._usual = deque[float](maxlen=USUAL_STEPS)
        self._usual_seconds: float | None = None
        self._scale_min = Peak(min)
        self._skips_max = Peak(max)

    def _put_plan(self, record: records.PlanRecord) -> None:
        if not record.place or any(known.step != record.step for known in self.plan.values()):
            self.plan = {}
        if len(self.plan) < records.MAX_PLANNED:
            self.plan[encodable(record.module)] = record

    def _put_budget(self, record: records.BudgetRecord) -> None:
        key = tuple(map(encodable, (record.model, record.autocast)))
        budget = self.budgets.get(key, {})
        last = next(reversed(budget.values()), None)
        # Also where the record with place 0 was lost.
        if last is None or record.step != last.step or record.place <= last.place:
            # In the place of the newest: a dictionary keeps the order in which keys came.
            self.budgets.pop(key, None)
            while len(self.budgets) >= MAX_BUDGETS:
                del self.budgets[next(iter(self.budgets))]
            budget = self.budgets[key] = {}
        if len(budget) < records.MAX_BUDGETED:
            budget[encodable(record.module)] = record

    @property
    def judged_rank(self) -> JudgedRank:
        """What a verdict on this rank rests on, right now."""
        return JudgedRank(
            rank=self.identity.rank,
            state=self.state,
            reason=self.end_reason,
            started_s=self.identity.started_ns / 1e9,
            last_s=self.last_record_ns / 1e9,
            newest=self.newest,
            findings=self.findings,
            seen_s=lambda finding: self.finding_totals.last_seen_ns(finding.key) / 1e9,
            skips=self.skips,
            recent=self._recent_skips,
            time_of=self._time_of,
        )

    def _recent_skips(self) -> tuple[dict[records.SkipClass, int], int]:
        """Return the skipped ones of the newest iterations per class, and how many those are."""
        skips, steps = self.history.recent
        return dict(zip(records.SKIP_CLASSES, skips, strict=True)), steps

    def _time_of(self, step: int) -> float | None:
        """Return the Unix time by which a step was over; ``None`` for one before those known. Unit: s."""
        known = self.history.spans
        if not known or step < known[0].first_step:
            return None
        time_ns = self.history.time_of(step)
        return None if time_ns is None else time_ns / 1e9

    def find(self, finding: records.Finding) -> None:
        """Enter a finding that the daemon itself has made."""
        self.apply(records.FindingRecord(finding))

    def observe(
        self, *, alive: bool, lost: int, dropped: int, ended_at: float | None = None
    ) -> None:
        """Note what the reader of the ring knows besides the records (``Fleet.apply``)."""
        self._alive, self.records_lost, self.ring_dropped = alive, lost, dropped
        if not self.ended:
            self.ended_at = None
        elif self.ended_at is None:
            self.ended_at = self._clock() if ended_at is None else ended_at

    @property
    def ended(self) -> bool:
        """The run has reported so, or its process is gone."""
        return self.end is not None or not self._alive

    @property
    def state(self) -> records.RunState:
        """The state of the rank right now."""
        # Its own word first: a process that has reported how it ended is gone soon after.
        if self.end is not None:
            finished = self.end.state is records.RunState.FINISHED
            return records.RunState.FINISHED if finished else records.RunState.FAILED
        if not self._alive:
            return records.RunState.FAILED
        # Whichever is longer: a model whose steps take minutes is silent for longer than the setting.
        silence = self.silence_seconds
        if silence <= self._stale_seconds or silence <= STALE_STEPS * self.usual_step_seconds:
            return records.RunState.RUNNING
        return records.RunState.STALE

    @property
    def silence_seconds(self) -> float:
        """Age of the newest record that has a time. Unit: s."""
        return self._clock() - self.last_record_ns / 1e9

    @property
    def end_reason(self) -> str:
        """Reason why the rank ended, in words; empty while it runs or when it ended well."""
        if self.end is not None:
            return self.end.reason
        return "" if self._alive else DIED

    @property
    def usual_step_seconds(self) -> float:
        """Median duration of the newest steps, 0 before the first. Unit: s."""
        # Kept until the next step: it is asked for many times in between.
        if self._usual_seconds is None:
            self._usual_seconds = statistics.median(self._usual) if self._usual else 0.0
        return self._usual_seconds

    @property
    def loss_scale_min(self) -> float | None:
        """Smallest loss scale of the last one to two hold windows; ``None`` without a scaler."""
        scale = self.loss_scale
        return None if scale is None else self._scale_min.read(scale, self._now_ns())

    @property
    def consecutive_skips_max(self) -> float:
        """Longest run of skipped iterations of the last one to two hold windows."""
        current = 0 if self.newest is None else self.newest.consecutive_skips
        return self._skips_max.read(current, self._now_ns())

    @property
    def scaled_amax_max(self) -> float | None:
        """Largest scaled gradient of the last one to two hold windows (``Ranges``)."""
        return self.ranges.scaled_amax_max(self._now_ns())

    @property
    def sampling_interval(self) -> int | None:
        """Steps from one sample to the next, or since the last one if that is more; 0 for no more.

        ``None`` before the first sample. Unit: steps.
        """
        totals = self.totals
        if totals is None or self.newest is None or not totals.interval:
            return None if totals is None else totals.interval
        return max(totals.interval, self.newest.step - totals.step)

    @property
    def arithmetic(self) -> Arithmetic:
        """The share of its ceiling that the rank uses."""
        return self.precision.arithmetic(self.usual_step_seconds)

    def _now_ns(self) -> int:
        return int(self._clock() * 1e9)

    def time_of(self, step: int) -> int | None:
        """Return the Unix time by which ``step`` was over; ``None`` where it is not known. Unit: ns."""
        return self.history.time_of(step)

    def _put_step(self, record: records.StepRecord) -> None:
        super()._put_step(record)
        if math.isfinite(record.duration_s):
            self._usual.append(record.duration_s)
            self._usual_seconds = None
        if not math.isnan(record.loss_scale):
            self._scale_min.put(record.loss_scale, record.time_ns)
        self._skips_max.put(record.consecutive_skips, record.time_ns)
        # Prometheus takes a histogram that starts again for a reset: it must not count steps that
        # the daemon before this one has counted.
        if record.time_ns >= self._counted_from_ns:
            self.durations.observe(record.duration_s)
        self.history.put(record)
        self.outcomes.put_step(record)
        self.watching.put(record)
        self.phase_times.put(record)
        self.ranges.map.put_step(record)

    def _put_optimizer(self, record: records.OptimizerRecord) -> None:
        super()._put_optimizer(record)
        self.outcomes.put_optimizer(record)

    def _put_range(self, record: records.RangeRecord) -> None:
        super()._put_range(record)
        self.ranges.put(record)

    def _put_sampling(self, record: records.SamplingRecord) -> None:
        super()._put_sampling(record)
        self.ranges.close_sample(record.step)

    def _put_census(self, record: records.CensusRecord) -> None:
        self.precision.put(record)

    def _put_window(self, record: records.WindowRecord) -> None:
        self.precision.put(record)

    def _put_device_phases(self, record: records.DevicePhasesRecord) -> None:
        self.phase_times.put_device(record)
        self.history.put_device(record)

    def _put_facts(self, record: records.FactsRecord) -> None:
        super()._put_facts(record)
        self.ranges.know_autocast(self.autocast)
        self.precision.know_facts(self.facts)

    def _put_checksum(self, record: records.ChecksumRecord) -> None:
        """Keep a checksum for some scrapes: what is scraped of other hosts by then is of this step.

        It is the first one in a span of steps whose length is a power of two, so that ranks that do
        not agree on how long a step takes still keep the same ones; and always of the same weights.
        """
        if record.part or record.first == record.then:  # weights that stand still prove nothing
            return
        steps = max(1.0, CHECKSUM_SECONDS / (self.usual_step_seconds or CHECKSUM_SECONDS))
        span = 2 ** math.ceil(math.log2(steps))
        held = self.checksum
        if held is None or record.step // span != held.step // span:
            self.checksum = record
