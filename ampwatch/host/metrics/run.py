"""Metrics of the daemon, and of a rank as a whole: its loss scale, steps, times, memory, sampling and overhead."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING

from ampwatch import __version__
from ampwatch.host.metrics.scopes import (
    ONCE,
    PER_OPTIMIZER,
    PER_RANK,
    TOTALS,
    NewestRecord,
    Scope,
    each,
    exported,
    part,
)
from ampwatch.state import facts
from ampwatch.state.text import encodable, whole_number
from ampwatch.wire import records

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ampwatch.host.fleet import RankView
    from ampwatch.host.fleet.fleet import CollectorPass
    from ampwatch.host.metrics.metric import Reader, Rows, ScrapeState
    from ampwatch.host.metrics.scopes import Table


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
"""Value of the label ``sensor`` for errors whose sensor the daemon does not know."""


def _info(known: tuple[records.RunIdentity, str, Mapping[str, str]]) -> Table:
    who, user, known_facts = known
    facts = (known_facts.get(name, "") for name in RUN_FACTS)
    version = encodable(who.version)
    yield (str(who.world_size), str(who.local_rank), version, user, *facts), 1


def _memory(facts: Mapping[str, str]) -> Table:
    for holder, place in product(records.MEMORY_PARTS, records.MEMORY_PLACES):
        held = whole_number(facts.get(records.memory_fact(holder, place), ""))
        if held is not None:
            yield (holder, place), held


def _sensor_errors(rank: RankView) -> Table:
    errors = {name: failed.errors for name, failed in rank.failures.items()}
    # The total travels with every step, the name in a record of its own, which may be late or
    # lost. So the sum over all sensors is the total from the first scrape on, and never falls.
    total = 0 if rank.newest is None else rank.newest.total_sensor_errors
    rest = max(total - sum(errors.values()), 0)
    errors[UNKNOWN_SENSOR] = errors.get(UNKNOWN_SENSOR, 0) + rest
    yield from each(errors)


_CHECKSUM: NewestRecord[records.ChecksumRecord] = NewestRecord(lambda rank: rank.checksum)
"""The check of weights that is exported now."""


RUN: Rows = {
    **exported(facts.RUN),
    "ampwatch_run_info": (
        "Static facts of a rank; an unknown fact is empty (value is always 1).",
        part(lambda rank: (rank.identity, rank.user, rank.facts)).by(
            "world_size", "local_rank", "version", "user", *RUN_FACTS, read=_info
        ),
    ),
    "ampwatch_run_state": (
        "Whether the rank is in the given state (1) or not (0).",
        part(lambda rank: rank.state).by(
            "state",
            read=lambda current: each({s.value: int(s is current) for s in records.RunState}),
        ),
    ),
    "ampwatch_replica_checksum": (
        "Digest, below 2^48, of a part of the weights at the end of iteration ampwatch_replica_checksum_step and of the next: equal on ranks that train in lockstep. Kept for 240 s or more, so that all scrapes see the same check. Absent with a single rank or sharded weights.",
        _CHECKSUM.one(lambda check: check.checksum),
    ),
    "ampwatch_replica_checksum_step": (
        "Iteration of ampwatch_replica_checksum: compare equal iterations only.",
        _CHECKSUM.one(lambda check: check.step),
    ),
    "ampwatch_memory_bytes": (
        "Memory held by ampwatch, in multiples of 64 KiB, without Python objects and code. Updated after each sampled iteration.",
        part(lambda rank: rank.facts).by("part", "memory", read=_memory),
    ),
    "ampwatch_sensor_errors_total": (
        "Exceptions inside ampwatch that it kept from the training loop.",
        PER_RANK.by("sensor", read=_sensor_errors),
    ),
    "ampwatch_ring_records_dropped_total": (
        "Records that the training process could not write into its ring.",
        PER_RANK.one(lambda rank: rank.ring_dropped),
    ),
    "ampwatch_ring_records_lost_total": (
        "Slots of the ring that were overwritten or unreadable before the daemon read them.",
        PER_RANK.one(lambda rank: rank.records_lost),
    ),
}


def _page(state: ScrapeState) -> Table:
    url = state.fleet.settings.external_url
    return [((url,), 1)] if url else []


_PER_COLLECTOR: Scope[CollectorPass] = Scope(
    ("collector",), lambda state: [((name,), done) for name, done in state.fleet.passes.items()]
)


DAEMON: Rows = {
    "ampwatch_build_info": (
        "Version of the ampwatch daemon (value is always 1).",
        ONCE.by("version", read=lambda _state: [((__version__,), 1)]),
    ),
    "ampwatch_page_info": (
        "Address of the daemon's page (setting external_url), for alerts (value is always 1).",
        ONCE.by("url", read=_page),
    ),
    "ampwatch_collector_success": (
        "Whether the newest pass of the collector succeeded (1) or not (0).",
        _PER_COLLECTOR.one(lambda done: int(done.success)),
    ),
    "ampwatch_collector_duration_seconds": (
        "Time the newest pass of the collector took.",
        _PER_COLLECTOR.one(lambda done: done.duration_seconds),
    ),
    "ampwatch_rings_unreadable": (
        "Ring files that this daemon cannot read: of another version, or damaged.",
        ONCE.one(lambda state: len(state.fleet.problems)),
    ),
    "ampwatch_ranks_left_out": (
        "Ranks beyond 256, which this daemon knows and does not export.",
        ONCE.one(lambda state: state.fleet.num_left_out),
    ),
}


_MEMORY: NewestRecord[records.MemoryRecord] = NewestRecord(lambda rank: rank.memory)


def _of_each_place(read: Callable[[records.PlaceMemory], int]) -> Reader:
    """Return the reader of a number of bytes of each place, absent where it is not known."""

    def table(record: records.MemoryRecord) -> Table:
        # By place: a ring is another process's, which may name one twice.
        known = {place.place: read(place) for place in record.places}
        return [((place,), nbytes) for place, nbytes in known.items() if nbytes >= 0]

    return _MEMORY.by("memory", read=table)


TRAINING_MEMORY: Rows = {
    "ampwatch_training_memory_allocated_bytes": (
        "Memory in use by the training process: allocated by PyTorch on its first device; on the host the resident set.",
        _of_each_place(lambda place: place.allocated),
    ),
    "ampwatch_training_memory_peak_bytes": (
        "Most memory in use by the training process so far; on a device since torch.cuda.reset_peak_memory_stats().",
        _of_each_place(lambda place: place.peak),
    ),
    "ampwatch_training_memory_reserved_bytes": (
        "Memory of the first device that PyTorch's allocator holds, in use or not.",
        _of_each_place(lambda place: place.reserved),
    ),
    "ampwatch_training_memory_capacity_bytes": (
        "Memory of the device, and of the container or host.",
        _of_each_place(lambda place: place.limit),
    ),
}


STEPS_AND_LOSS: Rows = {
    **exported((*facts.WHOLE_RUN, *facts.STEPS)),
    "ampwatch_optimizer_steps_total": (
        "Optimizer steps attempted, applied and skipped.",
        PER_OPTIMIZER.one(lambda optimizer: optimizer.total_steps),
    ),
    "ampwatch_optimizer_steps_skipped_total": (
        "Optimizer steps skipped because of non-finite gradients, by skip class.",
        PER_OPTIMIZER.by(
            "class",
            read=lambda optimizer: [
                ((skip.label,), total)
                for skip, total in zip(records.SKIP_CLASSES, optimizer.total_skipped, strict=True)
            ],
        ),
    ),
    "ampwatch_optimizer_consecutive_skipped_steps_max": (
        "Longest run of skipped iterations of the last 60 to 120 s.",
        PER_RANK.one(lambda rank: rank.consecutive_skips_max),
    ),
    "ampwatch_step_duration_seconds": (
        "Wall time of iterations, since this daemon started.",
        PER_RANK.histogram(read=lambda rank: [((), rank.durations.distribution())]),
    ),
}

LOSS_SCALING: Rows = {
    **exported(facts.SCALE),
    "ampwatch_loss_scale_min": (
        "Smallest loss scale of the last 60 to 120 s, so that no dip is missed between scrapes.",
        PER_RANK.one(lambda rank: rank.loss_scale_min),
    ),
}

TIMES: Rows = {
    **exported(facts.TIMES),
    "ampwatch_step_phase_seconds": (
        "Time of each phase of an iteration, by the clock of the host in each and of the device in every fourth; only phases that were seen.",
        PER_RANK.histogram("phase", "clock", read=lambda rank: rank.phase_times.distributions()),
    ),
}


_TOPICS = [(topic, (topic.label,)) for topic in records.Topic]
"""Every topic with the values of its label."""


def _newest_samples(rank: RankView) -> Table:
    for topic, values in _TOPICS:
        time_ns = rank.ranges.sampled_ns(topic)
        if time_ns is not None:
            yield values, time_ns / 1e9


def _standard_errors(rank: RankView) -> Table:
    """Yield, per topic that was measured, the largest standard error of a share in any module.

    A share p of n counted elements has the standard error sqrt(p (1 - p) / n): at most 0.5 / sqrt(n),
    which the module with the fewest counted elements decides.
    """
    for topic, values in _TOPICS:
        modules = rank.ranges.modules.counted.get(topic)
        if modules:
            fewest = min(filter(None, modules.values()), default=0)
            yield values, 0.5 / math.sqrt(fewest) if fewest else 0.0


SAMPLING: Rows = {
    **exported(facts.SAMPLING),
    "ampwatch_samples_total": (
        "Iterations in which tensors were measured, by topic.",
        TOTALS.counts(
            "topic", [topic.label for topic in records.Topic], lambda totals: totals.samples
        ),
    ),
    "ampwatch_last_sample_timestamp_seconds": (
        "Unix time of the newest recorded measurement; at most ten a second, unless something is NaN or infinite.",
        PER_RANK.by("topic", read=_newest_samples),
    ),
    "ampwatch_sample_standard_error_ratio": (
        "Largest standard error of a share of elements in any module, where a subsample is counted; 0 where all are. Maxima, NaN and infinities are always those of all elements.",
        PER_RANK.by("topic", read=_standard_errors),
    ),
    "ampwatch_sampling_interval_steps": (
        "Iterations from one sample to the next, as the overhead budget allows now.",
        PER_RANK.one(lambda rank: rank.sampling_interval),
    ),
    "ampwatch_modules_untracked": (
        "Measured modules without series on this rank (settings module_series and module_series_ranks).",
        PER_RANK.one(lambda rank: rank.ranges.modules.num_untracked),
    ),
}
