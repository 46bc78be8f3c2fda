"""Dashboard Run: what a run says about itself, question by question."""

from __future__ import annotations

from dashboards.source.events import ROOTS
from dashboards.source.fields import BAD, described, spans
from dashboards.source.links import field, label, to_dashboard
from dashboards.source.measures import (
    HEADROOM,
    NO_GRADIENT,
    NO_RUN_TILE,
    NO_SCALER_TILE,
    NONE_IS_GOOD,
    REPORT_AGE,
    SCALE,
    SKIPPED,
    UNDERFLOW,
    headroom,
    lost,
    skipped_share,
    unfinished,
)
from dashboards.source.page import Page, Row
from dashboards.source.panels import Stat
from dashboards.source.queries import Query, of, rate
from dashboards.source.run_gradients import gradients
from dashboards.source.run_progress import facts, learning, speed
from dashboards.source.run_scaling import scaling
from dashboards.source.run_time import time_of_steps
from dashboards.source.states import (
    ADVICE_KEY,
    FINDING_KEYS,
    HEALTH_WORDS,
    finding_columns,
    health,
)
from dashboards.source.tables import Key, Table
from dashboards.source.verdicts import ends, roots

_TO_RANKS = to_dashboard("Which rank? Open its ranks", "ampwatch-ranks", run=label("run"))


def page() -> Page:
    """Return the dashboard."""
    return Page(
        uid="ampwatch-run",
        title="ampwatch / Run",
        description="Why are steps skipped, and do the gradients fit the format? Choose one run.",
        drawn=ROOTS,
        rows=(
            Row(
                100,
                "What is wrong with this run?",
                (
                    *_tiles(),
                    roots(111, height=5),
                    _findings(),
                    ends(112, width=24),
                ),
            ),
            Row(200, "Why are steps skipped?", scaling()),
            Row(300, "Do the gradients fit the format?", gradients()),
            Row(400, "Does it learn?", learning()),
            Row(
                500,
                "Is it as fast as it was, and where does a step's time go?",
                (*speed(), *time_of_steps()),
            ),
            Row(600, "What is it, and what did ampwatch see of it?", (facts(),)),
        ),
    )


def _tiles() -> tuple[Stat, ...]:
    skipped = ["ampwatch_optimizer_steps_skipped_total", "ampwatch_optimizer_steps_total"]
    return (
        Stat(
            id=101,
            title="State",
            course=False,
            description=described(
                shows="The state of the run, that of its worst rank, as on the page of the daemon.",
                good="healthy, or finished; calibrating at the start.",
                act="failing, and broken once it has ended: see What broke. stale: a rank hangs, see"
                " Ranks. failed: see Which rank made the others end? needs attention: a warning,"
                " something critical that is over, or float16 without a scaler: see the findings.",
                metrics=["ampwatch_run_health"],
            ),
            unit="none",
            no_value=NO_RUN_TILE,
            queries=(Query(health("run"), legend="{{run}}"),),
            mappings=(HEALTH_WORDS,),
            width=3,
            links=(_TO_RANKS,),
        ),
        Stat(
            id=103,
            title="Loss scale",
            description=described(
                shows="The smallest loss scale of the ranks.",
                good="64 or more, with room to fall.",
                act="below 64 and falling: see Why are steps skipped? Below 1 the loss is made"
                " smaller, and at 2^-128 the next finite step writes infinities into the weights:"
                " stop the run.",
                metrics=["ampwatch_loss_scale"],
            ),
            unit="none",
            no_value=NO_SCALER_TILE,
            queries=(Query(f"min by (run) ({of('ampwatch_loss_scale')})", legend="{{run}}"),),
            thresholds=SCALE,
            width=3,
        ),
        Stat(
            id=104,
            title="Skipped, last 10 min",
            description=described(
                shows="Share of optimizer steps that were skipped in 10 minutes.",
                good="0.05 %: one probe in 2000 steps.",
                act="above 1 %, see Why are steps skipped? below.",
                metrics=skipped,
            ),
            unit="percentunit",
            no_value="No step in 10 minutes",
            queries=(Query(skipped_share("10m", "run"), legend="{{run}}"),),
            thresholds=SKIPPED,
            width=3,
        ),
        Stat(
            id=113,
            title="Gradients lost",
            description=described(
                shows="Share of the gradient elements sampled within 5 minutes (an hour where none was)"
                " that are zero only because of the format.",
                good="below 5 %.",
                act="above 20 %: raise the loss scale or use bfloat16. At 100 % nothing is learned"
                " any more. See Do the gradients fit the format?",
                metrics=[
                    "ampwatch_gradient_underflow_elements_total",
                    "ampwatch_gradient_elements_total",
                ],
            ),
            unit="percentunit",
            no_value="No sample within an hour",
            queries=(Query(lost("run"), legend="{{run}}"),),
            thresholds=UNDERFLOW,
            width=3,
        ),
        Stat(
            id=105,
            title="Headroom, in doublings",
            description=described(
                shows="How many times the gradients can double before they overflow the format of"
                " autocast, at the loss scale they have now. all zero: no element of any gradient is left.",
                good="1 or more. With a GradScaler less is normal just before a probe.",
                act="below 1 for long: the next growth of the scale skips a step.",
                metrics=["ampwatch_autocast_dtype_max", "ampwatch_scaled_gradient_amax_max"],
            ),
            unit="none",
            no_value="No sample, or no autocast",
            decimals=1,
            minimum=None,
            mappings=spans((NO_GRADIENT, None, "all zero"), color=BAD),
            queries=(Query(headroom("run"), legend="{{run}}"),),
            thresholds=HEADROOM,
            width=3,
        ),
        Stat(
            id=106,
            title="Non-finite weights",
            description=described(
                shows="NaN and infinite elements of parameters and buffers, of the rank that has"
                " most.",
                good="0.",
                act="more than 0 is final: stop the run and go back to a checkpoint from before."
                " The skip counters look healthy while this happens.",
                metrics=[
                    "ampwatch_parameter_nonfinite_elements",
                    "ampwatch_buffer_nonfinite_elements",
                ],
            ),
            unit="short",
            no_value="Not checked yet",
            queries=(
                Query(  # a model need not have buffers
                    f"max by (run) ({of('ampwatch_parameter_nonfinite_elements')})"
                    f" + (max by (run) ({of('ampwatch_buffer_nonfinite_elements')})"
                    f" or 0 * max by (run) ({of('ampwatch_parameter_nonfinite_elements')}))",
                    legend="{{run}}",
                ),
            ),
            thresholds=NONE_IS_GOOD,
            width=3,
        ),
        Stat(
            id=107,
            title="Steps per second",
            description=described(
                shows="Iterations of the training loop per second, mean of the ranks.",
                good="what it was yesterday.",
                act="see Is it as fast as it was, and where does a step's time go? below.",
                metrics=["ampwatch_steps_total"],
            ),
            unit="none",
            decimals=2,
            no_value="No step has ended yet",
            queries=(Query(f"avg by (run) ({rate('ampwatch_steps_total')})", legend="{{run}}"),),
            width=3,
        ),
        Stat(
            id=108,
            title="Newest report",
            description=described(
                shows="Age of the newest report of any rank that has not finished.",
                good="below 2 minutes.",
                act="older: all ranks hang, or the daemon is down. See Ranks, then Overview.",
                metrics=["ampwatch_last_report_timestamp_seconds", "ampwatch_run_state"],
            ),
            unit="s",
            no_value="No such run is known, or it has finished",
            decimals=0,
            queries=(
                Query(
                    f"time() - max by (run) ({unfinished('ampwatch_last_report_timestamp_seconds')})",
                    legend="{{run}}",
                ),
            ),
            thresholds=REPORT_AGE,
            width=3,
        ),
    )


def _findings() -> Table:
    to_run = to_dashboard("This run only", "ampwatch-run", run=field("Run"))
    to_ranks = to_dashboard("Which rank? Open its ranks", "ampwatch-ranks", run=field("Run"))
    return Table(
        id=109,
        title="Findings and what to change",
        description=described(
            shows="What ampwatch has found, newest first. A band over the time"
            " series is where the verdict on the run names a critical one.",
            good="empty, or only of severity info.",
            act="follow What to change for a root cause first; one whose Root cause is false goes"
            " with it. A click on the finding opens its page. Where it is (module, op) says What"
            " broke, and the source line the page of the daemon.",
            metrics=["ampwatch_finding_last_seen_timestamp_seconds", "ampwatch_findings"],
        ),
        unit="none",
        no_value="Nothing was found in this run",
        height=7,
        keys=(
            Key(label="run", title="Run", links=(to_run, to_ranks), width=160),
            *FINDING_KEYS,
            ADVICE_KEY,
        ),
        sort_by="Last seen",
        columns=finding_columns("run"),
    )
