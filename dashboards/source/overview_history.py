"""Since when is a run ill? The same numbers over time, one line for each run."""

from __future__ import annotations

from dashboards.source.fields import described
from dashboards.source.links import label, to_dashboard
from dashboards.source.panels import StateTimeline, TimeSeries
from dashboards.source.queries import Query, of, rate
from dashboards.source.states import HEALTH_WORDS, health

_LINE_TO_RUN = (to_dashboard("Open this run", "ampwatch-run", run=label("run")),)


def history() -> tuple[StateTimeline | TimeSeries, ...]:
    """Return the panels of the row."""
    return (
        StateTimeline(
            id=305,
            title="State of each run",
            description=described(
                shows="The worst state of the ranks of each run over time, as on the page of the daemon.",
                good="healthy, then finished.",
                act="where a band turns red, look at the same time in the panels below,"
                " then open the run.",
                metrics=["ampwatch_run_health"],
            ),
            unit="none",
            no_value="No run was watched in this time",
            queries=(Query(health("run"), legend="{{run}}"),),
            mappings=(HEALTH_WORDS,),
            width=24,
            height=6,
            links=_LINE_TO_RUN,
        ),
        TimeSeries(
            id=301,
            title="Loss scale of each run, smallest of its ranks",
            description=described(
                shows="The smallest loss scale of the ranks of each run, dips between two scrapes"
                " included. Each line of the grid is a factor of two.",
                good="a saw-tooth: it doubles every 2000 steps and halves once when it is too high.",
                act="a staircase downwards is a collapse: open the run before it falls below 1.",
                metrics=["ampwatch_loss_scale_min"],
            ),
            unit="none",
            no_value="No run here has a GradScaler: bfloat16 and float32 need none",
            queries=(Query(f"min by (run) ({of('ampwatch_loss_scale_min')})", legend="{{run}}"),),
            log2=True,
            links=_LINE_TO_RUN,
        ),
        TimeSeries(
            id=303,
            title="Steps per second of each run",
            description=described(
                shows="Iterations of the training loop per second, mean of the ranks.",
                good="level; short dips are checkpoints and evaluations.",
                act="a lasting drop: look at Ranks for a straggler, then at GPU for throttling.",
                metrics=["ampwatch_steps_total"],
            ),
            unit="none",
            no_value="No iteration was counted: no run, or it has not ended its first step",
            queries=(Query(f"avg by (run) ({rate('ampwatch_steps_total')})", legend="{{run}}"),),
            minimum=0,
            links=_LINE_TO_RUN,
        ),
    )
