"""The first line of Overview: one number for each kind of trouble."""

from __future__ import annotations

from dashboards.source.fields import GOOD, NEUTRAL, Step, described, thresholds
from dashboards.source.links import to_dashboard
from dashboards.source.measures import NO_RUN_TILE, NONE_IS_GOOD
from dashboards.source.panels import Stat
from dashboards.source.queries import Query, any_of, having, of
from dashboards.source.states import critical

_OF_AMPWATCH = f"and on (job, instance) last_over_time({of('ampwatch_build_info')}[1d])"
"""Filter for the targets that are daemons, also of one that went down within the day."""

RUNNING = of("ampwatch_run_state", having("state", "running"))
LOST = of("ampwatch_run_state", any_of("state", "stale", "failed"))
ALERTS = of("ALERTS", any_of("alertname", "Ampwatch.+"), having("alertstate", "firing"))


def tiles() -> tuple[Stat, ...]:
    """Return the tiles."""
    any_run = f"0 * count({of('ampwatch_run_info')})"
    return (
        Stat(
            id=102,
            title="Targets down",
            description=described(
                shows="ampwatch daemons that answered within the last day and do not now.",
                good="0.",
                act="look whether the machine is up, then at the log of the daemon. The training"
                " goes on without it, and the daemon catches up from the ring when it is back.",
                metrics=["up", "ampwatch_build_info"],
            ),
            unit="none",
            no_value="No target within a day",
            queries=(Query(f"sum(({of('up')} == bool 0) {_OF_AMPWATCH})"),),
            thresholds=NONE_IS_GOOD,
            width=5,
        ),
        Stat(
            id=103,
            title="Runs training",
            description=described(
                shows="Runs of which at least one rank is running.",
                good="as many as you have started.",
                act="find the one that is missing in the table below: its state says whether it"
                " finished, failed or is silent.",
                metrics=["ampwatch_run_state"],
            ),
            unit="none",
            no_value=NO_RUN_TILE,
            queries=(Query(f"count(max by (job, run) ({RUNNING}) == 1) or {any_run}"),),
            thresholds=thresholds(NEUTRAL, Step(1, GOOD)),
            width=5,
        ),
        Stat(
            id=104,
            title="Runs with a critical finding",
            description=described(
                shows="Runs in which something critical goes on, and runs that ended with it: those whose"
                " state is failing or broken, or that failed with a critical finding.",
                good="0.",
                act="see What broke, and what to do first.",
                metrics=["ampwatch_root_info", "ampwatch_run_health"],
            ),
            unit="none",
            no_value=NO_RUN_TILE,
            queries=(Query(f"count({critical('job, run')}) or {any_run}"),),
            thresholds=NONE_IS_GOOD,
            width=5,
        ),
        Stat(
            id=105,
            title="Ranks stale or failed",
            description=described(
                shows="Ranks that ended with an error, or that are alive and have not ended a step"
                " for 120 s and ten of their usual steps.",
                good="0.",
                act="open Ranks: one stale rank holds all others of its run in the next collective.",
                metrics=["ampwatch_run_state"],
            ),
            unit="none",
            no_value=NO_RUN_TILE,
            queries=(Query(f"sum({LOST})"),),
            thresholds=NONE_IS_GOOD,
            links=(to_dashboard("Which ranks?", "ampwatch-ranks"),),
            width=5,
        ),
        Stat(
            id=106,
            title="Alerts firing",
            description=described(
                shows="Alerts of ampwatch that fire for the chosen jobs and instances. Those about a"
                " whole run are counted when All instances are chosen.",
                good="0.",
                act="see the table of alerts below; each has a runbook.",
                metrics=["ALERTS"],
            ),
            unit="none",
            no_value="No ampwatch target",
            queries=(Query(f"count({ALERTS}) or 0 * count({of('ampwatch_build_info')})"),),
            thresholds=NONE_IS_GOOD,
            width=4,
        ),
    )
