"""What is logged of the ops of one iteration, and how it is gone through when its values arrive."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ampwatch.diagnosis.evidence.births import Values
from ampwatch.diagnosis.evidence.lineage import Lineage, OpFacts, SeenOp
from ampwatch.training.model.dtypes import name_of
from ampwatch.training.ops.operands import FLOATS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from ampwatch.diagnosis.evidence.births import OpTrace, Origin
    from ampwatch.training.ops.events import OpPlace
    from ampwatch.training.transfer.extremes import Extremes, Flight


class LoggedOperand(NamedTuple):
    """A tensor that an op has read or written, without the tensor.

    Attributes:
        key: What identifies its storage.
        dtype: Its dtype.
        numel: Number of its elements.
        row: What will be known of its values; ``None`` if they are not measured.
    """

    key: int
    dtype: torch.dtype
    numel: int
    row: Extremes | None

    @property
    def is_float(self) -> bool:
        """Whether it can hold values that are not finite."""
        return self.dtype in FLOATS

    @property
    def dtype_name(self) -> str:
        """Name of its dtype."""
        return name_of(self.dtype)

    def is_finite(self) -> bool:
        """Whether all of its values are finite, as far as they were measured."""
        return self.row is None or self.row.is_finite

    def values(self) -> Values:
        """Return what is known of its values, now that they have arrived."""
        row, dtype = self.row, name_of(self.dtype)
        if row is None:
            return Values(dtype, self.numel)
        low, high = row.low, row.high
        if row.is_finite:
            # Both on one side of zero, the magnitudes lie between theirs.
            least = low if low >= 0.0 else -high if high <= 0.0 else row.least
            return Values(dtype, self.numel, amax=max(-low, high), amin=least)
        nans = math.isnan(low) or math.isnan(high)
        return Values(dtype, self.numel, nans, high == math.inf, low == -math.inf)


class LoggedGradient(NamedTuple):
    """What there was of a gradient: of which parameter, where, and in which shape."""

    name: str
    key: int
    shape: torch.Size


class LoggedOp(NamedTuple):
    """One op of the log; the fields without a word are those of ``OpFacts`` and ``SeenOp``.

    Attributes:
        func: The overload.
        inputs: What it has read.
        outputs: What it has returned, or written if it has returned nothing.
        written: Keys of all that it has written.
        shapes: Of what it has read, if it may be a gradient.
        gradients: The gradients that there were, if it may have read one.
    """

    func: Any
    name: str
    place: OpPlace
    nonfinite: float | None
    is_scaling: bool
    needs_grad: bool
    number: float
    is_hook: bool
    source: str
    inputs: Sequence[LoggedOperand]
    outputs: Sequence[LoggedOperand]
    written: frozenset[int]
    shapes: frozenset[torch.Size]
    gradients: Sequence[LoggedGradient]

    def facts(self) -> OpFacts:
        """Return what a birth tells of the op. While an optimizer steps, nothing is noted."""
        return OpFacts(
            overload=str(self.func),
            needs_grad=self.needs_grad,
            number=self.number,
            is_stepping=False,
            gradient=self._gradient(),
            is_hook=self.is_hook,
            source=self.source,
        )

    def _gradient(self) -> str:
        """Return the parameter whose gradient, or a cast of it, was read."""
        keys = {operand.key for operand in self.inputs}
        read = next((g.name for g in self.gradients if g.key in keys), "")
        return read or next((g.name for g in self.gradients if g.shape in self.shapes), "")


@dataclass(slots=True)
class OpLog:
    """What was noted of one iteration.

    Attributes:
        step: The iteration.
        ops: What ran; of what ran while an optimizer stepped, only the keys that were written.
        num_ops: How many ops were seen.
        gradients: The gradients at the end, with the names of their parameters.
        scale: The loss scale.
        loss: The loss; ``None`` if there was none.
        loss_on_host: The part of the loss that the host knows.
        has_trained: Whether gradients were computed.
        flight: The rows, on their way.
    """

    step: int
    ops: list[LoggedOp | tuple[int, ...]] = field(default_factory=list)
    num_ops: int = 0
    has_trained: bool = False
    gradients: list[tuple[str, LoggedOperand]] = field(default_factory=list)
    scale: Extremes | None = None
    loss: Extremes | None = None
    loss_on_host: float | None = None
    flight: Flight | None = None


def replayed(log: OpLog, owner: Callable[[int], tuple[Origin, str]], *, is_finite: bool) -> OpTrace:
    """Return what reading each value at once would have told.

    Args:
        log: A log whose values have arrived.
        owner: Says whose values lie at a key that no op was seen to write.
        is_finite: Whether all of its values are finite: then there is nothing to go through.
    """
    lineage = Lineage(log.step, owner)
    for op in () if is_finite else log.ops:
        if isinstance(op, LoggedOp):
            _replay(op, lineage)
        else:
            lineage.hide(op)
    trace = lineage.finish(log.gradients, math.nan if log.scale is None else log.scale.high)
    trace.num_ops = log.num_ops
    trace.has_trained = log.has_trained
    if log.loss is not None or log.loss_on_host is not None:
        is_known_bad = not math.isfinite(log.loss_on_host or 0.0)
        trace.loss_nonfinite = is_known_bad or not (log.loss is None or log.loss.is_finite)
    return trace


def _replay(noted: LoggedOp, lineage: Lineage) -> None:
    """Tell of one op as if its values had been read when it ran."""
    bad = {
        index: output.values()
        for index, output in enumerate(noted.outputs)
        if not output.is_finite()
    }
    if not bad and lineage.is_clean:
        return
    op = SeenOp(
        noted.name,
        noted.place.phase,
        noted.place.module,
        noted.place.is_inside,
        noted.nonfinite,
        noted.is_scaling,
        noted.facts,
    )
    if bad:
        lineage.failed(op, noted.outputs, bad, noted.inputs, noted.written)
    else:
        lineage.settle(op, noted.outputs, noted.inputs)
