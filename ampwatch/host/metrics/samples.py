"""What the fleet has to say about each metric of the catalog: label values and numbers.

No Prometheus here: a row of the catalog is a row of one of the two tables below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampwatch import __version__
from ampwatch.host.fleet.text import encodable
from ampwatch.host.metrics.catalog import KINDS, RUN_FACTS
from ampwatch.host.metrics.gpu_samples import OF_GPUS
from ampwatch.host.metrics.precision_samples import OF_PRECISION
from ampwatch.host.metrics.range_samples import OF_RANGES
from ampwatch.host.metrics.reading import Exemplified, one
from ampwatch.wire.records import OTHER_OPTIMIZERS, SKIP_CLASSES, OptimizerRecord, RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ampwatch.host.fleet import Fleet, RankView
    from ampwatch.host.fleet.findings import Sort
    from ampwatch.host.metrics.reading import OfRank, Samples

    OfDaemon = Callable[[Fleet, Mapping[str, "CollectorPass"]], Samples]

_UNUSED_OPTIMIZER = OptimizerRecord(
    step=0, index=0, skipped=False, total_steps=0, total_skipped=(0, 0, 0, 0)
)


@dataclass(frozen=True, slots=True)
class CollectorPass:
    """How the newest pass of one of the daemon's collectors went.

    Attributes:
        success: It did all it had to do.
        duration_seconds: Wall time it took. Unit: s.
    """

    success: bool
    duration_seconds: float


def _run_info(rank: RankView) -> Samples:
    identity = rank.identity
    facts = (rank.facts.get(name, "") for name in RUN_FACTS)
    yield (
        (str(identity.world_size), str(identity.local_rank), encodable(identity.version), *facts),
        1,
    )


def _run_state(rank: RankView) -> Samples:
    current = rank.state
    for state in RunState:
        yield (state.value,), int(state is current)


def _optimizers(rank: RankView) -> list[tuple[str, OptimizerRecord]]:
    """Return the optimizers by label; the first one before it was seen, so that counters are born at 0."""
    known = rank.optimizers or {0: _UNUSED_OPTIMIZER}
    return [("other" if i == OTHER_OPTIMIZERS else str(i), known[i]) for i in sorted(known)]


def _optimizer_steps(rank: RankView) -> Samples:
    for label, optimizer in _optimizers(rank):
        yield (label,), optimizer.total_steps


def _optimizer_steps_skipped(rank: RankView) -> Samples:
    for label, optimizer in _optimizers(rank):
        for skip, total in zip(SKIP_CLASSES, optimizer.total_skipped, strict=True):
            yield (label, skip.label), total


def _findings(rank: RankView) -> Samples:
    for sort, totals in rank.finding_totals.by_sort().items():
        yield _sort_labels(sort), totals.num_places


def _findings_last_seen(rank: RankView) -> Samples:
    for sort, totals in rank.finding_totals.by_sort().items():
        yield _sort_labels(sort), totals.last_seen_ns / 1e9


def _sort_labels(sort: Sort) -> tuple[str, str, str]:
    return sort.kind, sort.severity.value, str(sort.root).lower()


def _finding_steps(rank: RankView) -> Samples:
    steps, newest = rank.finding_totals.steps_by_kind(), rank.finding_totals.newest_by_kind()
    for kind in dict.fromkeys((*KINDS, *steps)):  # born at 0, so that the first is an increase
        if kind not in newest:
            yield (kind,), 0
            continue
        finding, seen_ns = newest[kind]
        yield (kind,), Exemplified(steps[kind], {"step": str(finding.last_step)}, seen_ns / 1e9)


def _newest(name: str) -> OfRank:
    """Return the samples of an attribute of the newest step, 0 before the first one."""
    return one(lambda rank: 0 if rank.newest is None else getattr(rank.newest, name))


def _fact(name: str) -> OfRank:
    """Return the samples of a fact that should be a number, absent where it is not."""

    def read(rank: RankView) -> float | None:
        try:
            value = float(rank.facts.get(name, ""))
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    return one(read)


def _growth_tracker(rank: RankView) -> int | None:
    tracker = -1 if rank.newest is None else rank.newest.growth_tracker
    return tracker if tracker >= 0 else None


def _of_fleet(samples: Callable[[Fleet], Samples]) -> OfDaemon:
    return lambda fleet, _passes: samples(fleet)


OF_RANK: dict[str, OfRank] = {
    "ampwatch_run_info": _run_info,
    "ampwatch_run_state": _run_state,
    "ampwatch_run_start_timestamp_seconds": one(lambda rank: rank.identity.started_ns / 1e9),
    "ampwatch_last_report_timestamp_seconds": one(lambda rank: rank.last_record_ns / 1e9),
    "ampwatch_overhead_seconds_total": one(
        lambda rank: 0 if rank.newest is None else rank.newest.overhead_ns / 1e9
    ),
    "ampwatch_observations_dropped_total": _newest("total_observations_dropped"),
    "ampwatch_sensor_errors_total": _newest("total_sensor_errors"),
    "ampwatch_ring_records_dropped_total": one(lambda rank: rank.ring_dropped),
    "ampwatch_ring_records_lost_total": one(lambda rank: rank.records_lost),
    "ampwatch_loss_scale": one(lambda rank: rank.loss_scale),
    "ampwatch_loss_scale_min": one(lambda rank: rank.loss_scale_min),
    "ampwatch_loss_scale_initial": _fact("init_scale"),
    "ampwatch_loss_scale_growth_interval_steps": _fact("growth_interval"),
    "ampwatch_loss_scale_growth_tracker_steps": one(_growth_tracker),
    "ampwatch_loss_scale_growths_total": _newest("total_growths"),
    "ampwatch_loss_scale_backoffs_total": _newest("total_backoffs"),
    "ampwatch_loss_scale_set_by_hand_total": _newest("total_set_by_hand"),
    "ampwatch_steps_total": one(lambda rank: 0 if rank.newest is None else rank.newest.step + 1),
    "ampwatch_optimizer_steps_total": _optimizer_steps,
    "ampwatch_optimizer_steps_skipped_total": _optimizer_steps_skipped,
    "ampwatch_optimizer_consecutive_skipped_steps": _newest("consecutive_skips"),
    "ampwatch_optimizer_consecutive_skipped_steps_max": one(
        lambda rank: rank.consecutive_skips_max
    ),
    "ampwatch_last_step_timestamp_seconds": one(
        lambda rank: None if rank.newest is None else rank.newest.time_ns / 1e9
    ),
    "ampwatch_last_applied_step_timestamp_seconds": one(
        lambda rank: rank.last_applied_ns / 1e9 if rank.last_applied_ns else None
    ),
    "ampwatch_step_duration_seconds": one(lambda rank: rank.durations),
    "ampwatch_loss": one(lambda rank: rank.loss),
    "ampwatch_loss_nonfinite_total": _newest("total_nonfinite_losses"),
    **OF_RANGES,
    **OF_PRECISION,
    "ampwatch_findings": _findings,
    "ampwatch_finding_last_seen_timestamp_seconds": _findings_last_seen,
    "ampwatch_finding_steps_total": _finding_steps,
    "ampwatch_finding_records_left_out_total": one(lambda rank: rank.finding_totals.left_out),
}
"""Name of a metric to its samples of one rank, without the labels that tell ranks apart."""

OF_DAEMON: dict[str, OfDaemon] = {
    "ampwatch_build_info": lambda _fleet, _passes: [((__version__,), 1)],
    "ampwatch_collector_success": lambda _fleet, passes: [
        ((name,), int(done.success)) for name, done in passes.items()
    ],
    "ampwatch_collector_duration_seconds": lambda _fleet, passes: [
        ((name,), done.duration_seconds) for name, done in passes.items()
    ],
    "ampwatch_rings_unreadable": lambda fleet, _passes: [((), len(fleet.problems))],
    "ampwatch_ranks_left_out": lambda fleet, _passes: [((), fleet.num_left_out)],
    **{name: _of_fleet(samples) for name, samples in OF_GPUS.items()},
}
"""Name of a metric of the daemon itself to its samples."""
