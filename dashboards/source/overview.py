"""Is every run healthy? One row for each run, worst news first."""

from __future__ import annotations

from dashboards.source.fields import BAD, GOOD, NEUTRAL, Step, described, thresholds, words
from dashboards.source.links import DOCS, field, to_dashboard, to_page
from dashboards.source.measures import (
    REPORT_AGE,
    SCALE,
    SKIPPED,
    SKIPPED_TOTAL,
    skipped_share,
    unfinished,
)
from dashboards.source.overview_health import of_ampwatch
from dashboards.source.overview_history import history
from dashboards.source.overview_tiles import ALERTS, LOST, RUNNING, tiles
from dashboards.source.page import Page, Row
from dashboards.source.queries import any_of, of, rate
from dashboards.source.states import (
    ADVICE_KEY,
    FINDING_KEYS,
    HEALTH_WORDS,
    SEVERITY_WORDS,
    finding_columns,
    health,
    severity,
)
from dashboards.source.tables import Column, Key, Table
from dashboards.source.verdicts import roots

_TO_RUN = to_dashboard("Why? Open this run", "ampwatch-run", run=field("Run"))
_TO_RANKS = to_dashboard("Which rank? Open its ranks", "ampwatch-ranks", run=field("Run"))
_RUN = Key(label="run", title="Run", links=(_TO_RUN, _TO_RANKS), width=180)
_JOB = Key(label="job", title="Job", width=110)


def page() -> Page:
    """Return the dashboard."""
    return Page(
        uid="ampwatch-overview",
        title="ampwatch / Overview",
        drawn="",
        description="Is every run healthy? Start here; a click on a run leads to why not.",
        rows=(
            Row(100, "Is every run healthy?", (*tiles(), _runs(), roots(108))),
            Row(200, "What was found, and what fires?", (_findings(), _alerts())),
            Row(300, "Since when?", history()),
            Row(400, "Is ampwatch itself well?", of_ampwatch(), collapsed=True),
        ),
    )


def _runs() -> Table:
    finite = f"min by (job, run) (({of('ampwatch_loss')} - {of('ampwatch_loss')}) == bool 0)"
    return Table(
        id=107,
        title="Runs",
        description=described(
            shows="One row for each run, the worst first: its state is that of its worst rank, the word of the page of the daemon. Loss scale, Worst finding and Loss are those of its worst"
            " rank, Steps/s and Skipped of all of them; the reports and findings are the newest of"
            " any rank. Skipped is of the last 10 minutes, Worst finding is of what goes on, or did at the end of the run.",
            good="healthy, all ranks up, a loss scale of 64 or more (or none, with bfloat16),"
            " skipped below 1 %, no finding, a finite loss, a report younger than 2 minutes.",
            act="click on the run: the dashboard Run says why steps are skipped and what to change,"
            " Ranks says which rank differs.",
            metrics=[
                "ampwatch_run_health",
                "ampwatch_run_state",
                "ampwatch_root_info",
                "ampwatch_run_start_timestamp_seconds",
                "ampwatch_steps_total",
                "ampwatch_loss_scale",
                SKIPPED_TOTAL,
                "ampwatch_finding_last_seen_timestamp_seconds",
                "ampwatch_loss",
                "ampwatch_last_report_timestamp_seconds",
            ],
        ),
        unit="none",
        no_value="No run is known: start one with ampwatch.monitor(), or widen the variables above",
        height=10,
        keys=(_RUN, _JOB),
        sort_by="State",
        then_by="Worst finding",
        descending=True,
        columns=(
            Column(
                title="State",
                expr=health("job, run"),
                mappings=(HEALTH_WORDS,),
                width=120,
            ),
            Column(
                title="Since",
                expr=f"time() - min by (job, run) ({of('ampwatch_run_start_timestamp_seconds')})",
                unit="s",
                decimals=0,
                width=90,
            ),
            Column(
                title="Ranks up",
                expr=f"sum by (job, run) ({RUNNING})",
                decimals=0,
                width=80,
            ),
            Column(
                title="Stale or failed",
                expr=f"sum by (job, run) ({LOST})",
                decimals=0,
                thresholds=thresholds(NEUTRAL, Step(1, BAD)),
                width=110,
            ),
            Column(
                title="Steps/s",
                expr=f"avg by (job, run) ({rate('ampwatch_steps_total')})",
                unit="none",
                decimals=2,
                no_value="no steps yet",
                width=100,
            ),
            Column(
                title="Loss scale",
                expr=f"min by (job, run) ({of('ampwatch_loss_scale')})",
                no_value="no scaler",
                thresholds=SCALE,
                width=125,
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
                expr=severity("job, run"),
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
                expr="time() - max by (job, run)"
                f" ({unfinished('ampwatch_last_report_timestamp_seconds')})",
                unit="s",
                decimals=0,
                no_value="finished",
                thresholds=REPORT_AGE,
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
            shows="Alerts of ampwatch that fire now, with how many series each has. Those about a"
            " whole run are listed when All instances are chosen.",
            good="empty.",
            act="click on the alert: its runbook says what to look at, what to do and how to see"
            " that it helped.",
            metrics=["ALERTS", "ALERTS_FOR_STATE"],
        ),
        unit="none",
        no_value="No alert fires, or the alert rules of ampwatch are not loaded into Prometheus",
        height=6,
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
                expr=f"time() - min by ({by}) ({started} and ignoring (alertstate) {ALERTS})",
                unit="s",
                decimals=0,
                width=110,
            ),
            Column(title="Series", expr=f"count by ({by}) ({ALERTS})", decimals=0, width=80),
        ),
    )
