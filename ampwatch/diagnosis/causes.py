"""Which finding explains which: what an op at fault brings about, and what outranks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampwatch.wire.records import Finding

SYMPTOMS = frozenset(
    {
        *("scale_collapse", "scale_below_one", "grad_underflow"),
        *("param_nonfinite", "range_too_wide", "fp16_without_scaler"),
    }
)
"""Kinds that an op that makes non-finite values explains, as long as it does."""

DIVERGENCE = "divergence"
"""Explains whatever stops being finite after it."""

AFTERMATHS = frozenset({"scale_stuck_low", "periodic_skip", "buffer_nonfinite", "divergence"})
"""Kinds that stay when a few bad batches are over, or that bring them about: they are the root."""

TRANSIENT = frozenset({"forward_overflow", "forward_nan_underflow"})
"""Kinds of which one bad batch may be the reason. A scaler skips the step, so that nothing is lost
if they come once."""

BIRTHS = frozenset(
    {
        *("forward_overflow", "silent_overflow", "forward_nan_underflow", "masked_row_nan"),
        *("backward_nonfinite_any_scale", "nonfinite_input"),
    }
)
"""Kinds that name an op that non-finite values come out of."""

LEFT_BY_NONFINITE = frozenset({"param_nonfinite", "buffer_nonfinite", "clip_nonfinite_norm"})

CONSEQUENCES: dict[str, frozenset[str]] = {
    "clip_nonfinite_norm": frozenset({"param_nonfinite", "buffer_nonfinite"}),
    # A training whose steps are too large by the loss scale.
    "unscaled_step": frozenset(
        {
            *("param_nonfinite", "buffer_nonfinite", "headroom_low", "scale_collapse"),
            *("scale_below_one", "forward_overflow", "silent_overflow", "range_too_wide"),
            *("backward_nonfinite_any_scale", "grad_underflow"),
        }
    ),
    # Ops of backward in half precision whose forward was in float32.
    "backward_under_autocast": frozenset({"grad_underflow", "backward_nonfinite_any_scale"}),
    # The region goes on from step to step, and backward with it.
    "stale_autocast_cache": frozenset({"backward_under_autocast"}),
    # What is multiplied by such a scale, or divided by it, is not finite.
    "fp8_scale_nonfinite": BIRTHS | LEFT_BY_NONFINITE | SYMPTOMS,
    # What overflows is in the forward or the loss of one of them, and only one is meant to skip.
    "shared_scaler_desync": BIRTHS | SYMPTOMS,
    # A replica that takes the step takes the infinities of the one that does not.
    "rank_found_inf_mismatch": BIRTHS | LEFT_BY_NONFINITE,
}
"""What becomes of a training, by kind of what was done wrong, from that iteration on."""

PROVEN_LATE = {
    "fp8_scale_nonfinite": 2,
    "stale_autocast_cache": 2,
    "shared_scaler_desync": 64,
}
"""Iterations that consequences may be found earlier, by kinds that take as long to prove."""

LASTING = 16
"""Iterations in which an op was at fault from which it is no few bad batches, and is the root of
what it has left behind as well."""

FOUND_LATE = 4
"""Iterations that an op may be found at fault after what it has left behind: it is looked for then."""

INCIDENT_STEPS = 64
"""Iterations after which what has gone wrong says nothing about what goes wrong now."""


def outranks(finding: Finding, culprit: Finding, root: Finding) -> bool:
    """Whether a new finding is the root of the op at fault, and not the other way round.

    Args:
        finding: The new finding.
        culprit: The op that was named last.
        root: What explains that; itself if nothing does.
    """
    if finding.kind == DIVERGENCE:
        return True
    if finding.kind == "param_nonfinite":
        return not _is_of_format(culprit) and root.kind != DIVERGENCE
    if finding.kind not in AFTERMATHS:
        return False
    return is_passing(culprit) or _is_over(culprit, finding)


def is_symptom(finding: Finding, culprit: Finding, root: Finding) -> bool:
    """Whether an op at fault explains a new finding; arguments as of ``outranks``."""
    if finding.first_step - root.last_step > INCIDENT_STEPS:
        return False
    is_left_of_it = finding.kind in AFTERMATHS and _is_lasting(culprit)
    return finding.kind in SYMPTOMS or is_left_of_it


def is_consequence(finding: Finding, root: Finding) -> bool:
    """Whether what was done wrong, ``root``, brings about what ``finding`` says."""
    since = root.first_step - PROVEN_LATE.get(root.kind, 0)
    return finding.kind in CONSEQUENCES.get(root.kind, ()) and finding.first_step >= since


def is_passing(culprit: Finding) -> bool:
    """Whether a culprit may be a few bad batches: all was well before, and it has not lasted."""
    return culprit.kind in TRANSIENT and culprit.first_step > 0 and culprit.count < LASTING


def _is_over(culprit: Finding, left: Finding) -> bool:
    """Whether a burst, however long, has ended before the scale came to the rest it is stuck at."""
    return (
        left.kind == "scale_stuck_low"
        and culprit.kind in TRANSIENT
        and 0 < culprit.first_step <= culprit.last_step < left.first_step
    )


def _is_lasting(culprit: Finding) -> bool:
    return culprit.kind in TRANSIENT and not is_passing(culprit)


def _is_of_format(culprit: Finding) -> bool:
    """Whether it is the range of the format that does not fit, and not the numbers that blew up."""
    return culprit.kind != "forward_overflow" or culprit.dtype == "float16"
