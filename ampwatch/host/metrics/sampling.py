"""Metrics of sampling: how often tensors are measured, how exactly, and what is left out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.host.metrics.metric import Metric
from ampwatch.host.metrics.scopes import PER_RANK, TOTALS, exported
from ampwatch.state import facts
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from ampwatch.host.fleet import RankView
    from ampwatch.host.metrics.scopes import Table
    from ampwatch.wire.records import SamplingRecord

_TOPICS = [(topic, (topic.label,)) for topic in Topic]
"""Every topic with the values of its label."""


def _samples(totals: SamplingRecord | None) -> Table:
    for topic, values in _TOPICS:
        yield values, 0 if totals is None else totals.samples[topic]


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


SAMPLING: tuple[Metric, ...] = (
    *exported(facts.SAMPLING),
    Metric(
        "ampwatch_samples_total",
        "Iterations in which tensors were measured, by what they are.",
        TOTALS.or_none.by("topic", read=_samples),
    ),
    Metric(
        "ampwatch_last_sample_timestamp_seconds",
        "Unix time of the newest measurement that was recorded, by what was measured; at most ten a second are, unless something is NaN or infinite.",
        PER_RANK.by("topic", read=_newest_samples),
    ),
    Metric(
        "ampwatch_sample_standard_error_ratio",
        "What a share of elements in any module may be off by (largest standard error, of a share of one half), where not all of its elements were counted; 0 where all were. Largest magnitudes, NaN and infinities are always those of all elements.",
        PER_RANK.by("topic", read=_standard_errors),
    ),
    Metric(
        "ampwatch_sampling_interval_steps",
        "Iterations from one sampled one to the next, as the overhead budget has it now; those since the last one if they are more.",
        PER_RANK.one(lambda rank: rank.sampling_interval),
    ),
    Metric(
        "ampwatch_modules_untracked",
        "Measured modules of which this rank exports no series, because of the settings module_series and module_series_ranks.",
        PER_RANK.one(lambda rank: rank.ranges.modules.num_untracked),
    ),
)
