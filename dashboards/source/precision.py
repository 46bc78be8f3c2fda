"""Does the training run in the dtype that was asked for, and on tensor cores?"""

from __future__ import annotations

from ampwatch.diagnosis.autocast.kinds import AUTOCAST_INACTIVE
from ampwatch.diagnosis.kinds.kind import KindFamily
from ampwatch.diagnosis.kinds.registry import RELEASED
from dashboards.source.fields import GOOD, NEUTRAL, WARN, Step, described, thresholds
from dashboards.source.page import Page, Row
from dashboards.source.panels import Panel, Stat, TimeSeries
from dashboards.source.precision_basis import absent
from dashboards.source.precision_ceiling import ceiling
from dashboards.source.precision_kernels import kernels
from dashboards.source.precision_shares import FORWARD_ONLY, LOW, OVER, RUN, share, sums
from dashboards.source.precision_why import casts, fallbacks
from dashboards.source.queries import Query, of
from dashboards.source.states import ADVICE_KEY, FINDING_KEYS
from dashboards.source.tables import Column, Table

_FLOPS = "ampwatch_flops_total"
_ELIGIBLE = "ampwatch_tensor_core_flops_total"
_FALLBACK = "ampwatch_autocast_fallback_flops_total"
_COUNTED = "ampwatch_census_iterations_total"
_START = "ampwatch_run_start_timestamp_seconds"
_FOUND = "ampwatch_finding_steps_total"

_KINDS = "|".join(
    row.slug for row in RELEASED if row is AUTOCAST_INACTIVE or row.family is KindFamily.PERFORMANCE
)
_OF_KINDS = f'kind=~"{_KINDS}"'

_MOST = thresholds(NEUTRAL, Step(0, WARN), Step(0.5, NEUTRAL), Step(0.9, GOOD))
"""Thresholds of matmuls: of a model that AMP suits they are all but a few per cent of the FLOPs."""


def page() -> Page:
    """Return the dashboard."""
    return Page(
        uid="ampwatch-precision",
        title="ampwatch / Precision and tensor cores",
        description="Does the training run in the dtype that was asked for, on tensor cores, and"
        f" how close to the ceiling? Ops and kernels are measured rarely: shares are of {OVER}.",
        rows=(
            Row(100, "Does it run in the dtype that was asked for?", _mix()),
            Row(
                200,
                "Why does autocast leave ops in float32, and what do casts cost?",
                (*fallbacks(), *casts()),
            ),
            Row(400, "Do matmuls run on tensor cores?", kernels()),
            Row(500, "How much of the peak is used, and what is missing?", ceiling()),
            Row(700, "What is not known, and why?", absent()),
        ),
    )


def _mix() -> tuple[Panel, ...]:
    no_census = f"No ops were counted within {OVER}"
    asked = "Floating-point operations of matmuls, convolutions and attention in counted iterations"
    return (
        Stat(
            id=101,
            title="In 16 bits or fewer",
            description=described(
                shows=f"{asked}: the share in float16, bfloat16 and float8, backward included.",
                good="above 90 %. 0 % is right for a run without autocast.",
                act="read the reasons below: a region without autocast, another thread, an"
                " enabled=False that was forgotten.",
                metrics=[_FLOPS],
            ),
            unit="percentunit",
            no_value=no_census,
            queries=(Query(share(sums(_FLOPS, LOW), sums(_FLOPS)), "{{run}}"),),
            thresholds=_MOST,
            names=True,
            width=8,
        ),
        Stat(
            id=102,
            title="Fit for tensor cores",
            description=described(
                shows=f"{asked}: the share in a dtype and with dimensions that tensor cores run at"
                " full speed: what could run on them.",
                good="as large as the share in 16 bits.",
                act="if it is smaller, dimensions are odd: pad the vocabulary, the hidden size or"
                " the batch to a multiple of 8 (the finding dims_unaligned names the module).",
                metrics=[_ELIGIBLE, _FLOPS],
            ),
            unit="percentunit",
            no_value=no_census,
            queries=(Query(share(sums(_ELIGIBLE), sums(_FLOPS)), "{{run}}"),),
            thresholds=_MOST,
            names=True,
            width=8,
        ),
        Stat(
            id=103,
            title="In float32 under autocast",
            description=described(
                shows=f"{asked}, backward included: the share that autocast could have made faster and did"
                f" not. {FORWARD_ONLY}",
                good="below 1 %.",
                act="the next row says why.",
                metrics=[_FALLBACK, _FLOPS],
            ),
            unit="percentunit",
            no_value=no_census,
            queries=(Query(share(sums(_FALLBACK), sums(_FLOPS)), "{{run}}"),),
            thresholds=thresholds(GOOD, Step(0.01, NEUTRAL), Step(0.1, WARN)),
            names=True,
            width=8,
        ),
        TimeSeries(
            id=107,
            title="FLOPs by dtype",
            description=described(
                shows=f"{asked}, by the dtype they computed in, as shares. tf32 is float32 that"
                " may use TF32.",
                good="one broad band in the dtype that was asked for, unchanged over the run.",
                act="a band that changes says when: compare with findings and with what was"
                " deployed then.",
                metrics=[_FLOPS],
            ),
            unit="percentunit",
            no_value=no_census,
            queries=(
                Query(
                    f"sum by (dtype) (increase({of(_FLOPS)}[{OVER}]))"
                    f" / on () group_left () (sum(increase({of(_FLOPS)}[{OVER}])) > 0)",
                    "{{dtype}}",
                ),
            ),
            minimum=0,
            maximum=1,
            stacked=True,
            width=24,
        ),
        Table(
            id=109,
            title="The mix of each run",
            description=described(
                shows=f"Shares of the FLOPs of {OVER} by run, over all of its ranks, and for how"
                " long it has been running: a young run has few counts.",
                good="as for the tiles above.",
                act="choose the run that differs.",
                metrics=[_FLOPS, _ELIGIBLE, _FALLBACK, _COUNTED, _START],
            ),
            unit="percentunit",
            no_value=no_census,
            keys=(RUN,),
            columns=(
                Column(
                    title="In 16 bits or fewer",
                    expr=share(sums(_FLOPS, LOW), sums(_FLOPS)),
                    unit="percentunit",
                    thresholds=_MOST,
                ),
                Column(
                    title="Fit for tensor cores",
                    expr=share(sums(_ELIGIBLE), sums(_FLOPS)),
                    unit="percentunit",
                    thresholds=_MOST,
                ),
                Column(
                    title="In float32 under autocast",
                    expr=share(sums(_FALLBACK), sums(_FLOPS)),
                    unit="percentunit",
                ),
                Column(title="Iterations counted", expr=sums(_COUNTED), decimals=0),
                Column(title="Runs for", expr=f"time() - min by (run) ({of(_START)})", unit="s"),
            ),
            sort_by="In 16 bits or fewer",
            height=6,
        ),
        Table(
            id=110,
            title="What was found about precision",
            description=described(
                shows="Findings of these kinds, and in how many iterations of the time range they"
                " were seen, over all ranks and places.",
                good="empty: it was looked for, and not found.",
                act="follow What to change; a click on the finding opens its page.",
                metrics=[_FOUND],
            ),
            unit="none",
            no_value="None of these was found in the chosen runs and this time",
            keys=(FINDING_KEYS[0], ADVICE_KEY),
            columns=(
                Column(
                    title="Iterations",
                    expr=f'label_replace(sum by (kind) (increase({of(_FOUND, _OF_KINDS)}[$__range])) > 0, "advice", "$1", "kind", "(.+)")',
                    decimals=0,
                    thresholds=thresholds(NEUTRAL, Step(1, WARN)),
                    width=100,
                ),
            ),
            sort_by="Iterations",
            descending=True,
            height=9,
        ),
    )
