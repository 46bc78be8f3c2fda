"""Metrics of the loss scale and of the GradScaler that moves it."""

from __future__ import annotations

import math

from ampwatch.host.metrics.metric import Metric
from ampwatch.host.metrics.scopes import PER_RANK, STEP, part


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
        "gauge",
        "Current loss scale of the GradScaler; absent without an enabled one.",
        PER_RANK.one(lambda rank: rank.loss_scale),
    ),
    Metric(
        "ampwatch_loss_scale_min",
        "gauge",
        "Smallest loss scale of the last 60 s (up to 120 s), so that a dip between two scrapes is seen.",
        PER_RANK.one(lambda rank: rank.loss_scale_min),
    ),
    Metric(
        "ampwatch_loss_scale_initial",
        "gauge",
        "Loss scale the GradScaler started from (init_scale).",
        _FACTS.one(lambda facts: _number(facts.get("init_scale", ""))),
    ),
    Metric(
        "ampwatch_loss_scale_growth_interval_steps",
        "gauge",
        "Consecutive unskipped steps after which the GradScaler grows the scale (growth_interval).",
        _FACTS.one(lambda facts: _number(facts.get("growth_interval", ""))),
    ),
    Metric(
        "ampwatch_loss_scale_growth_tracker_steps",
        "gauge",
        "Consecutive unskipped steps the GradScaler has counted so far.",
        STEP.one(lambda step: step.growth_tracker if step.growth_tracker >= 0 else None),
    ),
    Metric(
        "ampwatch_loss_scale_growths_total",
        "counter",
        "Times the GradScaler grew the loss scale.",
        STEP.count(lambda step: step.total_growths),
    ),
    Metric(
        "ampwatch_loss_scale_backoffs_total",
        "counter",
        "Times the GradScaler reduced the loss scale after non-finite gradients.",
        STEP.count(lambda step: step.total_backoffs),
    ),
    Metric(
        "ampwatch_loss_scale_set_by_hand_total",
        "counter",
        "Times the loss scale changed in another way than by the GradScaler's own growth or backoff.",
        STEP.count(lambda step: step.total_set_by_hand),
    ),
)
