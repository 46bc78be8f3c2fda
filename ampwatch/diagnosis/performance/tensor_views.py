"""Kind of the finding that views of the tensor cores contradict one another; the daemon makes it."""

from __future__ import annotations

from ampwatch.diagnosis.kinds.kind import Kind, KindFamily, very_likely
from ampwatch.wire.records import Severity

TENSOR_VIEWS_DISAGREE = Kind(
    slug="tensor_views_disagree",
    number=39,
    family=KindFamily.PERFORMANCE,
    meaning="the views of the tensor cores contradict one another",
    severities=(Severity.INFO,),
    certainty=very_likely("hardware counters, kernel names and counted FLOPs were compared"),
    advice=(
        "Trust none of the shares of tensor cores until this is settled: look at"
        " /debug/kernels.json of the daemon for kernels of unknown names and teach them with the"
        " setting kernel_patterns, check peak_flops, and see that no other process uses this GPU."
    ),
)
