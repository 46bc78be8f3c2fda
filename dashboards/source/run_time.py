"""What the time of a step is spent on, and what it yields."""

from __future__ import annotations

from dashboards.source.fields import described
from dashboards.source.links import label, to_dashboard
from dashboards.source.panels import TimeSeries
from dashboards.source.phases import (
    DATA,
    MEAN_STEP,
    NO_PHASES,
    WAITS_FOR_DATA,
    seconds,
)
from dashboards.source.queries import Query, rate

_TO_RANKS = to_dashboard("Which rank? Open its ranks", "ampwatch-ranks", run=label("run"))
_NOT_TOLD = "The program does not say it: call watch.batch({}=...) once for each batch"
_PHASES = ["ampwatch_step_phase_seconds"]


def time_of_steps() -> tuple[TimeSeries, ...]:
    """Return the panels of the row."""
    return (
        TimeSeries(
            id=701,
            title="What does a step spend its time on?",
            description=described(
                shows="Mean time of a step of all ranks, divided by what it went to. By the clock of the"
                " device where there is one, else of the host. In backward with reduction gradients are"
                " summed over the ranks meanwhile, so a wait for a slow rank is in it.",
                good="forward and backward are most of it, and the whole is level.",
                act="the part that is large, or has grown, is where to look. data: see the panel beside it."
                " backward_with_reduction or reduction: a slow rank or the network, see Ranks. rest: logging,"
                " checkpoints, what Python does between steps.",
                metrics=[*_PHASES, "ampwatch_step_duration_seconds"],
            ),
            unit="s",
            no_value=NO_PHASES,
            queries=(
                Query(
                    f"{seconds('run, phase')} / on (run) group_left () ({seconds('run')} > 0)"
                    f" * on (run) group_left () ({MEAN_STEP})",
                    legend="{{phase}} {{run}}",
                ),
            ),
            stacked=True,
            minimum=0,
            interval="1m",
            links=(_TO_RANKS,),
        ),
        TimeSeries(
            id=702,
            title="Does it wait for data?",
            description=described(
                shows="Share of the time in which steps wait for the next batch: mean of the ranks, and the"
                " rank that waits most. On a device that is when it is idle because no batch is ready.",
                good="below 10 %, apart from the first batches of an epoch.",
                act="more workers, or cheaper batches: the finding input_bound says how many workers would"
                " keep up. One rank alone: its disk or its host, see Ranks.",
                metrics=_PHASES,
            ),
            unit="percentunit",
            no_value="No wait for a batch was seen: no DataLoader, or no step yet",
            queries=(
                Query(f"avg by (run) ({WAITS_FOR_DATA})", legend="mean {{run}}"),
                Query(f"max by (run) ({WAITS_FOR_DATA})", legend="most {{run}}"),
            ),
            minimum=0,
            reaches_to=0.5,
            interval="1m",
            thresholds=DATA,
            area=True,
            links=(_TO_RANKS,),
        ),
        _trained("Tokens", "tokens", 704),
    )


def _trained(title: str, what: str, number: int) -> TimeSeries:
    metric = f"ampwatch_trained_{what}_total"
    return TimeSeries(
        id=number,
        title=f"{title} per second",
        description=described(
            shows=f"{title} that all ranks together train on in a second, as the program says"
            f" (watch.batch({what}=...)).",
            good="level.",
            act="it falls while steps take as long as before: batches have become smaller. It falls and steps"
            " take longer: see what of a step has grown.",
            metrics=[metric],
        ),
        unit="short",
        no_value=_NOT_TOLD.format(what),
        queries=(Query(f"sum by (run) ({rate(metric)})", legend="{{run}}"),),
        minimum=0,
        links=(_TO_RANKS,),
    )
