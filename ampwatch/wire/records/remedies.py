"""Remedies that were tried on the batch that failed, and what is said of them."""

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
    def failure(self) -> str:
        """What failed in spite of it, in words."""
        op, place = self.then_op, in_words(self.then_module)
        return f"then {op} in {place} fails" if op else "its output is not finite either"


_CHANGES = {
    Measure.MODULE_IN_FLOAT32: "{module} in float32",
    Measure.SUMS_IN_FLOAT32: "the residual stream in float32",
    Measure.BFLOAT16: "bfloat16 instead of float16",
}


def words_of(tried: Sequence[Tried]) -> str:
    """Return what came of the remedies, in one sentence; empty if none was tried."""
    if not tried:
        return ""
    cures = [t.change for t in tried if t.cures]
    others = [f"{t.change} ({t.failure})" for t in tried if not t.cures]
    clauses = []
    if cures:
        clauses.append(f"{_listed(cures)} {'cures' if len(cures) == 1 else 'each cure'} it")
    if others:
        do = "does" if len(others) == 1 else "do"
        clauses.append(f"{_listed(others)} {do} not{'' if cures else ' cure it'}")
    return f"Tried on the batch of step {tried[0].step}: {'; '.join(clauses)}."


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
