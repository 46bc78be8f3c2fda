"""Remedies that were tried on the batch that failed, and what is reported about them."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.wire.records.fields import Count
from ampwatch.wire.records.places import in_words

if TYPE_CHECKING:
    from collections.abc import Sequence


class Measure(str, Enum):
    """Changes that advice names, and that a replay can try; a value has 16 characters at most.

    ``MODULE_IN_FLOAT32``: one module without autocast, on inputs in float32.
    ``SUMS_IN_FLOAT32``: sums of activations, as the residual stream is one, in float32.
    ``BFLOAT16``: autocast to bfloat16 instead of float16.
    """

    MODULE_IN_FLOAT32 = "module_float32"
    SUMS_IN_FLOAT32 = "sums_float32"
    BFLOAT16 = "bfloat16"


class Remedy(NamedTuple):
    """A change to try.

    Attributes:
        measure: What is changed.
        module: Name of the module that it is for; empty for the root, and where it is for none.
    """

    measure: Measure
    module: str = ""


class Tried(NamedTuple):
    """A remedy that was tried on the batch that failed.

    Attributes:
        measure: What was changed.
        module: Name of the module that it was for; empty for the root, and where it is for none.
        step: Iteration of the batch.
        cures: Whether everything was finite with it, and nothing was swallowed.
        then_op: Base name of the op that failed in spite of it; empty without one.
        then_module: The module that op is in.
    """

    measure: Measure
    module: str
    step: Count
    cures: bool
    then_op: str = ""
    then_module: str = ""

    @property
    def change(self) -> str:
        """The change in words."""
        return _CHANGES[self.measure].format(module=in_words(self.module))

    @property
    def order(self) -> str:
        """The change as an instruction."""
        return f"{'Use' if self.measure is Measure.BFLOAT16 else 'Run'} {self.change}"

    @property
    def failure(self) -> str:
        """What failed in spite of it, in words."""
        op, place = self.then_op, in_words(self.then_module)
        return f"then {op} in {place} fails" if op else "its output is not finite either"


_CHANGES = {
    Measure.MODULE_IN_FLOAT32: "{module} in float32",
    Measure.SUMS_IN_FLOAT32: "the residual stream in float32",
    Measure.BFLOAT16: "bfloat16 instead of float16",
}


FIND_NONFINITE = (
    " Then find the cause: look at the first non-finite loss or gradient before that step."
)
FIND_OVERFLOW = (
    "Find the op that overflows: a lower scale fixes nothing that does not depend on the scale."
    " Look at the loss first; if it is finite, at the gradients of the optimizer named here before"
    " scaler.unscale_(). "
)
SEARCHES = (FIND_NONFINITE, FIND_OVERFLOW)
"""How to find the cause, which is no advice where it is known."""

ONCE_EXPLAINED = {
    "api_error": "ampwatch did not change the exception.",
    "divergence": "Continue from a checkpoint from before the rise.",
}
"""What is left of the advice for a kind where the cause is known: the rest is for those where it is not."""


def once_explained(kind: str, advice: str) -> str:
    """Return advice to whoever knows the cause."""
    for search in SEARCHES:
        advice = advice.replace(search, "")
    return ONCE_EXPLAINED.get(kind, advice)


def advice_of(tried: Sequence[Tried], kind_advice: str) -> str:
    """Return what to change: first the remedy that cures it, then what else is possible.

    Args:
        tried: The remedies that were tried.
        kind_advice: What is advised for the kind.
    """
    if not tried:
        return kind_advice
    cures = [t for t in tried if t.cures]
    others = _listed([f"{t.change} ({t.failure})" for t in tried if not t.cures])
    if not cures:
        do = "does" if len(tried) == 1 else "do"
        return f"Tried on the batch of step {tried[0].step}: {others} {do} not cure it. {kind_advice}".strip()
    parts = [
        f"{cures[0].order} (tried on the batch of step {cures[0].step}: its forward pass is then finite; gradients may not be)."
    ]
    if cures[1:]:
        parts.append(f"Also finite with {_listed([t.change for t in cures[1:]])}.")
    if others:
        parts.append(f"Not finite with {others}.")
    if kind_advice:
        parts.append(f"Also possible: {kind_advice}")
    return " ".join(parts)


def _listed(items: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))
