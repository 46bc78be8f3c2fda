"""Kinds of findings about what outlives a step."""

from __future__ import annotations

from ampwatch.diagnosis.calls.kinds import TOO_LARGE
from ampwatch.diagnosis.kinds.kind import (
    AT_FAULT_FOR_LONG,
    Kind,
    KindFamily,
    Precedence,
    at_fault,
    before,
    certain,
    during,
    since,
    very_likely,
)
from ampwatch.wire.records import Finding, Severity
from ampwatch.wire.records.remedies import FIND_NONFINITE, ONCE_EXPLAINED


def _makes_steps_larger(_divergence: Finding, mixed: Finding) -> bool:
    return mixed.evidence.get(TOO_LARGE, 0.0) > 1.0


DIVERGENCE = Kind(
    slug="divergence",
    number=51,
    family=KindFamily.NOT_AMP,
    meaning="the training diverges, and would in float32 as well",
    severities=(Severity.CRITICAL,),
    certainty=very_likely("the loss was read step by step, and reached a new maximum many times"),
    advice=(
        "Lower the learning rate, warm it up for longer, or clip gradients"
        " (torch.nn.utils.clip_grad_norm_ after scaler.unscale_(optimizer)). Another precision or"
        f" loss scale does not help. {ONCE_EXPLAINED['divergence']}"
    ),
    explained_by=(
        since("unscaled_step") + since("mixed_scaled_backward", fits=_makes_steps_larger)
    ),
    precedence=Precedence.ALWAYS,
    is_aftermath=True,
)


def _is_root(_buffer: Finding, batch: Finding) -> bool:
    """Whether a batch that was not finite is to blame, and more than this comes of it."""
    return batch.root


def _began_it(weights: Finding, culprit: Finding) -> bool:
    """Whether an op may have broken weights: of those that an option of the optimizer breaks, only an op before it."""
    return weights.phase != "config" or culprit.first_step < weights.first_step


def _was_there(_weights: Finding, buffer: Finding) -> bool:
    """Whether a buffer was not finite before the first step, so that no step has made it so."""
    return buffer.phase == "config"


PARAM_NONFINITE = Kind(
    slug="param_nonfinite",
    number=19,
    family=KindFamily.POISONED_STATE,
    meaning="weights are NaN or infinite",
    severities=(Severity.CRITICAL,),
    certainty=certain("NaN and infinities in the weights were counted"),
    advice=f"Stop, and restore the last good checkpoint.{FIND_NONFINITE}",
    explained_by=(
        before("fp8_scale_nonfinite", "optimizer_eps_underflow")
        + at_fault(fits=_began_it)
        + since(
            "clip_nonfinite_norm",
            "unscaled_step",
            "fp8_scale_nonfinite",
            "shared_scaler_desync",
            "rank_found_inf_mismatch",
        )
        + since("buffer_nonfinite", fits=_was_there)
        + during("compile_backward_autocast", "divergence")
    ),
    precedence=Precedence.IF_BLOWN_UP,
    is_state=True,
)

BUFFER_NONFINITE = Kind(
    slug="buffer_nonfinite",
    number=20,
    family=KindFamily.POISONED_STATE,
    meaning="running statistics became NaN or infinite in a skipped step",
    severities=(Severity.CRITICAL,),
    certainty=certain("NaN and infinities in the buffer were counted"),
    advice=(
        "Reset the running statistics (module.reset_running_stats()) or restore them from a"
        " checkpoint. Then keep non-finite values out: clip or normalise the inputs, run the layer"
        " before it in float32 or bfloat16, skip the forward of a bad batch and not only its step."
    ),
    explained_by=(
        before("fp8_scale_nonfinite", "param_nonfinite")
        + before("nonfinite_input", fits=_is_root)
        + AT_FAULT_FOR_LONG
        + since(
            "clip_nonfinite_norm", "unscaled_step", "fp8_scale_nonfinite", "rank_found_inf_mismatch"
        )
        + during("divergence")
    ),
    precedence=Precedence.IF_PASSING,
    is_aftermath=True,
    is_state=True,
)

OPTIMIZER_EPS_UNDERFLOW = Kind(
    slug="optimizer_eps_underflow",
    number=18,
    family=KindFamily.UPDATE_PRECISION,
    meaning="the optimizer divides by zero",
    severities=(Severity.CRITICAL,),
    certainty=certain(
        "eps, or the squares that the optimizer keeps, are zero in the dtype of its state"
    ),
    advice=(
        "Keep parameters and optimizer state in float32, in checkpoints as well, and use torch.autocast instead of .half();"
        " in pure float16 give the optimizer an eps of 1e-4 or more."
    ),
    explained_by=during("divergence"),
)


REPLICA_DRIFT = Kind(
    slug="replica_drift",
    number=55,
    family=KindFamily.STEP_BOOKKEEPING,
    meaning="ranks that had the same weights no longer do",
    severities=(Severity.CRITICAL,),
    certainty=certain("checksums of the same weights were equal before, and differ"),
    advice=(
        "Find what only some ranks do: scheduler.step(), clipping or a change of weights under"
        " `if rank == 0`, a call of model.module, which goes past the averaging of"
        " DistributedDataParallel, no_sync() left on, a missed broadcast. Then restore a checkpoint,"
        " or broadcast parameters and optimizer state of one rank to the others. If one rank alone"
        " differs and no code explains it, suspect its hardware."
    ),
    is_state=True,
)
