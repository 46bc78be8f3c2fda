"""All kinds of findings, gathered from their families."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.autocast import kinds as autocast
from ampwatch.diagnosis.calls import kinds as calls
from ampwatch.diagnosis.forward import kinds as forward
from ampwatch.diagnosis.gradients import kinds as gradients
from ampwatch.diagnosis.kinds.kind import Certainty
from ampwatch.diagnosis.memory import kinds as memory
from ampwatch.diagnosis.performance import kinds as performance
from ampwatch.diagnosis.rounding import kinds as rounding
from ampwatch.diagnosis.scale import kinds as scale
from ampwatch.diagnosis.state import kinds as state
from ampwatch.diagnosis.steps import kinds as steps
from ampwatch.diagnosis.time import kinds as time

if TYPE_CHECKING:
    from ampwatch.diagnosis.kinds.kind import Kind

ROWS = (
    forward.FORWARD_OVERFLOW,
    forward.SILENT_OVERFLOW,
    forward.HEADROOM_LOW,
    forward.LOGIT_GROWTH,
    forward.MASKED_ROW_NAN,
    forward.FORWARD_NAN_UNDERFLOW,
    rounding.LOSSY_INTEGER_CAST,
    rounding.METRIC_ACCUM_ROUNDING,
    gradients.FP16_WITHOUT_SCALER,
    gradients.GRAD_UNDERFLOW,
    gradients.RANGE_TOO_WIDE,
    forward.BACKWARD_NONFINITE_ANY_SCALE,
    gradients.FP16_LOSS_CAPS_SCALE,
    scale.SCALE_COLLAPSE,
    scale.SCALE_BELOW_ONE,
    gradients.SCALE_STUCK_LOW,
    scale.SCALE_RUNAWAY,
    scale.SCALE_RESET,
    steps.PERIODIC_SKIP,
    scale.SCALER_WITH_BF16,
    steps.SCHEDULER_AHEAD,
    steps.SHARED_SCALER_DESYNC,
    steps.RANK_FOUND_INF_MISMATCH,
    state.REPLICA_DRIFT,
    calls.CLIP_BEFORE_UNSCALE,
    calls.UNSCALED_STEP,
    calls.MIXED_SCALED_BACKWARD,
    calls.SCALE_CHANGED_MID_ACCUMULATION,
    calls.CLIP_NONFINITE_NORM,
    calls.BACKWARD_UNDER_AUTOCAST,
    calls.API_ERROR,
    autocast.AUTOCAST_INACTIVE,
    autocast.STALE_AUTOCAST_CACHE,
    autocast.COMPILE_BACKWARD_AUTOCAST,
    state.BUFFER_NONFINITE,
    state.PARAM_NONFINITE,
    rounding.UPDATE_ROUNDING,
    state.OPTIMIZER_EPS_UNDERFLOW,
    rounding.GRAD_ACCUM_ROUNDING,
    rounding.EMA_ROUNDING,
    rounding.FP8_SATURATION,
    rounding.FP8_UNDERFLOW,
    rounding.FP8_SCALE_NONFINITE,
    rounding.PLAN_LEFT,
    forward.REDUCE_OVERFLOW,
    performance.DIMS_UNALIGNED,
    performance.CAST_OVERHEAD,
    performance.FP32_MATMUL,
    performance.LAYOUT_NCHW,
    performance.NO_MEMORY_GAIN,
    memory.MEMORY_CREEP,
    performance.CPU_ISA_MISSING,
    performance.BACKEND_FLAGS,
    performance.KERNELS_OUTDATED,
    performance.MATMUL_IS_GEMV,
    performance.TENSOR_VIEWS_DISAGREE,
    time.INPUT_BOUND,
    time.STEP_SLOWER,
    time.STRAGGLER,
    performance.SYNC_IN_STEP,
    forward.NONFINITE_INPUT,
    forward.INVALID_OPERATION,
    state.DIVERGENCE,
)
"""Every kind, in the order of the pages: a new one gets its place here."""

_BY_SLUG = {row.slug: row for row in ROWS}

RELEASED = tuple(sorted(ROWS, key=lambda row: row.number))
"""Every kind, in the order of release, so that a new one moves no label value and no series."""

KINDS = tuple(row.slug for row in RELEASED)
"""The kinds of findings that this release makes; a ring of another release may hold more."""


def _check(rows: tuple[Kind, ...]) -> None:
    """Refuse rows that contradict one another, when they are loaded: edges name kinds by slug.

    Raises:
        ValueError: If two rows share a slug or a number, or an edge leads to no kind.
    """
    if sorted(row.number for row in rows) != list(range(len(rows))) or len(_BY_SLUG) != len(rows):
        msg = f"expected numbers 0 to {len(rows) - 1} and slugs, each once; got {[(r.number, r.slug) for r in RELEASED]}"
        raise ValueError(msg)
    for row in rows:
        for cause in row.explained_by:
            if cause.kind and cause.kind not in _BY_SLUG:
                msg = (
                    f"`explained_by` of {row.slug}: expected kinds of findings, got {cause.kind!r}"
                )
                raise ValueError(msg)


_check(ROWS)

UNKNOWN = Certainty("not stated", "this release does not know findings of this kind")


def row_of(kind: str) -> Kind | None:
    """Return the row of a kind; ``None`` if this release does not know it."""
    return _BY_SLUG.get(kind)


def certainty(kind: str) -> Certainty:
    """Return how sure a finding of ``kind`` is."""
    row = row_of(kind)
    return UNKNOWN if row is None else row.certainty
