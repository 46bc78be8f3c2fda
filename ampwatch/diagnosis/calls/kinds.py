"""Kinds of findings about calls around AMP that run, and do not do what they should."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.calls.known_errors import OF_NONFINITE
from ampwatch.diagnosis.kinds.kind import (
    AT_FAULT,
    Kind,
    KindFamily,
    at_fault,
    backwards,
    certain,
    during,
    since,
)
from ampwatch.wire.records import Severity
from ampwatch.wire.records.remedies import ONCE_EXPLAINED

if TYPE_CHECKING:
    from ampwatch.wire.records import Finding


def _was_refused_next(mixed: Finding, refused: Finding) -> bool:
    """Whether what was added after unscale_ is the same mistake, one call before it is refused."""
    return refused.op == "unscale_" and refused.last_step - mixed.last_step <= 1


CLIP_BEFORE_UNSCALE = Kind(
    slug="clip_before_unscale",
    number=40,
    family=KindFamily.API_MISUSE,
    meaning="gradients are clipped while they are multiplied by the loss scale",
    severities=(Severity.WARNING,),
    certainty=certain(
        "gradients were clipped before the scaler had unscaled them; clipping by code of the program shows in the"
        " gradients it leaves"
    ),
    advice=(
        "Call scaler.unscale_(optimizer) between backward and torch.nn.utils.clip_grad_norm_ (or"
        " clip_grad_value_, or clipping of your own, which cannot be in a hook of backward then), once per"
        " step and optimizer, after the last micro-batch."
    ),
)

UNSCALED_STEP = Kind(
    slug="unscaled_step",
    number=41,
    family=KindFamily.API_MISUSE,
    meaning="the optimizer steps on gradients that are multiplied by the loss scale",
    severities=(Severity.WARNING,),
    certainty=certain("optimizer.step() was called on gradients that the scaler had not unscaled"),
    advice=(
        "Call scaler.step(optimizer) and then scaler.update() instead of optimizer.step(): it"
        " divides the gradients by the scale and skips the step if they are not finite."
    ),
)

UNSCALED_COMPILED = (
    "Compile the model and not the step: call scaler.step(optimizer) and then scaler.update(). Or call"
    " scaler.unscale_(optimizer) before the compiled step, and leave the step out where a gradient is not finite."
)
"""Advice where the step is compiled."""

UNSCALED_TWICE = (
    "Call scaler.unscale_ once per step, after the last backward, with the object that scaler.step gets and not"
    " with a wrapper of it; and scaler.update() after scaler.step only."
)
"""Advice where gradients are divided by the scale twice."""

TOO_LARGE = "times_too_large"
"""Evidence of ``mixed_scaled_backward``: how many times a loss weighs what it should, where that is too much."""

MIXED_SCALED_BACKWARD = Kind(
    slug="mixed_scaled_backward",
    number=42,
    family=KindFamily.API_MISUSE,
    meaning="scaled and unscaled losses go into the same gradients",
    severities=(Severity.WARNING,),
    certainty=certain(
        "what backward added to the gradients of one step, and what divided them by the scale, was followed;"
        " or gradients of a scaled loss were seen in another loss"
    ),
    advice=(
        "Call scaler.scale(loss).backward() for every loss that feeds this optimizer, and"
        " scaler.unscale_(optimizer) only after the last of them; give losses that have to stay"
        " unscaled an optimizer of their own. Divide what torch.autograd.grad returned for a scaled loss by"
        " scaler.get_scale() before it goes into a loss."
    ),
    explained_by=backwards("api_error", fits=_was_refused_next),
)

SCALE_CHANGED_MID_ACCUMULATION = Kind(
    slug="scale_changed_mid_accumulation",
    number=43,
    family=KindFamily.API_MISUSE,
    meaning="gradients of two different loss scales are added up",
    severities=(Severity.WARNING,),
    certainty=certain(
        "the scale differed between two backward passes that added to the same gradients"
    ),
    advice=(
        "Call scaler.update() once per effective batch, after the steps of all optimizers; where"
        " optimizers step at different times, give each its own torch.amp.GradScaler."
    ),
)

CLIP_NONFINITE_NORM = Kind(
    slug="clip_nonfinite_norm",
    number=44,
    family=KindFamily.API_MISUSE,
    meaning="clipping by an infinite norm destroys all gradients",
    severities=(Severity.WARNING,),
    certainty=certain("the norm that the clipping returned was not finite, and the step was taken"),
    advice=(
        "Skip the step when the norm is not finite: `norm = clip_grad_norm_(...)`, then `if"
        " torch.isfinite(norm): optimizer.step()`; or have it raised with"
        " error_if_nonfinite=True. Then find what made this gradient non-finite."
    ),
    explained_by=(
        AT_FAULT + since("fp8_scale_nonfinite", "rank_found_inf_mismatch") + during("divergence")
    ),
)

BACKWARD_UNDER_AUTOCAST = Kind(
    slug="backward_under_autocast",
    number=45,
    family=KindFamily.API_MISUSE,
    meaning="`backward()` runs inside the autocast region",
    severities=(Severity.WARNING, Severity.INFO),
    certainty=certain("autocast was on when backward was called"),
    advice=(
        "Leave the torch.autocast block before backward(): only the forward pass and the loss belong"
        " into it; backward uses the dtypes of the forward by itself. If the block is not yours, as in"
        " Lightning's manual optimization, call backward() in a"
        " `with torch.autocast(device_type, enabled=False):` block inside of it. A"
        " torch.autograd.Function of your own needs torch.amp.custom_fwd and torch.amp.custom_bwd."
    ),
    explained_by=since("stale_autocast_cache"),
)


def _refuses_nonfinite(error: Finding, _broken: Finding) -> bool:
    return error.op in {known.op for known in OF_NONFINITE}


def _is_of_that_step(error: Finding, cause: Finding) -> bool:
    """Whether it refuses what was not finite in that step or in the one before."""
    return _refuses_nonfinite(error, cause) and abs(error.first_step - cause.last_step) <= 1


API_ERROR = Kind(
    slug="api_error",
    number=46,
    family=KindFamily.API_MISUSE,
    meaning="a well-known exception of PyTorch, explained",
    severities=(Severity.CRITICAL, Severity.WARNING),
    certainty=certain(
        "the exception itself says so, or an op ran that PyTorch refuses on other devices"
    ),
    advice=ONCE_EXPLAINED["api_error"],
    explained_by=(
        at_fault(fits=_is_of_that_step)
        + since("nonfinite_input", fits=_is_of_that_step)
        + since("param_nonfinite", "buffer_nonfinite", fits=_refuses_nonfinite)
    ),
)
