"""The records of a tape."""

from __future__ import annotations

import math
import struct
from enum import IntEnum

from msgspec import Struct, field

VERSION = 1
"""Version of the layout. A reader takes no other: a difference between two layouts is no difference
between two runs."""

NUM_BUCKETS = 32
"""Sums in a sketch. The norm of a difference is then known to within a relative standard error of
``sqrt(2 / 32) / 2``, an eighth: enough to tell 1e-7 from 1e-4."""

_SKETCH = struct.Struct(f"<{NUM_BUCKETS}d")


class RowKind(IntEnum):
    """What a row is of. The order is that in which they come in a step."""

    WEIGHT = 0  # a parameter before the step
    BUFFER = 1
    INPUT = 2  # what a model was called with, or an op has read that nobody in the step has made
    OP = 3  # what an op has returned
    OUTPUT = 4  # what a module has returned
    OUTPUT_GRADIENT = 5
    GRADIENT = 6  # of a parameter, without the loss scale
    NEW_WEIGHT = 7  # a parameter after the step


class TapeRow(Struct, array_like=True, frozen=True):
    """One tensor of a step."""

    kind: int  # a ``RowKind``
    name: str  # of an op its base name; otherwise the qualified name of the parameter or module
    module: str  # qualified name of the module that it belongs to; of an op that which was running
    phase: int  # of an op, a ``Phase``; else 0
    index: int  # which of several tensors of the same thing, in order of their coming
    dtype: str  # name of its dtype
    shape: list[int]
    norm: float  # L2 norm of its finite elements
    amax: float  # largest finite magnitude
    zeros: int  # elements that are zero
    nans: int  # elements that are NaN
    infs: int  # elements that are infinite
    first: int  # exponent of the first bin in ``counts`` (``numerics/exponents.py``)
    counts: list[int]  # elements by binary exponent
    # ``NUM_BUCKETS`` float64, little-endian: sums of the finite elements with pseudo-random signs.
    # Sketches of a difference are differences of sketches
    sketch: bytes
    scale: float = 1.0  # what the values were divided by: the loss scale; 1 without
    # of an op, numbers of the rows in this step that it has read
    sources: list[int] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)  # of an op, the dtypes that it has read
    # whether it was made of memory that the ranks exchange: what stands there is also of the
    # others, or of the order in which they communicate
    exchanged: bool = False

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nonfinite(self) -> int:
        """Elements that are NaN or infinite."""
        return self.nans + self.infs

    def sums(self) -> tuple[float, ...]:
        """Return the sums of the sketch."""
        return _SKETCH.unpack(self.sketch)


def pack_sums(sums: list[float]) -> bytes:
    """Return ``NUM_BUCKETS`` sums as they stand in a row."""
    return _SKETCH.pack(*sums)


class TapeModule(Struct, array_like=True, frozen=True):
    """A module of the model."""

    name: str  # its qualified name
    type: str  # name of its class
    options: dict[str, str]  # its public attributes that are numbers, flags and words, as text


class TapeHead(Struct, frozen=True, tag="head"):
    """What is recorded once."""

    version: int  # ``VERSION`` of who wrote it
    run: str
    rank: int
    world_size: int
    started_ns: int  # Unix time at which watching began. Unit: ns
    ampwatch: str  # version of ampwatch
    first: int  # steps at the start that are recorded
    every: int  # distance of those recorded after that; 0: none is
    facts: dict[str, str]  # versions, device and flags
    modules: list[TapeModule]  # the modules, in the order of ``named_modules``
    # of each optimizer its class and the numbers of its groups, as text
    optimizers: list[dict[str, str]]
    # names of the parameters of which each rank has a part
    divided: list[str] = field(default_factory=list)


class TapeStep(Struct, frozen=True, tag="step"):
    """One recorded step."""

    step: int  # its index since ``monitor()``
    rows: list[TapeRow]  # its tensors in the order in which they came to be
    autocast: list[str] = field(default_factory=list)  # dtypes of autocast seen so far
    evaluating: list[str] = field(default_factory=list)  # names of the modules in ``eval()``
    # in sentences, what could not be recorded of it
    missing: list[str] = field(default_factory=list)


class TapeOutcome(Struct, frozen=True, tag="outcome"):
    """What became of a recorded step."""

    step: int  # its index
    loss: float  # mean of its losses; NaN if none was seen
    scale: float  # loss scale that they were multiplied by; NaN without
    skipped: bool  # whether a step of an optimizer was skipped


TapeRecord = TapeHead | TapeStep | TapeOutcome
