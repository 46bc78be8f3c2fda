"""Dashboard Ranks: which rank differs, of a thousand: bands, counts and the few that stand out."""

from __future__ import annotations

from dataclasses import replace

from dashboards.source.fields import (
    BAD,
    GOOD,
    NEUTRAL,
    WARN,
    Step,
    described,
    thresholds,
)
from dashboards.source.measures import NO_RUN_TILE, NO_SCALER_TILE, NONE_IS_GOOD
from dashboards.source.page import Page, Row
from dashboards.source.panels import Panel, Stat, StateTimeline
from dashboards.source.queries import Query, having, of
from dashboards.source.ranks_apart import (
    STEP_SECONDS,
    agreement,
    slow,
    to_median,
)
from dashboards.source.ranks_numbers import numbers
from dashboards.source.ranks_waiting import waiting
from dashboards.source.states import HEALTH_WORDS, TROUBLE, health
from dashboards.source.verdicts import ends

_RUNNING = of("ampwatch_run_state", having("state", "running"))
_STALE = of("ampwatch_run_state", having("state", "stale"))
_FAILED = of("ampwatch_run_state", having("state", "failed"))
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
        " Ranks are shown as bands and counts, and by name only if they differ most: those with the"
        " largest mean over the time range.",
        rows=(
            Row(
                100,
                "Are all ranks there?",
                (*_tiles(), ends(110, width=24), _trouble()),
            ),
            Row(200, "Which rank is slow?", _by_the_minute(slow())),
            Row(500, "Which rank do the others wait for?", _by_the_minute(waiting())),
            Row(300, "Do the ranks agree?", _by_the_minute((*agreement(), *numbers()))),
        ),
    )


def _by_the_minute(panels: tuple[Panel, ...]) -> tuple[Panel, ...]:
    """Ask for a point a minute."""
    return tuple(replace(panel, interval=_COMPARED) for panel in panels)


def _tiles() -> tuple[Stat, ...]:
    return (
        Stat(
            id=101,
            title="Ranks running",
            description=described(
                shows="Ranks whose newest step is recent.",
                good="the world size of the run.",
                act="fewer: see Ranks in trouble for since when.",
                metrics=["ampwatch_run_state"],
            ),
            unit="none",
            no_value=NO_RUN_TILE,
            queries=(Query(f"sum({_RUNNING})"),),
            thresholds=thresholds(NEUTRAL, Step(1, GOOD)),
            width=5,
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
            width=5,
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
            width=5,
        ),
        Stat(
            id=105,
            title="Slowest rank to median",
            description=described(
                shows="Mean step time of the slowest rank over that of the median rank of its run.",
                good="below 1.05. Ranks that wait for each other in every step all take as long as"
                " the slowest: then this stays near 1, and Which rank do the others wait for? shows which one it is.",
                act="above 1.2: see Which rank is slow?",
                metrics=["ampwatch_step_duration_seconds"],
            ),
            unit="none",
            no_value="No step in this time",
            decimals=2,
            queries=(Query(f"max({to_median(STEP_SECONDS)})"),),
            thresholds=_APART,
            interval=_COMPARED,
            width=5,
        ),
        Stat(
            id=106,
            title="Different loss scales",
            description=described(
                shows="How many different loss scales the ranks of a run have, the run with most.",
                good="1: all ranks see the same overflow and scale alike.",
                act="2 and more for longer than a scrape: some ranks skip steps that others apply,"
                " so their weights drift apart. See Do the ranks agree?",
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
            width=4,
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
        width=24,
    )
