"""The rows of the dashboard Layers about what is lost without a NaN: rounding, and low precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.source.fields import BAD, GOOD, NEUTRAL, WARN, Step, described, thresholds
from dashboards.source.modules import KEYS, NOT_HERE, SHARE_LOST, SHOWN, SPEAKS, lines, worst
from dashboards.source.tables import Column, Table

if TYPE_CHECKING:
    from dashboards.source.panels import Panel

_UNCHANGED = thresholds(GOOD, Step(0.5, WARN), Step(0.9, BAD))
"""Thresholds of updates that round away: where most do, training moves only the small elements."""

_UNDERFLOW = "ampwatch_module_gradient_underflow_ratio"
_ZERO = "ampwatch_module_gradient_zero_ratio"
_UNTOUCHED = "ampwatch_module_update_unchanged_ratio"
_LOW = "ampwatch_module_low_precision_flops_ratio"


def underflow() -> tuple[Panel, ...]:
    """Return the modules whose gradients the dtype of autocast flushes to zero."""
    lost = (
        "The share of gradient elements that are zero only because of the dtype of autocast:"
        " those that it has flushed, and those that it would flush."
    )
    no_gradients = f"No gradients: {NOT_HERE}"
    return (
        Table(
            id=301,
            title="Gradients that round to zero",
            description=described(
                shows=f"{lost} Zero in all counts what is zero for any reason. Of the worst rank. {SPEAKS}",
                good="below 5 %.",
                act="above 20 % the module learns from part of its gradient only: let the loss"
                " scale grow (see its window on the dashboard of the run), or use bfloat16. A"
                " large share of zeros with little underflow is the model: ReLU, masks, unused"
                " embeddings.",
                metrics=[_UNDERFLOW, _ZERO],
            ),
            unit="percentunit",
            no_value=no_gradients,
            keys=KEYS,
            columns=(
                Column(
                    title="Lost to the dtype",
                    expr=worst("max", _UNDERFLOW),
                    unit="percentunit",
                    thresholds=SHARE_LOST,
                ),
                Column(title="Zero in all", expr=worst("max", _ZERO), unit="percentunit"),
            ),
            sort_by="Lost to the dtype",
            descending=True,
            width=12,
        ),
        lines(
            number=302,
            title="Lost to the dtype",
            about=described(
                shows=f"{lost} The {SHOWN} worst modules.",
                good="flat, below 5 %.",
                act="a share that rises while the loss falls is gradients becoming small: the"
                " loss scale has to follow. One that jumps when the scale is halved: another"
                " module keeps the scale down, see the headroom above.",
                metrics=[_UNDERFLOW],
            ),
            no_value=no_gradients,
            expr=worst("max", _UNDERFLOW),
            bits=False,
        ),
    )


def updates() -> tuple[Panel, ...]:
    """Return the modules that the optimizer cannot move."""
    shows = (
        "The share of parameter elements, of a subsample, that the optimizer left exactly as they"
        " were: the update was smaller than half of the last bit."
    )
    no_updates = f"No updates: {NOT_HERE}"
    return (
        Table(
            id=401,
            title="Updates that round away",
            description=described(
                shows=f"{shows} Of the worst rank. {SPEAKS}",
                good="near 0 with parameters in float32.",
                act="above 50 %, and with parameters in bfloat16 or float16: keep a master copy"
                " in float32, or round stochastically. Rows of an embedding that were not used"
                " stay as they are as well, and so do frozen parameters.",
                metrics=[_UNTOUCHED],
            ),
            unit="percentunit",
            no_value=no_updates,
            keys=KEYS,
            columns=(
                Column(
                    title="Left unchanged",
                    expr=worst("max", _UNTOUCHED),
                    unit="percentunit",
                    thresholds=_UNCHANGED,
                ),
            ),
            sort_by="Left unchanged",
            descending=True,
            width=12,
        ),
    )


def low_precision() -> tuple[Panel, ...]:
    """Return the modules that autocast does not reach."""
    shows = (
        "The share of the floating-point operations of a module that ran in 16 bits or fewer,"
        " in the newest iteration whose ops were counted, of the worst rank."
    )
    no_census = f"No matmul, convolution or attention was counted yet; or {NOT_HERE}"
    return (
        Table(
            id=501,
            title="Low precision by module",
            description=described(
                shows=shows,
                good="100 % for modules with matmuls or convolutions.",
                act="a module at 0 % gains nothing from AMP: the dashboard Precision says for"
                " what reason ops stay in float32, `ampwatch ops --by module` which ones.",
                metrics=[_LOW],
            ),
            unit="percentunit",
            no_value=no_census,
            keys=KEYS,
            columns=(
                Column(
                    title="In 16 bits or fewer",
                    expr=worst("min", _LOW),
                    unit="percentunit",
                    thresholds=thresholds(
                        NEUTRAL, Step(0, WARN), Step(0.5, NEUTRAL), Step(0.9, GOOD)
                    ),
                ),
            ),
            sort_by="In 16 bits or fewer",
            width=24,
        ),
    )
