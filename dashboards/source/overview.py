"""Is every run healthy? One row for each run, worst news first."""

from __future__ import annotations

from dashboards.source.fields import (
    BAD,
    GOOD,
    NEUTRAL,
    WARN,
    Step,
    described,
    thresholds,
    words,
)
from dashboards.source.links import DOCS, field, label, to_dashboard, to_page
from dashboards.source.overview_health import health
from dashboards.source.page import Page, Row
from dashboards.source.panels import Stat, TimeSeries
from dashboards.source.queries import Query, any_of, having, increase, of, rate
from dashboards.source.states import (
    ADVICE_KEY,
    FINDING_KEYS,
    SEVERITY_WORDS,
    STATE_WORDS,
    finding_columns,
    severity,
    state,
)
from dashboards.source.tables import Column, Key, Table

SKIPPED = thresholds(GOOD, Step(0.01, WARN), Step(0.05, BAD))
"""A healthy GradScaler probes once in 2000 steps, 0.05 %: 1 % is twenty times that, 5 % a hundred."""

SCALE = thresholds(BAD, Step(1, WARN), Step(64, GOOD))
"""Below 1 the loss is made smaller instead of larger; from 64 it is six halvings to there."""

LAST_HOUR = 3600
"""For so long a finding marks a run. Unit: s."""

_REPORT_AGE = thresholds(GOOD, Step(120, WARN), Step(900, BAD))
"""A rank is stale after 120 s, the setting stale_seconds; after 900 s nobody is checkpointing."""

_SKIPPED = "ampwatch_optimizer_steps_skipped_total"
_ATTEMPTED = "ampwatch_optimizer_steps_total"

_OF_AMPWATCH = f"and on (job, instance) last_over_time({of('ampwatch_build_info')}[1d])"
"""What else is scraped has no such series; a daemon that is down had it within the day."""

_RUNNING = of("ampwatch_run_state", having("state", "running"))
_LOST = of("ampwatch_run_state", any_of("state", "stale", "failed"))
_ALERTS = of("ALERTS", any_of("alertname", "Ampwatch.+"), having("alertstate", "firing"))

_TO_RUN = to_dashboard("Why? Open this run", "ampwatch-run", run=field("Run"))
_TO_RANKS = to_dashboard("Which rank? Open its ranks", "ampwatch-ranks", run=field("Run"))
_RUN = Key(label="run", title="Run", links=(_TO_RUN, _TO_RANKS), width=180)
_JOB = Key(label="job", title="Job", width=110)
_LINE_TO_RUN = (to_dashboard("Open this run", "ampwatch-run", run=label("run")),)


def skipped_share(over: str, by: str) -> str:
    """Return PromQL of the share of optimizer steps that were skipped, 0 to 1."""
    return (
        f"sum by ({by}) ({increase(_SKIPPED, over=over)})"
        f" / (sum by ({by}) ({increase(_ATTEMPTED, over=over)}) > 0)"
    )


def page() -> Page:
    """Return the dashboard."""
    return Page(
        uid="ampwatch-overview",
        title="ampwatch / Overview",
        description="Is every run healthy? Start here; a click on a run leads to why not.",
        rows=(
            Row(100, "Is every run healthy?", (*_tiles(), _runs())),
            Row(200, "What was found, and what fires?", (_findings(), _alerts())),
            Row(300, "Since when?", _history()),
            Row(400, "Is ampwatch itself well?", health(), collapsed=True),
        ),
    )


def _tiles() -> tuple[Stat, ...]:
    good_if_none = thresholds(GOOD, Step(1, BAD))
    no_run = "No run is known: start one with ampwatch.monitor(), or choose another job or instance"
    any_run = f"0 * count({of('ampwatch_run_info')})"
    return (
        Stat(
            id=101,
            title="Scrape targets",
            description=described(
                shows="ampwatch daemons that Prometheus reaches now.",
                good="one for each machine that trains.",
                act="if there is none, check in this order: that the data source is the Prometheus"
                " that scrapes ampwatch, that its page Targets lists the job, that the daemon"
                " listens where Prometheus looks (port 10917; by default on 127.0.0.1 only).",
                metrics=["up", "ampwatch_build_info"],
            ),
            unit="none",
            no_value="No ampwatch target: check the data source, then Targets in Prometheus",
            queries=(Query(f"count({of('up')} == 1 {_OF_AMPWATCH})", instant=True),),
            thresholds=thresholds(BAD, Step(1, GOOD)),
        ),
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
            no_value="No ampwatch target was seen within a day",
            queries=(Query(f"sum(({of('up')} == bool 0) {_OF_AMPWATCH})", instant=True),),
            thresholds=good_if_none,
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
            no_value=no_run,
            queries=(
                Query(
                    f"count(max by (job, run) ({_RUNNING}) == 1) or {any_run}",
                    instant=True,
                ),
            ),
            thresholds=thresholds(NEUTRAL, Step(1, GOOD)),
        ),
        Stat(
            id=104,
            title="Runs with a critical finding",
            description=described(
                shows="Runs in which something critical was seen within the last hour.",
                good="0.",
                act="sort the table of runs by Worst finding and click on the run.",
                metrics=["ampwatch_finding_last_seen_timestamp_seconds"],
            ),
            unit="none",
            no_value=no_run,
            queries=(
                Query(
                    f"count(max by (job, run) ({severity(LAST_HOUR)}) == 3) or {any_run}",
                    instant=True,
                ),
            ),
            thresholds=good_if_none,
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
            no_value=no_run,
            queries=(
                Query(
                    f"sum({_LOST})",
                    instant=True,
                ),
            ),
            thresholds=good_if_none,
            links=(to_dashboard("Which ranks?", "ampwatch-ranks"),),
        ),
        Stat(
            id=106,
            title="Alerts firing",
            description=described(
                shows="Alerts of ampwatch that fire for the chosen jobs and instances.",
                good="0.",
                act="see the table of alerts below; each has a runbook.",
                metrics=["ALERTS"],
            ),
            unit="none",
            no_value="No ampwatch target, so no alert can fire",
            queries=(
                Query(
                    f"count({_ALERTS}) or 0 * count({of('ampwatch_build_info')})",
                    instant=True,
                ),
            ),
            thresholds=good_if_none,
        ),
    )


def _runs() -> Table:
    finite = f"min by (job, run) (({of('ampwatch_loss')} - {of('ampwatch_loss')}) == bool 0)"
    return Table(
        id=107,
        title="Runs",
        description=described(
            shows="One row for each run; the worst of its ranks in each column. Skipped is of the"
            " last 10 minutes, Worst finding of the last hour.",
            good="running, all ranks up, a loss scale of 64 or more (or none, with bfloat16),"
            " skipped below 1 %, no finding, a finite loss, a report younger than 2 minutes.",
            act="click on the run: the dashboard Run says why steps are skipped and what to change,"
            " Ranks says which rank differs.",
            metrics=[
                "ampwatch_run_state",
                "ampwatch_steps_total",
                "ampwatch_loss_scale",
                _SKIPPED,
                "ampwatch_finding_last_seen_timestamp_seconds",
                "ampwatch_loss",
                "ampwatch_last_report_timestamp_seconds",
            ],
        ),
        unit="none",
        no_value="No run is known: start one with ampwatch.monitor(), or widen the variables above",
        height=10,
        keys=(_RUN, _JOB),
        sort_by="Worst finding",
        descending=True,
        columns=(
            Column(
                title="State",
                expr=f"max by (job, run) ({state()})",
                mappings=(STATE_WORDS,),
                width=90,
            ),
            Column(
                title="Ranks up",
                expr=f"sum by (job, run) ({_RUNNING})",
                decimals=0,
                width=80,
            ),
            Column(
                title="Ranks stale",
                expr=f"sum by (job, run) ({_LOST})",
                decimals=0,
                thresholds=thresholds(NEUTRAL, Step(1, BAD)),
                width=95,
            ),
            Column(
                title="Steps/s",
                expr=f"avg by (job, run) ({rate('ampwatch_steps_total')})",
                unit="ops",
                decimals=2,
                no_value="no steps yet",
                width=100,
            ),
            Column(
                title="Loss scale",
                expr=f"min by (job, run) ({of('ampwatch_loss_scale_min')})"
                f" or min by (job, run) ({of('ampwatch_loss_scale')})",
                unit="short",
                no_value="no scaler",
                thresholds=SCALE,
                width=95,
            ),
            Column(
                title="Skipped",
                expr=skipped_share("10m", "job, run"),
                unit="percentunit",
                decimals=2,
                no_value="no steps",
                thresholds=SKIPPED,
                width=85,
            ),
            Column(
                title="Worst finding",
                expr=f"max by (job, run) ({severity(LAST_HOUR)})",
                mappings=(SEVERITY_WORDS,),
                width=115,
            ),
            Column(
                title="Finding seen",
                expr="time() - max by (job, run)"
                f" ({of('ampwatch_finding_last_seen_timestamp_seconds')})",
                unit="s",
                decimals=0,
                no_value="never",
                width=110,
            ),
            Column(
                title="Loss",
                expr=finite,
                mappings=(words({1: ("finite", GOOD), 0: ("NaN or infinite", BAD)}),),
                no_value="not seen",
                width=110,
            ),
            Column(
                title="Newest report",
                expr=f"time() - max by (job, run) ({of('ampwatch_last_report_timestamp_seconds')})",
                unit="s",
                decimals=0,
                thresholds=_REPORT_AGE,
            ),
        ),
    )


def _findings() -> Table:
    return Table(
        id=201,
        title="Findings, newest first",
        description=described(
            shows="What ampwatch has found in the runs, each kind once for each run. Root cause is"
            " false where another finding explains this one.",
            good="empty, or only of severity info.",
            act="follow What to change; a click on the finding opens its page with the causes and"
            " how to check the cure. Start with a critical root cause.",
            metrics=["ampwatch_finding_last_seen_timestamp_seconds", "ampwatch_findings"],
        ),
        unit="none",
        no_value="Nothing was found in the chosen runs",
        height=9,
        keys=(_RUN, *FINDING_KEYS, ADVICE_KEY),
        sort_by="Last seen",
        columns=finding_columns("run"),
    )


def _alerts() -> Table:
    by = "alertname, severity, run, instance"
    started = of("ALERTS_FOR_STATE", any_of("alertname", "Ampwatch.+"))
    runbook = to_page("Runbook", f"{DOCS}/runbooks/{field('Alert')}.md")
    return Table(
        id=202,
        title="Alerts that fire",
        description=described(
            shows="Alerts of ampwatch that fire now, with how many series each has.",
            good="empty.",
            act="click on the alert: its runbook says what to look at, what to do and how to see"
            " that it helped.",
            metrics=["ALERTS", "ALERTS_FOR_STATE"],
        ),
        unit="none",
        no_value="No alert fires, or the alert rules of ampwatch are not loaded into Prometheus",
        height=7,
        keys=(
            Key(label="alertname", title="Alert", links=(runbook,), width=280),
            Key(label="severity", title="Severity", width=90),
            _RUN,
            Key(label="instance", title="Instance"),
        ),
        sort_by="Since",
        columns=(
            Column(
                title="Since",
                expr=f"time() - min by ({by}) ({started} and ignoring (alertstate) {_ALERTS})",
                unit="s",
                decimals=0,
                width=110,
            ),
            Column(title="Series", expr=f"count by ({by}) ({_ALERTS})", decimals=0, width=80),
        ),
    )


def _history() -> tuple[TimeSeries, ...]:
    return (
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
            unit="short",
            no_value="No run here has a GradScaler: bfloat16 and float32 need none",
            queries=(Query(f"min by (run) ({of('ampwatch_loss_scale_min')})", legend="{{run}}"),),
            log2=True,
            links=_LINE_TO_RUN,
        ),
        TimeSeries(
            id=302,
            title="Skipped optimizer steps of each run",
            description=described(
                shows="Share of optimizer steps that the GradScaler skipped in 10 minutes.",
                good="0.05 % and less once the scale is found; a minute of more at the start.",
                act="above 1 %, open the run: the row Why are steps skipped? tells probes from storms.",
                metrics=[_SKIPPED, _ATTEMPTED],
            ),
            unit="percentunit",
            no_value="No optimizer has stepped in the last 10 minutes",
            queries=(Query(skipped_share("10m", "run"), legend="{{run}}"),),
            minimum=0,
            thresholds=SKIPPED,
            area=True,
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
            unit="ops",
            no_value="No iteration was counted: no run, or it has not ended its first step",
            queries=(Query(f"avg by (run) ({rate('ampwatch_steps_total')})", legend="{{run}}"),),
            minimum=0,
            links=_LINE_TO_RUN,
        ),
        TimeSeries(
            id=304,
            title="Loss of each run",
            description=described(
                shows="Mean over the ranks of the newest loss; a gap is a loss that is not finite.",
                good="falls, with noise.",
                act="a gap, or a jump that stays: open the run and look at its findings.",
                metrics=["ampwatch_loss"],
            ),
            unit="short",
            no_value="No loss was handed to GradScaler.scale() or seen otherwise",
            queries=(Query(f"avg by (run) ({of('ampwatch_loss')})", legend="{{run}}"),),
            links=_LINE_TO_RUN,
        ),
    )
