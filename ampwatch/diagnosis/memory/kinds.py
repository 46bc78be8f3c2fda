"""Kinds of findings about memory."""

from __future__ import annotations

from ampwatch.diagnosis.kinds.kind import Kind, KindFamily, very_likely
from ampwatch.wire.records import Severity

MEMORY_CREEP = Kind(
    slug="memory_creep",
    number=59,
    family=KindFamily.PERFORMANCE,
    meaning="memory grows in each iteration, until there is none left",
    severities=(Severity.WARNING,),
    certainty=very_likely(
        "memory in use was higher in each of six stretches in a row, by about as much, and what is"
        " said to be kept was seen to be there"
    ),
    advice=(
        "Keep numbers instead of tensors that have a graph: losses.append(loss.detach()), total +="
        " loss.detach(), outputs.append(out.detach().cpu()), and item() where a wait for the device"
        " does no harm. Evaluate under torch.no_grad(). Detach what one iteration hands to the next,"
        " such as a hidden state."
    ),
)
