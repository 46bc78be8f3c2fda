"""Metrics of a rank as a whole: what it is, whether it lives, and what watching it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.host.fleet.text import encodable
from ampwatch.host.metrics.metric import Metric
from ampwatch.host.metrics.scopes import PER_RANK, STEP, each
from ampwatch.wire.records import RunState

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.host.fleet import RankView
    from ampwatch.host.metrics.metric import Reader
    from ampwatch.host.metrics.scopes import Table
    from ampwatch.wire.records import ChecksumRecord

RUN_FACTS = (
    "device",
    "autocast_dtype",
    "scaler",
    "init_scale",
    "growth_factor",
    "backoff_factor",
    "growth_interval",
    "torch",
    "python",
    "allow_tf32",
    "cudnn_allow_tf32",
    "float32_matmul_precision",
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
    "cudnn_benchmark",
)
"""Facts of a run that are labels of ``ampwatch_run_info``; a fact by another name is not exported."""

UNKNOWN_SENSOR = "unknown"
"""Value of the label ``sensor`` for errors whose sensor the daemon has not been told."""


def _info(rank: RankView) -> Table:
    who = rank.identity
    facts = (rank.facts.get(name, "") for name in RUN_FACTS)
    version = encodable(who.version)
    yield (str(who.world_size), str(who.local_rank), version, rank.user, *facts), 1


def _states(rank: RankView) -> Table:
    current = rank.state  # asks the clock: once for all, so that exactly one of them holds
    for state in RunState:
        yield (state.value,), int(state is current)


def _sensor_errors(rank: RankView) -> Table:
    errors = dict(rank.sensor_errors)
    # The total travels with every step, the name in a record of its own, which may be late or
    # lost. So the sum over all sensors is the total from the first scrape on, and never falls.
    total = 0 if rank.newest is None else rank.newest.total_sensor_errors
    rest = max(total - sum(errors.values()), 0)
    errors[UNKNOWN_SENSOR] = errors.get(UNKNOWN_SENSOR, 0) + rest
    yield from each(errors)


def _of_checksum(read: Callable[[ChecksumRecord], float]) -> Reader:
    """Return the reader of a value of the check of weights that is exported now."""
    return PER_RANK.one(lambda rank: None if rank.checksum is None else read(rank.checksum))


RUN: tuple[Metric, ...] = (
    Metric(
        "ampwatch_run_info",
        "info",
        "Static facts of a monitored rank; a fact that is not known is empty (value is always 1).",
        PER_RANK.by("world_size", "local_rank", "version", "user", *RUN_FACTS, read=_info),
    ),
    Metric(
        "ampwatch_run_state",
        "gauge",
        "Whether the rank is in the given state (1) or not (0).",
        PER_RANK.by("state", read=_states),
    ),
    Metric(
        "ampwatch_run_start_timestamp_seconds",
        "gauge",
        "Unix time at which ampwatch.monitor() was called on this rank.",
        PER_RANK.one(lambda rank: rank.identity.started_ns / 1e9),
        unit="seconds",
    ),
    Metric(
        "ampwatch_last_report_timestamp_seconds",
        "gauge",
        "Unix time of the newest report of this rank: its start, a step or its end.",
        PER_RANK.one(lambda rank: rank.last_record_ns / 1e9),
        unit="seconds",
    ),
    Metric(
        "ampwatch_replica_checksum",
        "gauge",
        "Digest, below 2^48, of a part of the weights at the end of iteration ampwatch_replica_checksum_step and of the next one: equal on ranks that train in lockstep. Kept for 240 s or more, so that ranks that are scraped one after the other show the same check. Absent with a single rank, and without weights that are whole on each rank.",
        _of_checksum(lambda check: check.checksum),
    ),
    Metric(
        "ampwatch_replica_checksum_step",
        "gauge",
        "Iteration of ampwatch_replica_checksum: those of equal iterations alone can be compared.",
        _of_checksum(lambda check: check.step),
    ),
    Metric(
        "ampwatch_overhead_seconds_total",
        "counter",
        "Host time that ampwatch spent on the training thread.",
        STEP.count(lambda step: step.overhead_ns / 1e9),
        unit="seconds",
    ),
    Metric(
        "ampwatch_observations_dropped_total",
        "counter",
        "Steps whose values ampwatch did not read because the device was too far behind.",
        STEP.count(lambda step: step.total_observations_dropped),
    ),
    Metric(
        "ampwatch_sensor_errors_total",
        "counter",
        "Exceptions inside ampwatch that it kept from the training loop.",
        PER_RANK.by("sensor", read=_sensor_errors),
    ),
    Metric(
        "ampwatch_ring_records_dropped_total",
        "counter",
        "Records that the training process could not write into its ring.",
        PER_RANK.one(lambda rank: rank.ring_dropped),
    ),
    Metric(
        "ampwatch_ring_records_lost_total",
        "counter",
        "Slots of the ring that were overwritten or unreadable before the daemon read them; a record takes one or more.",
        PER_RANK.one(lambda rank: rank.records_lost),
    ),
)
