"""Observations of the numbers that attention turns into shares. No torch."""

from __future__ import annotations

from typing import NamedTuple


class LogitsRead(NamedTuple):
    """The largest attention logit of a module in one iteration.

    Attributes:
        step: Index of the iteration, from 0.
        where: Qualified name of the module.
        op: Base name of the ATen op that made shares of them.
        dtype: Name of the dtype of the logits; of query and key where attention is fused.
        largest: The largest one.
        is_bound: Whether it is not larger than that, computed from the norms of query and key.
        source: ``file:line`` of the user's code; empty if unknown.
        reach: The largest norm of a query times that of a key, up to a factor that stays; 0.0 if unknown.
    """

    step: int
    where: str
    op: str
    dtype: str
    largest: float
    is_bound: bool
    source: str = ""
    reach: float = 0.0
