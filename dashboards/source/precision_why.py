"""The rows of the dashboard Precision about ops that stay in float32, and about casts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.source.fields import NEUTRAL, WARN, Step, described, thresholds, words
from dashboards.source.precision_shares import FORWARD_ONLY, OVER, RUN, sums
from dashboards.source.tables import Column, Key, Table

if TYPE_CHECKING:
    from dashboards.source.panels import Panel

_OPS = "ampwatch_autocast_fallback_ops_total"
_FLOPS = "ampwatch_autocast_fallback_flops_total"
_ALL_FLOPS = "ampwatch_flops_total"
_CASTS = "ampwatch_casts_total"
_CAST_BYTES = "ampwatch_cast_bytes_total"
_REASONS = words(
    {
        "fp32_list": ("autocast runs it in float32, for its range: as it should be", NEUTRAL),
        "not_listed": ("autocast leaves it alone, and its input was float32", NEUTRAL),
        "promoted": ("its inputs have different dtypes: the wider one is taken", NEUTRAL),
        "disabled_region": ("inside autocast(enabled=False): meant so, or forgotten", NEUTRAL),
        "outside_region": ("outside of every autocast region", NEUTRAL),
        "other_thread": ("in a thread without autocast, while another one has it", NEUTRAL),
        "device_type": ("inside an autocast region for another type of device", NEUTRAL),
        "custom_function": (
            "an autograd.Function asks for float32, or not an op of PyTorch",
            NEUTRAL,
        ),
    }
)


def fallbacks() -> tuple[Panel, ...]:
    """Return what ran in float32 although the training uses autocast, by why."""
    by = "run, reason"
    seen = f"{sums(_OPS, by=by)} > 0"  # the counters of all reasons are born at 0
    return (
        Table(
            id=201,
            title="In float32 under autocast, by reason",
            description=described(
                shows="Ops of the forward pass, and their share of the FLOPs of the run, in counted"
                f" iterations of {OVER}. {FORWARD_ONLY}",
                good="empty, or no FLOPs anywhere. Ops of the float32 list are many and cost little.",
                act="above 1 % of the FLOPs: `ampwatch ops --by op` names the ops, docs/lab.md"
                " says what each reason means and what to change.",
                metrics=[_OPS, _FLOPS, _ALL_FLOPS],
            ),
            unit="short",
            no_value=f"No op ran in float32 under autocast within {OVER}, or none was counted",
            keys=(
                RUN,
                Key(label="reason", title="Why", mappings=(_REASONS,)),
            ),
            columns=(
                Column(
                    title="Ops",
                    expr=seen,
                    unit="short",
                    decimals=0,
                    width=90,
                ),
                Column(
                    title="Share of FLOPs",
                    width=130,
                    expr=f"{sums(_FLOPS, by=by)} / on (run) group_left () ({sums(_ALL_FLOPS)} > 0)"
                    f" and on ({by}) {seen}",
                    unit="percentunit",
                    thresholds=thresholds(NEUTRAL, Step(0.01, WARN)),
                ),
            ),
            sort_by="Share of FLOPs",
            descending=True,
            width=12,
        ),
    )


def casts() -> tuple[Panel, ...]:
    """Return how many tensors change their dtype, and the bytes that this moves."""
    no_casts = f"No casts were counted within {OVER}"
    return (
        Table(
            id=301,
            title="Casts",
            description=described(
                shows=f"Casts in counted iterations of {OVER}, and the bytes that they have read"
                " and written: the price of mixed precision, without a FLOP.",
                good="mostly from float32 to the dtype of autocast: weights and inputs.",
                act="as many back to float32 say that ops of the float32 list lie between"
                " matmuls; casts from float64 or integers, that the data loader hands over"
                " something wider than needed.",
                metrics=[_CASTS, _CAST_BYTES],
            ),
            unit="short",
            no_value=no_casts,
            keys=(
                RUN,
                Key(label="from_dtype", title="From"),
                Key(label="to_dtype", title="To"),
            ),
            columns=(
                Column(
                    title="Casts",
                    expr=sums(_CASTS, by="run, from_dtype, to_dtype"),
                    unit="short",
                    decimals=0,
                ),
                Column(
                    title="Bytes",
                    expr=sums(_CAST_BYTES, by="run, from_dtype, to_dtype"),
                    unit="bytes",
                ),
            ),
            sort_by="Bytes",
            descending=True,
            width=12,
        ),
    )
