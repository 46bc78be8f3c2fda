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
    """One tensor of a step.

    Attributes:
        kind: A ``RowKind``.
        name: Of an op its base name; otherwise the qualified name of the parameter or module.
        module: Qualified name of the module that it belongs to; of an op that which was running.
        phase: Of an op, a ``Phase``; else 0.
        index: Which of several tensors of the same thing, in order of their coming.
        dtype: Name of its dtype.
        shape: Its shape.
        norm: L2 norm of its finite elements.
        amax: Largest finite magnitude.
        zeros: Elements that are zero.
        nans: Elements that are NaN.
        infs: Elements that are infinite.
        first: Exponent of the first bin in ``counts`` (``numerics/exponents.py``).
        counts: Elements by binary exponent.
        sketch: ``NUM_BUCKETS`` float64, little-endian: sums of the finite elements with pseudo-random
            signs. Sketches of a difference are differences of sketches.
        scale: What the values were divided by: the loss scale; 1 without.
        sources: Of an op, numbers of the rows in this step that it has read.
        inputs: Of an op, the dtypes that it has read.
        exchanged: Whether it was made of memory that the ranks exchange: what stands there is also of the
            others, or of the order in which they communicate.
    """

    kind: int
    name: str
    module: str
    phase: int
    index: int
    dtype: str
    shape: list[int]
    norm: float
    amax: float
    zeros: int
    nans: int
    infs: int
    first: int
    counts: list[int]
    sketch: bytes
    scale: float = 1.0
    sources: list[int] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
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
    """A module of the model.

    Attributes:
        name: Its qualified name.
        type: Name of its class.
        options: Its public attributes that are numbers, flags and words, as text.
    """

    name: str
    type: str
    options: dict[str, str]


class TapeHead(Struct, frozen=True, tag="head"):
    """What is recorded once.

    Attributes:
        version: ``VERSION`` of who wrote it.
        run: Name of the run.
        rank: Rank of the process.
        world_size: Number of ranks.
        started_ns: Unix time at which watching began. Unit: ns.
        ampwatch: Version of ampwatch.
        first: Steps at the start that are recorded.
        every: Distance of those recorded after that; 0: none is.
        facts: Versions, device and flags.
        modules: The modules, in the order of ``named_modules``.
        optimizers: Of each optimizer its class and the numbers of its groups, as text.
        divided: Names of the parameters of which each rank has a part.
    """

    version: int
    run: str
    rank: int
    world_size: int
    started_ns: int
    ampwatch: str
    first: int
    every: int
    facts: dict[str, str]
    modules: list[TapeModule]
    optimizers: list[dict[str, str]]
    divided: list[str] = field(default_factory=list)


class TapeStep(Struct, frozen=True, tag="step"):
    """One recorded step.

    Attributes:
        step: Its index since ``monitor()``.
        rows: Its tensors in the order in which they came to be.
        autocast: Dtypes of autocast seen so far.
        evaluating: Names of the modules in ``eval()``.
        missing: In sentences, what could not be recorded of it.
    """

    step: int
    rows: list[TapeRow]
    autocast: list[str] = field(default_factory=list)
    evaluating: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


class TapeOutcome(Struct, frozen=True, tag="outcome"):
    """What became of a recorded step.

    Attributes:
        step: Its index.
        loss: Mean of its losses; NaN if none was seen.
        scale: Loss scale that they were multiplied by; NaN without.
        skipped: Whether a step of an optimizer was skipped.
    """

    step: int
    loss: float
    scale: float
    skipped: bool


TapeRecord = TapeHead | TapeStep | TapeOutcome
