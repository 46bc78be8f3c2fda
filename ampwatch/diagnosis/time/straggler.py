"""Kind of the finding that one rank makes the others wait; the daemon makes it."""

from __future__ import annotations

from ampwatch.diagnosis.kinds.kind import Kind, KindFamily, very_likely
from ampwatch.wire.records import Severity

STRAGGLER = Kind(
    slug="straggler",
    number=58,
    family=KindFamily.TIME,
    meaning="one rank makes the others wait",
    severities=(Severity.WARNING,),
    certainty=very_likely(
        "the phases of the same steps were compared: what one rank takes longer the others wait"
    ),
    advice=(
        "Look at that rank alone: for data its shard, its disk and its workers; for compute whether it gets"
        " longer inputs (sort by length, or cut) and whether its GPU is held down (power, heat:"
        " nvidia-smi -q -d PERFORMANCE); without a core what else runs on its host, and to which cores its"
        " process is bound; for a wait locks, checkpoints and network file systems. Move it to another"
        " machine to see whether it goes along."
    ),
)
