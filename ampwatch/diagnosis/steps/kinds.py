"""Kinds of findings about steps that are counted and skipped."""

from __future__ import annotations

from ampwatch.diagnosis.kinds.kind import (
    AT_FAULT,
    AT_FAULT_FOR_LONG,
    Kind,
    KindFamily,
    Precedence,
    at_fault,
    before,
    certain,
    during,
    very_likely,
)
from ampwatch.wire.records import Finding, Severity


def _is_in_phase(period: Finding, op: Finding) -> bool:
    """Whether an op was seen to fail in a step that is skipped with the period."""
    # The newest step of the period is at hand before and after the finding has been made.
    length = period.evidence.get("period", 0.0)
    return length >= 1.0 and (period.last_step - op.last_step) % length == 0.0


PERIODIC_SKIP = Kind(
    slug="periodic_skip",
    number=48,
    family=KindFamily.SCALE_DYNAMICS,
    meaning="the skipped steps are those with a certain loss term",
    severities=(Severity.WARNING,),
    certainty=very_likely("the skipped steps are evenly spaced, more often than by chance"),
    advice=(
        "Find what these steps compute and the others do not: a lazy regularisation, a rare batch."
        " Compute that term in float32 (torch.autocast(device_type, enabled=False)), or give it a"
        " backward pass and a GradScaler of its own; a growth_interval that is much longer than the"
        " period keeps the scale low enough for it."
    ),
    explained_by=(
        at_fault(fits=_is_in_phase)
        + AT_FAULT_FOR_LONG
        + during("shared_scaler_desync", "divergence")
    ),
    precedence=Precedence.IF_PASSING,
    is_aftermath=True,
)


RANK_FOUND_INF_MISMATCH = Kind(
    slug="rank_found_inf_mismatch",
    number=50,
    family=KindFamily.STEP_BOOKKEEPING,
    meaning="some ranks skip a step that others take",
    severities=(Severity.CRITICAL,),
    certainty=certain("ranks reported the same step differently: taken and skipped"),
    advice=(
        "Make the ranks agree before they step: all-reduce found_inf (the maximum) between"
        " scaler.unscale_(optimizer) and scaler.step(optimizer), or use"
        " torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler, which does. From here on the"
        " replicas are different models: restore a checkpoint."
    ),
)


def _overlaps(desync: Finding, batch: Finding) -> bool:
    """Whether batches that were not finite came while the optimizers fell apart."""
    return (
        batch.root and batch.first_step <= desync.last_step and batch.last_step >= desync.first_step
    )


SHARED_SCALER_DESYNC = Kind(
    slug="shared_scaler_desync",
    number=49,
    family=KindFamily.STEP_BOOKKEEPING,
    meaning="two optimizers share a scaler, and one is skipped far more often",
    severities=(Severity.WARNING,),
    certainty=certain("skipped steps were counted for each optimizer of the scaler"),
    advice=(
        "Find what overflows in the forward or the loss of the optimizer named here. Give each"
        " optimizer its own GradScaler, or skip both when one is skipped."
    ),
    explained_by=(before("nonfinite_input", fits=_overlaps) + AT_FAULT + during("divergence")),
    proven_late=64,
)


SCHEDULER_AHEAD = Kind(
    slug="scheduler_ahead",
    number=11,
    family=KindFamily.STEP_BOOKKEEPING,
    meaning="the learning-rate schedule advances although the optimizer did not",
    severities=(Severity.INFO, Severity.WARNING),
    certainty=certain(
        "steps of the schedule and skipped steps of its optimizer were counted in the same iterations"
    ),
    advice=(
        "Step the scheduler, or count the steps that you compute the learning rate from, only when the"
        " optimizer has stepped: `if not watch.last_step.skipped: scheduler.step()`. With a fused optimizer on a GPU, where only"
        " the device knows, compare scaler.get_scale() before and after scaler.update()"
        " (accelerate: accelerator.optimizer_step_was_skipped). Where Lightning steps the scheduler, do"
        " that in lr_scheduler_step of the LightningModule, with the scale of"
        " trainer.precision_plugin.scaler."
    ),
)
