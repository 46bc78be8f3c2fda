"""Kinds of findings that name where non-finite values come from: an op, or the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.kinds.kind import (
    Kind,
    KindFamily,
    after,
    before,
    certain,
    during,
    likely,
    since,
    very_likely,
)
from ampwatch.wire.records import Finding, Severity

if TYPE_CHECKING:
    from ampwatch.wire.records import Finding


def _is_same_module(overflow: Finding, announced: Finding) -> bool:
    return overflow.where == announced.where


def _is_hidden(_symptom: Finding, swallowed: Finding) -> bool:
    """Whether wrong gradients were handed on as right ones: weights go anywhere from there."""
    return swallowed.phase == "backward"


FORWARD_OVERFLOW = Kind(
    slug="forward_overflow",
    number=0,
    family=KindFamily.FORWARD_RANGE,
    meaning="an op turns finite inputs into infinity",
    severities=(Severity.CRITICAL, Severity.WARNING, Severity.INFO),
    certainty=certain("the op had finite inputs and an infinite output"),
    advice=(
        "Keep this op in float32: run its module with torch.autocast(device_type, enabled=False) and"
        " .float() inputs (transformers: _keep_in_fp32_modules), or train in bfloat16, which has the"
        " range of float32. For attention scores scale the query before the matmul, or use"
        " torch.nn.functional.scaled_dot_product_attention; for sums use .float() before the"
        " reduction; for a residual stream that grows rescale the outputs of its branches. A clamp"
        " hides the overflow and keeps the wrong numbers."
    ),
    explained_by=(
        since(
            "unscaled_step",
            "fp8_scale_nonfinite",
            "rank_found_inf_mismatch",
            "optimizer_eps_underflow",
        )
        + since("silent_overflow", fits=_is_hidden)
        + after("headroom_low", fits=_is_same_module)
        + during("divergence")
    ),
    is_transient=True,
)

SILENT_OVERFLOW = Kind(
    slug="silent_overflow",
    number=1,
    family=KindFamily.FORWARD_RANGE,
    meaning="an infinity appears and is hidden by a later op: the output is finite but wrong",
    severities=(Severity.CRITICAL, Severity.WARNING),
    certainty=certain("an op turned finite inputs into infinity, and a later op hid it"),
    advice=(
        "Compute these statistics in float32: x = x.float() before the square, the sum or"
        " the product, and cast the result back; torch.nn.RMSNorm and torch.nn.LayerNorm do it."
    ),
    explained_by=(
        since(
            "unscaled_step",
            "fp8_scale_nonfinite",
            "rank_found_inf_mismatch",
            "optimizer_eps_underflow",
        )
        + since("silent_overflow", fits=_is_hidden)
        + during("divergence")
    ),
)

MASKED_ROW_NAN = Kind(
    slug="masked_row_nan",
    number=2,
    family=KindFamily.FORWARD_RANGE,
    meaning="softmax over a row that is fully masked",
    severities=(Severity.CRITICAL, Severity.WARNING),
    certainty=certain("the softmax had a row of -infinity only, and returned NaN"),
    advice=(
        "Leave at least one position of each row unmasked: combine masks as booleans (mask_a | mask_b, then one"
        " masked_fill or torch.where), fill with torch.finfo(dtype).min / 2 and never add two fills,"
        " never multiply by a mask of -inf. Or use torch.nn.functional.scaled_dot_product_attention with a"
        " boolean attn_mask, and drop rows that are all padding."
    ),
    explained_by=(since("fp8_scale_nonfinite", "rank_found_inf_mismatch") + during("divergence")),
)

KEEP_OFF_ZERO = (
    "Keep it off zero: add an eps to what is divided by (1e-3 or more in float16: the gradient is divided by it twice),"
    " inside of a square root (sqrt(x + eps): its slope is infinite at 0),"
    " clamp(min=eps) what a logarithm is taken of, or take logits and use"
    " binary_cross_entropy_with_logits, log_softmax or logsumexp; mask rows that are empty."
)
"""Advice that float32 has no part in."""

FORWARD_NAN_UNDERFLOW = Kind(
    slug="forward_nan_underflow",
    number=3,
    family=KindFamily.FORWARD_SMALL_NUMBERS,
    meaning="a zero, often a small value or an eps that was rounded, led to NaN",
    severities=(Severity.CRITICAL, Severity.WARNING, Severity.INFO),
    certainty=certain("the op had finite inputs, one of them zero, and a non-finite output"),
    advice=(
        "If there is an eps already, it may have been rounded to zero: call .float() before it is added."
        f" {KEEP_OFF_ZERO}"
    ),
    explained_by=(since("fp8_scale_nonfinite", "rank_found_inf_mismatch") + during("divergence")),
    is_transient=True,
)

INVALID_OPERATION = Kind(
    slug="invalid_operation",
    number=54,
    family=KindFamily.NOT_AMP,
    meaning="an op has no finite result for its inputs, in any precision",
    severities=(Severity.CRITICAL, Severity.WARNING, Severity.INFO),
    certainty=certain(
        "the op has no finite result for its finite inputs or for values near them;"
        " or an infinity that the program wrote reached the loss"
    ),
    advice=(
        "Change the inputs of the op: neither precision nor the loss scale is at fault. Keep arguments"
        " of roots, logarithms and inverse cosines inside of their domain (clamp before, not after);"
        " do not take the unbiased variance of one sample (use correction=0, or skip it); leave out targets"
        " that are longer than their input (torch.nn.CTCLoss: zero_infinity=True); write a large finite"
        " value instead of infinity where a later op may read it."
    ),
    explained_by=(
        since("fp8_scale_nonfinite", "shared_scaler_desync", "rank_found_inf_mismatch")
        + during("divergence")
    ),
    is_transient=True,
)

NONFINITE_INPUT = Kind(
    slug="nonfinite_input",
    number=4,
    family=KindFamily.NOT_AMP,
    meaning="the batch holds NaN or infinity",
    severities=(Severity.CRITICAL, Severity.WARNING),
    certainty=certain("the values were not finite when the model received them"),
    advice=(
        "Fix the data: find the sample (torch.isfinite(batch).all() in the dataset or the"
        " collate function, and raise there with its index), and leave it out. Another precision or"
        " the loss scale does not help."
    ),
    explained_by=since("fp8_scale_nonfinite", "shared_scaler_desync", "rank_found_inf_mismatch"),
)

BACKWARD_NONFINITE_ANY_SCALE = Kind(
    slug="backward_nonfinite_any_scale",
    number=5,
    family=KindFamily.GRADIENT_RANGE,
    meaning="a gradient that is not finite at any loss scale",
    severities=(Severity.CRITICAL,),
    certainty=very_likely(
        "an op of backward had finite inputs, and a divisor or an argument that is zero, or a gradient that is too large at any useful loss scale"
    ),
    advice=(
        "Keep the argument away from where the derivative is infinite:"
        " torch.sqrt(d.float() ** 2 + 1e-8), torch.linalg.vector_norm(x.float()) + eps. Use torch.where on the"
        " input and not only on the result, and clamp inside of (-1, 1) before acos, asin and atanh. A bound or"
        " an eps may be rounded away in half precision (in bfloat16 1 - 1e-6 is 1): call .float() before it. No loss"
        " scale fixes it."
    ),
    explained_by=(
        since(
            "unscaled_step",
            "backward_under_autocast",
            "fp8_scale_nonfinite",
            "rank_found_inf_mismatch",
        )
        + during("compile_backward_autocast", "divergence")
    ),
)

REDUCE_OVERFLOW = Kind(
    slug="reduce_overflow",
    number=6,
    family=KindFamily.COMMUNICATION,
    meaning="the gradients are finite, their sum is not",
    severities=(Severity.CRITICAL,),
    certainty=certain("gradients were finite before the reduction over ranks and not after it"),
    advice=(
        "Divide before summing (gradient_predivide_factor, or gradient / world_size before the"
        " all-reduce), or reduce in float32 or bfloat16 (no fp16_compress_hook; FSDP:"
        " MixedPrecision(reduce_dtype=torch.float32)). Take norms of gradient.float(), as"
        " torch.nn.utils.clip_grad_norm_ does for float32 gradients."
    ),
)


TOGETHER_STEPS = 64
"""Iterations within which outputs that come near the limit do so for one reason: what rises in one
module rises in those that are computed from it."""

STILL_GOES_ON = 4
"""Iterations after an overflow was last seen in which it is no few bad batches of long ago."""


def _rises_with(announced: Finding, other: Finding) -> bool:
    return other.root and 0 <= announced.first_step - other.first_step <= TOGETHER_STEPS


def _has_overflowed(announced: Finding, overflow: Finding) -> bool:
    """Whether there is nothing left to announce: the numbers have left the format already."""
    after = announced.first_step > overflow.first_step
    return after and announced.first_step - overflow.last_step <= STILL_GOES_ON


HEADROOM_LOW = Kind(
    slug="headroom_low",
    number=15,
    family=KindFamily.FORWARD_RANGE,
    meaning="an output grows towards the limit of float16 and has not overflowed yet",
    severities=(Severity.WARNING,),
    certainty=likely(
        "the largest output was measured step by step, and its trend was extrapolated"
    ),
    advice=(
        "Change this module now: lower its learning rate or weight decay, put a norm before it, or"
        " run it in float32 (torch.autocast(device_type, enabled=False)) or bfloat16, before it"
        " overflows."
    ),
    explained_by=(
        before("headroom_low", fits=_rises_with)
        + since("unscaled_step")
        + since("forward_overflow", "silent_overflow", fits=_has_overflowed)
        + during("divergence")
    ),
)


LOGIT_GROWTH = Kind(
    slug="logit_growth",
    number=61,
    family=KindFamily.FORWARD_RANGE,
    meaning="attention logits grow until softmax saturates: a loss spike follows",
    severities=(Severity.WARNING,),
    certainty=likely(
        "the largest logit was read, or bounded, in several iterations, and its trend was"
        " extrapolated"
    ),
    advice=(
        "Normalize query and key before they are multiplied (QK norm: an nn.RMSNorm over the size of"
        " a head), or cap the logits (cap * torch.tanh(logits / cap)). Lower the learning rate, or"
        " warm it up longer. Keep logits and softmax in float32 (torch.autocast(device_type,"
        " enabled=False)); for the logits of the loss a z-loss does the same. Keep a checkpoint from"
        " before the growth."
    ),
)
