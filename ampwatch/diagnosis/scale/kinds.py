"""Kinds of findings about the loss scale."""

from __future__ import annotations

from ampwatch.diagnosis.kinds.kind import (
    AT_FAULT,
    Kind,
    KindFamily,
    after,
    backwards,
    certain,
    during,
    since,
)
from ampwatch.wire.records import Finding, Severity
from ampwatch.wire.records.remedies import FIND_OVERFLOW

ANNOUNCED_STEPS = 10
"""A collapse that begins so soon after an output was said to approach its limit is that."""


def _was_announced(collapse: Finding, rise: Finding) -> bool:
    return 0 <= collapse.first_step - rise.last_step <= ANNOUNCED_STEPS


def _began_together(collapse: Finding, left: Finding) -> bool:
    """Whether the forward that began a collapse has left its trace in a buffer."""
    return abs(collapse.first_step - left.first_step) <= 1


def _goes_on(collapse: Finding, left: Finding) -> bool:
    """Whether steps were skipped when the forward wrote what gradients are made of."""
    return collapse.last_step >= left.first_step - 1


SCALE_COLLAPSE = Kind(
    slug="scale_collapse",
    number=7,
    family=KindFamily.SCALE_DYNAMICS,
    meaning="every step is skipped and the scale falls towards zero",
    severities=(Severity.WARNING, Severity.CRITICAL, Severity.INFO),
    certainty=certain("skipped steps and the loss scale were read from the scaler"),
    advice=(
        f"{FIND_OVERFLOW}Stop the run before the scale reaches"
        " 2^-128: from there on weights become infinite. bfloat16 autocast without a GradScaler"
        " avoids the float16 limit altogether."
    ),
    explained_by=(
        AT_FAULT
        + since("unscaled_step", "fp8_scale_nonfinite", "shared_scaler_desync")
        + after("param_nonfinite")
        + after("headroom_low", fits=_was_announced)
        + after("buffer_nonfinite", fits=_began_together)
        + backwards("param_nonfinite", "scale_below_one", "scale_stuck_low")
        + backwards("buffer_nonfinite", fits=_goes_on)
        + during("periodic_skip", "shared_scaler_desync", "compile_backward_autocast", "divergence")
    ),
)

SCALE_BELOW_ONE = Kind(
    slug="scale_below_one",
    number=8,
    family=KindFamily.SCALE_DYNAMICS,
    meaning="training continues with a loss scale below 1",
    severities=(Severity.WARNING, Severity.INFO),
    certainty=certain("the loss scale was read from the scaler at steps that were taken"),
    advice=(
        "Average the loss instead of summing it, normalise the targets, or use bfloat16 autocast"
        " without a GradScaler: the float16 range does not fit the gradients of this model."
    ),
    explained_by=(
        AT_FAULT
        + since("unscaled_step", "fp8_scale_nonfinite", "shared_scaler_desync")
        + after("range_too_wide")
        + backwards("range_too_wide", "scale_stuck_low")
        + during("periodic_skip", "shared_scaler_desync", "compile_backward_autocast", "divergence")
    ),
    is_state=True,
)

SCALE_RUNAWAY = Kind(
    slug="scale_runaway",
    number=9,
    family=KindFamily.SCALE_DYNAMICS,
    meaning="the loss scale keeps doubling without an overflow",
    severities=(Severity.WARNING,),
    certainty=certain(
        "the growths of the loss scale were counted, without an overflow between them"
    ),
    advice=(
        "Find out why the gradients are all but zero: a detached loss, dead ReLUs, a zero loss"
        " weight. If they are not, something hides their infinities from the scaler, which needs"
        " them to lower the scale: remove nan_to_num and clamp from gradient hooks and from"
        " between backward and scaler.step. If autocast is bfloat16 or off, no scaler is needed:"
        " GradScaler(enabled=(dtype is torch.float16))."
    ),
    explained_by=after("scaler_with_bf16"),
)

SCALER_WITH_BF16 = Kind(
    slug="scaler_with_bf16",
    number=10,
    family=KindFamily.SCALE_DYNAMICS,
    meaning="a GradScaler is enabled although autocast computes in bfloat16",
    severities=(Severity.INFO, Severity.WARNING),
    certainty=certain("the scaler is enabled and every autocast region seen was bfloat16"),
    advice=(
        "Enable the scaler for float16 alone: GradScaler(enabled=(dtype is torch.float16)). bfloat16"
        " has the exponent range of float32 and needs no loss scaling; the scaler only adds work and"
        " can skip steps."
    ),
)


RESTORE = (
    "Save scaler.state_dict() in every checkpoint, beside the model's and the optimizer's, and"
    " restore it with scaler.load_state_dict() before the first step. Without one set the scale"
    " by hand{which}: GradScaler(init_scale={scale})."
)

SCALE_RESET = Kind(
    slug="scale_reset",
    number=47,
    family=KindFamily.SCALE_DYNAMICS,
    meaning="the scale jumps back to its initial value",
    severities=(Severity.WARNING, Severity.INFO),
    certainty=certain("the loss scale was read before and after it jumped"),
    advice=RESTORE.format(which=", to that of the end of the run before", scale="..."),
)
