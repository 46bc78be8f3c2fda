"""All kinds of findings, gathered from beside their detectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.autocast.autocast_state import AUTOCAST_INACTIVE
from ampwatch.diagnosis.autocast.compiled_backward import COMPILE_BACKWARD_AUTOCAST
from ampwatch.diagnosis.autocast.stale_casts import STALE_AUTOCAST_CACHE
from ampwatch.diagnosis.calls.api_errors import API_ERROR
from ampwatch.diagnosis.calls.kinds import (
    BACKWARD_UNDER_AUTOCAST,
    CLIP_BEFORE_UNSCALE,
    CLIP_NONFINITE_NORM,
    MIXED_SCALED_BACKWARD,
    SCALE_CHANGED_MID_ACCUMULATION,
    UNSCALED_STEP,
)
from ampwatch.diagnosis.forward.forward_range import HEADROOM_LOW
from ampwatch.diagnosis.forward.kinds import (
    BACKWARD_NONFINITE_ANY_SCALE,
    FORWARD_NAN_UNDERFLOW,
    FORWARD_OVERFLOW,
    INVALID_OPERATION,
    MASKED_ROW_NAN,
    NONFINITE_INPUT,
    REDUCE_OVERFLOW,
    SILENT_OVERFLOW,
)
from ampwatch.diagnosis.forward.logits import LOGIT_GROWTH
from ampwatch.diagnosis.gradients.kinds import (
    FP16_WITHOUT_SCALER,
    GRAD_UNDERFLOW,
    RANGE_TOO_WIDE,
    SCALE_STUCK_LOW,
)
from ampwatch.diagnosis.gradients.loss_dtype import FP16_LOSS_CAPS_SCALE
from ampwatch.diagnosis.kinds.kind import Certainty
from ampwatch.diagnosis.memory.creep import MEMORY_CREEP
from ampwatch.diagnosis.performance.casts import CAST_OVERHEAD, NO_MEMORY_GAIN
from ampwatch.diagnosis.performance.float32_matmuls import FP32_MATMUL
from ampwatch.diagnosis.performance.kernel_choice import KERNELS_OUTDATED, MATMUL_IS_GEMV
from ampwatch.diagnosis.performance.machine_fit import BACKEND_FLAGS, CPU_ISA_MISSING
from ampwatch.diagnosis.performance.op_shapes import DIMS_UNALIGNED, LAYOUT_NCHW
from ampwatch.diagnosis.performance.syncs import SYNC_IN_STEP
from ampwatch.diagnosis.performance.tensor_views import TENSOR_VIEWS_DISAGREE
from ampwatch.diagnosis.rounding.accumulation import (
    EMA_ROUNDING,
    GRAD_ACCUM_ROUNDING,
    METRIC_ACCUM_ROUNDING,
)
from ampwatch.diagnosis.rounding.fp8 import FP8_SATURATION, FP8_SCALE_NONFINITE, FP8_UNDERFLOW
from ampwatch.diagnosis.rounding.lossy_casts import LOSSY_INTEGER_CAST
from ampwatch.diagnosis.rounding.plan_left import PLAN_LEFT
from ampwatch.diagnosis.rounding.update_precision import UPDATE_ROUNDING
from ampwatch.diagnosis.scale.scale_dynamics import (
    SCALE_BELOW_ONE,
    SCALE_COLLAPSE,
    SCALE_RUNAWAY,
    SCALER_WITH_BF16,
)
from ampwatch.diagnosis.scale.scale_reset import SCALE_RESET
from ampwatch.diagnosis.state.divergence import DIVERGENCE
from ampwatch.diagnosis.state.poisoned_state import (
    BUFFER_NONFINITE,
    OPTIMIZER_EPS_UNDERFLOW,
    PARAM_NONFINITE,
)
from ampwatch.diagnosis.state.replica_drift import REPLICA_DRIFT
from ampwatch.diagnosis.steps.periodic_skips import PERIODIC_SKIP
from ampwatch.diagnosis.steps.replicas import RANK_FOUND_INF_MISMATCH
from ampwatch.diagnosis.steps.shared_scaler import SHARED_SCALER_DESYNC
from ampwatch.diagnosis.steps.step_bookkeeping import SCHEDULER_AHEAD
from ampwatch.diagnosis.time.input_bound import INPUT_BOUND
from ampwatch.diagnosis.time.step_slower import STEP_SLOWER
from ampwatch.diagnosis.time.straggler import STRAGGLER

if TYPE_CHECKING:
    from ampwatch.diagnosis.kinds.kind import Kind

ROWS = (
    FORWARD_OVERFLOW,
    SILENT_OVERFLOW,
    HEADROOM_LOW,
    LOGIT_GROWTH,
    MASKED_ROW_NAN,
    FORWARD_NAN_UNDERFLOW,
    LOSSY_INTEGER_CAST,
    METRIC_ACCUM_ROUNDING,
    FP16_WITHOUT_SCALER,
    GRAD_UNDERFLOW,
    RANGE_TOO_WIDE,
    BACKWARD_NONFINITE_ANY_SCALE,
    FP16_LOSS_CAPS_SCALE,
    SCALE_COLLAPSE,
    SCALE_BELOW_ONE,
    SCALE_STUCK_LOW,
    SCALE_RUNAWAY,
    SCALE_RESET,
    PERIODIC_SKIP,
    SCALER_WITH_BF16,
    SCHEDULER_AHEAD,
    SHARED_SCALER_DESYNC,
    RANK_FOUND_INF_MISMATCH,
    REPLICA_DRIFT,
    CLIP_BEFORE_UNSCALE,
    UNSCALED_STEP,
    MIXED_SCALED_BACKWARD,
    SCALE_CHANGED_MID_ACCUMULATION,
    CLIP_NONFINITE_NORM,
    BACKWARD_UNDER_AUTOCAST,
    API_ERROR,
    AUTOCAST_INACTIVE,
    STALE_AUTOCAST_CACHE,
    COMPILE_BACKWARD_AUTOCAST,
    BUFFER_NONFINITE,
    PARAM_NONFINITE,
    UPDATE_ROUNDING,
    OPTIMIZER_EPS_UNDERFLOW,
    GRAD_ACCUM_ROUNDING,
    EMA_ROUNDING,
    FP8_SATURATION,
    FP8_UNDERFLOW,
    FP8_SCALE_NONFINITE,
    PLAN_LEFT,
    REDUCE_OVERFLOW,
    DIMS_UNALIGNED,
    CAST_OVERHEAD,
    FP32_MATMUL,
    LAYOUT_NCHW,
    NO_MEMORY_GAIN,
    MEMORY_CREEP,
    CPU_ISA_MISSING,
    BACKEND_FLAGS,
    KERNELS_OUTDATED,
    MATMUL_IS_GEMV,
    TENSOR_VIEWS_DISAGREE,
    INPUT_BOUND,
    STEP_SLOWER,
    STRAGGLER,
    SYNC_IN_STEP,
    NONFINITE_INPUT,
    INVALID_OPERATION,
    DIVERGENCE,
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
