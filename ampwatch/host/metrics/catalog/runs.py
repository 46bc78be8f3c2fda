"""Metrics of the daemon, of runs, loss scaling and steps."""

from __future__ import annotations

from ampwatch.host.metrics.catalog.metric import Metric
from ampwatch.host.metrics.catalog.vocabulary import RANK, RUN_FACTS

DAEMON: tuple[Metric, ...] = (
    Metric(
        "ampwatch_build_info",
        "info",
        ("version",),
        "Version of the ampwatch daemon (value is always 1).",
    ),
    Metric(
        "ampwatch_collector_success",
        "gauge",
        ("collector",),
        "Whether the newest pass of the collector succeeded (1) or not (0).",
    ),
    Metric(
        "ampwatch_collector_duration_seconds",
        "gauge",
        ("collector",),
        "Time the newest pass of the collector took.",
        "seconds",
    ),
    Metric(
        "ampwatch_rings_unreadable",
        "gauge",
        (),
        "Ring files found that this daemon cannot read: written by another version, or damaged.",
    ),
    Metric(
        "ampwatch_ranks_left_out",
        "gauge",
        (),
        "Ranks that this daemon knows and does not export, because there are more than the setting max_ranks.",
    ),
)

RUN: tuple[Metric, ...] = (
    Metric(
        "ampwatch_run_info",
        "info",
        (*RANK, "world_size", "local_rank", "version", *RUN_FACTS),
        "Static facts of a monitored rank; a fact that is not known is empty (value is always 1).",
    ),
    Metric(
        "ampwatch_run_state",
        "gauge",
        (*RANK, "state"),
        "Whether the rank is in the given state (1) or not (0).",
    ),
    Metric(
        "ampwatch_run_start_timestamp_seconds",
        "gauge",
        RANK,
        "Unix time at which ampwatch.monitor() was called on this rank.",
        "seconds",
    ),
    Metric(
        "ampwatch_last_report_timestamp_seconds",
        "gauge",
        RANK,
        "Unix time of the newest report of this rank: its start, a step or its end.",
        "seconds",
    ),
    Metric(
        "ampwatch_overhead_seconds_total",
        "counter",
        RANK,
        "Host time that ampwatch spent on the training thread.",
        "seconds",
    ),
    Metric(
        "ampwatch_observations_dropped_total",
        "counter",
        RANK,
        "Steps whose values ampwatch did not read because the device was too far behind.",
    ),
    Metric(
        "ampwatch_sensor_errors_total",
        "counter",
        RANK,
        "Exceptions inside ampwatch that it kept from the training loop.",
    ),
    Metric(
        "ampwatch_ring_records_dropped_total",
        "counter",
        RANK,
        "Records that the training process could not write into its ring.",
    ),
    Metric(
        "ampwatch_ring_records_lost_total",
        "counter",
        RANK,
        "Slots of the ring that were overwritten or unreadable before the daemon read them; a record takes one or more.",
    ),
)

LOSS_SCALING: tuple[Metric, ...] = (
    Metric(
        "ampwatch_loss_scale",
        "gauge",
        RANK,
        "Current loss scale of the GradScaler; absent without an enabled one.",
    ),
    Metric(
        "ampwatch_loss_scale_min",
        "gauge",
        RANK,
        "Smallest loss scale of the last 60 s (up to 120 s), so that a dip between two scrapes is seen.",
    ),
    Metric(
        "ampwatch_loss_scale_initial",
        "gauge",
        RANK,
        "Loss scale the GradScaler started from (init_scale).",
    ),
    Metric(
        "ampwatch_loss_scale_growth_interval_steps",
        "gauge",
        RANK,
        "Consecutive unskipped steps after which the GradScaler grows the scale (growth_interval).",
    ),
    Metric(
        "ampwatch_loss_scale_growth_tracker_steps",
        "gauge",
        RANK,
        "Consecutive unskipped steps the GradScaler has counted so far.",
    ),
    Metric(
        "ampwatch_loss_scale_growths_total",
        "counter",
        RANK,
        "Times the GradScaler grew the loss scale.",
    ),
    Metric(
        "ampwatch_loss_scale_backoffs_total",
        "counter",
        RANK,
        "Times the GradScaler reduced the loss scale after non-finite gradients.",
    ),
    Metric(
        "ampwatch_loss_scale_set_by_hand_total",
        "counter",
        RANK,
        "Times the loss scale changed in another way than by the GradScaler's own growth or backoff.",
    ),
)

STEPS_AND_LOSS: tuple[Metric, ...] = (
    Metric(
        "ampwatch_steps_total",
        "counter",
        RANK,
        "Iterations of the training loop, one per update of the GradScaler, skipped ones included.",
    ),
    Metric(
        "ampwatch_optimizer_steps_total",
        "counter",
        (*RANK, "optimizer"),
        "Optimizer steps attempted, applied and skipped.",
    ),
    Metric(
        "ampwatch_optimizer_steps_skipped_total",
        "counter",
        (*RANK, "optimizer", "class"),
        "Optimizer steps the GradScaler skipped because of non-finite gradients, by why it happened.",
    ),
    Metric(
        "ampwatch_optimizer_consecutive_skipped_steps",
        "gauge",
        RANK,
        "Length of the current run of skipped iterations.",
    ),
    Metric(
        "ampwatch_optimizer_consecutive_skipped_steps_max",
        "gauge",
        RANK,
        "Longest run of skipped iterations of the last 60 s (up to 120 s), so that one between two scrapes is seen.",
    ),
    Metric(
        "ampwatch_last_step_timestamp_seconds",
        "gauge",
        RANK,
        "Unix time at which the newest iteration ended.",
        "seconds",
    ),
    Metric(
        "ampwatch_last_applied_step_timestamp_seconds",
        "gauge",
        RANK,
        "Unix time at which the newest iteration ended in which no optimizer step was skipped.",
        "seconds",
    ),
    Metric(
        "ampwatch_step_duration_seconds",
        "histogram",
        RANK,
        "Wall time between the ends of consecutive iterations, of those this daemon has read: starts again with it, without what was in the ring before.",
        "seconds",
    ),
    Metric(
        "ampwatch_loss",
        "gauge",
        RANK,
        "Newest loss handed to GradScaler.scale(), unscaled; NaN or infinite if the loss is.",
    ),
    Metric(
        "ampwatch_loss_nonfinite_total",
        "counter",
        RANK,
        "Iterations in which a loss was NaN or infinite.",
    ),
)
