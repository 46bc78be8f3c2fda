"""How sure a finding is, and what it was concluded from: a sentence per kind.

``certain`` is what was observed itself; ``very likely`` rests on a measurement of the thing
itself and a rule that leaves little else; ``likely`` rests on a trend or a sample.
"""

from __future__ import annotations

from typing import NamedTuple


class Certainty(NamedTuple):
    """How sure, and why.

    Attributes:
        word: ``certain``, ``very likely``, ``likely``; ``not stated`` of an unknown kind.
        why: What it was concluded from, a sentence without its full stop.
    """

    word: str
    why: str


UNKNOWN = Certainty("not stated", "this release does not know findings of this kind")

_SEEN, _MEASURED, _INFERRED = "certain", "very likely", "likely"

CERTAINTY: dict[str, Certainty] = {
    kind: Certainty(word, why)
    for kind, word, why in (
        (
            *("forward_overflow", _SEEN),
            "the op itself was seen with finite inputs and an infinite output",
        ),
        (
            *("silent_overflow", _SEEN),
            "an op inside the module was seen to turn finite inputs into infinity, and a later one to hide it",
        ),
        (
            *("headroom_low", _INFERRED),
            "the largest output was measured step by step; where it goes is the trend carried on",
        ),
        (
            *("masked_row_nan", _SEEN),
            "the softmax was seen with a row that is -infinity throughout, and with NaN as its result",
        ),
        (
            *("forward_nan_underflow", _SEEN),
            "the op was seen with finite inputs, a zero among them, and a result that is not finite",
        ),
        (
            *("nonfinite_input", _SEEN),
            "the values were seen to be not finite before the model had done anything with them",
        ),
        (
            *("lossy_integer_cast", _SEEN),
            "the values before the cast were whole numbers beyond those that the format can hold",
        ),
        (
            *("metric_accum_rounding", _SEEN),
            "the sum was seen to be the same before and after something that is not zero was added",
        ),
        (
            *("fp16_without_scaler", _MEASURED),
            "autocast runs in float16 and no enabled GradScaler takes part; what that costs was read off the exponents of the gradients",
        ),
        (
            *("grad_underflow", _MEASURED),
            "zeros of the gradients were counted, and the values beside them lie where float16 ends",
        ),
        (
            *("range_too_wide", _MEASURED),
            "gradients of both parameters were measured at the same loss scale: no scale fits both",
        ),
        (
            *("backward_nonfinite_any_scale", _MEASURED),
            "an op of backward was seen with finite inputs, and with a divisor or an argument that is zero or with a gradient beyond what any useful loss scale can hold",
        ),
        (
            *("fp16_loss_caps_scale", _SEEN),
            "the dtype of the loss handed to the scaler was float16",
        ),
        (*("scale_collapse", _SEEN), "skipped steps and the loss scale were read from the scaler"),
        (
            *("scale_below_one", _SEEN),
            "the loss scale was read from the scaler at steps that were taken",
        ),
        (
            *("scale_stuck_low", _MEASURED),
            "the loss scale was read from the scaler, and what gradients lose at it was measured",
        ),
        (
            *("scale_runaway", _SEEN),
            "every growth of the loss scale was counted, and no overflow came between",
        ),
        (*("scale_reset", _SEEN), "the loss scale was read before and after it jumped"),
        (
            *("periodic_skip", _MEASURED),
            "the skipped steps are evenly spaced, more often than chance would have it",
        ),
        (
            *("scaler_with_bf16", _SEEN),
            "the scaler is enabled and every autocast region seen was bfloat16",
        ),
        (
            *("scheduler_ahead", _SEEN),
            "steps of the scheduler and skipped steps of its optimizer were counted in the same iterations",
        ),
        (
            *("shared_scaler_desync", _SEEN),
            "skipped steps were counted for each optimizer of the scaler",
        ),
        (*("rank_found_inf_mismatch", _SEEN), "the ranks' own verdicts on the same step differ"),
        (
            *("clip_before_unscale", _SEEN),
            "the clipping was called while the scaler had not unscaled these gradients",
        ),
        (
            *("unscaled_step", _SEEN),
            "optimizer.step() was called on gradients that the scaler had not unscaled",
        ),
        (
            *("mixed_scaled_backward", _SEEN),
            "backward was seen to start from a scaled and from an unscaled loss before one step",
        ),
        (
            *("scale_changed_mid_accumulation", _SEEN),
            "the scale differed between two backward passes that added to the same gradients",
        ),
        (
            *("clip_nonfinite_norm", _SEEN),
            "the norm that the clipping returned was not finite, and the step was taken",
        ),
        (
            *("backward_under_autocast", _SEEN),
            "autocast was on when backward was called",
        ),
        (
            *("api_error", _SEEN),
            "the exception that PyTorch has raised says so itself, or an op that it refuses elsewhere was seen",
        ),
        (
            *("autocast_inactive", _MEASURED),
            "autocast is used in this program, and these ops were seen to run outside its reach",
        ),
        (
            *("stale_autocast_cache", _SEEN),
            "weights changed while the autocast region that had cached their casts was still open",
        ),
        (
            *("compile_backward_autocast", _SEEN),
            "the compiled function was called with autocast on, and PyTorch's setting makes its backward run so",
        ),
        (*("buffer_nonfinite", _SEEN), "NaN and infinities in the buffer were counted"),
        (*("param_nonfinite", _SEEN), "NaN and infinities in the weights were counted"),
        (
            *("update_rounding", _MEASURED),
            "weights were compared before and after the step, in a sample of their elements",
        ),
        (
            *("optimizer_eps_underflow", _SEEN),
            "eps, rounded to the dtype of the optimizer's state, is zero",
        ),
        (
            *("grad_accum_rounding", _MEASURED),
            "the gradients are kept in 16 bits, and what a micro-batch adds was measured against them",
        ),
        (*("ema_rounding", _SEEN), "the average was seen to be the same after it was updated"),
        (
            *("fp8_saturation", _SEEN),
            "values beyond the largest number of the format were counted before the cast",
        ),
        (
            *("fp8_underflow", _SEEN),
            "values that the cast makes zero were counted before it",
        ),
        (*("fp8_scale_nonfinite", _SEEN), "the scale itself was read, and is not finite"),
        (
            *("reduce_overflow", _SEEN),
            "gradients were finite before the ranks were added up and not after",
        ),
        (
            *("divergence", _MEASURED),
            "the loss was read step by step, and was larger than ever again and again before the end",
        ),
        (*("dims_unaligned", _SEEN), "the shapes of the ops were read as they ran"),
        (*("cast_overhead", _SEEN), "casts and their bytes were counted as they ran"),
        (*("fp32_matmul", _SEEN), "the dtypes of the matrix products were read as they ran"),
        (*("layout_nchw", _SEEN), "the memory format of the convolutions' inputs was read"),
        (
            *("no_memory_gain", _MEASURED),
            "bytes of weights, of their copies and of activations were counted in one step",
        ),
        (*("cpu_isa_missing", _SEEN), "the machine says which instructions it has"),
        (*("backend_flags", _SEEN), "the switches of the backends were read"),
        (*("matmul_is_gemv", _SEEN), "the shapes of the ops were read as they ran"),
        (
            *("kernels_outdated", _MEASURED),
            "the names of the kernels that ran say which architecture they were made for",
        ),
        (
            *("tensor_views_disagree", _MEASURED),
            "hardware counters, kernel names and counted FLOPs were compared",
        ),
    )
}
"""How sure findings of each kind are."""


def certainty(kind: str) -> Certainty:
    """Return how sure a finding of ``kind`` is."""
    return CERTAINTY.get(kind, UNKNOWN)
