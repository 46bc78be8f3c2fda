"""Metrics of the loss scale, of iterations and the steps of each optimizer, and of where their time goes."""

from __future__ import annotations

import math

from ampwatch.host.metrics.metric import Metric
from ampwatch.host.metrics.scopes import PER_OPTIMIZER, PER_RANK, STEP, part
from ampwatch.wire.records import SKIP_CLASSES

STEPS_AND_LOSS: tuple[Metric, ...] = (
    Metric(
        "ampwatch_steps_total",
        "Iterations of the training loop, one per update of the GradScaler, skipped ones included.",
        STEP.count(lambda step: step.step + 1),
    ),
    Metric(
        "ampwatch_optimizer_steps_total",
        "Optimizer steps attempted, applied and skipped.",
        PER_OPTIMIZER.one(lambda optimizer: optimizer.total_steps),
    ),
    Metric(
        "ampwatch_optimizer_steps_skipped_total",
        "Optimizer steps the GradScaler skipped because of non-finite gradients, by why it happened.",
        PER_OPTIMIZER.by(
            "class",
            read=lambda optimizer: [
                ((skip.label,), total)
                for skip, total in zip(SKIP_CLASSES, optimizer.total_skipped, strict=True)
            ],
        ),
    ),
    Metric(
        "ampwatch_optimizer_consecutive_skipped_steps",
        "Length of the current run of skipped iterations.",
        STEP.count(lambda step: step.consecutive_skips),
    ),
    Metric(
        "ampwatch_optimizer_consecutive_skipped_steps_max",
        "Longest run of skipped iterations of the last 60 s (up to 120 s), so that one between two scrapes is seen.",
        PER_RANK.one(lambda rank: rank.consecutive_skips_max),
    ),
    Metric(
        "ampwatch_last_step_timestamp_seconds",
        "Unix time at which the newest iteration ended.",
        STEP.one(lambda step: step.time_ns / 1e9),
    ),
    Metric(
        "ampwatch_last_applied_step_timestamp_seconds",
        "Unix time at which the newest iteration ended in which no optimizer step was skipped.",
        PER_RANK.one(lambda rank: rank.last_applied_ns / 1e9 if rank.last_applied_ns else None),
    ),
    Metric(
        "ampwatch_step_duration_seconds",
        "Wall time between the ends of consecutive iterations, of those this daemon has read: starts again with it, without what was in the ring before.",
        PER_RANK.one(lambda rank: rank.durations.distribution()),
        is_histogram=True,
    ),
    Metric(
        "ampwatch_loss",
        "Newest loss handed to GradScaler.scale(), unscaled; NaN or infinite if the loss is.",
        PER_RANK.one(lambda rank: rank.loss),
    ),
    Metric(
        "ampwatch_loss_nonfinite_total",
        "Iterations in which a loss was NaN or infinite.",
        STEP.count(lambda step: step.total_nonfinite_losses),
    ),
)


def _number(text: str) -> float | None:
    """Return a fact that should be a finite number; ``None`` if it is not: a ring can hold any text."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


_FACTS = part(lambda rank: rank.facts)

LOSS_SCALING: tuple[Metric, ...] = (
    Metric(
        "ampwatch_loss_scale",
        "Current loss scale of the GradScaler; absent without an enabled one.",
        PER_RANK.one(lambda rank: rank.loss_scale),
    ),
    Metric(
        "ampwatch_loss_scale_min",
        "Smallest loss scale of the last 60 s (up to 120 s), so that a dip between two scrapes is seen.",
        PER_RANK.one(lambda rank: rank.loss_scale_min),
    ),
    Metric(
        "ampwatch_loss_scale_initial",
        "Loss scale the GradScaler started from (init_scale).",
        _FACTS.one(lambda facts: _number(facts.get("init_scale", ""))),
    ),
    Metric(
        "ampwatch_loss_scale_growth_interval_steps",
        "Consecutive unskipped steps after which the GradScaler grows the scale (growth_interval).",
        _FACTS.one(lambda facts: _number(facts.get("growth_interval", ""))),
    ),
    Metric(
        "ampwatch_loss_scale_growth_tracker_steps",
        "Consecutive unskipped steps the GradScaler has counted so far.",
        STEP.one(lambda step: step.growth_tracker if step.growth_tracker >= 0 else None),
    ),
    Metric(
        "ampwatch_loss_scale_growths_total",
        "Times the GradScaler grew the loss scale.",
        STEP.count(lambda step: step.total_growths),
    ),
    Metric(
        "ampwatch_loss_scale_backoffs_total",
        "Times the GradScaler reduced the loss scale after non-finite gradients.",
        STEP.count(lambda step: step.total_backoffs),
    ),
    Metric(
        "ampwatch_loss_scale_set_by_hand_total",
        "Times the loss scale changed in another way than by the GradScaler's own growth or backoff.",
        STEP.count(lambda step: step.total_set_by_hand),
    ),
)


def _seconds(nanoseconds: int) -> float | None:
    return nanoseconds / 1e9 if nanoseconds >= 0 else None


def _told(count: int) -> float | None:
    return count if count >= 0 else None


TIMES: tuple[Metric, ...] = (
    Metric(
        "ampwatch_step_phase_seconds",
        "Time of each phase of an iteration, by the clock of the host in each iteration and by that of the device in every fourth: a phase that was not seen in an iteration is not counted, and of several that cannot be told apart there is one.",
        PER_RANK.by("phase", "clock", read=lambda rank: rank.phase_times.distributions()),
        is_histogram=True,
    ),
    Metric(
        "ampwatch_trained_samples_total",
        "Samples the rank has trained on, where the program says so (Monitor.batch).",
        STEP.one(lambda step: _told(step.total_samples)),
    ),
    Metric(
        "ampwatch_trained_tokens_total",
        "Tokens the rank has trained on, where the program says so (Monitor.batch).",
        STEP.one(lambda step: _told(step.total_tokens)),
    ),
    Metric(
        "ampwatch_training_thread_cpu_seconds_total",
        "CPU time of the training thread since it began, where the system tells (Linux).",
        STEP.one(lambda step: _seconds(step.cpu_ns)),
    ),
    Metric(
        "ampwatch_training_thread_run_delay_seconds_total",
        "Time in which the training thread could run and had no core: the host is busy (Linux).",
        STEP.one(lambda step: _seconds(step.run_delay_ns)),
    ),
)
