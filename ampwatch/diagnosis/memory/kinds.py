"""Kinds of findings about memory."""

from __future__ import annotations

from ampwatch.diagnosis.kinds.kind import Kind, KindFamily, very_likely
from ampwatch.wire.records import Severity

MEMORY_CREEP = Kind(
    slug="memory_creep",
    number=59,
    family=KindFamily.PERFORMANCE,
    meaning="memory in use grows in each iteration",
    severities=(Severity.WARNING,),
    certainty=very_likely(
        "memory in use grew by about the same amount in each of six spans in a row, and the tensors"
        " named are still held"
    ),
    advice=(
        "Keep numbers instead of tensors that have a graph: losses.append(loss.detach()), total +="
        " loss.detach(), outputs.append(out.detach().cpu()), and item() where a wait for the device"
        " does no harm. Evaluate under torch.no_grad(). Detach what one iteration hands to the next,"
        " such as a hidden state."
    ),
)
