"""Metrics of iterations, of the steps of each optimizer, and of the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.host.metrics.metric import Metric
from ampwatch.host.metrics.scopes import PER_OPTIMIZER, PER_RANK, STEP
from ampwatch.wire.records import SKIP_CLASSES

if TYPE_CHECKING:
    from ampwatch.host.metrics.scopes import Table
    from ampwatch.wire.records import OptimizerRecord


def _skips(optimizer: OptimizerRecord) -> Table:
    for skip, total in zip(SKIP_CLASSES, optimizer.total_skipped, strict=True):
        yield (skip.label,), total


STEPS_AND_LOSS: tuple[Metric, ...] = (
    Metric(
        "ampwatch_steps_total",
        "counter",
        "Iterations of the training loop, one per update of the GradScaler, skipped ones included.",
        STEP.count(lambda step: step.step + 1),
    ),
    Metric(
        "ampwatch_optimizer_steps_total",
        "counter",
        "Optimizer steps attempted, applied and skipped.",
        PER_OPTIMIZER.one(lambda optimizer: optimizer.total_steps),
    ),
    Metric(
        "ampwatch_optimizer_steps_skipped_total",
        "counter",
        "Optimizer steps the GradScaler skipped because of non-finite gradients, by why it happened.",
        PER_OPTIMIZER.by("class", read=_skips),
    ),
    Metric(
        "ampwatch_optimizer_consecutive_skipped_steps",
        "gauge",
        "Length of the current run of skipped iterations.",
        STEP.count(lambda step: step.consecutive_skips),
    ),
    Metric(
        "ampwatch_optimizer_consecutive_skipped_steps_max",
        "gauge",
        "Longest run of skipped iterations of the last 60 s (up to 120 s), so that one between two scrapes is seen.",
        PER_RANK.one(lambda rank: rank.consecutive_skips_max),
    ),
    Metric(
        "ampwatch_last_step_timestamp_seconds",
        "gauge",
        "Unix time at which the newest iteration ended.",
        STEP.one(lambda step: step.time_ns / 1e9),
        unit="seconds",
    ),
    Metric(
        "ampwatch_last_applied_step_timestamp_seconds",
        "gauge",
        "Unix time at which the newest iteration ended in which no optimizer step was skipped.",
        PER_RANK.one(lambda rank: rank.last_applied_ns / 1e9 if rank.last_applied_ns else None),
        unit="seconds",
    ),
    Metric(
        "ampwatch_step_duration_seconds",
        "histogram",
        "Wall time between the ends of consecutive iterations, of those this daemon has read: starts again with it, without what was in the ring before.",
        PER_RANK.one(lambda rank: rank.durations.distribution()),
        unit="seconds",
    ),
    Metric(
        "ampwatch_loss",
        "gauge",
        "Newest loss handed to GradScaler.scale(), unscaled; NaN or infinite if the loss is.",
        PER_RANK.one(lambda rank: rank.loss),
    ),
    Metric(
        "ampwatch_loss_nonfinite_total",
        "counter",
        "Iterations in which a loss was NaN or infinite.",
        STEP.count(lambda step: step.total_nonfinite_losses),
    ),
)
