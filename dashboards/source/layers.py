"""Dashboard Layers: ranges of modules against the limits of their dtypes, and what rounds away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.source.fields import BAD, NEUTRAL, Step, described, spans, thresholds
from dashboards.source.layers_growth import growth
from dashboards.source.layers_rounding import low_precision, underflow, updates
from dashboards.source.layers_trust import trust
from dashboards.source.measures import HEADROOM as GRADIENT_HEADROOM
from dashboards.source.modules import (
    HEADROOM,
    KEYS,
    NOT_HERE,
    SHOWN,
    SPEAKS,
    lines,
    of_module,
    worst,
)
from dashboards.source.page import Page, Row
from dashboards.source.queries import of
from dashboards.source.tables import Column, Key, Table
from dashboards.source.variables import choice

if TYPE_CHECKING:
    from dashboards.source.panels import Panel

_MEASURED = (
    "ampwatch_module_gradient_amax"
    "|ampwatch_module_activation_amax"
    "|ampwatch_module_low_precision_flops_ratio"
)
_MODULE = choice(
    "module",
    "Module",
    "Modules that have series of their own: at most as many of a rank as module_series says.",
    f'{{__name__=~"{_MEASURED}", job=~"$job", instance=~"$instance", run=~"$run", rank=~"$rank"}}',
)

_DTYPES = spans(
    (447, 449, "float8_e4m3fn"),
    (57343, 57345, "float8_e5m2"),
    (65503, 65505, "float16"),
    (3.38e38, 3.395e38, "bfloat16"),
    (3.4e38, 3.41e38, "float32"),
)
"""Largest finite numbers: they tell the dtypes apart."""

_ACTIVATION, _ACTIVATION_LIMIT = (
    "ampwatch_module_activation_amax",
    "ampwatch_module_activation_dtype_max",
)
_GRADIENT, _GRADIENT_LIMIT = "ampwatch_module_gradient_amax", "ampwatch_autocast_dtype_max"
_OUTPUT_GRADIENT = "ampwatch_module_activation_gradient_amax"
_NONFINITE = "ampwatch_module_gradient_nonfinite_elements_total"


def _headroom(amax: str, limit: str) -> str:
    """Return PromQL of the doublings that are left before a value overflows."""
    on_rank = "job, instance, run, rank"
    if limit == _GRADIENT_LIMIT:
        ratio = f"{of(limit)} / on ({on_rank}) group_right () ({of_module(amax)} > 0)"
    else:
        ratio = f"{of_module(limit)} / ({of_module(amax)} > 0)"
    return f"min by (run, module) (log2({ratio}))"


_OF_OUTPUTS = _headroom(_ACTIVATION, _ACTIVATION_LIMIT)
_OF_OUTPUT_GRADIENTS = _headroom(_OUTPUT_GRADIENT, _ACTIVATION_LIMIT)
_OF_GRADIENTS = _headroom(_GRADIENT, _GRADIENT_LIMIT)


def page() -> Page:
    """Return the dashboard."""
    return Page(
        uid="ampwatch-layers",
        title="ampwatch / Layers",
        description="Which module? Ranges, NaN and infinity, what rounds to zero, what rounds"
        " away, and what is not in low precision; the worst first, in graphs by their mean over the time range. Leave Rank at All: one rank of a"
        " machine represents a module.",
        rows=(
            Row(100, "Which module is about to overflow?", _overflow()),
            Row(
                200,
                "Which module has NaN or infinity, and whose updates round away?",
                (*_nonfinite(), *updates()),
            ),
            Row(300, "Which module's gradients round to zero?", underflow()),
            Row(500, "Which module is not in low precision?", low_precision()),
            Row(700, "Which module grows before it breaks?", growth()),
            Row(600, "How far can this be trusted?", trust()),
        ),
        choices=(_MODULE,),
    )


def _overflow() -> tuple[Panel, ...]:
    limits = (
        "A headroom of n bits: the largest value can double n times before the format ends,"
        " at 65504 for float16."
    )
    no_ranges = f"No ranges: {NOT_HERE}"
    return (
        Table(
            id=101,
            title="Ranges of the modules",
            description=described(
                shows=f"The largest magnitudes of each module, of the worst rank. {SPEAKS} {limits}",
                good="3 bits and more of outputs, 1 and more of gradients; bfloat16 and float32 have a"
                " hundred.",
                act="below 1 bit, run this module in bfloat16 or float32, or make its output"
                " smaller (normalize before it, scale the logits, clip). A small headroom of"
                " gradients alone is the loss scale at work: it is halved when it is too much.",
                metrics=[
                    _ACTIVATION,
                    _ACTIVATION_LIMIT,
                    _OUTPUT_GRADIENT,
                    _GRADIENT,
                    _GRADIENT_LIMIT,
                ],
            ),
            unit="none",
            no_value=no_ranges,
            keys=KEYS,
            columns=(
                Column(title="Output headroom", expr=_OF_OUTPUTS, decimals=1, thresholds=HEADROOM),
                Column(
                    title="Largest output", expr=worst("max", _ACTIVATION), unit="sci", decimals=2
                ),
                Column(
                    title="Output dtype",
                    expr=worst("min", _ACTIVATION_LIMIT),
                    mappings=(*_DTYPES,),
                ),
                Column(
                    title="Output gradient headroom",
                    expr=_OF_OUTPUT_GRADIENTS,
                    decimals=1,
                    thresholds=GRADIENT_HEADROOM,
                ),
                Column(
                    title="Gradient headroom",
                    expr=_OF_GRADIENTS,
                    decimals=1,
                    thresholds=GRADIENT_HEADROOM,
                ),
                Column(
                    title="Largest gradient", expr=worst("max", _GRADIENT), unit="sci", decimals=2
                ),
            ),
            sort_by="Output headroom",
            height=10,
        ),
        lines(
            number=102,
            title="Headroom of outputs, in bits",
            about=described(
                shows=f"The {SHOWN} modules whose outputs are closest to the limit of their dtype."
                f" {limits}",
                good="flat, above 3.",
                act="a line that falls steadily says when it will overflow: act before. Which op"
                " it is, say the findings of the run.",
                metrics=[_ACTIVATION, _ACTIVATION_LIMIT],
            ),
            no_value=no_ranges,
            expr=_OF_OUTPUTS,
            bits=True,
            width=12,
        ),
        lines(
            number=104,
            title="Headroom of parameter gradients, in bits",
            about=described(
                shows=f"The {SHOWN} modules whose scaled parameter gradients are closest to the"
                f" limit of the autocast dtype of their rank. {limits}",
                good="a saw-tooth between 1 and 10 with a GradScaler.",
                act="as beside; clip after unscale_, not before.",
                metrics=[_GRADIENT, _GRADIENT_LIMIT],
            ),
            no_value=f"No autocast, so no limit to compare them with; or {NOT_HERE}",
            expr=_OF_GRADIENTS,
            bits=True,
            limits=GRADIENT_HEADROOM,
            width=12,
        ),
    )


def _nonfinite() -> tuple[Panel, ...]:
    none_seen = f"Nothing is known, not even zero: {NOT_HERE}"
    shows = (
        "Elements of parameter gradients that were NaN or infinite, in sampled iterations of the"
        f" time range, over the ranks that represent the module. {SPEAKS} A module that got its series only in trouble shows what came after that; the"
        " built-in page has the totals."
    )
    found = "run, module, kind"
    return (
        Table(
            id=201,
            title="NaN and infinity in the gradients",
            description=described(
                shows=shows,
                good="0 everywhere; a few infinities while the loss scale is searched or probed.",
                act="NaN is never the loss scale's doing: open the run and read the finding, which"
                " names the op that made it. Infinity in one module only: see its headroom above.",
                metrics=[_NONFINITE],
            ),
            unit="short",
            no_value=none_seen,
            keys=(*KEYS, Key(label="kind", title="Kind", width=90)),
            columns=(
                Column(
                    title="Elements",
                    expr=f"sum by ({found}) (increase({of_module(_NONFINITE)}[$__range]))",
                    unit="short",
                    decimals=0,
                    thresholds=thresholds(NEUTRAL, Step(1, BAD)),
                ),
            ),
            sort_by="Elements",
            descending=True,
            width=12,
        ),
    )
