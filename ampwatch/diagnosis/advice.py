"""What to change, per kind of finding. One sentence or two, naming the API."""

from __future__ import annotations

ADVICE = {
    "scale_collapse": (
        "Find the op that overflows: the scale is only the messenger, and lowering it cures nothing"
        " that does not depend on it. Look at the loss first; if it is finite, at the gradients of"
        " the optimizer named here before scaler.unscale_(). Stop the run before the scale reaches"
        " 2^-128: from there on weights become infinite. bfloat16 autocast without a GradScaler"
        " avoids the float16 limit altogether."
    ),
    "scale_below_one": (
        "The float16 range does not fit the gradients of this model: average the loss instead of"
        " summing it, normalise the targets, or use bfloat16 autocast without a GradScaler."
    ),
    "scale_runaway": (
        "Find out why the gradients are all but zero: a detached loss, dead ReLUs, a zero loss"
        " weight. If autocast is bfloat16 or off, no scaler is needed:"
        " GradScaler(enabled=(dtype is torch.float16))."
    ),
    "scaler_with_bf16": (
        "bfloat16 has the exponent range of float32 and needs no loss scaling; the scaler only adds"
        " work and can skip steps: GradScaler(enabled=(dtype is torch.float16))."
    ),
    "scheduler_ahead": (
        "Step the scheduler only when the optimizer has stepped: `if not"
        " watch.last_step.skipped: scheduler.step()`; with a fused optimizer on a GPU, where only"
        " the device knows, compare scaler.get_scale() before and after scaler.update()"
        " (accelerate: accelerator.optimizer_step_was_skipped)."
    ),
}
"""Kind of finding to advice. The kinds are frozen: they are labels, links and page names."""
