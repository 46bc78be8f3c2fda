"""Ranks that are slow, and ranks that scale or skip differently from the others of their run."""

from __future__ import annotations

from dashboards.source.fields import GOOD, WARN, Step, described, thresholds
from dashboards.source.links import label, to_dashboard
from dashboards.source.measures import NO_SCALER
from dashboards.source.panels import TimeSeries
from dashboards.source.queries import Query, largest, of, rate

TOP = 5
"""Ranks that have a line of their own in a time series."""

STEP_SECONDS = (
    f"({rate('ampwatch_step_duration_seconds_sum')}"
    f" / ({rate('ampwatch_step_duration_seconds_count')} > 0))"
)
"""PromQL of the mean step time of each rank."""

THIS_RANK = (
    to_dashboard("This rank alone", "ampwatch-run", run=label("run"), rank=label("rank")),
    to_dashboard("The GPUs of its machine", "ampwatch-gpu", instance=label("instance")),
)
"""Link behind the line of a rank."""


def to_median(expr: str) -> str:
    """Return PromQL of ``expr`` over its median of the ranks of the run."""
    return f"{expr} / on (job, run) group_left () (quantile by (job, run) (0.5, {expr}) > 0)"


_BANDS = {1.0: "largest", 0.95: "95 %", 0.5: "median", 0.05: "5 %", 0.0: "smallest"}


def bands(expr: str, *shares: float) -> tuple[Query, ...]:
    """Return quantiles of the ranks of each run.

    Args:
        expr: PromQL with one series for each rank.
        shares: Which ones; without, the smallest, the median, the largest and where 90 % lie.
    """
    return tuple(
        Query(f"quantile by (run) ({share:g}, {expr})", legend=f"{_BANDS[share]} {{{{run}}}}")
        for share in shares or _BANDS
    )


def outliers(expr: str) -> tuple[Query, ...]:
    """Return the few ranks with the largest values over the time range, each with its name."""
    return (Query(largest(TOP, expr), legend="{{run}} rank {{rank}} on {{instance}}"),)


def slow() -> tuple[TimeSeries, ...]:
    """Return how step times spread over the ranks, and who is slow."""
    metrics = ["ampwatch_step_duration_seconds"]
    return (
        TimeSeries(
            id=201,
            title="Step time over the ranks",
            description=described(
                shows="Mean step time of the ranks: smallest, largest, median, and the band in which"
                " nine of ten lie.",
                good="all lines close together.",
                act="largest far above 95 %: one straggler, named on the right. All of them up: not"
                " a rank, but the network, the storage or the data.",
                metrics=metrics,
            ),
            unit="s",
            no_value="No step has ended in this time",
            queries=bands(STEP_SECONDS),
            minimum=0,
        ),
        TimeSeries(
            id=202,
            title=f"Slowest ranks, to the median ({TOP})",
            description=described(
                shows="Mean step time over that of the median rank of the run, of the slowest.",
                good="1.00 to 1.05.",
                act="a rank that stays above: look at the clocks, temperature and throttling of its"
                " GPU (a click leads there), then at its CPU and disk. A rank that changes all the"
                " time: uneven batches.",
                metrics=metrics,
            ),
            unit="none",
            no_value="No step has ended in this time",
            queries=outliers(to_median(STEP_SECONDS)),
            reaches_from=0.95,
            reaches_to=1.2,
            decimals=2,
            thresholds=thresholds(GOOD, Step(1.05, WARN)),
            links=THIS_RANK,
        ),
    )


def agreement() -> tuple[TimeSeries, ...]:
    """Return whether all ranks of a run scale and skip alike."""
    return (
        TimeSeries(
            id=301,
            title="How many ranks have which loss scale",
            description=described(
                shows="One area for each loss scale that a rank has; its height is the number of"
                " ranks with it.",
                good="one area at a time: all ranks change together.",
                act="two areas side by side for more than a scrape: the ranks disagree about what"
                " overflows, so some skip what others apply (rank_found_inf_mismatch). Use"
                " ShardedGradScaler, or all-reduce found_inf before the step.",
                metrics=["ampwatch_loss_scale"],
            ),
            unit="none",
            no_value=NO_SCALER,
            queries=(
                Query(
                    f'count_values by (run) ("scale", {of("ampwatch_loss_scale")})',
                    legend="{{scale}} {{run}}",
                ),
            ),
            stacked=True,
            minimum=0,
        ),
    )
