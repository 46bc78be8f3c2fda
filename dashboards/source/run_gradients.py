"""Do the gradients fit the format? Their magnitudes between the limits of the dtype of autocast."""

from __future__ import annotations

from dashboards.source.fields import (
    BAD,
    NOTE,
    WARN,
    color,
    described,
    limit_line,
)
from dashboards.source.links import label, to_dashboard
from dashboards.source.measures import (
    NO_MAGNITUDE,
    NO_NORM,
    NO_SAMPLE,
    SEVERAL_SAMPLES,
    UNDERFLOW,
    shares,
)
from dashboards.source.panels import Heatmap, StateTimeline, TimeSeries
from dashboards.source.queries import Query, increase, of, rate

_TO_LAYERS = (to_dashboard("Which module? Open Layers", "ampwatch-layers", run=label("run")),)

_MAGNITUDE = "ampwatch_gradient_magnitude_bucket"


def _quantile(share: float) -> str:
    buckets = f"sum by (run, le) ({increase(_MAGNITUDE, over=SEVERAL_SAMPLES)})"
    return f"histogram_quantile({share}, {buckets})"


def _limit(exponent: str) -> str:
    """Return PromQL of a limit of float16 over the loss scale, over 1 without a GradScaler."""
    scale = f"min by (run) ({of('ampwatch_loss_scale')})"
    float16 = f"max by (run) ({of('ampwatch_autocast_dtype_max')} == 65504)"
    return f"{exponent} / ({scale} and {float16} or {float16} / 65504)"


def gradients() -> tuple[Heatmap | TimeSeries | StateTimeline, ...]:
    """Return the panels of the row."""
    return (
        Heatmap(
            id=301,
            title="Magnitudes of the gradients, without the loss scale",
            description=described(
                shows="How many gradient elements had which magnitude. Each row is a factor of 16"
                " (4 exponents) and is named by its upper end."
                " How to read it for float16: it holds magnitudes from 2^-24 = 6.0e-8 (smallest"
                " subnormal; full precision from 2^-14 = 6.1e-5) to 65504. The gradients pass"
                " through it multiplied by the loss scale, so divide these limits by the scale:"
                " at 65536 = 2^16 they are 2^-40 = 9.1e-13, 2^-30 = 9.3e-10 and 1.0. The panel"
                " beside it draws them. bfloat16 has the range of float32: nothing here is lost.",
                good="one band, with its lower end above the smallest subnormal of the format.",
                act="a band that runs out of the lower limit: raise the loss scale. One that reaches"
                " both limits at once: no scale fits, use bfloat16. One that wanders up: the"
                " training diverges, lower the learning rate or clip.",
                metrics=["ampwatch_gradient_magnitude"],
            ),
            unit="sci",
            decimals=1,
            no_value=NO_MAGNITUDE,
            queries=(Query(f"sum by (le) ({increase(_MAGNITUDE)})", legend="{{le}}"),),
            interval="1m",
            height=11,
        ),
        TimeSeries(
            id=302,
            title="Gradients against the limits of float16 at this loss scale",
            description=described(
                shows="Quantiles of the gradient magnitudes of the last 5 minutes without the loss scale"
                " (interpolated within a factor of 16), and the limits of float16 divided by the loss scale,"
                " dashed. Each line of the grid is a factor of two.",
                good="all quantiles between the limits, the 1 % quantile above the smallest normal.",
                act="1 % below the smallest subnormal: that share is flushed to zero, raise the"
                " scale. 99 % at the largest: overflow is near, the scale will back off. Limits"
                " that move apart from the quantiles: the scale collapses.",
                metrics=[
                    "ampwatch_gradient_magnitude",
                    "ampwatch_loss_scale",
                    "ampwatch_autocast_dtype_max",
                ],
            ),
            unit="sci",
            decimals=1,
            no_value=NO_MAGNITUDE,
            queries=(
                Query(_quantile(0.99), legend="99 % below {{run}}"),
                Query(_quantile(0.5), legend="half below {{run}}"),
                Query(_quantile(0.01), legend="1 % below {{run}}"),
                Query(_limit("65504"), legend="float16 largest {{run}}"),
                Query(_limit("2 ^ -14"), legend="float16 smallest normal {{run}}"),
                Query(_limit("2 ^ -24"), legend="float16 smallest subnormal {{run}}"),
            ),
            log2=True,
            interval="1m",
            height=11,
            overrides=(
                limit_line("/^float16 largest/", BAD),
                limit_line("/^float16 smallest normal/", NOTE),
                limit_line("/^float16 smallest subnormal/", WARN),
            ),
        ),
        TimeSeries(
            id=304,
            title="What the format loses of the gradients",
            description=described(
                shows="Shares of the gradient elements sampled within 5 minutes: zero only because of"
                " the format (underflow), less precise because of it (subnormal), and all zeros"
                " (dead units, masks and underflow together).",
                good="underflow below 5 %. Zeros belong to the model: level is good.",
                act="underflow above 20 %: raise the loss scale or use bfloat16; Layers says which"
                " modules. Subnormal elements keep fewer bits and are the next to go.",
                metrics=[
                    "ampwatch_gradient_underflow_elements_total",
                    "ampwatch_gradient_subnormal_elements_total",
                    "ampwatch_gradient_zero_elements_total",
                    "ampwatch_gradient_elements_total",
                ],
            ),
            unit="percentunit",
            no_value=NO_SAMPLE,
            queries=tuple(
                Query(
                    shares(f"ampwatch_gradient_{part}_elements_total", "run"),
                    legend=f"{name} {{{{run}}}}",
                )
                for part, name in {
                    "underflow": "underflow",
                    "subnormal": "subnormal",
                    "zero": "all zeros",
                }.items()
            ),
            minimum=0,
            thresholds=UNDERFLOW,
            area=True,
            links=_TO_LAYERS,
            width=8,
        ),
        TimeSeries(
            id=305,
            title="NaN and infinite gradient elements",
            description=described(
                shows="Per second, over all ranks, of what was measured: sampled steps and skipped"
                " ones.",
                good="0 but for a probe, which makes some infinite and no NaN.",
                act="infinite: an overflow, lower the scale cures it if it comes from the scale. NaN"
                " without infinity first: an op makes it (0/0, inf - inf, log of 0), no scale helps;"
                " the findings name the op.",
                metrics=["ampwatch_gradient_nonfinite_elements_total"],
            ),
            unit="cps",
            no_value=NO_SAMPLE,
            queries=(
                Query(
                    f"sum by (kind) ({rate('ampwatch_gradient_nonfinite_elements_total')})",
                    legend="{{kind}}",
                ),
            ),
            minimum=0,
            width=8,
            overrides=(color("nan", BAD), color("inf", WARN)),
        ),
        TimeSeries(
            id=307,
            title="Norm of the gradients, without the loss scale",
            description=described(
                shows="L2 norm of all gradients in the newest sample, before clipping (without a GradScaler after it), of the rank with"
                " the largest. A gap: one of them was not finite. With sharded parameters it is"
                " that of a rank's own shards.",
                good="level or falling, whatever the loss scale does.",
                act="it grows for hours: the training diverges; lower the learning rate, or clip at what"
                " was usual before.",
                metrics=["ampwatch_gradient_norm"],
            ),
            unit="sci",
            decimals=1,
            no_value=NO_NORM,
            queries=(
                Query(f"max by (run) ({of('ampwatch_gradient_norm')})", legend="norm {{run}}"),
            ),
            log2=True,
            width=8,
        ),
    )
