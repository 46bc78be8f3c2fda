"""Row about skipped steps: the loss scale, and each skip by why it happened."""

from __future__ import annotations

from dashboards.source.fields import (
    BAD,
    GOOD,
    NOTE,
    WARN,
    color,
    described,
    limit_line,
)
from dashboards.source.measures import NO_SCALER
from dashboards.source.panels import Stat, TimeSeries
from dashboards.source.queries import Query, increase, of


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
    )
