"""Ranks whose loss, gradients or findings differ from those of the others of their run."""

from __future__ import annotations

from dashboards.source.fields import described
from dashboards.source.links import field, to_dashboard
from dashboards.source.measures import LOSS_REACHES, NO_MAGNITUDE
from dashboards.source.panels import TimeSeries
from dashboards.source.queries import Query, having, increase, of, rate
from dashboards.source.ranks_apart import THIS_RANK, TOP, bands, outliers
from dashboards.source.states import ADVICE_KEY, FINDING_KEYS, finding_columns
from dashboards.source.tables import Key, Table

_FINITE = f"({of('ampwatch_loss')} < Inf > -Inf)"
_NO_FINITE_LOSS = "No finite loss was seen: see the panel on losses that are not finite; or ampwatch is not handed one"
_ROOT_CAUSES = of("ampwatch_finding_last_seen_timestamp_seconds", having("root", "true"))
_AMAX = f"({of('ampwatch_scaled_gradient_amax_max')} > 0)"


def numbers() -> tuple[TimeSeries | Table, ...]:
    """Return the panels of the row."""
    nonfinite = (
        "sum by (job, instance, run, rank)"
        f" ({rate('ampwatch_gradient_nonfinite_elements_total')}) > 0"
    )
    return (
        TimeSeries(
            id=401,
            title="Loss over the ranks",
            description=described(
                shows="Newest loss of the ranks: smallest, largest, median, and the band in which"
                " nine of ten lie. Ranks whose loss is NaN or infinite are left out; the panel below has them.",
                good="a band that does not widen: ranks see other batches, not other weights.",
                act="it widens: weights drift apart, or one rank reads other data.",
                metrics=["ampwatch_loss"],
            ),
            unit="short",
            no_value=_NO_FINITE_LOSS,
            queries=bands(_FINITE),
            reaches_to=LOSS_REACHES,
            width=8,
        ),
        TimeSeries(
            id=402,
            title=f"Ranks whose loss is farthest from the median ({TOP})",
            description=described(
                shows="Distance of the loss from the median of the run, of ranks whose loss is finite.",
                good="about alike, and changing: that is the noise of the batches.",
                act="one stays above the others: its data or its hardware. Move the job off that machine"
                " and see whether it stays with the data.",
                metrics=["ampwatch_loss"],
            ),
            unit="short",
            no_value=_NO_FINITE_LOSS,
            queries=outliers(
                f"abs({_FINITE} - on (job, run) group_left ()"
                f" quantile by (job, run) (0.5, {_FINITE}))"
            ),
            minimum=0,
            width=8,
            links=THIS_RANK,
        ),
        TimeSeries(
            id=403,
            title=f"Ranks with NaN or infinite gradients ({TOP})",
            description=described(
                shows="Non-finite gradient elements per second, of the ranks that have most.",
                good="nothing, or all ranks alike after a gradient was reduced.",
                act="one rank alone: it is where the overflow is born, before the reduction spreads"
                " it. Open it: its findings name the op.",
                metrics=["ampwatch_gradient_nonfinite_elements_total"],
            ),
            unit="cps",
            no_value="All gradients that were looked at are finite, or none was looked at",
            queries=outliers(nonfinite),
            minimum=0,
            width=8,
            links=THIS_RANK,
        ),
        TimeSeries(
            id=404,
            title="Largest gradient over the ranks",
            description=described(
                shows="Largest scaled gradient magnitude of the ranks: smallest, largest, median, and"
                " the band in which nine of ten lie. Each line of the grid is a factor of two.",
                good="one line, where gradients are reduced before they are measured (DDP); a narrow"
                " band, where each rank has a shard (FSDP).",
                act="under DDP a band means that the ranks do not have the same gradients.",
                metrics=["ampwatch_scaled_gradient_amax_max"],
            ),
            unit="sci",
            no_value=NO_MAGNITUDE,
            queries=bands(_AMAX),
            log2=True,
            width=8,
        ),
        TimeSeries(
            id=405,
            title=f"Ranks whose largest gradient differs most ({TOP})",
            description=described(
                shows="Doublings between the largest gradient of the rank and the median of its run,"
                " in either direction.",
                good="below 1.",
                act="3 and more, and it stays there: look at its data, then at its GPU.",
                metrics=["ampwatch_scaled_gradient_amax_max"],
            ),
            unit="none",
            no_value=NO_MAGNITUDE,
            queries=outliers(
                f"abs(log2({_AMAX} / on (job, run) group_left ()"
                f" quantile by (job, run) (0.5, {_AMAX})))"
            ),
            decimals=1,
            minimum=0,
            width=8,
            links=THIS_RANK,
        ),
        TimeSeries(
            id=406,
            title="How many ranks have which finding",
            description=described(
                shows="Ranks on which each finding was seen within the last 10 minutes; root causes"
                " only.",
                good="nothing.",
                act="a finding of one or a few ranks is about their data or machines; one of all"
                " ranks is about the code.",
                metrics=["ampwatch_finding_last_seen_timestamp_seconds"],
            ),
            unit="none",
            no_value="Nothing was found on any rank",
            queries=(
                Query(
                    f"count by (run, kind) ({_ROOT_CAUSES} > time() - 600)",
                    legend="{{kind}} {{run}}",
                ),
            ),
            minimum=0,
            width=8,
        ),
        TimeSeries(
            id=408,
            title=f"Ranks whose loss is not finite ({TOP})",
            description=described(
                shows="Iterations with a NaN or infinite loss between two points of the graph, of"
                " the ranks that had most.",
                good="nothing.",
                act="one rank alone: its data, or its GPU; its findings name the op. All ranks:"
                " the model has overflowed, or the weights are not finite any more.",
                metrics=["ampwatch_loss_nonfinite_total"],
            ),
            unit="short",
            no_value="No loss was NaN or infinite on the chosen ranks",
            queries=outliers(f"{increase('ampwatch_loss_nonfinite_total')} > 0"),
            bars=True,
            minimum=0,
            width=8,
            links=THIS_RANK,
        ),
        Table(
            id=407,
            title="Findings of the ranks",
            description=described(
                shows="What was found, newest first, and on how many ranks. Choose one rank above to"
                " see those of it alone.",
                good="empty.",
                act="compare Ranks with the number of ranks: few of many means data or machines.",
                metrics=["ampwatch_finding_last_seen_timestamp_seconds", "ampwatch_findings"],
            ),
            unit="none",
            no_value="Nothing was found on the chosen ranks",
            width=16,
            keys=(
                Key(
                    label="run",
                    title="Run",
                    links=(to_dashboard("Open this run", "ampwatch-run", run=field("Run")),),
                    width=160,
                ),
                *FINDING_KEYS,
                ADVICE_KEY,
            ),
            sort_by="Last seen",
            columns=finding_columns("run"),
        ),
    )
