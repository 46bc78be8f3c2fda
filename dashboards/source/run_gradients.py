"""Do the gradients fit the format? Their magnitudes between the limits of the dtype of autocast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.host.fleet.ranges import CANDIDATES
from ampwatch.numerics.formats import FORMATS
from dashboards.source.fields import (
    BAD,
    GOOD,
    NEUTRAL,
    NOTE,
    WARN,
    color,
    described,
    limit_line,
    words,
)
from dashboards.source.links import label, to_dashboard
from dashboards.source.measures import (
    HEADROOM,
    NO_BLOCKS,
    NO_GRADIENT,
    NO_MAGNITUDE,
    NO_NORM,
    NO_SAMPLE,
    SEVERAL_SAMPLES,
    UNDERFLOW,
    headroom,
    shares,
)
from dashboards.source.panels import Heatmap, StateTimeline, TimeSeries
from dashboards.source.queries import Query, any_of, having, increase, of, rate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ampwatch.numerics.formats import FloatFormat

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


def _families(formats: Iterable[FloatFormat]) -> dict[str, list[str]]:
    """Return the names of formats by what an element costs."""
    families: dict[str, list[str]] = {}
    for fmt in sorted(formats, key=lambda fmt: -fmt.bits):
        families.setdefault(f"{fmt.bits} bits", []).append(fmt.name)
    return families


_FAMILIES = _families(FORMATS[name] for name in CANDIDATES)
_BLOCK_FAMILIES = _families(fmt for fmt in FORMATS.values() if fmt.block is not None)


def _fit(fit: str, formats: str) -> str:
    matchers = having("fit", fit), formats
    return f"max by (run, format) ({of('ampwatch_gradient_format_fit', *matchers)})"


def _fits(formats: str) -> str:
    return (
        f"3 * {_fit('too_wide', formats)} > 0 or 2 * {_fit('fits_scaled', formats)} > 0"
        f" or {_fit('fits', formats)}"
    )


def _in_blocks(metric: str, worst: str) -> tuple[Query, ...]:
    """Return a line for each block-scaled format, those of a family together."""
    return tuple(
        Query(
            f"{worst} by (run, format) ({of(metric, any_of('format', *formats))})",
            legend=f"blocks of {family}: {{{{format}}}} {{{{run}}}}",
        )
        for family, formats in _BLOCK_FAMILIES.items()
    )


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
            id=303,
            title="Headroom",
            description=described(
                shows="How many times the largest scaled gradient (peaks of the last minute"
                " included) can double before it is past the largest number of the format, the"
                " worst rank. A gap: every gradient is zero. bfloat16 has about 100 and more.",
                good="1 or more most of the time. With a GradScaler it falls by 1 at each growth"
                " and comes back at the backoff: that is how it probes.",
                act="below 1 without a GradScaler: overflow is near; lower the learning rate, put a"
                " norm before the layer that grows (see Layers), or use bfloat16.",
                metrics=["ampwatch_autocast_dtype_max", "ampwatch_scaled_gradient_amax_max"],
            ),
            unit="none",
            no_value="No gradient other than zero was sampled in this time, or no autocast was seen",
            queries=(Query(f"{headroom('run')} < {NO_GRADIENT}", legend="doublings left {{run}}"),),
            reaches_from=0,
            reaches_to=8,
            thresholds=HEADROOM,
            decimals=1,
            links=_TO_LAYERS,
            width=8,
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
                shows="Per second, over all ranks, of what was looked at: sampled steps and skipped"
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
            no_value=NO_NORM,
            queries=(
                Query(f"max by (run) ({of('ampwatch_gradient_norm')})", legend="norm {{run}}"),
            ),
            log2=True,
            width=24,
            height=6,
        ),
        StateTimeline(
            id=306,
            title="Which format would hold the gradients?",
            description=described(
                shows="Whether the newest gradients of all ranks fit each format: as they are, with"
                " a loss scale, or with none.",
                good="the format of autocast reads fits, or with a scale where there is a GradScaler.",
                act="too wide: no loss scale holds them; take a format that fits.",
                metrics=["ampwatch_gradient_format_fit"],
            ),
            unit="none",
            no_value="No whole gradient was sampled in this time: flushed or non-finite ones say nothing",
            queries=tuple(
                Query(
                    _fits(any_of("format", *formats)),
                    legend=f"{family}: {{{{format}}}} {{{{run}}}}",
                )
                for family, formats in _FAMILIES.items()
            ),
            mappings=(
                words(
                    {
                        1: ("fits", GOOD),
                        2: ("with a scale", NOTE),
                        3: ("too wide", BAD),
                        0: ("unknown", NEUTRAL),
                    }
                ),
            ),
            width=24,
            height=6,
        ),
        TimeSeries(
            id=308,
            title="How much noise would blocks of the gradients carry?",
            description=described(
                shows="The signal-to-quantisation-noise ratio of the newest gradients whose blocks were"
                " measured, if each block of 32 (nvfp4: 16) had a scale of its own in this format: an"
                " estimate, the worst rank. 6 dB are one binary digit.",
                good="the format that you want to train in keeps 20 dB or more, and keeps them.",
                act="it falls below: ampwatch plan says which layers can be trained in it and which not.",
                metrics=["ampwatch_gradient_block_sqnr_decibels"],
            ),
            unit="dB",
            no_value=NO_BLOCKS,
            queries=_in_blocks("ampwatch_gradient_block_sqnr_decibels", "min"),
            reaches_from=0,
            decimals=1,
            width=12,
        ),
        TimeSeries(
            id=309,
            title="How many would become zero in blocks?",
            description=described(
                shows="The share of the same gradient elements that would become zero, other than"
                " zeros: a block holds what is within so many powers of two of its largest element.",
                good="below 5 %.",
                act="above 20 %: a few large elements hide the rest of their blocks; Layers says in"
                " which modules gradients are spread widely.",
                metrics=["ampwatch_gradient_block_underflow_ratio"],
            ),
            unit="percentunit",
            no_value=NO_BLOCKS,
            queries=_in_blocks("ampwatch_gradient_block_underflow_ratio", "max"),
            minimum=0,
            thresholds=UNDERFLOW,
            area=True,
            links=_TO_LAYERS,
            width=12,
        ),
    )
