"""Remedies that are worth a try for a failure, and what is said of those that were tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.evidence.remedies import Measure, Remedy
from ampwatch.diagnosis.forward.kinds import (
    FORWARD_NAN_UNDERFLOW,
    FORWARD_OVERFLOW,
    SILENT_OVERFLOW,
)
from ampwatch.diagnosis.places import in_words
from ampwatch.numerics.units.ops import HALF_DTYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.remedies import Tried
    from ampwatch.diagnosis.forward.births import Diagnosed

CURABLE = frozenset({FORWARD_OVERFLOW.slug, SILENT_OVERFLOW.slug, FORWARD_NAN_UNDERFLOW.slug})
"""Kinds whose cause may be the dtype of an op inside of a model."""

TRIED = "Tried on the batch of step"
"""Beginning of advice that was tried."""

_WORDS = {
    Measure.MODULE_IN_FLOAT32: "{module} in float32",
    Measure.SUMS_IN_FLOAT32: "the residual stream in float32",
    Measure.BFLOAT16: "bfloat16 instead of float16",
}


def remedies_for(found: Diagnosed, autocast_dtypes: Sequence[str]) -> list[Remedy]:
    """Return what to try, the smallest change first.

    Args:
        found: The failure.
        autocast_dtypes: Dtypes of autocast in the call that failed.
    """
    birth = found.birth
    # What is computed in float32 already has no wider format to be cured by.
    if found.kind.slug not in CURABLE or birth.out.dtype not in HALF_DTYPES or not autocast_dtypes:
        return []
    remedies = []
    if birth.is_inside:
        remedies.append(Remedy(Measure.MODULE_IN_FLOAT32, birth.module))
        remedies.append(Remedy(Measure.SUMS_IN_FLOAT32))
    if "float16" in autocast_dtypes:
        remedies.append(Remedy(Measure.BFLOAT16))
    return remedies


def words_of(tried: Sequence[Tried], step: int) -> str:
    """Return what came of the remedies, in one sentence or two; empty if none was tried."""
    if not tried:
        return ""
    cures = [_remedy(t.remedy) for t in tried if t.cures]
    others = [f"{_remedy(t.remedy)} ({_then(t)})" for t in tried if not t.cures]
    sentences = []
    if cures:
        verb = "cures it" if len(cures) == 1 else "each cure it"
        sentences.append(f"{_listed(cures)} {verb}")
    if others:
        verb = "does not" if len(others) == 1 else "do not"
        sentences.append(f"{_listed(others)} {verb}{'' if cures else ' cure it'}")
    return f"{TRIED} {step}: {'; '.join(sentences)}."


def _remedy(remedy: Remedy) -> str:
    return _WORDS[remedy.measure].format(module=in_words(remedy.module))


def _then(tried: Tried) -> str:
    if not tried.then_op:
        return "its output is not finite either"
    return f"then {tried.then_op} in {in_words(tried.then_module)} fails"


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
