"""Is ampwatch itself well? What it costs, what it could not see, which version runs where."""

from __future__ import annotations

from dashboards.source.fields import BAD, GOOD, WARN, Step, described, thresholds, words
from dashboards.source.measures import OVERHEAD
from dashboards.source.panels import Stat, StateTimeline, TimeSeries
from dashboards.source.queries import Query, largest, of, rate, smallest
from dashboards.source.tables import Column, Key, Table


def of_ampwatch() -> tuple[TimeSeries | StateTimeline | Table | Stat, ...]:
    """Return the panels of the row."""
    return (
        TimeSeries(
            id=401,
            title="What watching costs",
            description=described(
                shows="Share of the time of the training thread that ampwatch takes, on the rank"
                " of each run that pays most.",
                good="below 1 %, the budget: sampling becomes rarer by itself to stay there.",
                act='above 2 %: raise sample_every, or monitor with level="light".',
                metrics=["ampwatch_overhead_seconds_total"],
            ),
            unit="percentunit",
            no_value="No run is watched",
            queries=(
                Query(
                    f"max by (run) ({rate('ampwatch_overhead_seconds_total')})", legend="{{run}}"
                ),
            ),
            minimum=0,
            thresholds=OVERHEAD,
            area=True,
        ),
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
        Table(
            id=404,
            title="Versions",
            description=described(
                shows="How many daemons run which version of ampwatch.",
                good="one version.",
                act="bring the older ones up to date: a daemon cannot read rings of a newer layout.",
                metrics=["ampwatch_build_info"],
            ),
            unit="none",
            no_value="No ampwatch target",
            width=6,
            keys=(Key(label="version", title="Version"),),
            sort_by="Version",
            columns=(
                Column(title="Daemons", expr=f"count by (version) ({of('ampwatch_build_info')})"),
            ),
        ),
        Stat(
            id=405,
            title="Not read",
            description=described(
                shows="Ring files that the daemons found and cannot read, of another version of"
                " ampwatch or damaged; and ranks beyond the setting max_ranks of a daemon.",
                good="0 and 0.",
                act="install the same version of ampwatch for the training and the daemon; raise"
                " max_ranks where a machine does have so many.",
                metrics=["ampwatch_rings_unreadable", "ampwatch_ranks_left_out"],
            ),
            unit="none",
            no_value="No ampwatch target",
            queries=(
                Query(f"sum({of('ampwatch_rings_unreadable')})", legend="rings"),
                Query(f"sum({of('ampwatch_ranks_left_out')})", legend="ranks"),
            ),
            thresholds=thresholds(GOOD, Step(1, WARN)),
            names=True,
            width=6,
            height=8,
        ),
        TimeSeries(
            id=406,
            title="Slowest collectors (5)",
            description=described(
                shows="How long the newest pass of a collector took, of the daemons where it took"
                " longest.",
                good="far below the scrape interval.",
                act="gpu takes seconds: the driver hangs, see the dashboard GPU. rings: the machine"
                " is short of CPU, or has more ranks than a daemon keeps up with.",
                metrics=["ampwatch_collector_duration_seconds"],
            ),
            unit="s",
            no_value="No ampwatch target",
            queries=(
                Query(
                    largest(5, of("ampwatch_collector_duration_seconds")),
                    legend="{{instance}} {{collector}}",
                ),
            ),
            minimum=0,
            width=12,
        ),
    )
