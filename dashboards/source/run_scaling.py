"""Row about skipped steps: the loss scale, and each skip by why it happened."""

from __future__ import annotations

from dashboards.source.fields import (
    BAD,
    GOOD,
    NEUTRAL,
    NOTE,
    WARN,
    Step,
    color,
    described,
    limit_line,
    thresholds,
)
from dashboards.source.measures import NO_SCALER, REPORT_AGE, SKIPPED, skipped_share, unfinished
from dashboards.source.panels import Stat, TimeSeries
from dashboards.source.queries import Query, having, increase, of

_CONSECUTIVE = thresholds(GOOD, Step(2, WARN), Step(16, BAD))
"""Thresholds of skips in a row: one is a probe; sixteen halvings take the scale from 65536 to 1."""


_FORECAST = thresholds(NEUTRAL, Step(0, BAD), Step(86400, WARN))
"""Thresholds of the forecast: that there is one is bad; within a day somebody has to be woken."""


def _forecast() -> str:
    """Return PromQL of the seconds until the scale is 2^-128, of runs whose scale still falls.

    The pace is that of five minutes. It is a forecast only while the last two have made the scale
    smaller as well: a burst that is over leads nowhere.
    """

    def net(over: str) -> str:
        def within(metric: str, *matchers: str) -> str:
            return increase(metric, *matchers, over=over)

        searched = within("ampwatch_optimizer_steps_skipped_total", having("class", "calibrating"))
        return (
            f"({within('ampwatch_loss_scale_backoffs_total')}"
            f" - {within('ampwatch_loss_scale_growths_total')}"
            f" - on (job, instance, run, rank) max without (optimizer, class) ({searched}) > 0.5)"
        )

    halvings = f"clamp_min(log2({of('ampwatch_loss_scale')}) + 128, 0)"
    on_rank = "on (job, instance, run, rank)"
    return f"min by (run) ({halvings} * 300 / {on_rank} {net('5m')} and {on_rank} {net('2m')})"


def scaling() -> tuple[TimeSeries | Stat, ...]:
    """Return the panels of the row."""
    return (
        TimeSeries(
            id=201,
            title="Loss scale, and the window in which nothing is lost",
            description=described(
                shows="The loss scale (smallest and largest of the ranks) between two dashed limits:"
                " below the lower one gradients are flushed to zero, above the upper one they"
                " overflow; dashed as well the scale it started from. The window is that of the newest sample.",
                good="the scale lies between the limits and follows them.",
                act="scale above the window: it comes down by itself, one skip for each halving."
                " Below: raise it (scaler.update(new_scale)) or shorten growth_interval."
                " The lower limit above the upper one: no scale fits, use bfloat16. A staircase"
                " down far below the window: the overflow does not come from the scale, see the"
                " findings.",
                metrics=[
                    "ampwatch_loss_scale_min",
                    "ampwatch_loss_scale",
                    "ampwatch_loss_scale_window_low",
                    "ampwatch_loss_scale_window_high",
                    "ampwatch_loss_scale_initial",
                ],
            ),
            unit="none",
            no_value=NO_SCALER,
            queries=(
                Query(f"min by (run) ({of('ampwatch_loss_scale_min')})", legend="smallest {{run}}"),
                Query(f"max by (run) ({of('ampwatch_loss_scale')})", legend="largest {{run}}"),
                Query(
                    f"max by (run) ({of('ampwatch_loss_scale_window_low')})",
                    legend="flushed below {{run}}",
                ),
                Query(
                    f"min by (run) ({of('ampwatch_loss_scale_window_high')})",
                    legend="overflows above {{run}}",
                ),
                Query(
                    f"max by (run) ({of('ampwatch_loss_scale_initial')})", legend="initial {{run}}"
                ),
            ),
            log2=True,
            width=16,
            height=10,
            overrides=(
                limit_line("/^flushed below/", WARN),
                limit_line("/^overflows above/", BAD),
                limit_line("/^initial/", NOTE),
            ),
        ),
        TimeSeries(
            id=202,
            title="Skipped steps, by why",
            description=described(
                shows="Optimizer steps skipped between two points of the graph, on the rank that"
                " skipped most (extrapolated, so 1 may read 1.2)."
                " calibrating: the scale is searched at the start. probe: just after a growth."
                " unprovoked: neither. storm: several in a row.",
                good="calibrating in the first minutes, then one probe in 2000 steps.",
                act="unprovoked: a batch or an op overflows now and then, see the findings."
                " storm: the overflow does not depend on the scale, which now falls without end;"
                " look at the loss, then at the gradients below.",
                metrics=["ampwatch_optimizer_steps_skipped_total"],
            ),
            unit="short",
            no_value="No optimizer step was counted. Without a GradScaler none is ever skipped",
            queries=(
                Query(
                    "max by (class) (sum by (job, instance, run, rank, class)"
                    f" ({increase('ampwatch_optimizer_steps_skipped_total')}))",
                    legend="{{class}}",
                ),
            ),
            bars=True,
            interval="1m",
            stacked=True,
            minimum=0,
            width=8,
            height=10,
            overrides=(
                color("calibrating", NOTE),
                color("probe", GOOD),
                color("unprovoked", WARN),
                color("storm", BAD),
            ),
        ),
        TimeSeries(
            id=203,
            title="Growths and backoffs",
            description=described(
                shows="How often the GradScaler doubled and halved the scale between two points of"
                " the graph, on the rank that did so most, and how often the scale changed in"
                " another way.",
                good="as many growths as backoffs over an hour; none by hand.",
                act="backoffs outnumber growths: the scale falls. By hand: a checkpoint was loaded,"
                " or the code sets the scale; while a gradient is accumulated that is a mistake.",
                metrics=[
                    "ampwatch_loss_scale_growths_total",
                    "ampwatch_loss_scale_backoffs_total",
                    "ampwatch_loss_scale_set_by_hand_total",
                ],
            ),
            unit="short",
            no_value=NO_SCALER,
            queries=tuple(
                Query(
                    f"max by (run) ({increase(f'ampwatch_loss_scale_{what}_total')})",
                    legend=f"{what.replace('_', ' ')} {{{{run}}}}",
                )
                for what in ("growths", "backoffs", "set_by_hand")
            ),
            bars=True,
            interval="1m",
            minimum=0,
            width=8,
            overrides=(
                color("/^growths/", GOOD),
                color("/^backoffs/", WARN),
                color("/^set by hand/", NOTE),
            ),
        ),
        TimeSeries(
            id=204,
            title="Steps until the next growth",
            description=described(
                shows="Unskipped steps in a row that the GradScaler has counted (the rank that has"
                " fewest), and the dashed line at which it doubles the scale.",
                good="climbs to the line, starts again.",
                act="never gets to the line: steps are skipped more often than once in a"
                " growth_interval, so that the scale can only fall.",
                metrics=[
                    "ampwatch_loss_scale_growth_tracker_steps",
                    "ampwatch_loss_scale_growth_interval_steps",
                ],
            ),
            unit="short",
            no_value=NO_SCALER,
            queries=(
                Query(
                    f"min by (run) ({of('ampwatch_loss_scale_growth_tracker_steps')})",
                    legend="counted {{run}}",
                ),
                Query(
                    f"min by (run) ({of('ampwatch_loss_scale_growth_interval_steps')})",
                    legend="grows at {{run}}",
                ),
            ),
            minimum=0,
            width=8,
            overrides=(limit_line("/^grows at/", NOTE),),
        ),
        TimeSeries(
            id=205,
            title="Skipped in a row",
            description=described(
                shows="The longest run of skipped iterations of the last minute or two, of the rank"
                " that has the longest.",
                good="0 or 1.",
                act="2 and more is a storm: nothing is learned meanwhile, and each step halves the"
                " scale. At 16 it has gone from 65536 to 1.",
                metrics=["ampwatch_optimizer_consecutive_skipped_steps_max"],
            ),
            unit="short",
            no_value="No iteration was seen yet",
            queries=(
                Query(
                    f"max by (run) ({of('ampwatch_optimizer_consecutive_skipped_steps_max')})",
                    legend="{{run}}",
                ),
            ),
            minimum=0,
            width=8,
            thresholds=_CONSECUTIVE,
            area=True,
        ),
        TimeSeries(
            id=206,
            title="Share of steps skipped, by optimizer",
            description=described(
                shows="Share of the steps of each optimizer that were skipped in 10 minutes.",
                good="the same for all optimizers of a scaler, 0.05 % and less.",
                act="one optimizer alone: its part of the model overflows; the others of a shared"
                " scaler lose their scale with it (shared_scaler_desync).",
                metrics=[
                    "ampwatch_optimizer_steps_skipped_total",
                    "ampwatch_optimizer_steps_total",
                ],
            ),
            unit="percentunit",
            no_value="No optimizer has stepped in the last 10 minutes",
            queries=(
                Query(
                    skipped_share("10m", "run, optimizer"),
                    legend="optimizer {{optimizer}} {{run}}",
                ),
            ),
            minimum=0,
            thresholds=SKIPPED,
            area=True,
            width=12,
            height=6,
        ),
        Stat(
            id=207,
            title="Weights become infinite in",
            description=described(
                shows="A forecast: at the pace of the last 5 minutes, how long until the loss scale"
                " is 2^-128. There 1/scale is infinite, and the next step with finite gradients"
                " writes infinities into the weights.",
                good="no forecast: within 2 minutes the scale fell no more often than it grew, the search"
                " for the first scale left out.",
                act="less than a day: keep the newest checkpoint from being overwritten and look for"
                " the op that overflows. At full speed a run gets there within minutes.",
                metrics=[
                    "ampwatch_loss_scale",
                    "ampwatch_loss_scale_backoffs_total",
                    "ampwatch_loss_scale_growths_total",
                    "ampwatch_optimizer_steps_skipped_total",
                ],
            ),
            unit="s",
            no_value="No forecast: the scale does not fall",
            queries=(Query(_forecast(), legend="{{run}}"),),
            thresholds=_FORECAST,
            width=6,
            height=6,
        ),
        Stat(
            id=208,
            title="Newest applied step",
            description=described(
                shows="How long ago an iteration ended in which no optimizer step was skipped, on"
                " the rank where it is longest ago, of those that have not finished.",
                good="about the time of a step.",
                act="minutes, while steps go on: every step is skipped and nothing is learned. Stop"
                " the run, or lower the learning rate if the findings say divergence.",
                metrics=["ampwatch_last_applied_step_timestamp_seconds", "ampwatch_run_state"],
            ),
            unit="s",
            no_value="No step was applied yet, or the run has finished",
            decimals=0,
            queries=(
                Query(
                    "time() - min by (run)"
                    f" ({unfinished('ampwatch_last_applied_step_timestamp_seconds')})",
                    legend="{{run}}",
                ),
            ),
            thresholds=REPORT_AGE,
            width=6,
            height=6,
        ),
    )
