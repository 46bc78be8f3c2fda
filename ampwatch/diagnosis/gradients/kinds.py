"""Kinds of findings about gradients in float16, and the scale that they would take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.kinds.kind import (
    AT_FAULT,
    AT_FAULT_FOR_LONG,
    Kind,
    KindFamily,
    Precedence,
    backwards,
    before,
    by_detector,
    certain,
    during,
    since,
    very_likely,
)
from ampwatch.wire.records import Severity

if TYPE_CHECKING:
    from ampwatch.wire.records import Finding

AT_REST = 8
"""Steps between the last batch that was at fault and the beginning of the rest at a low scale."""

FP16_WITHOUT_SCALER = Kind(
    slug="fp16_without_scaler",
    number=13,
    family=KindFamily.GRADIENT_RANGE,
    meaning="float16 autocast without a loss scale",
    severities=(Severity.WARNING, Severity.CRITICAL, Severity.INFO),
    certainty=very_likely(
        "autocast runs in float16 without an enabled GradScaler; what its gradients lose was measured from their exponents"
    ),
    advice=(
        "Scale the loss: torch.amp.GradScaler(device) with scaler.scale(loss).backward(),"
        " scaler.step(optimizer), scaler.update(); or use bfloat16 autocast, which needs no scaler."
    ),
    explained_by=(
        before("optimizer_eps_underflow")
        + AT_FAULT
        + since("fp8_scale_nonfinite", "shared_scaler_desync")
    ),
)

RAISE_THE_SCALE = (
    "Raise the loss scale (scaler.update(new_scale), a smaller growth_interval), or use bfloat16"
    " autocast, which has the range of float32."
)

GRAD_UNDERFLOW = Kind(
    slug="grad_underflow",
    number=12,
    family=KindFamily.GRADIENT_RANGE,
    meaning="gradients become zero at this loss scale",
    severities=(Severity.WARNING, Severity.CRITICAL),
    certainty=very_likely(
        "zeros of the gradients were counted, and the values beside or before them are at the lower limit of float16"
    ),
    advice=(
        f"{RAISE_THE_SCALE} The what-if panel shows which scale would keep"
        " these gradients, as they were before they became zero if none is left."
    ),
    explained_by=(
        AT_FAULT
        + since(
            "unscaled_step",
            "backward_under_autocast",
            "fp8_scale_nonfinite",
            "shared_scaler_desync",
        )
        + by_detector("scale_stuck_low", "range_too_wide", "scale_below_one", "scale_collapse")
        + backwards("scale_below_one", "scale_stuck_low")
        + during("periodic_skip", "shared_scaler_desync", "divergence")
    ),
)

RANGE_TOO_WIDE = Kind(
    slug="range_too_wide",
    number=14,
    family=KindFamily.GRADIENT_RANGE,
    meaning="no loss scale fits all gradients",
    severities=(Severity.WARNING,),
    certainty=very_likely(
        "gradients of both parameters were measured at the same loss scale: no scale fits both"
    ),
    advice=(
        "Bring the losses to the same order of magnitude, give each its own GradScaler and backward"
        " pass, keep the parameter named here out of autocast"
        " (torch.autocast(device_type, enabled=False)), or use bfloat16 autocast."
    ),
    explained_by=(
        AT_FAULT
        + since("unscaled_step", "fp8_scale_nonfinite", "shared_scaler_desync")
        + during("periodic_skip", "divergence")
    ),
)


def _is_why_it_fell(stuck: Finding, fault: Finding) -> bool:
    """Whether the scale has come to rest when a fault that was seen was over."""
    return fault.root and -1 <= stuck.first_step - 1 - fault.last_step <= AT_REST


SCALE_STUCK_LOW = Kind(
    slug="scale_stuck_low",
    number=16,
    family=KindFamily.SCALE_DYNAMICS,
    meaning="bad batches lowered the loss scale, and it does not recover",
    severities=(Severity.WARNING, Severity.CRITICAL),
    certainty=very_likely(
        "the loss scale was read from the scaler, and the gradients lost at it were measured"
    ),
    advice=(
        "First find what the batches of the skipped steps have in common: if they return, a raised scale falls again."
        " Then raise the scale by hand (scaler.update(new_scale)) or make the scaler recover faster"
        " (a smaller growth_interval)."
    ),
    explained_by=(
        before(
            "nonfinite_input",
            "backward_nonfinite_any_scale",
            "forward_nan_underflow",
            "invalid_operation",
            "masked_row_nan",
            "silent_overflow",
            fits=_is_why_it_fell,
        )
        + AT_FAULT_FOR_LONG
        + during("periodic_skip", "shared_scaler_desync", "divergence")
    ),
    precedence=Precedence.IF_OVER,
    is_aftermath=True,
)


FP16_LOSS_CAPS_SCALE = Kind(
    slug="fp16_loss_caps_scale",
    number=21,
    family=KindFamily.GRADIENT_RANGE,
    meaning="the loss is a float16 tensor, which cannot hold the scaled loss",
    severities=(Severity.WARNING,),
    certainty=certain("the dtype of the loss handed to the scaler was float16"),
    advice=(
        "Make the loss float32 before it is scaled: compute it from output.float(), or return"
        " loss.float() from the reduction."
    ),
    explained_by=during("divergence"),
)
