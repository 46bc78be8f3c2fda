"""Is ampwatch itself well? What it costs, what it could not see, which version runs where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.source.fields import BAD, GOOD, described, words
from dashboards.source.panels import Stat, StateTimeline, TimeSeries
from dashboards.source.queries import Query, of, rate, smallest

if TYPE_CHECKING:
    from dashboards.source.tables import Table


def of_ampwatch() -> tuple[TimeSeries | StateTimeline | Table | Stat, ...]:
    """Return the panels of the row."""
    return (
        TimeSeries(
            id=402,
            title="What ampwatch missed",
            description=described(
                shows="Per second, over all runs: steps and samples it did not read because the"
                " device was too far behind, records that found no place in the ring or were"
                " overwritten there, findings beyond those that are kept, exceptions inside a"
                " sensor.",
                good="0.",
                act="sensor errors: look in the log of the training, the sensor is off since then."
                " Records lost: the daemon was down or slow. Samples dropped: nothing to do, the"
                " counters stay right.",
                metrics=[
                    "ampwatch_observations_dropped_total",
                    "ampwatch_samples_dropped_total",
                    "ampwatch_ring_records_dropped_total",
                    "ampwatch_ring_records_lost_total",
                    "ampwatch_sensor_errors_total",
                    "ampwatch_finding_records_left_out_total",
                ],
            ),
            unit="cps",
            no_value="No run is watched",
            queries=tuple(
                Query(f"sum({rate(metric)})", legend=legend)
                for metric, legend in {
                    "ampwatch_sensor_errors_total": "sensor errors",
                    "ampwatch_observations_dropped_total": "steps not read",
                    "ampwatch_samples_dropped_total": "samples dropped",
                    "ampwatch_ring_records_dropped_total": "records without a place",
                    "ampwatch_ring_records_lost_total": "records overwritten",
                    "ampwatch_finding_records_left_out_total": "findings left out",
                }.items()
            ),
            minimum=0,
        ),
        StateTimeline(
            id=403,
            title="Collectors, failing ones first (20)",
            description=described(
                shows="Whether the newest pass of each collector succeeded: rings reads the training"
                " processes, gpu the GPUs. At most 20, those that failed before the others.",
                good="ok everywhere.",
                act="gpu: see the dashboard GPU, which says what NVML answered. rings: the log of"
                " the daemon names the file.",
                metrics=["ampwatch_collector_success"],
            ),
            unit="none",
            no_value="No ampwatch target",
            queries=(
                Query(
                    smallest(20, of("ampwatch_collector_success")),
                    legend="{{instance}} {{collector}}",
                ),
            ),
            mappings=(words({1: ("ok", GOOD), 0: ("failed", BAD)}),),
        ),
    )
