"""Dashboard Ranks: which rank differs, of a thousand: bands, counts and the few that stand out."""

from __future__ import annotations

from dataclasses import replace

from dashboards.source.fields import (
    BAD,
    GOOD,
    NEUTRAL,
    NOTE,
    WARN,
    Step,
    color,
    described,
    thresholds,
)
from dashboards.source.links import field, to_dashboard
from dashboards.source.measures import NO_RUN, NO_RUN_TILE, NO_SCALER_TILE, NONE_IS_GOOD
from dashboards.source.page import Page, Row
from dashboards.source.panels import Panel, Stat, StateTimeline, TimeSeries
from dashboards.source.queries import Query, having, of
from dashboards.source.ranks_apart import (
    STEP_SECONDS,
    agreement,
    slow,
    to_median,
)
from dashboards.source.ranks_numbers import numbers
from dashboards.source.ranks_waiting import waiting
from dashboards.source.states import HEALTH_WORDS, STATE_WORDS, TROUBLE, health, state
from dashboards.source.tables import Column, Key, Table
from dashboards.source.verdicts import ends

_RUNNING = of("ampwatch_run_state", having("state", "running"))
_STALE = of("ampwatch_run_state", having("state", "stale"))
_FAILED = of("ampwatch_run_state", having("state", "failed"))
_LAST_STEP = of("ampwatch_last_step_timestamp_seconds")

_COMPARED = "1m"
"""Time between two points where each rank is asked for: enough to tell them apart, and a quarter of the
work of 15 s, which of a thousand ranks takes seconds."""

SHOWN = 20
"""Ranks that a table or a timeline names: as many as are read at a glance."""

_APART = thresholds(GOOD, Step(1.05, WARN), Step(1.2, BAD))
"""Ranks of one job differ by a percent or two; 5 % is a machine to look at, 20 % a broken one."""


def page() -> Page:
    """Return the dashboard."""
    return Page(
        uid="ampwatch-ranks",
        title="ampwatch / Ranks",
        description="Which rank differs from the others of its run? Choose one run."
        " Ranks are shown as bands and counts, and by name only where they stand out: those with the"
        " largest mean over the time range.",
        rows=(
            Row(
                100,
                "Are all ranks there?",
                (*_tiles(), ends(110, width=24), _states(), _trouble(), _silent()),
            ),
            Row(200, "Which rank is slow?", _by_the_minute(slow())),
            Row(500, "Which rank do the others wait for?", _by_the_minute(waiting())),
            Row(300, "Do the ranks agree about the loss scale?", _by_the_minute(agreement())),
            Row(400, "Does a rank compute something else?", _by_the_minute(numbers())),
        ),
    )


def _by_the_minute(panels: tuple[Panel, ...]) -> tuple[Panel, ...]:
    """Ask for a point a minute."""
    return tuple(replace(panel, interval=_COMPARED) for panel in panels)


def _tiles() -> tuple[Stat, ...]:
    reporting = f"count by (job, run) ({of('ampwatch_run_info', every_rank=True)})"
    complete = f"group by (job, run, world_size) ({of('ampwatch_run_info', every_rank=True)})"
    return (
        Stat(
            id=101,
            title="Ranks running",
            description=described(
                shows="Ranks whose newest step is recent.",
                good="the world size of the run.",
                act="fewer: see Ranks by state for since when.",
                metrics=["ampwatch_run_state"],
            ),
            unit="none",
            no_value=NO_RUN_TILE,
            queries=(Query(f"sum({_RUNNING})"),),
            thresholds=thresholds(NEUTRAL, Step(1, GOOD)),
        ),
        Stat(
            id=102,
            title="Stale",
            description=described(
                shows="Ranks that are alive and have not ended a step for 120 s and ten of their"
                " usual steps.",
                good="0.",
                act="if all ranks of a run are stale they wait for one that is gone, or for the"
                " data; if one is, log in to its machine (the table below has it) and look at what"
                " the process does (py-spy dump).",
                metrics=["ampwatch_run_state"],
            ),
            unit="none",
            no_value=NO_RUN_TILE,
            queries=(Query(f"sum({_STALE})"),),
            thresholds=NONE_IS_GOOD,
        ),
        Stat(
            id=103,
            title="Failed",
            description=described(
                shows="Ranks that ended with an error or were killed.",
                good="0.",
                act="see below which of them made the others end.",
                metrics=["ampwatch_run_state"],
            ),
            unit="none",
            no_value=NO_RUN_TILE,
            queries=(Query(f"sum({_FAILED})"),),
            thresholds=NONE_IS_GOOD,
        ),
        Stat(
            id=104,
            title="Runs with ranks missing",
            description=described(
                shows="Runs of which fewer (or more) ranks report than their world size says, on the"
                " chosen instances: choose All.",
                good="0.",
                act="fewer: a machine without a daemon, or one that Prometheus does not scrape; Scrape"
                " targets in Overview says how many it reaches. More: two trainings under one name,"
                " or two daemons on a machine.",
                metrics=["ampwatch_run_info"],
            ),
            unit="none",
            no_value=NO_RUN_TILE,
            queries=(
                Query(
                    f'count(count_values by (job, run) ("world_size", {reporting})'
                    f" unless on (job, run, world_size) {complete})"
                    f" or 0 * count({of('ampwatch_run_info', every_rank=True)})"
                ),
            ),
            thresholds=thresholds(GOOD, Step(1, WARN)),
        ),
        Stat(
            id=105,
            title="Slowest rank to median",
            description=described(
                shows="Mean step time of the slowest rank over that of the median rank of its run.",
                good="below 1.05. Ranks that wait for each other in every step all take as long as"
                " the slowest: then this stays near 1, and Which rank do the others wait for? tells who it is.",
                act="above 1.2: see Which rank is slow?",
                metrics=["ampwatch_step_duration_seconds"],
            ),
            unit="none",
            no_value="No step in this time",
            decimals=2,
            queries=(Query(f"max({to_median(STEP_SECONDS)})"),),
            thresholds=_APART,
            interval=_COMPARED,
        ),
        Stat(
            id=106,
            title="Different loss scales",
            description=described(
                shows="How many different loss scales the ranks of a run have, the run with most.",
                good="1: all ranks see the same overflow and scale alike.",
                act="2 and more for longer than a scrape: some ranks skip steps that others apply,"
                " so their weights drift apart. See Do the ranks agree about the loss scale?",
                metrics=["ampwatch_loss_scale"],
            ),
            unit="none",
            no_value=NO_SCALER_TILE,
            queries=(
                Query(
                    "max(count by (job, run) (count_values by (job, run)"
                    f' ("scale", {of("ampwatch_loss_scale")})))'
                ),
            ),
            thresholds=thresholds(GOOD, Step(2, BAD)),
            interval=_COMPARED,
        ),
    )


def _states() -> TimeSeries:
    return TimeSeries(
        id=107,
        title="Ranks by state",
        description=described(
            shows="How many ranks are in each state.",
            good="all running; all finished at the end.",
            act="a step from running to stale or failed is when it happened: look there in the"
            " other panels, and in the logs of the machines.",
            metrics=["ampwatch_run_state"],
        ),
        unit="none",
        no_value=NO_RUN,
        queries=(Query(f"sum by (state) ({of('ampwatch_run_state')})", legend="{{state}}"),),
        stacked=True,
        minimum=0,
        width=6,
        overrides=(
            color("running", GOOD),
            color("finished", NOTE),
            color("stale", WARN),
            color("failed", BAD),
        ),
    )


def _trouble() -> StateTimeline:
    return StateTimeline(
        id=108,
        title=f"Ranks in trouble (at most {SHOWN})",
        description=described(
            shows="Ranks that are failing, broken, failed or stale, and since when.",
            good="nothing.",
            act="the first one to turn is the one to look at.",
            metrics=["ampwatch_run_health"],
        ),
        unit="none",
        interval=_COMPARED,
        no_value="No rank is failing, broken, failed or stale",
        queries=(
            Query(
                f"topk({SHOWN}, {health('run, rank, instance', TROUBLE)})",
                legend="{{run}} rank {{rank}} on {{instance}}",
            ),
        ),
        mappings=(HEALTH_WORDS,),
        width=8,
    )


def _silent() -> Table:
    by = "run, rank, instance"
    oldest = f"topk({SHOWN}, max by ({by}) (time() - {_LAST_STEP}))"
    to_run = to_dashboard("This rank alone", "ampwatch-run", run=field("Run"), rank=field("Rank"))
    to_gpu = to_dashboard("The GPUs of its machine", "ampwatch-gpu", instance=field("Machine"))
    return Table(
        id=109,
        title=f"Ranks silent the longest ({SHOWN})",
        description=described(
            shows="The ranks whose newest step is oldest, with their machines.",
            good="all of about the same age.",
            act="one that is older than the others is the one they wait for: click for its run or"
            " for the GPUs of its machine.",
            metrics=["ampwatch_last_step_timestamp_seconds", "ampwatch_run_state"],
        ),
        unit="none",
        no_value="No rank has ended a step yet",
        width=10,
        keys=(
            Key(label="run", title="Run"),
            Key(label="rank", title="Rank", links=(to_run,), width=60),
            Key(label="instance", title="Machine", links=(to_gpu,)),
        ),
        sort_by="Last step",
        descending=True,
        columns=(
            Column(title="Last step", expr=oldest, unit="s", decimals=0, width=90),
            Column(
                title="State",
                expr=f"{state(by)} and on ({by}) {oldest}",
                mappings=(STATE_WORDS,),
                width=80,
            ),
        ),
    )
