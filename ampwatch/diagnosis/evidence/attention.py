"""Request of the diagnosis to the sensors for a closer look."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet


class Attention(NamedTuple):
    """Request for the next iteration, beside what the level and the sampling ask for.

    Attributes:
        trace: Follow every op, to find where values become non-finite.
        inputs: Look at the inputs of the model.
        ops: Look at the ops for what rounds away.
        focus: Names of the modules whose outputs to measure. The diagnosis goes on to change this
            very set; keep a copy if it has to stay as it is.
    """

    trace: bool
    inputs: bool
    ops: bool
    focus: AbstractSet[str]
