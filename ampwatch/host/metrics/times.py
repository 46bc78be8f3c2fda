"""Metrics of where the time of steps goes, and of how much is trained on in it."""

from __future__ import annotations

from ampwatch.host.metrics.metric import Metric
from ampwatch.host.metrics.scopes import PER_RANK, STEP


def _seconds(nanoseconds: int) -> float | None:
    return nanoseconds / 1e9 if nanoseconds >= 0 else None


def _told(count: int) -> float | None:
    return count if count >= 0 else None


TIMES: tuple[Metric, ...] = (
    Metric(
        "ampwatch_step_phase_seconds",
        "histogram",
        "Time of each phase of an iteration, by the clock of the host in each iteration and by that of the device in every fourth: a phase that was not seen in an iteration is not counted, and of several that cannot be told apart there is one.",
        PER_RANK.by("phase", "clock", read=lambda rank: rank.phase_times.distributions()),
        unit="seconds",
    ),
    Metric(
        "ampwatch_trained_samples_total",
        "counter",
        "Samples the rank has trained on, where the program says so (Monitor.batch).",
        STEP.one(lambda step: _told(step.total_samples)),
    ),
    Metric(
        "ampwatch_trained_tokens_total",
        "counter",
        "Tokens the rank has trained on, where the program says so (Monitor.batch).",
        STEP.one(lambda step: _told(step.total_tokens)),
    ),
    Metric(
        "ampwatch_training_thread_cpu_seconds_total",
        "counter",
        "CPU time of the training thread since it began, where the system tells (Linux).",
        STEP.one(lambda step: _seconds(step.cpu_ns)),
        unit="seconds",
    ),
    Metric(
        "ampwatch_training_thread_run_delay_seconds_total",
        "counter",
        "Time in which the training thread could run and had no core: the host is busy (Linux).",
        STEP.one(lambda step: _seconds(step.run_delay_ns)),
        unit="seconds",
    ),
)
