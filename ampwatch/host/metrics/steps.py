"""Metrics of the loss scale, of iterations and the steps of each optimizer, and of where their time goes."""

from __future__ import annotations

from ampwatch.host.metrics.metric import Metric
from ampwatch.host.metrics.scopes import PER_OPTIMIZER, PER_RANK, exported
from ampwatch.state import facts
from ampwatch.wire.records import SKIP_CLASSES

STEPS_AND_LOSS: tuple[Metric, ...] = (
    *exported((*facts.WHOLE_RUN, *facts.STEPS)),
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
        "ampwatch_optimizer_consecutive_skipped_steps_max",
        "Longest run of skipped iterations of the last 60 s (up to 120 s), so that one between two scrapes is seen.",
        PER_RANK.one(lambda rank: rank.consecutive_skips_max),
    ),
    Metric(
        "ampwatch_step_duration_seconds",
        "Wall time between the ends of consecutive iterations, of those this daemon has read: starts again with it, without what was in the ring before.",
        PER_RANK.one(lambda rank: rank.durations.distribution()),
        is_histogram=True,
    ),
)

LOSS_SCALING: tuple[Metric, ...] = (
    *exported(facts.SCALE),
    Metric(
        "ampwatch_loss_scale_min",
        "Smallest loss scale of the last 60 s (up to 120 s), so that a dip between two scrapes is seen.",
        PER_RANK.one(lambda rank: rank.loss_scale_min),
    ),
)

TIMES: tuple[Metric, ...] = (
    *exported(facts.TIMES),
    Metric(
        "ampwatch_step_phase_seconds",
        "Time of each phase of an iteration, by the clock of the host in each iteration and by that of the device in every fourth: a phase that was not seen in an iteration is not counted, and several that cannot be separated count as one.",
        PER_RANK.by("phase", "clock", read=lambda rank: rank.phase_times.distributions()),
        is_histogram=True,
    ),
)
