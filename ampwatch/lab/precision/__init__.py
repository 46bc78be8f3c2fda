"""Precision plans: which product of which layer can be computed in which format."""

from __future__ import annotations

LIMIT_DB = 20.0
"""Limit unless another one is given: FP8 keeps it of what is spread as usual, FP4 does not. Unit: dB."""

MAX_FLUSHED = 0.1
"""Share of an operand that may become zero unless another one is given."""
