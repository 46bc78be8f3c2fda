"""Remedies that are tried on the very batch that failed."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Measure(Enum):
    """Changes that advice names, and that a replay can try.

    ``MODULE_IN_FLOAT32``: one module without autocast, on inputs in float32.
    ``SUMS_IN_FLOAT32``: sums of activations, as the residual stream is one, in float32.
    ``BFLOAT16``: autocast to bfloat16 instead of float16.
    """

    MODULE_IN_FLOAT32 = "module in float32"
    SUMS_IN_FLOAT32 = "residual stream in float32"
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
        remedy: The remedy.
        cures: Whether everything was finite with it, and nothing was swallowed.
        then_op: Base name of the op that failed in spite of it; empty without one.
        then_module: The module that op is in.
    """

    remedy: Remedy
    cures: bool
    then_op: str = ""
    then_module: str = ""
