"""Metrics of a rank as a whole: what it is, whether it lives, and what watching it costs."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from ampwatch.host.fleet.text import encodable, whole_number
from ampwatch.host.metrics.metric import Metric
from ampwatch.host.metrics.scopes import PER_RANK, STEP, each, part
from ampwatch.wire.records import (
    MEMORY_LIMIT,
    MEMORY_PARTS,
    MEMORY_PLACES,
    RunState,
    memory_fact,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ampwatch.host.fleet import RankView
    from ampwatch.host.metrics.metric import Reader
    from ampwatch.host.metrics.scopes import Table
    from ampwatch.wire.records import ChecksumRecord, RunIdentity

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


def _info(known: tuple[RunIdentity, str, Mapping[str, str]]) -> Table:
    who, user, known_facts = known
    facts = (known_facts.get(name, "") for name in RUN_FACTS)
    version = encodable(who.version)
    yield (str(who.world_size), str(who.local_rank), version, user, *facts), 1


def _states(current: RunState) -> Table:
    for state in RunState:
        yield (state.value,), int(state is current)


_FACTS = part(lambda rank: rank.facts)


def _memory(facts: Mapping[str, str]) -> Table:
    for holder, place in product(MEMORY_PARTS, MEMORY_PLACES):
        held = whole_number(facts.get(memory_fact(holder, place), ""))
        if held is not None:
            yield (holder, place), held


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
        part(lambda rank: (rank.identity, rank.user, rank.facts)).by(
            "world_size", "local_rank", "version", "user", *RUN_FACTS, read=_info
        ),
    ),
    Metric(
        "ampwatch_run_state",
        "gauge",
        "Whether the rank is in the given state (1) or not (0).",
        part(lambda rank: rank.state).by("state", read=_states),
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
        "Time that ampwatch took of the training: its own, and what sampled steps took longer besides.",
        STEP.count(lambda step: step.overhead_ns / 1e9),
        unit="seconds",
    ),
    Metric(
        "ampwatch_memory_bytes",
        "gauge",
        "Memory that watching holds and nobody else does, in multiples of 64 KiB, by part; that of Python objects and code is not in it. Known at set-up and after each sampled iteration.",
        _FACTS.by("part", "memory", read=_memory),
        unit="bytes",
    ),
    Metric(
        "ampwatch_memory_limit_bytes",
        "gauge",
        "Memory that watching may hold on the host, and again on devices (the setting memory_bytes).",
        _FACTS.one(lambda facts: whole_number(facts.get(MEMORY_LIMIT, ""))),
        unit="bytes",
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
